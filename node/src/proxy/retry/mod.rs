//! May a failed attempt be followed by another? One place decides, before a byte has reached the client.
//!
//! A connection that was refused costs neither an attempt nor budget: nothing was sent, and the worker is known to be
//! gone from then on. One that was reset costs an attempt. Each worker is tried once. One behind a verdict
//! against a worker without a sign of life costs no budget: what moves is work that no worker does, and without budget
//! it would wait for nothing. There is an end to that: a verdict is one for all that wait there, and with more than
//! half of the workers bad no verdict is believed. Everything else has to fit the [`Budget`].

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::NoWorker;
use rand::Rng;
use tokio::time::{Instant, sleep};

use super::budget::{Budget, Loan};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::config::RetryConfig;
use crate::upstream::failure::Failure;

/// The way of one request to a worker, as far as retries know it. It knows which workers were tried.
pub(super) trait AttemptPlan {
    /// A request that counts on a worker.
    type Placed;
    /// An answer that the client will see.
    type Answer;

    /// Chooses a worker that was not tried; may wait for one, as a request does that was just let in.
    /// Errors: no worker may take it, or it waited too long.
    async fn place_first(&mut self) -> Result<Self::Placed, Exhausted>;

    /// Chooses a worker that was not tried, of those that have room now.
    /// Errors: no worker is left that may take it, nobody serves its model any more, or none is to get it.
    fn place(&mut self) -> Result<Self::Placed, Exhausted>;

    /// The worker was known to refuse connections when it was chosen.
    fn is_last_resort(placed: &Self::Placed) -> bool;

    /// Tries that worker.
    /// Errors: see [`Failure`]; nothing has reached the client then.
    async fn send(
        &mut self,
        placed: Self::Placed,
        attempt: Attempt,
    ) -> Result<Self::Answer, Failure>;

    /// Whether so many workers ended while they had the request that no other is to get it.
    async fn is_condemned(&mut self) -> bool;
}

/// Which attempt of a request it is. Both count from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// Of all that were begun.
    pub(super) number: u32,
    /// Of those that count: connections that were refused do not.
    pub(super) counted: u32,
}

/// What a request's retries have to keep to.
#[derive(Debug)]
pub(super) struct RetryPolicy<'a> {
    pub(super) config: &'a RetryConfig,
    pub(super) budget: &'a Arc<Budget>,
    /// May a worker see the request twice? A completion costs compute and no more; an unknown path may
    /// store something.
    pub(super) repeatable: bool,
    /// May a second worker see it where the first one has refused it?
    pub(super) repeatable_if_refused: bool,
    /// End of the whole request.
    pub(super) deadline: Option<Instant>,
}

/// All attempts are over, and there is no answer.
#[derive(Debug)]
pub(super) enum Exhausted {
    /// No worker could be asked.
    Unplaced(NoWorker),
    /// It waited for a worker with room and was turned away, or its model is served no more.
    TurnedAway(ApiError),
    /// How the last attempt failed.
    Failed(Failure),
    /// Workers ended while they had it: no other gets it.
    Condemned,
    /// Workers ended while they had one like it: none gets it for this long.
    Quarantined(Duration),
}

/// Tries one worker after another until one answers.
/// Errors: why the last one did not.
pub(super) async fn run<C: AttemptPlan>(
    plan: &mut C,
    policy: &RetryPolicy<'_>,
) -> Result<C::Answer, Exhausted> {
    let (mut sent, mut attempts) = (0, 0);
    let mut loan: Option<Loan> = None;
    let mut placed = plan.place_first().await?;
    loop {
        // That a worker refuses again which did so before is no news, and there may be hundreds of them.
        let was_known = C::is_last_resort(&placed);
        sent += 1;
        let attempt = Attempt {
            number: sent,
            counted: attempts + 1,
        };
        let failure = match plan.send(placed, attempt).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        if plan.is_condemned().await {
            spend(&mut loan);
            return Err(Exhausted::Condemned);
        }
        let is_news = failure.is_refused() && !was_known;
        attempts += u32::from(!is_news);
        let draw = rand::rng().random();
        match next(&failure, attempts, policy, Instant::now(), draw) {
            Next::Stop(why) => {
                spend(&mut loan);
                tracing::debug!(why, failure = failure.as_str(), "no further attempt");
                return Err(Exhausted::Failed(failure));
            }
            Next::Retry { pause, loan: lent } => {
                // The token of a retry that was refused is for the next one.
                if !failure.is_refused() {
                    spend(&mut loan);
                    loan = lent;
                }
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                let again = if failure.is_unsent() || failure.is_free() {
                    // As if it had just been let in: those that are left may be full.
                    plan.place_first().await
                } else {
                    plan.place()
                };
                placed = match again {
                    Ok(placed) => placed,
                    Err(why @ Exhausted::Quarantined(_)) => return Err(why),
                    Err(Exhausted::TurnedAway(why)) if tells_more(&why, &failure) => {
                        return Err(Exhausted::TurnedAway(why));
                    }
                    Err(_) => {
                        // One that was lent just now was not used.
                        if failure.is_refused() {
                            spend(&mut loan);
                        }
                        return Err(Exhausted::Failed(failure));
                    }
                };
            }
        }
    }
}

/// Whether a client is told this rather than what became of its last attempt. That its model is gone by now says less, and
/// so does that no worker is left for it, where one had it.
fn tells_more(why: &ApiError, failure: &Failure) -> bool {
    match failure.is_free() && !failure.is_unsent() {
        true => why.kind == ErrorKind::Overloaded,
        false => why.kind != ErrorKind::ModelNotFound,
    }
}

/// The retry did not help.
fn spend(loan: &mut Option<Loan>) {
    if let Some(loan) = loan.take() {
        loan.spend();
    }
}

/// Whether there may be another attempt after this one, whatever becomes of it.
pub(super) fn may_follow(config: &RetryConfig, attempt: Attempt) -> bool {
    config.enabled && attempt.counted < config.max_attempts.get()
}

/// What to do after a failed attempt.
#[derive(Debug)]
enum Next {
    /// Give the client the failure.
    Stop(&'static str),
    /// Try another worker after a pause.
    Retry {
        /// Zero for a worker that was full or not there.
        pause: Duration,
        /// What it takes from the budget; `None` for a free retry.
        loan: Option<Loan>,
    },
}

/// Decides after `attempts` tries. `draw` in 0..1 spreads the pauses.
fn next(
    failure: &Failure,
    attempts: u32,
    policy: &RetryPolicy<'_>,
    now: Instant,
    draw: f64,
) -> Next {
    let config = policy.config;
    if !config.enabled {
        return Next::Stop("retries are disabled");
    }
    if attempts >= config.max_attempts.get() {
        return Next::Stop("attempts exhausted");
    }
    if matches!(failure, Failure::OutOfTime) {
        return Next::Stop("the request's time is over");
    }
    // Ports run out towards one worker, all else towards all.
    if let Failure::NoSocket(why) = failure
        && why.kind() != std::io::ErrorKind::AddrNotAvailable
    {
        return Next::Stop("this replica has no socket for another worker either");
    }
    let repeatable = policy.repeatable || (policy.repeatable_if_refused && failure.is_refusal());
    if failure.is_unsent() || (failure.is_free() && repeatable) {
        return Next::Retry {
            pause: Duration::ZERO,
            loan: None,
        };
    }
    if !repeatable {
        return Next::Stop("the request may not be repeated");
    }
    let pause = if failure.is_back_pressure() {
        Duration::ZERO
    } else {
        backoff(config, attempts, draw)
    };
    if policy
        .deadline
        .is_some_and(|deadline| now + pause >= deadline)
    {
        return Next::Stop("the request's time would be over before the next attempt");
    }
    match policy.budget.lend() {
        Some(loan) => Next::Retry {
            pause,
            loan: Some(loan),
        },
        None => Next::Stop("retry budget exhausted"),
    }
}

fn backoff(config: &RetryConfig, attempts: u32, draw: f64) -> Duration {
    let exponent = i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = config.initial_backoff.as_secs_f64() * config.backoff_multiplier.powi(exponent);
    let capped = grown.min(config.max_backoff.as_secs_f64());
    Duration::from_secs_f64(capped * (1.0 + config.jitter * (2.0 * draw - 1.0)).max(0.0))
}

#[cfg(test)]
mod tests;
