//! A line for each model in which somebody waits.
//!
//! Who waits in one holds the request's body. So that the bodies of one model do not take the room of all others', a
//! line takes no more bytes than are still free for bodies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::line::{Line, Turned};
use super::queue::Claim;

/// Lines by model.
#[derive(Debug)]
pub(super) struct Lines {
    /// Requests that wait, in all lines.
    waiting: AtomicUsize,
    /// Lines in which somebody waits.
    lines: Mutex<BTreeMap<Arc<str>, Entry>>,
    len_max: usize,
    passed_over_max: u32,
}

#[derive(Debug)]
struct Entry {
    line: Arc<Line>,
    /// Requests that wait in it.
    waiting: u32,
    /// Bytes of their bodies.
    bytes: u64,
}

/// What a request waits by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) claim: Claim,
    /// Until when.
    pub(super) by: Instant,
    /// Between two looks of the first in line.
    pub(super) again: Duration,
    /// Bytes of its body ...
    pub(super) bytes: u64,
    /// ... and how many more may be held of all bodies.
    pub(super) bytes_free: u64,
}

/// A request in a model's line; clears up behind the last one.
struct InLine<'a> {
    lines: &'a Lines,
    model: &'a Arc<str>,
    line: Arc<Line>,
    bytes: u64,
}

impl Lines {
    pub(super) fn new(len_max: usize, passed_over_max: u32) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            lines: Mutex::default(),
            len_max,
            passed_over_max,
        }
    }

    /// Nobody waits, whatever the model.
    pub(super) fn are_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Somebody waits in this model's line.
    pub(super) fn is_waited_for(&self, model: &str) -> bool {
        !self.are_empty() && self.lines().contains_key(model)
    }

    /// The models in whose lines somebody waits, with the lines.
    pub(super) fn waited_for(&self) -> Vec<(Arc<str>, Arc<Line>)> {
        if self.are_empty() {
            return Vec::new();
        }
        let lines = self.lines();
        let lines = lines.iter();
        lines
            .map(|(model, entry)| (Arc::clone(model), Arc::clone(&entry.line)))
            .collect()
    }

    /// How many wait, by model.
    pub(super) fn lengths(&self) -> Vec<(Arc<str>, u32)> {
        let lines = self.lines();
        let lines = lines.iter();
        lines
            .map(|(model, entry)| (Arc::clone(model), entry.waiting))
            .collect()
    }

    /// Waits in the model's line until `attempt` gives something.
    ///
    /// # Errors
    /// See [`Turned`]. Cancel safe, as [`Line::wait`] is.
    pub(super) async fn wait<T>(
        &self,
        model: &Arc<str>,
        wait: Wait,
        attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, Turned> {
        let place = self.begin(model, wait.bytes, wait.bytes_free)?;
        let line = &place.line;
        line.wait(wait.claim, wait.by, wait.again, attempt).await
    }

    /// The first of every line should look.
    pub(super) fn wake_all(&self) {
        if !self.are_empty() {
            self.lines().values().for_each(|entry| entry.line.wake());
        }
    }

    fn begin<'a>(
        &'a self,
        model: &'a Arc<str>,
        bytes: u64,
        bytes_free: u64,
    ) -> Result<InLine<'a>, Turned> {
        let mut lines = self.lines();
        let held = lines.get(model).map_or(0, |entry| entry.bytes);
        if held.saturating_add(bytes) > bytes_free {
            return Err(Turned::Heavy);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let entry = lines.entry(Arc::clone(model)).or_insert_with(|| Entry {
            line: Arc::new(Line::new(self.len_max, self.passed_over_max)),
            waiting: 0,
            bytes: 0,
        });
        entry.waiting += 1;
        entry.bytes += bytes;
        Ok(InLine {
            lines: self,
            model,
            line: Arc::clone(&entry.line),
            bytes,
        })
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Entry>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        if let Some(entry) = lines.get_mut(self.model) {
            entry.waiting -= 1;
            entry.bytes -= self.bytes;
            if entry.waiting == 0 {
                lines.remove(self.model);
            }
        }
        self.lines.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Priority;

    #[tokio::test(start_paused = true)]
    async fn a_line_takes_no_more_bytes_than_are_left_for_others() {
        let lines = Lines::new(8, 8);
        let (large, small): (Arc<str>, Arc<str>) = ("large".into(), "small".into());
        // 100 bytes in all; those of who waits count among them.
        let wait = |model, bytes, bytes_free| {
            let wait = Wait {
                claim: Claim {
                    class: Priority::Normal,
                    flow: 1,
                    weight: 1_000,
                    cost: 1,
                },
                by: Instant::now() + Duration::from_secs(1),
                again: Duration::from_secs(1),
                bytes,
                bytes_free,
            };
            lines.wait(model, wait, || None::<()>)
        };
        let first = wait(&large, 40, 60);
        let second = async {
            tokio::task::yield_now().await;
            let heavy = wait(&large, 20, 40).await;
            let other = wait(&small, 40, 40).await;
            (heavy, other)
        };
        let (first, (heavy, other)) = tokio::join!(first, second);
        assert_eq!(heavy, Err(Turned::Heavy));
        assert_eq!([first, other], [Err(Turned::Late), Err(Turned::Late)]);
        assert!(lines.are_empty() && lines.lengths().is_empty());
    }
}
