//! What the log says when a worker is passed over, or used again: what happened, and what becomes of its prompts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grapevine_placement::Claim;
use tokio::time::Instant;

/// So many changes within [`WINDOW`] have a line each.
const LINES: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// Of all workers of this process: there is one log.
static STORM: Mutex<Storm> = Mutex::new(Storm::CALM);

/// A worker's verdict changed.
pub(super) struct Change<'a> {
    pub(super) worker: &'a str,
    pub(super) before: Claim,
    pub(super) now: Claim,
    /// How long it had been as before.
    pub(super) lasted: Duration,
    /// What its checks failed with, where that is known; else empty.
    pub(super) why: &'a str,
}

/// Writes the change into the log; one of very many at a time is summed up with others.
pub(super) fn tell(change: &Change<'_>) {
    let said = {
        let mut storm = STORM.lock().unwrap_or_else(PoisonError::into_inner);
        storm.counts(Instant::now(), change.now)
    };
    match said {
        Said::Each => tell_one(change),
        Said::Sum { changes, good } => tracing::warn!(
            changes,
            to_good = good,
            "many workers change within {WINDOW:?} and are not named one by one; `grapevine status` lists them"
        ),
        Said::Nothing => {}
    }
}

fn tell_one(change: &Change<'_>) {
    let Change {
        worker,
        before,
        now,
        lasted,
        why,
    } = *change;
    let why = (!why.is_empty() && now.is_bad()).then_some(why);
    let (health, before) = (now.as_str(), before.as_str());
    // As a number: JSON has no 128-bit one, and it would be a text.
    let after_ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
    tracing::warn!(worker, health, before, after_ms, why, "{}", story(now));
}

fn story(now: Claim) -> &'static str {
    match now {
        Claim::Good => "worker in use again: its prompts come back to it",
        Claim::Unreachable => {
            "worker out of use: it refuses or drops connections, or leaves its checks without an answer; its prompts go to \
             the next workers in their order until it passes a check"
        }
        Claim::Unhealthy => {
            "worker out of use: it fails its checks; its prompts go to the next workers in their order until it passes \
             them again"
        }
        Claim::Stalled => {
            "worker out of use: it takes requests and gives no token, whatever its checks say; its prompts go to the next \
             workers in their order until it gives one"
        }
        Claim::Ejected => {
            "worker out of use: requests to it fail; its prompts go to the next workers in their order until trials \
             succeed"
        }
    }
}

/// What is written of a change.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// A line of its own.
    Each,
    /// One line for so many in this window, of which so many became good.
    Sum { changes: u64, good: u64 },
    /// It is in a line that was written, or will be.
    Nothing,
}

/// Counts changes in windows of time. Beyond [`LINES`] a line follows each doubling.
#[derive(Debug)]
struct Storm {
    began: Option<Instant>,
    changes: u64,
    good: u64,
}

impl Storm {
    const CALM: Self = Self {
        began: None,
        changes: 0,
        good: 0,
    };

    fn counts(&mut self, now: Instant, verdict: Claim) -> Said {
        let began = self.began.filter(|began| now < *began + WINDOW);
        if began.is_none() {
            *self = Self {
                began: Some(now),
                ..Self::CALM
            };
        }
        self.changes += 1;
        self.good += u64::from(!verdict.is_bad());
        let (changes, good) = (self.changes, self.good);
        if changes <= LINES {
            Said::Each
        } else if changes == LINES + 1
            || changes.is_multiple_of(LINES) && (changes / LINES).is_power_of_two()
        {
            Said::Sum { changes, good }
        } else {
            Said::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_storm_is_summed_up_and_ends() {
        let mut storm = Storm::CALM;
        let said: Vec<_> = (0..5_000)
            .map(|_| storm.counts(Instant::now(), Claim::Unreachable))
            .collect();
        let each = said.iter().filter(|said| **said == Said::Each).count();
        let sums = said.iter().filter_map(|said| match said {
            Said::Sum { changes, .. } => Some(*changes),
            _ => None,
        });
        assert_eq!(each, 20);
        let sums: Vec<_> = sums.collect();
        assert_eq!(sums, [21, 40, 80, 160, 320, 640, 1_280, 2_560]);
        tokio::time::advance(WINDOW).await;
        assert_eq!(storm.counts(Instant::now(), Claim::Good), Said::Each);
        assert_eq!((storm.changes, storm.good), (1, 1));
    }

    #[test]
    fn each_verdict_has_a_story_of_its_own() {
        let stories: std::collections::BTreeSet<_> = Claim::ALL.map(story).into();
        assert_eq!(stories.len(), Claim::ALL.len());
        for (claim, story) in Claim::ALL.map(|claim| (claim, story(claim))) {
            assert_eq!(story.starts_with("worker out of use: "), claim.is_bad());
        }
    }
}
