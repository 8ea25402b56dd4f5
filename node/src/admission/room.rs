//! Requests that are in and find every worker of their model at its own limit: they wait in line for room.
//!
//! One line a model, in the same order as the line in front of the door. Room is looked for when a request of this
//! replica ends, and every [`AGAIN`] because those of the others end too, which gossip tells.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grapevine_placement::NoWorker;
use tokio::time::Instant;

use super::line::{Line, Turned};
use super::queue::Claim;

/// Between two looks for room that other replicas made.
const AGAIN: Duration = Duration::from_millis(50);

/// Why there is no place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Waiting would not help.
    NoWorker(NoWorker),
    /// It cannot wait, or has waited too long.
    Turned(Turned),
}

/// The lines of all models.
#[derive(Debug)]
pub(super) struct Rooms {
    /// Requests that wait, in all lines.
    waiting: AtomicUsize,
    /// Lines in which somebody waits.
    lines: Mutex<BTreeMap<Arc<str>, Arc<Line>>>,
    len_max: usize,
    passed_over_max: u32,
}

/// Counts a request that waits, and clears up behind the last one.
struct Waiting<'a> {
    rooms: &'a Rooms,
    line: Option<Arc<Line>>,
}

impl Rooms {
    pub(super) fn new(len_max: usize, passed_over_max: u32) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            lines: Mutex::default(),
            len_max,
            passed_over_max,
        }
    }

    /// Somebody waits for a worker of this model.
    pub(super) fn is_waited_for(&self, model: &str) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 && self.lines().contains_key(model)
    }

    /// Waits in the model's line until `place` finds room, or something else than room is missing.
    pub(super) async fn wait<T>(
        &self,
        model: &Arc<str>,
        claim: Claim,
        by: Instant,
        mut place: impl FnMut() -> Result<T, NoWorker>,
    ) -> Result<T, NoRoom> {
        let waiting = self.begin(model);
        let line = waiting.line.as_ref().expect("taken only by drop");
        let placed = line.wait(claim, by, AGAIN, || match place() {
            Err(NoWorker::Full) => None,
            done => Some(done),
        });
        match placed.await {
            Ok(placed) => placed.map_err(NoRoom::NoWorker),
            Err(turned) => Err(NoRoom::Turned(turned)),
        }
    }

    /// A worker may have room.
    pub(super) fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.lines().values().for_each(|line| line.wake());
        }
    }

    fn begin(&self, model: &Arc<str>) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut lines = self.lines();
        let line = lines
            .entry(Arc::clone(model))
            .or_insert_with(|| Arc::new(Line::new(self.len_max, self.passed_over_max)));
        Waiting {
            rooms: self,
            line: Some(Arc::clone(line)),
        }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.rooms.waiting.fetch_sub(1, Ordering::SeqCst);
        // Under the lock, under which others clone theirs: a line that nobody else holds is nobody's.
        let mut lines = self.rooms.lines();
        self.line = None;
        lines.retain(|_, line| Arc::strong_count(line) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Priority;

    fn claim(class: Priority) -> Claim {
        Claim {
            class,
            flow: 1,
            weight: 1_000,
            cost: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_found_by_a_wake_and_by_looking_again() {
        let rooms = Rooms::new(4, 8);
        let model: Arc<str> = "m".into();
        let by = Instant::now() + Duration::from_secs(60);
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
            let (found, ()) = tokio::join!(
                rooms.wait(&model, claim(Priority::Normal), by, place),
                async {
                    tokio::task::yield_now().await;
                    assert!(rooms.is_waited_for("m") && !rooms.is_waited_for("other"));
                    room.set(true);
                    if wakes {
                        rooms.wake();
                    }
                }
            );
            assert_eq!(found, Ok(7));
            assert_eq!(waited.elapsed() < AGAIN, wakes);
            assert!(rooms.lines().is_empty(), "nothing is left behind");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_missing_room_is_waited_for() {
        let rooms = Rooms::new(4, 8);
        let model: Arc<str> = "m".into();
        let by = Instant::now() + Duration::from_secs(5);
        let wait = |answer: Result<(), NoWorker>| {
            rooms.wait(&model, claim(Priority::Low), by, move || answer)
        };
        let gone = wait(Err(NoWorker::Unhealthy)).await;
        assert_eq!(gone, Err(NoRoom::NoWorker(NoWorker::Unhealthy)));
        let late = wait(Err(NoWorker::Full)).await;
        assert_eq!(late, Err(NoRoom::Turned(Turned::Late)));
    }
}
