//! Requests that are in and find every worker of their model at its own limit: they wait in line for room.
//!
//! One line a model, in the same order as the line in front of the door. Room is looked for when a request of this
//! replica ends, and every [`AGAIN`] because those of the others end too, which gossip tells.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::NoWorker;

use super::line::Turned;
use super::lines::{Lines, Wait};

/// Between two looks for room that other replicas made.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

/// Why there is no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Waiting would not help.
    NoWorker(NoWorker),
    /// It cannot wait, or has waited too long.
    Turned(Turned),
}

/// Waits in the model's line until `place` finds room, or something else than room is missing.
pub(super) async fn wait<T>(
    lines: &Lines,
    model: &Arc<str>,
    wait: Wait,
    mut place: impl FnMut() -> Result<T, NoWorker>,
) -> Result<T, NoRoom> {
    let placed = lines.wait(model, wait, || match place() {
        Err(NoWorker::Full) => None,
        done => Some(done),
    });
    match placed.await {
        Ok(placed) => placed.map_err(NoRoom::NoWorker),
        Err(turned) => Err(NoRoom::Turned(turned)),
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
        let rooms = Lines::new(4, 8);
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
            let (found, ()) = tokio::join!(wait(&rooms, &model, patient(60), place), async {
                tokio::task::yield_now().await;
                assert!(rooms.is_waited_for("m") && !rooms.is_waited_for("other"));
                room.set(true);
                if wakes {
                    rooms.wake_all();
                }
            });
            assert_eq!(found, Ok(7));
            assert_eq!(waited.elapsed() < AGAIN, wakes);
            assert!(rooms.lengths().is_empty(), "nothing is left behind");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_missing_room_is_waited_for() {
        let rooms = Lines::new(4, 8);
        let model: Arc<str> = "m".into();
        let ask = |answer: Result<(), NoWorker>| wait(&rooms, &model, patient(5), move || answer);
        let gone = ask(Err(NoWorker::Unhealthy)).await;
        assert_eq!(gone, Err(NoRoom::NoWorker(NoWorker::Unhealthy)));
        let late = ask(Err(NoWorker::Full)).await;
        assert_eq!(late, Err(NoRoom::Turned(Turned::Late)));
    }
}
