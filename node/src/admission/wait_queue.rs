//! Wait queue: requests that wait, in the order of a [`Queue`], for something that may or may not be there.
//!
//! Only the head of the queue tries; a request that gives something back wakes the head. A request that leaves, served
//! or not, wakes the next, so that a queue never sleeps while there is something to have. A waiting request owns its
//! place in the queue and gives it up by being dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::queue::{Claim, Queue, Ticket};

/// Why a wait ended without what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnedAway {
    /// The queue was full of better claims.
    Full,
    /// A better claim came and took the place.
    Displaced,
    /// The time was over.
    Late,
    /// Bodies that wait for the same model hold all bytes that may wait.
    Heavy,
}

/// A queue of waiting requests.
#[derive(Debug)]
pub(super) struct WaitQueue {
    /// Length of the queue, to be read without its lock.
    waiting: AtomicUsize,
    order: Mutex<Queue<Arc<Notify>>>,
}

/// A place in the queue; dropping it leaves.
struct QueuedRequest<'a> {
    queue: &'a WaitQueue,
    ticket: Ticket,
}

enum QueuePosition {
    Head,
    Behind,
    Displaced,
}

impl WaitQueue {
    /// A queue of at most `len_max` places.
    pub(super) fn new(len_max: usize, passed_over_max: u32) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            order: Mutex::new(Queue::new(len_max, passed_over_max)),
        }
    }

    /// No request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Waits for its turn until `attempt` gives something. The head tries when it becomes the head, when it is woken,
    /// and every `again`.
    /// Errors: see [`TurnedAway`]. Cancel safe: a dropped wait leaves the queue, and `attempt` is not called after
    /// `by`.
    pub(super) async fn wait<T>(
        &self,
        claim: Claim,
        by: Instant,
        again: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, TurnedAway> {
        let woken = Arc::new(Notify::new());
        let place = self.join(claim, &woken)?;
        loop {
            let now = Instant::now();
            if now >= by {
                return Err(TurnedAway::Late);
            }
            let next_look = match place.position() {
                QueuePosition::Displaced => return Err(TurnedAway::Displaced),
                QueuePosition::Behind => by,
                QueuePosition::Head => {
                    if let Some(found) = attempt() {
                        place.served();
                        return Ok(found);
                    }
                    by.min(now + again)
                }
            };
            tokio::select! {
                () = woken.notified() => {}
                () = sleep_until(next_look) => {}
            }
        }
    }

    /// Something may be there: the head should look.
    pub(super) fn wake(&self) {
        // Sequentially consistent with `join`, which counts itself before it looks: one of both sees the other.
        if !self.is_empty()
            && let Some((_, woken)) = self.order.lock().head()
        {
            woken.notify_one();
        }
    }

    /// Charges a tenant for more of what it was served here.
    pub(super) fn charge(&self, more: &Claim) {
        // Where nobody waits, nobody was treated unfairly.
        if self.is_empty() {
            return;
        }
        let mut order = self.order.lock();
        let head = |order: &Queue<_>| order.head().map(|(ticket, _)| ticket);
        let before = head(&order);
        order.charge(more);
        if before != head(&order)
            && let Some((_, woken)) = order.head()
        {
            woken.notify_one();
        }
    }

    fn join(&self, claim: Claim, woken: &Arc<Notify>) -> Result<QueuedRequest<'_>, TurnedAway> {
        let mut order = self.order.lock();
        match order.push(claim, Arc::clone(woken)) {
            Ok((ticket, displaced)) => {
                self.waiting.store(order.len(), Ordering::SeqCst);
                if let Some((_, woken)) = displaced {
                    woken.notify_one();
                }
                Ok(QueuedRequest {
                    queue: self,
                    ticket,
                })
            }
            Err(_) => Err(TurnedAway::Full),
        }
    }
}

impl QueuedRequest<'_> {
    fn position(&self) -> QueuePosition {
        let order = self.queue.order.lock();
        match order.head() {
            Some((head, _)) if head == self.ticket => QueuePosition::Head,
            _ if order.contains(self.ticket) => QueuePosition::Behind,
            _ => QueuePosition::Displaced,
        }
    }

    fn served(self) {
        self.queue.order.lock().serve(self.ticket);
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut order = self.queue.order.lock();
        order.remove(self.ticket);
        self.queue.waiting.store(order.len(), Ordering::SeqCst);
        if let Some((_, next)) = order.head() {
            next.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::api::Priority;

    const AGAIN: Duration = Duration::from_secs(3600);

    fn claim(class: Priority, flow: u64) -> Claim {
        Claim {
            class,
            flow,
            weight: 1_000,
            cost: 1,
        }
    }

    /// Something to be had a number of times.
    #[derive(Default)]
    struct Things(Cell<u32>);

    impl Things {
        fn take(&self) -> Option<()> {
            let left = self.0.get().checked_sub(1)?;
            self.0.set(left);
            Some(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_wake_serves_as_many_as_there_is_room_for_in_order() {
        let queue = WaitQueue::new(10, 8);
        let things = Things::default();
        let order = Cell::new(Vec::new());
        let by = Instant::now() + Duration::from_secs(60);
        let wait = async |name: &'static str, class| {
            let result = queue
                .wait(claim(class, 1), by, AGAIN, || things.take())
                .await;
            let mut seen = order.take();
            seen.push(name);
            order.set(seen);
            result
        };
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            things.0.set(2);
            queue.wake();
        };
        let (first, second, urgent, ()) = tokio::join!(
            wait("first", Priority::Normal),
            wait("second", Priority::Normal),
            wait("urgent", Priority::High),
            release
        );
        assert_eq!(urgent, Ok(()));
        assert_eq!(first, Ok(()));
        assert_eq!(second, Err(TurnedAway::Late));
        assert_eq!(order.take(), ["urgent", "first", "second"]);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_leaves_hands_its_wake_on() {
        let queue = WaitQueue::new(10, 8);
        let things = Things::default();
        let by = Instant::now() + Duration::from_secs(60);
        {
            let wait = || queue.wait(claim(Priority::Normal, 1), by, AGAIN, || things.take());
            let mut first = Box::pin(wait());
            let mut second = Box::pin(wait());
            assert!(poll_once(first.as_mut()).is_none());
            assert!(poll_once(second.as_mut()).is_none());
            things.0.set(1);
            queue.wake();
            // The wake was the first one's; it leaves without having looked.
            drop(first);
            assert_eq!(poll_once(second.as_mut()), Some(Ok(())));
        }
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_served_after_its_time() {
        let queue = WaitQueue::new(10, 8);
        let things = Things::default();
        let by = Instant::now() + Duration::from_secs(1);
        let mut late =
            Box::pin(queue.wait(claim(Priority::Normal, 1), by, AGAIN, || things.take()));
        assert!(poll_once(late.as_mut()).is_none());
        tokio::time::advance(Duration::from_secs(2)).await;
        things.0.set(1);
        queue.wake();
        assert_eq!(late.await, Err(TurnedAway::Late));
        assert_eq!(things.0.get(), 1, "not taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_turns_away_and_displaces() {
        let queue = WaitQueue::new(1, 8);
        let by = Instant::now() + Duration::from_secs(60);
        let wait = |class| queue.wait(claim(class, 1), by, AGAIN, || None::<()>);
        let mut low = Box::pin(wait(Priority::Low));
        assert!(poll_once(low.as_mut()).is_none());
        assert_eq!(wait(Priority::Low).await, Err(TurnedAway::Full));
        let mut high = Box::pin(wait(Priority::High));
        assert!(poll_once(high.as_mut()).is_none());
        assert_eq!(poll_once(low.as_mut()), Some(Err(TurnedAway::Displaced)));
    }

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
