//! How long a request waits on a worker that has shown it nothing. Pure: what is known of the worker is an argument.
//!
//! A stream waits for its first token, and that has a limit. The first byte of a plain answer is its last: it comes
//! when all of it is computed, after minutes, and so do the answers of embeddings, scores and transcriptions. Such a
//! request is neither left nor repeated while its worker shows life: tokens for any request, counters of its engine
//! that move, an answer to a question of the router's own. Only when nothing of that has come for the whole limit it is
//! left, so a worker that freezes is left within the limit after its last sign.
//!
//! | ends the wait | with |
//! |---|---|
//! | the whole request's time | [`Failure::OutOfTime`] |
//! | a verdict against the worker since the request was sent, if another worker would take it | [`Failure::WorkerBad`] |
//! | no first token, or no sign of life, for the limit | [`Failure::Late`] |
//! | silence since the worker's port closed | [`Failure::Closed`] |

use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;

/// Parts of its limit after which a request in silence wants to know whether its worker lives, and again.
pub(super) const LOOKS: u32 = 4;

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// The first token.
    Token,
    /// An answer that comes when all of it is there.
    Answer,
}

/// Limits of a wait.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// When the request was sent.
    pub begun: Instant,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Longest wait for a token; longest time without a sign of life.
    pub silence: Duration,
    /// End of the whole request.
    pub deadline: Option<Instant>,
    /// Longest silence of a worker that refuses new connections.
    pub worker_gone: Duration,
}

/// What is known at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// The latest byte of its own answer.
    pub heard: Option<Instant>,
    /// The latest sign of life of the worker's engine.
    pub sign: Option<Instant>,
    /// Since when the worker refuses connections.
    pub refuses_since: Option<Instant>,
    /// Since when the worker is known to be bad, and shows no life, if another worker would take the request.
    pub bad_since: Option<Instant>,
}

/// What to do if nothing comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// When to look again.
    pub at: Instant,
    /// A sign of life of the worker is wanted.
    pub wants_sign: bool,
}

impl Patience {
    /// Between two looks for a sign of life.
    pub fn look_every(&self) -> Duration {
        self.silence / LOOKS
    }

    /// Looks at all limits.
    /// Errors: one is reached.
    pub fn look(&self, now: Instant, known: Known) -> Result<Next, Failure> {
        let is_over = |at: &Instant| *at <= now;
        if self.deadline.as_ref().is_some_and(is_over) {
            return Err(Failure::OutOfTime);
        }
        let heard = known.heard.map_or(self.begun, |at| at.max(self.begun));
        if known.bad_since.is_some_and(|at| at > heard) {
            return Err(Failure::WorkerBad);
        }
        let last = known.sign.map_or(heard, |at| at.max(heard));
        let alive = match self.waits_for {
            WaitsFor::Token => self.begun,
            WaitsFor::Answer => last,
        };
        let late = alive + self.silence;
        if is_over(&late) {
            return Err(Failure::Late);
        }
        let gone = known
            .refuses_since
            .map(|at| at.max(last) + self.worker_gone);
        if gone.as_ref().is_some_and(is_over) {
            return Err(Failure::Closed("it refuses connections".into()));
        }
        let look = alive + self.look_every();
        let wants_sign = is_over(&look);
        let look = if wants_sign {
            now + self.look_every()
        } else {
            look
        };
        let limits = [Some(late), self.deadline, gone, Some(look)];
        let first = limits.into_iter().flatten().min();
        let latest = now + self.worker_gone;
        Ok(Next {
            at: first.map_or(latest, |at| at.min(latest)),
            wants_sign,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(60);

    fn patience(waits_for: WaitsFor) -> Patience {
        Patience {
            begun: Instant::now(),
            waits_for,
            silence: LIMIT,
            deadline: None,
            worker_gone: SECOND * 5,
        }
    }

    /// When and how a wait ends within a day, looked at whenever it asks for that. `signs`: the latest sign of life at
    /// a moment, if a request looks for one then.
    fn waits(
        patience: Patience,
        signs: impl Fn(Duration) -> Option<Duration>,
    ) -> Option<(Duration, &'static str)> {
        let mut known = Known::default();
        let mut now = patience.begun;
        while now < patience.begun + SECOND * 86_400 {
            match patience.look(now, known) {
                Err(failure) => return Some((now - patience.begun, failure.as_str())),
                Ok(next) => {
                    if next.wants_sign {
                        let sign = signs(now - patience.begun);
                        known.sign = known.sign.max(sign.map(|at| patience.begun + at));
                    }
                    assert!(next.at > now, "it looks on");
                    now = next.at;
                }
            }
        }
        None
    }

    #[test]
    fn a_plain_answer_is_waited_for_as_long_as_its_worker_shows_life() {
        let plain = patience(WaitsFor::Answer);
        // What is learned of counters is as old as the reading before.
        let lives = |now: Duration| Some(now.saturating_sub(SECOND * 15));
        assert_eq!(waits(plain, lives), None, "a day is not too long");
        assert_eq!(waits(plain, |_| None), Some((LIMIT, "first_token_timeout")));
        for froze in [SECOND, LIMIT / 2, LIMIT, LIMIT * 100 + SECOND] {
            let signs = |now: Duration| Some(now.min(froze));
            let (left, how) = waits(plain, signs).expect("it is left");
            assert_eq!(how, "first_token_timeout");
            assert!(
                left <= froze + LIMIT && left >= LIMIT,
                "{froze:?}: {left:?}"
            );
        }
    }

    #[test]
    fn a_stream_waits_for_its_own_token() {
        let stream = patience(WaitsFor::Token);
        let late = Some((LIMIT, "first_token_timeout"));
        assert_eq!(waits(stream, |_| None), late);
        assert_eq!(
            waits(stream, Some),
            late,
            "tokens of others are not its own"
        );
    }

    #[test]
    fn the_whole_requests_time_ends_every_wait() {
        for waits_for in [WaitsFor::Token, WaitsFor::Answer] {
            let mut patience = patience(waits_for);
            patience.deadline = Some(patience.begun + SECOND * 7);
            assert_eq!(waits(patience, Some), Some((SECOND * 7, "out_of_time")));
        }
    }

    #[test]
    fn a_verdict_frees_what_was_sent_before_it() {
        for waits_for in [WaitsFor::Token, WaitsFor::Answer] {
            let patience = patience(waits_for);
            let at = |seconds: u32| patience.begun + SECOND * seconds;
            let look = |known| {
                patience
                    .look(at(8), known)
                    .map_err(|failure| failure.as_str())
            };
            let bad = |since| Known {
                bad_since: Some(since),
                ..Known::default()
            };
            assert_eq!(look(bad(at(7))), Err("worker_bad"));
            // Sent there all the same, because more than half are as bad: it stays.
            assert!(look(bad(patience.begun - SECOND)).is_ok());
            let heard = Some(at(7));
            assert!(
                look(Known {
                    heard,
                    ..bad(at(6))
                })
                .is_ok(),
                "its answer comes"
            );
        }
    }

    #[test]
    fn a_closed_port_ends_a_silence_soon() {
        const ENDS: u32 = 11;
        for waits_for in [WaitsFor::Token, WaitsFor::Answer] {
            let patience = patience(waits_for);
            let at = |seconds: u32| patience.begun + SECOND * seconds;
            // Another request got a token there after its port had closed: it ends what it has begun.
            let known = Known {
                refuses_since: Some(at(2)),
                sign: Some(at(6)),
                ..Known::default()
            };
            let next = patience.look(at(6), known).expect("not yet");
            assert_eq!(next.at, at(ENDS), "{waits_for:?}");
            let ended = patience.look(at(ENDS), known).expect_err("now");
            assert_eq!(ended.as_str(), "closed");
        }
    }
}
