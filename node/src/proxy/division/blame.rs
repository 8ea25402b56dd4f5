//! A decode worker did not answer a request whose KV it was to fetch: whose fault is it? Pure.
//!
//! vLLM answers the same 500 whether its own engine is broken, the prefill worker's process is gone, or its side channel
//! is closed (measured: after 36 ms and after 10 s). What tells them apart is which of the two has handed over or taken
//! over any KV since the other one last did.

use grapevine_placement::named;
use http::StatusCode;
use tokio::time::Instant;

use crate::upstream::Worker;
use crate::upstream::failure::Failure;

named! {
    /// Who is to blame for a transfer that failed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in crate::proxy) enum Fault {
        /// The worker that computed the prompt: others get nothing from it either.
        Prefill = "prefill",
        /// The worker that was to answer.
        Decode = "decode",
        /// Either: what is known of both is equally old.
        Unknown = "unknown",
    }
}

/// Whether the failure of a decode leg may be one of the transfer.
pub(in crate::proxy) fn may_be_transfer(failure: &Failure) -> bool {
    match failure {
        Failure::Late => true,
        Failure::Status(..) | Failure::Refused(..) => {
            failure.status() == Some(StatusCode::INTERNAL_SERVER_ERROR)
                && !failure.is_leaving()
                && !failure.is_engine_dead()
        }
        Failure::Connect(_)
        | Failure::Declined(_)
        | Failure::NoSocket(_)
        | Failure::NoSuchRank
        | Failure::NoSuchModel
        | Failure::KeyRefused
        | Failure::Closed(_)
        | Failure::Malformed(_)
        | Failure::WorkerBad
        | Failure::OutOfTime => false,
    }
}

/// Weighs two workers, should a transfer between them fail. `before`: one of them failed this request already with
/// another partner; true if it is the prefill worker.
pub(in crate::proxy) fn of(prefill: &Worker, decode: &Worker, before: Option<bool>) -> Fault {
    if is_gone(prefill) {
        // And what it computed with it.
        return Fault::Prefill;
    }
    let (prefill, decode) = (prefill.transferred.get(), decode.transferred.get());
    weigh(prefill, decode, before)
}

/// Whether the process of a worker is gone.
pub(in crate::proxy) fn is_gone(worker: &Worker) -> bool {
    worker.refuses() || worker.health.look().is_unreachable
}

/// The same by the latest good transfer of each.
fn weigh(prefill: Option<Instant>, decode: Option<Instant>, before: Option<bool>) -> Fault {
    match (prefill, decode) {
        _ if before == Some(true) => Fault::Prefill,
        _ if before == Some(false) => Fault::Decode,
        (prefill, decode) if decode > prefill => Fault::Prefill,
        (prefill, decode) if prefill > decode => Fault::Decode,
        _ => Fault::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::upstream::failure::tests::{DEAD, all, status};

    #[tokio::test(start_paused = true)]
    async fn who_has_transferred_since_is_not_to_blame() {
        let early = Instant::now();
        let late = early + Duration::from_secs(1);
        for (prefill, decode, before, expected) in [
            (None, None, None, Fault::Unknown),
            (Some(early), Some(early), None, Fault::Unknown),
            (None, Some(early), None, Fault::Prefill),
            (Some(early), Some(late), None, Fault::Prefill),
            (Some(early), None, None, Fault::Decode),
            (Some(late), Some(early), None, Fault::Decode),
            // Who fails with two partners is to blame, whatever was before: an engine may have been started again.
            (Some(early), Some(late), Some(false), Fault::Decode),
            (None, None, Some(false), Fault::Decode),
            (Some(late), Some(early), Some(true), Fault::Prefill),
        ] {
            let found = weigh(prefill, decode, before);
            assert_eq!(found, expected, "{prefill:?} {decode:?} {before:?}");
        }
    }

    #[test]
    fn only_an_unexplained_500_or_silence_may_be_the_transfer() {
        assert!(may_be_transfer(&status(500, "{\"error\": {}}")));
        assert!(may_be_transfer(&Failure::Late));
        assert!(!may_be_transfer(&status(503, "full")));
        assert!(!may_be_transfer(&status(502, "")));
        for dead in DEAD {
            assert!(!may_be_transfer(&status(500, dead)), "{dead}");
        }
        let certain = all()
            .into_iter()
            .filter(|failure| !may_be_transfer(failure));
        assert!(certain.count() >= 5);
    }
}
