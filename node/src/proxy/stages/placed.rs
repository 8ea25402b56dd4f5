//! A request that counts on a worker, and what that worker answered.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::{AttemptOutcome, Decision};
use tokio::time::{Instant, sleep};

use crate::cluster::Pool;
use crate::proxy::dispatch::Dispatch;
use crate::proxy::doubts::Reporter;
use crate::proxy::retry;
use crate::upstream::answer::{Answer, Begun};
use crate::upstream::attempt::{self, AttemptLimits};
use crate::upstream::failure::{ANSWERED, Failure};
use crate::upstream::outgoing::Outgoing;
use crate::upstream::patience::{Patience, WaitsFor};
use crate::upstream::{InFlight, Worker};

/// Before each further try of a connection for which files were missing: those of connections at rest are free at once, those
/// of clients that read behind their goodbye, those of clients that do not half a second later, or a little more.
const RELIEVED: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(900),
];

/// A request that counts on a worker, before anything is sent there. On the heap: every step of an attempt has room for
/// what it takes.
#[derive(Debug)]
pub(in crate::proxy) struct Placed {
    pub(super) in_flight: InFlight,
    pub(super) decision: Decision,
    pub(super) pool: Arc<Pool>,
    pub(super) others: Others,
}

/// Which other workers could take a request that one has.
#[derive(Debug)]
pub(super) enum Others {
    /// This worker alone has what it is about.
    Nobody,
    /// The same, and nothing is computed for it, so that nothing is lost where it no longer waits for a worker that says
    /// nothing to anybody.
    NeedNot,
    /// All of the pool but these: they were tried before, or are not what the client asks for.
    But(Vec<usize>),
}

impl Others {
    /// Whether another worker than the one that was chosen would take the request, or none has to: else it is better off
    /// where it is.
    fn is_there(&self, pool: &Pool, chosen: usize, worker: &Worker, dispatch: &Dispatch) -> bool {
        let passed_over = match self {
            Self::Nobody => return false,
            Self::NeedNot => return worker.health.look().is_unreachable,
            Self::But(passed_over) => passed_over,
        };
        let passed_over = [passed_over.as_slice(), &[chosen]].concat();
        // One may have come since.
        let now = dispatch.cluster.fleet().pool_named(pool.name());
        match now.filter(|now| now.role() == pool.role()) {
            Some(now) => {
                let passed_over = pool.indices_in(&now, &passed_over);
                dispatch.cluster.has_another(&now, &passed_over)
            }
            None => dispatch.cluster.has_another(pool, &passed_over),
        }
    }
}

/// What an attempt has to keep to.
#[derive(Debug, Clone, Copy)]
pub(in crate::proxy) struct Terms {
    /// What shows that the worker is at it.
    pub(in crate::proxy) waits_for: WaitsFor,
    /// What it waits for comes from this worker alone.
    pub(in crate::proxy) waits_alone: bool,
    /// The end of the whole request.
    pub(in crate::proxy) deadline: Option<Instant>,
    /// How many there were.
    pub(in crate::proxy) attempt: retry::Attempt,
}

/// What a failure says about its worker, at once.
struct Verdicts<V>(V);

impl<V: Fn(&Failure) -> AttemptOutcome> Reporter for Verdicts<V> {
    fn failed(
        &mut self,
        _: &Arc<Pool>,
        mut in_flight: InFlight,
        failure: &Failure,
        since: Instant,
    ) {
        in_flight.fail(failure, self.0(failure), since);
    }
}

/// A request that a worker has answered in a way that may be shown.
#[derive(Debug)]
pub(in crate::proxy) struct Sent {
    pub(in crate::proxy) answer: Answer,
    pub(in crate::proxy) placed: Box<Placed>,
}

impl Placed {
    /// The worker.
    pub(in crate::proxy) fn worker(&self) -> &Arc<Worker> {
        self.in_flight.worker()
    }

    /// Its place in the pool.
    pub(in crate::proxy) fn index(&self) -> usize {
        self.decision.worker
    }

    /// What counts on the worker.
    pub(in crate::proxy) fn into_in_flight(self) -> InFlight {
        self.in_flight
    }

    /// It was known to refuse connections when it was chosen.
    pub(in crate::proxy) fn is_last_resort(&self) -> bool {
        self.decision.unreachable
    }

    /// After this it is taken for computed, where nothing else tells.
    pub(in crate::proxy) fn likely_computed(&self) -> Duration {
        self.decision.likely_computed()
    }

    /// Why it was chosen.
    pub(in crate::proxy) fn reason(&self) -> &'static str {
        self.decision.reason.as_str()
    }

    /// Connects, sends, and waits until the answer is known to be one.
    /// Errors: see [`Failure`].
    pub(in crate::proxy) async fn send(
        self: Box<Self>,
        dispatch: &Dispatch,
        outgoing: &Outgoing,
        deadline: Option<Instant>,
        attempt: retry::Attempt,
        reporter: &mut impl Reporter,
    ) -> Result<Sent, Failure> {
        let waits_for = match outgoing.stream {
            true => WaitsFor::Token,
            false => WaitsFor::Answer,
        };
        let terms = Terms {
            waits_alone: true,
            waits_for,
            deadline,
            attempt,
        };
        self.send_reporting(dispatch, outgoing, terms, reporter)
            .await
    }

    /// The same on other terms; `verdict`: what a failure says about the worker.
    /// Errors: see [`Failure`].
    pub(in crate::proxy) async fn send_on(
        self: Box<Self>,
        dispatch: &Dispatch,
        outgoing: &Outgoing,
        terms: Terms,
        verdict: impl Fn(&Failure) -> AttemptOutcome,
    ) -> Result<Sent, Failure> {
        let mut reporter = Verdicts(verdict);
        self.send_reporting(dispatch, outgoing, terms, &mut reporter)
            .await
    }

    async fn send_reporting(
        mut self: Box<Self>,
        dispatch: &Dispatch,
        outgoing: &Outgoing,
        terms: Terms,
        reporter: &mut impl Reporter,
    ) -> Result<Sent, Failure> {
        let timeouts = dispatch.timeouts.now();
        let limits = AttemptLimits {
            connect: timeouts.connect,
            patience: Patience {
                begun: Instant::now(),
                waits_for: terms.waits_for,
                silence: self.longest_silence(dispatch),
                deadline: terms.deadline,
                worker_gone: timeouts.worker_gone,
            },
            held_bytes: dispatch.event_bytes(),
        };
        if terms.waits_alone {
            self.in_flight.waits(limits.patience.silence);
        }
        let worker = Arc::clone(self.in_flight.worker());
        let may_move =
            retry::may_follow(&dispatch.retry.look(), terms.attempt) && outgoing.repeatable;
        let (others, pool, chosen) = (&self.others, &self.pool, self.decision.worker);
        let has_another = || may_move && others.is_there(pool, chosen, &worker, dispatch);
        let computed_by = match terms.waits_for {
            WaitsFor::Token => None,
            WaitsFor::Answer => {
                let likely = self.likely_computed();
                limits.patience.begun.checked_add(likely)
            }
        };
        let in_flight = &mut self.in_flight;
        let mut looks = |now| {
            if computed_by.is_some_and(|at| at <= now) {
                in_flight.is_computed();
            }
            let computes = computed_by.filter(|at| *at > now);
            computes.into_iter().chain(reporter.looks(now)).min()
        };
        let counted = dispatch.metrics.attempts.begin(&worker);
        let attempted = attempt::attempt(&worker, outgoing, &limits, has_another, &mut looks);
        let mut result = attempted.await;
        if let Err(Failure::NoSocket(why)) = &result {
            let pauses: &[_] = if dispatch.relieve(why) {
                &RELIEVED
            } else {
                &[]
            };
            for pause in pauses {
                // On the heap: no other request must have their room.
                Box::pin(sleep(*pause)).await;
                let again = attempt::attempt(&worker, outgoing, &limits, has_another, &mut looks);
                result = Box::pin(again).await;
                if !matches!(result, Err(Failure::NoSocket(_))) {
                    break;
                }
            }
        }
        counted.ended(result.as_ref().map_or_else(Failure::as_str, |_| ANSWERED));
        match result {
            Ok(answer) => Ok(Sent {
                answer,
                placed: self,
            }),
            Err(failure) => {
                if let Failure::NoSocket(why) = &failure {
                    dispatch.without_socket(&worker, why);
                }
                let since = Instant::now() - limits.patience.silence;
                // Its place there is free now, and its request may go on for long elsewhere.
                let Self {
                    in_flight, pool, ..
                } = *self;
                reporter.failed(&pool, in_flight, &failure, since);
                if let Some(pause) = failure.pause() {
                    let pause = pause.min(dispatch.retry.look().worker_pause_max);
                    worker.glance.paused_until.extend(Instant::now() + pause);
                }
                dispatch.admission.worker_has_room();
                Err(failure)
            }
        }
    }

    /// A long prompt takes longer to compute.
    fn longest_silence(&self, dispatch: &Dispatch) -> Duration {
        let timeouts = dispatch.timeouts.look();
        let per_token = timeouts.first_token_per_1k.as_secs_f64() / 1000.0;
        let tokens = f64::from(self.decision.prompt_tokens);
        let for_prompt = Duration::from_secs_f64(per_token * tokens);
        timeouts.first_token + for_prompt
    }
}

impl Sent {
    /// The beginning of a good stream, and the request's weight on its worker; none for any other answer.
    pub(in crate::proxy) fn into_stream(self) -> Option<(Box<Begun>, InFlight)> {
        let mut in_flight = self.placed.into_in_flight();
        match self.answer {
            Answer::Begun(begun) if begun.is_good_stream() => {
                in_flight.prefilled();
                in_flight.delivered();
                Some((begun, in_flight))
            }
            Answer::Begun(_) | Answer::Whole(..) | Answer::Switched(..) => None,
        }
    }
}
