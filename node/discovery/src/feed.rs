//! The way from a source to the rule: the latest picture, when it was last seen to be true, and why it is not seen now.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::picture::Picture;

/// What a source last reported.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// The last full picture; none before the first.
    pub picture: Option<Arc<Picture>>,
    /// When it was last known to be true.
    pub seen: Option<Instant>,
    /// Why the source cannot be seen now, with what to do about it; `None` while it can.
    pub failure: Option<String>,
    /// Failures since the start.
    pub failures: u64,
}

impl Sight {
    /// The picture, if it may be acted on: the source can be seen, and was within `stale_after` before `now`.
    pub fn fresh(&self, now: Instant, stale_after: Duration) -> Option<&Arc<Picture>> {
        let seen = self.seen.filter(|_| self.failure.is_none())?;
        let is_fresh = now.saturating_duration_since(seen) <= stale_after;
        self.picture.as_ref().filter(|_| is_fresh)
    }
}

/// The end at which a source reports. When it is dropped, its last picture grows stale.
#[derive(Debug)]
pub struct Feed {
    name: String,
    sight: watch::Sender<Sight>,
}

/// The end at which pictures are read. Clones see the same.
#[derive(Clone, Debug)]
pub struct Watcher {
    name: String,
    stale_after: Duration,
    sight: watch::Receiver<Sight>,
}

/// A source's two ends. `name` is that of the source in the registry, the same on all replicas that watch the same
/// thing (1 to 64 visible ASCII characters); a picture older than `stale_after` is not acted on.
pub fn feed(name: &str, stale_after: Duration) -> (Feed, Watcher) {
    let (sender, receiver) = watch::channel(Sight::default());
    let feed = Feed {
        name: name.to_owned(),
        sight: sender,
    };
    let watcher = Watcher {
        name: name.to_owned(),
        stale_after,
        sight: receiver,
    };
    (feed, watcher)
}

impl Feed {
    /// Reports all workers that the source sees now.
    pub fn see(&self, picture: Picture) {
        self.sight.send_if_modified(|sight| {
            let is_new = sight.picture.as_deref() != Some(&picture) || sight.failure.is_some();
            sight.seen = Some(Instant::now());
            if is_new {
                self.recovered(sight.failure.take());
                sight.picture = Some(Arc::new(picture));
            }
            is_new
        });
    }

    /// Reports that the last picture is still true: the source was asked again and answered the same.
    pub fn confirm(&self) {
        self.sight.send_if_modified(|sight| {
            sight.seen = Some(Instant::now());
            let failure = sight.failure.take();
            self.recovered(failure.clone());
            failure.is_some()
        });
    }

    /// Reports that the source cannot be seen now, and why; the last picture stays, and is not acted on.
    pub fn fail(&self, why: impl Into<String>) {
        let why = why.into();
        self.sight.send_if_modified(|sight| {
            sight.failures += 1;
            let is_new = sight.failure.as_ref() != Some(&why);
            if is_new {
                tracing::warn!(
                    source = self.name,
                    error = why,
                    "a source of workers cannot be seen; its workers stay as they are"
                );
                sight.failure = Some(why);
            }
            is_new
        });
    }

    fn recovered(&self, failure: Option<String>) {
        if failure.is_some() {
            tracing::info!(source = self.name, "a source of workers can be seen again");
        }
    }

    /// The last picture; none before the first.
    pub fn last(&self) -> Option<Arc<Picture>> {
        self.sight.borrow().picture.clone()
    }

    /// Returns when nobody reads any more: the replica ends.
    pub async fn closed(&self) {
        self.sight.closed().await;
    }
}

impl Watcher {
    /// The source's name in the registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the source last reported.
    pub fn sight(&self) -> Sight {
        self.sight.borrow().clone()
    }

    /// The picture that may be acted on now.
    pub fn fresh(&self) -> Option<Arc<Picture>> {
        let sight = self.sight.borrow();
        sight.fresh(Instant::now(), self.stale_after).cloned()
    }

    /// Waits for another picture, failure or recovery. Pending for ever once the source has ended.
    pub async fn changed(&mut self) {
        if self.sight.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_picture_is_fresh_until_it_fails_or_grows_old() {
        let (source, watcher) = feed("file", STALE);
        assert_eq!(watcher.fresh(), None, "before the first picture");
        source.see(Picture::default());
        assert!(watcher.fresh().is_some());
        tokio::time::advance(STALE + Duration::from_millis(1)).await;
        assert_eq!(watcher.fresh(), None, "too old");
        source.confirm();
        assert!(watcher.fresh().is_some(), "asked again");
        source.fail("no answer");
        assert_eq!(watcher.fresh(), None, "cannot be seen");
        let sight = watcher.sight();
        assert!(sight.picture.is_some(), "the last one stays");
        assert_eq!(
            (sight.failure.as_deref(), sight.failures),
            (Some("no answer"), 1)
        );
        source.confirm();
        assert!(watcher.fresh().is_some());
    }
}
