//! What the failed transfers of one request show together.
//!
//! A single one shows little: the prefill worker may have failed, the decode worker, or the request may be one that no decode
//! worker can answer. Where the next attempt goes is a guess ([`blame`](crate::proxy::division::blame)), which costs a worker
//! that is well this one request. That a prefill worker is broken is told to all replicas, so it takes a proof: the decode
//! worker that did not get the prompt from it has answered the same request with the prompt of another one. What differs then
//! is the prefill worker alone.

use std::sync::Arc;

use tokio::time::Instant;

use super::pair::UnderWay;
use crate::proxy::division::blame::Fault;
use crate::upstream::Worker;

/// The pairs between which a transfer of the request failed; at most one for each attempt.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    failed: Vec<Failed>,
}

/// A pair between which a transfer failed.
#[derive(Debug)]
struct Failed {
    prefill: Arc<Worker>,
    decode: Arc<Worker>,
    /// Whose fault it seems to be.
    laid_on: Fault,
    /// Its worker failed with another partner, too, or is gone. So it says nothing of the one that it failed with.
    is_explained: bool,
    /// The decode worker answered, if with an error: one that takes its time may merely have others to serve.
    is_answer: bool,
    begun: Instant,
}

impl Evidence {
    /// Whether one of the two failed with another partner before, which nothing else explains; true if it is the prefill
    /// worker. Where both did, neither says anything.
    pub(super) fn before(&self, prefill: &Arc<Worker>, decode: &Arc<Worker>) -> Option<bool> {
        let (mut of_prefill, mut of_decode) = (false, false);
        for failed in self.failed.iter().filter(|failed| !failed.is_explained) {
            let is_prefill = Arc::ptr_eq(&failed.prefill, prefill);
            let is_decode = Arc::ptr_eq(&failed.decode, decode);
            of_prefill |= is_prefill && !is_decode;
            of_decode |= is_decode && !is_prefill;
        }
        (of_prefill != of_decode).then_some(of_prefill)
    }

    /// A transfer between these failed by this fault; `is_gone`: the prefill worker's process is; `is_answer`: the decode
    /// worker said so. The prefill and decode workers of all pairs of which something else is known now.
    pub(super) fn adds(
        &mut self,
        pair: &UnderWay,
        fault: Fault,
        is_gone: bool,
        is_answer: bool,
    ) -> Vec<[Arc<Worker>; 2]> {
        let failed = Failed {
            prefill: Arc::clone(&pair.prefill.0),
            decode: Arc::clone(&pair.decode.0),
            laid_on: fault,
            is_explained: false,
            is_answer,
            begun: pair.begun,
        };
        let is_explained = is_gone || pair.before.is_some();
        self.failed.push(failed);
        let is_new = self.failed.len() - 1;
        let mut anew = Vec::new();
        for (at, failed) in self.failed.iter_mut().enumerate() {
            let is_of_it = match fault {
                Fault::Decode => Arc::ptr_eq(&failed.decode, &pair.decode.0),
                Fault::Prefill | Fault::Unknown => Arc::ptr_eq(&failed.prefill, &pair.prefill.0),
            };
            if is_explained && is_of_it && !failed.is_explained {
                failed.laid_on = fault;
                failed.is_explained = true;
            } else if at != is_new {
                continue;
            }
            anew.push([&failed.prefill, &failed.decode].map(Arc::clone));
        }
        anew
    }

    /// Whether a failure is laid on this worker, by what is known now.
    pub(super) fn speaks_against(&self, worker: &Arc<Worker>) -> bool {
        self.failed.iter().any(|failed| match failed.laid_on {
            Fault::Decode => Arc::ptr_eq(&failed.decode, worker),
            Fault::Prefill | Fault::Unknown => Arc::ptr_eq(&failed.prefill, worker),
        })
    }

    /// The decode worker that shows whose fault the last failure was, once it has the same prompt from another prefill worker.
    pub(super) fn tells(&self) -> Option<&Arc<Worker>> {
        let last = self.failed.last();
        let last = last.filter(|failed| failed.laid_on != Fault::Decode && failed.is_answer);
        last.map(|failed| &failed.decode)
    }

    /// The prefill workers that are proved to be broken, once the decode worker of this pair has answered. None that has
    /// handed over a prompt since: the decode worker failed by itself, and may do so often.
    pub(super) fn proves(&self, answered: &UnderWay) -> impl Iterator<Item = &Arc<Worker>> {
        let (prefill, decode) = (&answered.prefill.0, &answered.decode.0);
        let of_it = self.failed.iter();
        let of_it = of_it.filter(move |failed| Arc::ptr_eq(&failed.decode, decode));
        let of_it = of_it.filter(|failed| {
            let since = failed.prefill.transferred.get();
            failed.is_answer && since.is_none_or(|at| at <= failed.begun)
        });
        let workers = of_it.map(|failed| &failed.prefill);
        workers.filter(move |worker| !Arc::ptr_eq(worker, prefill))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::alone::{Alone, worker};
    use crate::config::KvEventsConfig;

    const MODEL: &str = "m";

    /// Two workers of each half.
    struct Workers {
        _house: Alone,
        all: Vec<Arc<Worker>>,
    }

    impl Workers {
        fn new() -> Self {
            let workers = (0..4).map(|number| worker(number, MODEL));
            let house = Alone::new("r1", workers, &KvEventsConfig::default(), 4);
            let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
            let members = pool.members().iter();
            let all = members.map(|member| Arc::clone(&member.worker)).collect();
            Self { _house: house, all }
        }

        /// The attempt with these two.
        fn pair(&self, evidence: &Evidence, prefill: usize, decode: usize) -> UnderWay {
            let [prefill, decode] = [prefill, 2 + decode].map(|at| Arc::clone(&self.all[at]));
            UnderWay {
                before: evidence.before(&prefill, &decode),
                prefill: (prefill, 0),
                decode: (decode, 0),
                begun: Instant::now(),
                by_store: false,
            }
        }

        /// That attempt fails. Whose fault it was, where nothing tells before: unknown.
        fn fails(&self, evidence: &mut Evidence, prefill: usize, decode: usize) -> Fault {
            let pair = self.pair(evidence, prefill, decode);
            let fault = pair.fault();
            evidence.adds(&pair, fault, false, true);
            fault
        }

        /// The workers that failures are laid on: prefill workers, then decode workers.
        fn blamed(&self, evidence: &Evidence) -> [bool; 4] {
            std::array::from_fn(|at| evidence.speaks_against(&self.all[at]))
        }

        fn proved(&self, evidence: &Evidence, prefill: usize, decode: usize) -> usize {
            evidence
                .proves(&self.pair(evidence, prefill, decode))
                .count()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_answers_proves_nothing_of_prefill_workers() {
        let (workers, mut evidence) = (Workers::new(), Evidence::default());
        let mut fails = |prefill, decode| {
            let fault = workers.fails(&mut evidence, prefill, decode);
            let kept = evidence.tells().is_some();
            (fault, kept, workers.blamed(&evidence))
        };
        let nobody_knows = (Fault::Unknown, true, [true, false, false, false]);
        assert_eq!(fails(0, 0), nobody_knows);
        let first_decode = (Fault::Decode, false, [false, false, true, false]);
        assert_eq!(fails(1, 0), first_decode, "with both prefill workers");
        // What the first decode worker explains says nothing of this prefill worker.
        let nobody_knows = (Fault::Unknown, true, [true, false, true, false]);
        assert_eq!(fails(0, 1), nobody_knows);
        let both = (Fault::Decode, false, [false, false, true, true]);
        assert_eq!(fails(1, 1), both);
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_decode_worker_with_another_prefill_worker_is_the_proof() {
        let (workers, mut evidence) = (Workers::new(), Evidence::default());
        workers.fails(&mut evidence, 0, 0);
        assert_eq!(workers.proved(&evidence, 0, 0), 0, "it did the next time");
        assert_eq!(
            workers.proved(&evidence, 0, 1),
            0,
            "it was the decode worker"
        );
        assert_eq!(workers.proved(&evidence, 1, 1), 0, "both are others");
        let proved: Vec<_> = evidence
            .proves(&workers.pair(&evidence, 1, 0))
            .map(|worker| &worker.id)
            .collect();
        assert_eq!(proved, [&workers.all[0].id]);
    }

    /// Of a decode worker that fails some requests by itself, or that is late, no prefill worker is to suffer.
    #[tokio::test(start_paused = true)]
    async fn who_has_handed_over_since_and_who_was_waited_for_is_not_proved() {
        let (workers, mut evidence) = (Workers::new(), Evidence::default());
        workers.fails(&mut evidence, 0, 0);
        assert_eq!(workers.proved(&evidence, 1, 0), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        workers.all[0].has_transferred(Instant::now());
        assert_eq!(workers.proved(&evidence, 1, 0), 0, "to somebody else");
        let mut evidence = Evidence::default();
        let pair = workers.pair(&evidence, 0, 0);
        evidence.adds(&pair, Fault::Prefill, false, false);
        assert!(evidence.tells().is_none(), "it goes where there is room");
        assert_eq!(workers.proved(&evidence, 1, 0), 0);
    }

    /// A decode worker that was blamed by a guess is free again once its prefill worker failed with another one, too.
    #[tokio::test(start_paused = true)]
    async fn a_prefill_worker_that_fails_with_two_explains_both_failures() {
        let (workers, mut evidence) = (Workers::new(), Evidence::default());
        workers.all[0].has_transferred(Instant::now());
        assert_eq!(workers.fails(&mut evidence, 0, 0), Fault::Decode);
        assert_eq!(workers.blamed(&evidence), [false, false, true, false]);
        let pair = workers.pair(&evidence, 0, 1);
        assert_eq!(pair.fault(), Fault::Prefill);
        assert_eq!(evidence.adds(&pair, Fault::Prefill, false, true).len(), 2);
        assert_eq!(workers.blamed(&evidence), [true, false, false, false]);
        // So the second decode worker's failure with it is no second partner of that one.
        assert_eq!(workers.pair(&evidence, 1, 1).before, None);
    }

    #[tokio::test(start_paused = true)]
    async fn where_both_failed_before_neither_tells() {
        let (workers, mut evidence) = (Workers::new(), Evidence::default());
        workers.fails(&mut evidence, 0, 0);
        workers.fails(&mut evidence, 1, 1);
        assert_eq!(workers.pair(&evidence, 0, 1).before, None);
        assert_eq!(workers.pair(&evidence, 0, 0).before, None, "the same pair");
    }
}
