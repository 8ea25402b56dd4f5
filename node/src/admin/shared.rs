//! What several callers ask for at once is made once, for all of them.

use std::sync::{Arc, Weak};

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::Instant;

/// Makes a thing that takes its time on a thread for that, one at a time, and gives it to all who asked before it was
/// begun: none gets one that is older than its question.
///
/// Who gives up leaves no work behind but what is being done. A client that asks and closes its connection, again and
/// again, would fill the threads otherwise, behind which fleets and memory wait, too.
#[derive(Debug)]
pub struct Shared<T>(Arc<Mutex<Last<T>>>);

#[derive(Debug)]
struct Last<T> {
    begun: Option<Instant>,
    /// Kept by those who have it.
    made: Weak<T>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        let none = Last {
            begun: None,
            made: Weak::new(),
        };
        Self(Arc::new(Mutex::new(none)))
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// The thing, made after this question.
    /// Errors: to make it panicked.
    pub(super) async fn get(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Arc<T>, JoinError> {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.0).lock_owned().await;
        let is_young = last.begun.is_some_and(|begun| begun >= asked);
        if let Some(made) = last.made.upgrade().filter(|_| is_young) {
            return Ok(made);
        }
        // It has the lock until it is done, whether or not somebody still waits for it.
        let making = spawn_blocking(move || {
            let begun = Instant::now();
            let made = Arc::new(make());
            *last = Last {
                begun: Some(begun),
                made: Arc::downgrade(&made),
            };
            made
        });
        making.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    /// A thing that counts how often it was made.
    #[derive(Default)]
    struct Works(Arc<AtomicUsize>);

    impl Works {
        fn make(&self) -> impl FnOnce() -> usize + Send + 'static {
            let count = Arc::clone(&self.0);
            move || count.fetch_add(1, Ordering::Relaxed) + 1
        }
    }

    /// Asks, and goes away where there is no answer at once.
    async fn gives_up<T>(asked: impl Future<Output = T>) -> bool {
        tokio::select! {
            biased;
            _ = asked => false,
            () = ready(()) => true,
        }
    }

    #[tokio::test]
    async fn all_who_ask_before_it_is_begun_get_one_and_none_an_older_one() {
        let (shared, works) = (Arc::new(Shared::default()), Works::default());
        let (go, may) = mpsc::channel();
        let (begins, begun) = oneshot::channel();
        let make = works.make();
        let slow = move || {
            begins.send(()).expect("somebody waits for it");
            may.recv().expect("told to go on");
            make()
        };
        let mut asked = Vec::new();
        let first = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { shared.get(slow).await }
        });
        begun.await.expect("it is begun");
        for _ in 0..10 {
            let (shared, make) = (Arc::clone(&shared), works.make());
            asked.push(tokio::spawn(async move { shared.get(make).await }));
        }
        // So that they have asked.
        tokio::task::yield_now().await;
        go.send(()).expect("it waits");
        let one = first.await.expect("ended").expect("made");
        assert_eq!(*one, 1);
        let mut others = Vec::new();
        for asked in asked {
            others.push(asked.await.expect("ended").expect("made"));
        }
        assert!(others.iter().all(|made| **made == 2), "{others:?}");
        let later = shared.get(works.make()).await.expect("made");
        assert_eq!(*later, 3, "an older one is there, and is not given");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_no_work_behind() {
        let (shared, works) = (Shared::default(), Works::default());
        let (go, may) = mpsc::channel();
        let make = works.make();
        let slow = move || {
            may.recv().expect("told to go on");
            make()
        };
        assert!(gives_up(shared.get(slow)).await);
        for _ in 0..1_000 {
            assert!(
                gives_up(shared.get(works.make())).await,
                "one is being made"
            );
        }
        go.send(()).expect("the first one goes on");
        let made = shared.get(works.make()).await.expect("made");
        assert_eq!(*made, 2, "only the first one was made, and this one");
    }

    #[tokio::test]
    async fn a_panic_stops_nobody_else() {
        let shared = Shared::<u32>::default();
        let made = shared.get(|| panic!("as it is made")).await;
        assert!(made.is_err());
        assert_eq!(*shared.get(|| 7).await.expect("made"), 7);
    }
}
