//! Tasks that stand as long as the replica does.
//!
//! A panic ends the task that it happens in and nothing else: the replica serves on with what it knows, and without what
//! that task did. So which one ended is kept, for operators to see. It is not started again here: what it owned is gone
//! with it, and the same view or file would end it again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::error;

/// Starts tasks by name, and knows which of them a panic ended. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    tracker: TaskTracker,
    lost: LostTasks,
}

impl Standing {
    /// With its tasks counted by `tracker`.
    #[must_use]
    pub fn new(tracker: TaskTracker) -> Self {
        let lost = LostTasks::default();
        Self { tracker, lost }
    }

    /// Starts what ends with the replica. Several may have one name: those of workers have.
    pub fn run<F>(&self, name: &'static str, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.run_by(&self.tracker, name, task)
    }

    /// The same, counted by another tracker.
    pub fn run_by<F>(&self, tracker: &TaskTracker, name: &'static str, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let lost = self.lost.clone();
        tracker.spawn(async move {
            let _watched = Watched { name, lost };
            task.await;
        })
    }

    /// Where short tasks are counted: what one of them loses is lost to one connection or question alone.
    #[must_use]
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Which of them a panic ended.
    #[must_use]
    pub fn lost(&self) -> &LostTasks {
        &self.lost
    }
}

/// The names of tasks that a panic ended. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LostTasks(Arc<Mutex<BTreeSet<&'static str>>>);

impl LostTasks {
    /// In order.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let names = self.0.lock().expect("no holder of this lock panics");
        names.iter().copied().collect()
    }
}

/// Dropped when its task ends, however that is.
struct Watched {
    name: &'static str,
    lost: LostTasks,
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A task whose runtime ends, or that is given up, is dropped by nobody who panics.
        if !thread::panicking() {
            return;
        }
        let mut lost = self.lost.0.lock().expect("no holder of this lock panics");
        if lost.insert(self.name) {
            error!(
                task = self.name,
                "a task of this replica ended with the panic above: what it did is missed until the replica starts again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_a_panic_ended_is_lost() {
        let standing = Standing::default();
        let ended = standing.run("ended", async {});
        ended.await.expect("ends");
        let given_up = standing.run("given_up", std::future::pending());
        given_up.abort();
        assert!(given_up.await.expect_err("given up").is_cancelled());
        assert_eq!(standing.lost().names(), Vec::<&str>::new());

        for name in ["probe", "follow", "probe"] {
            let panics = standing.run(name, async {
                tokio::task::yield_now().await;
                panic!("provoked");
            });
            assert!(panics.await.expect_err("it panics").is_panic());
        }
        assert_eq!(standing.lost().names(), ["follow", "probe"]);
    }
}
