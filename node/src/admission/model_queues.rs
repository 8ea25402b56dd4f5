//! Model queues: a queue for each model for which a request waits, or for each part of a model's workers.
//!
//! A waiting request holds its body. So that the bodies of one model do not take the room of all others', a
//! queue takes no more bytes than are still free for bodies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::queue::Claim;
use super::wait_queue::{TurnedAway, WaitQueue};

/// Queues by model.
#[derive(Debug)]
pub(super) struct ModelQueues {
    /// Requests that wait, in all queues.
    waiting: AtomicUsize,
    /// Queues in which requests wait.
    queues: Mutex<BTreeMap<Arc<str>, ModelQueue>>,
    /// Counts the calls of [`Self::wake_all`].
    wakes: AtomicUsize,
    len_max: usize,
    passed_over_max: u32,
}

#[derive(Debug)]
struct ModelQueue {
    queue: Arc<WaitQueue>,
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
    /// Between two looks of the first in the queue.
    pub(super) again: Duration,
    /// Bytes of its body ...
    pub(super) bytes: u64,
    /// ... and how many more may be held of all bodies.
    pub(super) bytes_free: u64,
}

/// A request in a model's queue; clears up behind the last one.
struct InQueue<'a> {
    queues: &'a ModelQueues,
    model: &'a Arc<str>,
    queue: Arc<WaitQueue>,
    bytes: u64,
}

impl ModelQueues {
    pub(super) fn new(len_max: usize, passed_over_max: u32) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            queues: Mutex::default(),
            wakes: AtomicUsize::new(0),
            len_max,
            passed_over_max,
        }
    }

    /// No request waits, whatever the model.
    pub(super) fn are_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// A request waits in this model's queue.
    pub(super) fn is_waited_for(&self, model: &str) -> bool {
        !self.are_empty() && self.queues.lock().contains_key(model)
    }

    /// The models for which requests wait, with their queues.
    pub(super) fn waited_for(&self) -> Vec<(Arc<str>, Arc<WaitQueue>)> {
        if self.are_empty() {
            return Vec::new();
        }
        let queues = self.queues.lock();
        let queues = queues.iter();
        queues
            .map(|(model, model_queue)| (Arc::clone(model), Arc::clone(&model_queue.queue)))
            .collect()
    }

    /// How many wait, by model.
    pub(super) fn lengths(&self) -> Vec<(Arc<str>, u32)> {
        let queues = self.queues.lock();
        let queues = queues.iter();
        queues
            .map(|(model, model_queue)| (Arc::clone(model), model_queue.waiting))
            .collect()
    }

    /// Waits in the model's queue until `attempt` gives something.
    /// Errors: see [`TurnedAway`]. Cancel safe, as [`WaitQueue::wait`] is.
    pub(super) async fn wait<T>(
        &self,
        model: &Arc<str>,
        wait: Wait,
        attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, TurnedAway> {
        let place = self.begin(model, wait.bytes, wait.bytes_free)?;
        let queue = &place.queue;
        queue.wait(wait.claim, wait.by, wait.again, attempt).await
    }

    /// The first of every queue should look. Another one each time before the others: queues may want the same room, and
    /// none is to have all of it.
    pub(super) fn wake_all(&self) {
        if self.are_empty() {
            return;
        }
        let queues = self.queues.lock();
        let wakes = self.wakes.fetch_add(1, Ordering::Relaxed);
        let begin = wakes % queues.len().max(1);
        let in_turn = queues
            .values()
            .skip(begin)
            .chain(queues.values().take(begin));
        in_turn.for_each(|model_queue| model_queue.queue.wake());
    }

    fn begin<'a>(
        &'a self,
        model: &'a Arc<str>,
        bytes: u64,
        bytes_free: u64,
    ) -> Result<InQueue<'a>, TurnedAway> {
        let mut queues = self.queues.lock();
        let held = queues.get(model).map_or(0, |model_queue| model_queue.bytes);
        if held.saturating_add(bytes) > bytes_free {
            return Err(TurnedAway::Heavy);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let model_queue = queues
            .entry(Arc::clone(model))
            .or_insert_with(|| ModelQueue {
                queue: Arc::new(WaitQueue::new(self.len_max, self.passed_over_max)),
                waiting: 0,
                bytes: 0,
            });
        model_queue.waiting += 1;
        model_queue.bytes += bytes;
        Ok(InQueue {
            queues: self,
            model,
            queue: Arc::clone(&model_queue.queue),
            bytes,
        })
    }
}

impl Drop for InQueue<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.queues.lock();
        if let Some(model_queue) = queues.get_mut(self.model) {
            model_queue.waiting -= 1;
            model_queue.bytes -= self.bytes;
            if model_queue.waiting == 0 {
                queues.remove(self.model);
            }
        }
        self.queues.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Priority;

    /// A wait of so long, which nothing but a wake-up ends earlier.
    fn waiting(within: Duration, bytes: u64, bytes_free: u64) -> Wait {
        Wait {
            claim: Claim {
                class: Priority::Normal,
                flow: 1,
                weight: 1_000,
                cost: 1,
            },
            by: Instant::now() + within,
            again: within,
            bytes,
            bytes_free,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_queues_for_the_same_room_none_always_goes_first() {
        const EACH: usize = 4;
        let queues = Arc::new(ModelQueues::new(8, 8));
        let room = Arc::new(AtomicUsize::new(0));
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for name in ["all", "some"].repeat(EACH) {
            let (queues, room, served) = (queues.clone(), room.clone(), served.clone());
            tasks.push(tokio::spawn(async move {
                let wait = waiting(Duration::from_secs(3_600), 0, 0);
                let take = || (room.swap(0, Ordering::SeqCst) > 0).then_some(());
                let taken = queues.wait(&name.into(), wait, take).await;
                taken.expect("there is room in time");
                served.lock().push(name);
            }));
        }
        let length = || -> u32 { queues.lengths().iter().map(|(_, waiting)| waiting).sum() };
        for left in (0..=2 * EACH as u32).rev() {
            while left != length() {
                tokio::task::yield_now().await;
            }
            if left > 0 {
                room.store(1, Ordering::SeqCst);
                queues.wake_all();
            }
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        let served = served.lock();
        assert!(served[..EACH].contains(&"all"), "{served:?}");
        assert!(served[..EACH].contains(&"some"), "{served:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_takes_no_more_bytes_than_are_left_for_others() {
        let queues = ModelQueues::new(8, 8);
        let (large, small): (Arc<str>, Arc<str>) = ("large".into(), "small".into());
        // 100 bytes in all; those of waiting requests count among them.
        let wait = |model, bytes, bytes_free| {
            let wait = waiting(Duration::from_secs(1), bytes, bytes_free);
            queues.wait(model, wait, || None::<()>)
        };
        let first = wait(&large, 40, 60);
        let second = async {
            tokio::task::yield_now().await;
            let heavy = wait(&large, 20, 40).await;
            let other = wait(&small, 40, 40).await;
            (heavy, other)
        };
        let (first, (heavy, other)) = tokio::join!(first, second);
        assert_eq!(heavy, Err(TurnedAway::Heavy));
        assert_eq!(
            [first, other],
            [Err(TurnedAway::Late), Err(TurnedAway::Late)]
        );
        assert!(queues.are_empty() && queues.lengths().is_empty());
    }
}
