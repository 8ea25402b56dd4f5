//! Worker capacity: requests that are in and find every worker that they may have at its own limit wait here.
//!
//! One queue a model, in the same order as the queue at the door, and one for each kind of requests that only some of
//! the model's workers may take: a queue is as good as its first, who must not wait for others than those behind want.
//! There are never more queues than requests that wait. A waiting request looks for capacity when a request
//! of this replica ends or leaves a worker, and every [`AGAIN`] because those of other replicas do so too, which gossip
//! reports.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::NoWorker;

use super::model_queues::{ModelQueues, Wait};
use super::wait_queue::TurnedAway;

/// Between two looks for room that other replicas made.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

/// Why there is no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCapacity {
    /// Waiting would not help.
    NoWorker(NoWorker),
    /// It cannot wait, or has waited too long.
    TurnedAway(TurnedAway),
}

/// Waits in this queue until `place` finds room, or something else than room is missing.
pub(super) async fn wait<T>(
    queues: &ModelQueues,
    queue: &Arc<str>,
    wait: Wait,
    mut place: impl FnMut() -> Result<T, NoWorker>,
) -> Result<T, NoCapacity> {
    let placed = queues.wait(queue, wait, || match place() {
        Err(NoWorker::Full) => None,
        done => Some(done),
    });
    match placed.await {
        Ok(placed) => placed.map_err(NoCapacity::NoWorker),
        Err(turned) => Err(NoCapacity::TurnedAway(turned)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::queue::Claim;
    use super::*;
    use crate::api::Priority;

    fn patient(seconds: u64) -> Wait {
        Wait {
            claim: Claim {
                class: Priority::Normal,
                flow: 1,
                weight: 1_000,
                cost: 1,
            },
            by: Instant::now() + Duration::from_secs(seconds),
            again: AGAIN,
            bytes: 0,
            bytes_free: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_found_by_a_wake_and_by_looking_again() {
        let queues = ModelQueues::new(4, 8);
        let model: Arc<str> = "m".into();
        for wakes in [true, false] {
            let room = std::cell::Cell::new(false);
            let place = || {
                if room.get() {
                    Ok(7)
                } else {
                    Err(NoWorker::Full)
                }
            };
            let waited = Instant::now();
            let (found, ()) = tokio::join!(wait(&queues, &model, patient(60), place), async {
                tokio::task::yield_now().await;
                assert!(queues.is_waited_for("m") && !queues.is_waited_for("other"));
                room.set(true);
                if wakes {
                    queues.wake_all();
                }
            });
            assert_eq!(found, Ok(7));
            assert_eq!(waited.elapsed() < AGAIN, wakes);
            assert!(queues.lengths().is_empty(), "nothing is left behind");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_missing_room_is_waited_for() {
        let queues = ModelQueues::new(4, 8);
        let model: Arc<str> = "m".into();
        let ask = |answer: Result<(), NoWorker>| wait(&queues, &model, patient(5), move || answer);
        let gone = ask(Err(NoWorker::Unhealthy)).await;
        assert_eq!(gone, Err(NoCapacity::NoWorker(NoWorker::Unhealthy)));
        let late = ask(Err(NoWorker::Full)).await;
        assert_eq!(late, Err(NoCapacity::TurnedAway(TurnedAway::Late)));
    }
}
