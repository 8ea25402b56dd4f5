//! Tasks that stand as long as the replica does.
//!
//! A panic ends the task that it happens in and nothing else: the replica serves on with what it knows, and without what
//! that task did. So which one ended is kept, for operators to see. It is not started again here: what it owned is gone
//! with it, and the same view or file would end it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
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
        lost.0.lock().entry(name).or_insert(false);
        tracker.spawn(async move {
            let _watched = Watched { name, lost };
            task.await;
        })
    }

    /// Where short tasks are counted: what one of them loses is lost to one connection or question alone.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Which of them a panic ended.
    pub fn lost(&self) -> &LostTasks {
        &self.lost
    }
}

/// The names of tasks, and whether a panic ended one of that name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LostTasks(Arc<Mutex<BTreeMap<&'static str, bool>>>);

impl LostTasks {
    /// Those that a panic ended, in order.
    pub fn names(&self) -> Vec<&'static str> {
        let all = self.0.lock();
        let lost = all.iter().filter(|(_, is_lost)| **is_lost);
        lost.map(|(name, _)| *name).collect()
    }

    /// All that were started, in order, and whether a panic ended them.
    pub fn all(&self) -> Vec<(&'static str, bool)> {
        let all = self.0.lock();
        all.iter()
            .map(|(name, is_lost)| (*name, *is_lost))
            .collect()
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
        if self.lost.0.lock().insert(self.name, true) != Some(true) {
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
        // What is started again under a lost name does not hide it.
        standing.run("probe", async {}).await.expect("ends");
        let all = [
            ("ended", false),
            ("follow", true),
            ("given_up", false),
            ("probe", true),
        ];
        assert_eq!(standing.lost().all(), all);
    }
}
