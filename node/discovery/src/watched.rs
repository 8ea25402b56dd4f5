//! For tests of sources: one that runs, and what it reports, waited for.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::feed::{Feed, Sight, Watcher, feed};

/// Far more than any wait needs.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

/// A source that runs, and the end at which its pictures are read.
pub(crate) struct Watched {
    pub(crate) watcher: Watcher,
    task: JoinHandle<()>,
}

impl Watched {
    /// Starts the source that reports to the feed.
    pub(crate) fn start<S>(source: impl FnOnce(Feed) -> S) -> Self
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let (feed, watcher) = feed("source", Duration::from_secs(60));
        Self {
            watcher,
            task: tokio::spawn(source(feed)),
        }
    }

    /// Stops reading, and waits for the source to end by that.
    pub(crate) async fn until_end(self) {
        let Self { watcher, task } = self;
        drop(watcher);
        timeout(WITHIN, task).await.expect("it ends").expect("well");
    }

    /// Waits until a report is as wanted.
    pub(crate) async fn until(&mut self, what: &str, is_wanted: impl Fn(&Sight) -> bool) -> Sight {
        let wait = async {
            loop {
                let sight = self.watcher.sight();
                if is_wanted(&sight) {
                    return sight;
                }
                self.watcher.changed().await;
            }
        };
        match timeout(WITHIN, wait).await {
            Ok(sight) => sight,
            Err(_) => {
                let sight = self.watcher.sight();
                let seen = ids(&sight);
                let first = &seen[..seen.len().min(20)];
                panic!(
                    "{what}: {} workers, {first:?}, {:?}",
                    seen.len(),
                    sight.failure
                )
            }
        }
    }

    /// Waits for a picture of these workers.
    pub(crate) async fn until_ids(&mut self, wanted: &[&str]) -> Sight {
        let is_wanted = |sight: &Sight| {
            sight.failure.is_none() && sight.picture.is_some() && ids(sight) == wanted
        };
        self.until(&format!("{wanted:?}"), is_wanted).await
    }

    /// Waits for a failure with this text; the last picture must still be there.
    pub(crate) async fn until_failure(&mut self, text: &str, kept: &[&str]) {
        let fails = |sight: &Sight| sight.failure.as_ref().is_some_and(|why| why.contains(text));
        let sight = self.until(text, fails).await;
        assert_eq!(ids(&sight), kept, "the last picture stays");
        assert!(self.watcher.fresh().is_none(), "and is not acted on");
    }
}

/// Workers of the last picture.
pub(crate) fn ids(sight: &Sight) -> Vec<&str> {
    let picture = sight.picture.iter();
    picture
        .flat_map(|picture| picture.iter().map(|(id, _)| id.as_str()))
        .collect()
}
