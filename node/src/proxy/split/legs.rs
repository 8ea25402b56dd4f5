//! One leg of a divided request: its bytes, and its answer.

use std::sync::Arc;

use grapevine_transfer::Leg;
use http::header;
use tokio::time::{Instant, timeout};

use super::computed::Computed;
use super::pair::PlacedHalf;
use crate::http::headers;
use crate::http::worker_body::WorkerBody;
use crate::proxy::dispatch::Dispatch;
use crate::proxy::stages::asked::Asked;
use crate::proxy::stages::placed::{Sent, Terms};
use crate::upstream::failure::Failure;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::patience::WaitsFor;

/// Longest answer of a prefill worker, in bytes: a prompt of a million tokens has 62,500 blocks of 16, whose numbers
/// take up to 8 bytes each.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What came of a prefill leg.
#[derive(Debug)]
pub(super) enum Prefilled {
    /// The prompt is computed.
    Computed(Computed),
    /// An answer for the client: a 4xx, which any worker would give.
    Shown(Sent),
}

/// What one leg carries: `body` with the leg's own id, where it has one.
pub(super) fn outgoing(asked: &Asked, body: Vec<u8>, leg: &Leg, stream: bool) -> Outgoing {
    let whole = asked.outgoing();
    let mut sent = whole.headers.clone();
    if let Some(id) = &leg.request_id {
        sent.insert(headers::REQUEST_ID, headers::value_of(id));
    }
    if let Some(rank) = leg.rank {
        sent.insert(headers::RANK, rank.into());
    }
    if !stream {
        sent.remove(header::ACCEPT);
    }
    Outgoing {
        method: whole.method.clone(),
        target: whole.target.clone(),
        headers: sent,
        body: WorkerBody::unchanged(body.into()),
        stream,
        upgrade: None,
        repeatable: true,
        keeps_key: whole.keeps_key,
        one_value: true,
    }
}

/// Has a prompt computed. `outgoing`: held until the answer begins, and no longer; `random`: what its transfer ids come
/// from; `is_told`: its decode worker knows of it all along.
/// Errors: see [`Failure`]; the worker has had its verdict then.
pub(super) async fn compute(
    dispatch: &Dispatch,
    first: PlacedHalf,
    outgoing: Outgoing,
    terms: Terms,
    random: u128,
    is_told: bool,
) -> Result<Prefilled, Failure> {
    let PlacedHalf {
        placed,
        half,
        index,
        ..
    } = first;
    let begun = Instant::now();
    let terms = Terms {
        waits_for: WaitsFor::Token,
        ..terms
    };
    let sent = placed
        .send_on(dispatch, &outgoing, terms, Failure::verdict)
        .await?;
    // Its worker has it, and the rest of the answer may take as long as the client's.
    drop(outgoing);
    if !sent.answer.status().is_success() {
        return Ok(Prefilled::Shown(sent));
    }
    let Sent { answer, placed } = sent;
    // Now, so that blocks count also if the answer does not arrive whole or its client leaves meanwhile.
    let in_flight = placed.into_in_flight();
    let mut computed = Computed::begun(in_flight, (half, index), random, &dispatch.left);
    if is_told {
        computed.offer();
    }
    let answered = Instant::now();
    // There is room for another prompt.
    dispatch.admission.worker_has_room();
    let worker = Arc::clone(computed.worker());
    let rest = timeout(
        dispatch.timeouts.look().first_token,
        answer.whole(&worker, ANSWER_BYTES_MAX),
    );
    let failure = match rest.await {
        Ok(Ok((_, bytes))) => {
            computed.worker().engine_dead_since.clear();
            computed.answer = bytes;
            computed.at = Instant::now();
            let took = begun.elapsed().as_secs_f64();
            dispatch.metrics.split.prefill_seconds.observe(took);
            return Ok(Prefilled::Computed(computed));
        }
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Late,
    };
    computed.failed(&failure, answered);
    Err(failure)
}
