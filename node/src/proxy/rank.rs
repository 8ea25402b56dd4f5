//! A client that says which data-parallel engine of a worker is to answer.
//!
//! vLLM takes the header `X-data-parallel-rank`. Workers that share an address (`url@rank`) get their own rank from the
//! router, so a client's word decides among them: only those of that rank are asked, on every attempt. A worker
//! without a rank has all of its engines behind one address, gets the header as it came, and chooses by itself.

use http::HeaderMap;

use crate::api::ApiError;
use crate::cluster::{Pool, PoolMember};
use crate::http::headers::RANK;

/// The same as clients know it.
const NAME: &str = "X-data-parallel-rank";

/// The rank that these headers ask for, if it is one that decides among the workers of this pool.
/// Errors: 400 for what is no rank, or one that no worker here has.
pub(super) fn asked_for(headers: &HeaderMap, pool: &Pool) -> Result<Option<u32>, ApiError> {
    let mut values = headers.get_all(RANK).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let members = pool.members();
    if members.iter().all(|member| rank_of(member).is_none()) {
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
    match members.iter().any(|member| may_take(member, rank)) {
        true => Ok(Some(rank)),
        false => Err(ApiError::invalid(
            NAME,
            format!("no worker of this model has rank {rank}"),
        )),
    }
}

/// Workers of this pool, by index, that a request for this rank is not for.
pub(super) fn others(pool: &Pool, rank: u32) -> Vec<usize> {
    let members = pool.members().iter().enumerate();
    let others = members.filter(|(_, member)| !may_take(member, rank));
    others.map(|(index, _)| index).collect()
}

fn may_take(member: &PoolMember, rank: u32) -> bool {
    rank_of(member).is_none_or(|own| own == rank)
}

fn rank_of(member: &PoolMember) -> Option<u32> {
    member.worker.address.rank()
}
