//! Where the counted part of a replay begins: with its first row after the warm-up.

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::CacheCounters;
use grapevine_bench::client::Target;

/// The beginning of the counted part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begin {
    /// When its first request was due.
    pub(super) at: Instant,
    /// Sums of the workers' counters before that request was sent.
    pub(super) cache: CacheCounters,
}

/// Begins once, by whichever counted row is due first.
pub(super) struct Counting {
    workers: Vec<Target>,
    begun: OnceCell<Begin>,
}

impl Counting {
    /// `begun`: there is no warm-up.
    pub(super) fn new(workers: Vec<Target>, begun: Option<Begin>) -> Self {
        Self {
            workers,
            begun: OnceCell::new_with(begun),
        }
    }

    /// A counted row that is due at `due` is about to be sent. The first one reads the workers' counters; others that
    /// are due meanwhile wait for that.
    /// Errors: when the counters cannot be read.
    pub(super) async fn begin(&self, due: Instant) -> anyhow::Result<()> {
        let read = || async {
            let cache = CacheCounters::of_all(&self.workers).await?;
            anyhow::Ok(Begin { at: due, cache })
        };
        self.begun.get_or_try_init(read).await.map(drop)
    }

    /// `None`: no counted row was due yet.
    pub(super) fn begun(&self) -> Option<Begin> {
        self.begun.get().copied()
    }
}
