//! A client that says which data-parallel engine of a worker is to answer.
//!
//! vLLM takes the header `X-data-parallel-rank`. Workers that share an address (`url@rank`) get their own rank from the
//! router, so a client's word decides among them: only those of that rank are asked, on every attempt. A worker
//! without a rank has all of its engines behind one address, gets the header as it came, and chooses by itself.

use http::{HeaderMap, HeaderName};

use crate::api::ApiError;
use crate::cluster::{Pool, Slot};

/// The header, as vLLM reads it.
pub(super) const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// The same as clients know it.
const NAME: &str = "X-data-parallel-rank";

/// The rank that these headers ask for, if it is one that decides among the workers of this pool.
///
/// # Errors
/// 400 for what is no rank, or not one that anybody here has.
pub(super) fn asked_for(headers: &HeaderMap, pool: &Pool) -> Result<Option<u32>, ApiError> {
    let mut values = headers.get_all(RANK).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let slots = pool.slots();
    if slots.iter().all(|slot| rank_of(slot).is_none()) {
        return Ok(None);
    }
    let rank = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let (Some(rank), None) = (rank, values.next()) else {
        return Err(ApiError::invalid(
            NAME,
            "expected one whole number, 0 or more",
        ));
    };
    match slots.iter().any(|slot| may_take(slot, rank)) {
        true => Ok(Some(rank)),
        false => Err(ApiError::invalid(
            NAME,
            format!("no worker of this model has rank {rank}"),
        )),
    }
}

/// Workers of this pool, by index, that a request for this rank is not for.
pub(super) fn others(pool: &Pool, rank: u32) -> Vec<usize> {
    let slots = pool.slots().iter().enumerate();
    let others = slots.filter(|(_, slot)| !may_take(slot, rank));
    others.map(|(index, _)| index).collect()
}

fn may_take(slot: &Slot, rank: u32) -> bool {
    rank_of(slot).is_none_or(|own| own == rank)
}

fn rank_of(slot: &Slot) -> Option<u32> {
    slot.worker.address.rank()
}
