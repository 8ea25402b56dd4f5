//! Workers that stand in files: in Prometheus' file_sd form (JSON, YAML), or as `[[worker]]` tables (TOML).
//!
//! The picture is the union of all files. One that is missing or wrong stops the whole source: its last picture stays,
//! and the failure names file, line and key. Files are looked at again and again rather than watched: that sees
//! renames, swapped links and network file systems alike, and needs nothing of the kernel.
//!
//! Does not decide what becomes of workers that are gone from the files (`rule/`).

mod changes;
mod description;
mod format;
mod look;
mod pattern;
mod tables;
mod targets;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::feed::Feed;
use changes::{Changes, Next};
pub use look::{Examined, examine};
pub use pattern::{PathPattern, PatternError};

/// Greatest size of one file in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Greatest number of files of one source.
pub const FILES_MAX: usize = 256;

/// Which files, and how often they are looked at.
#[derive(Clone, Debug)]
pub struct FileSettings {
    /// The files; at most [`FILES_MAX`] in all.
    pub paths: Vec<PathPattern>,
    /// From one look at the files to the next, by their times, sizes and inodes. Default 2 s. Higher: a change is
    /// noticed later. A change that is just being made is looked at again after a quarter of it.
    pub interval: Duration,
    /// The longest time after which files are read even though nothing shows a change. Default 30 s.
    pub reread: Duration,
}

impl FileSettings {
    /// These files, with the default times.
    pub fn new(paths: Vec<PathPattern>) -> Self {
        Self {
            paths,
            interval: Duration::from_secs(2),
            reread: Duration::from_secs(30),
        }
    }
}

/// Reports the workers of the files to `feed` until nobody reads it.
pub async fn run(settings: FileSettings, feed: Feed) {
    let paths: Arc<[PathPattern]> = settings.paths.clone().into();
    let mut changes = Changes::default();
    loop {
        let pause = tokio::select! {
            () = feed.closed() => return,
            pause = step(&settings, &paths, &mut changes, &feed) => pause,
        };
        tokio::select! {
            () = feed.closed() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One look and what follows from it; returns the time until the next one.
async fn step(
    settings: &FileSettings,
    paths: &Arc<[PathPattern]>,
    changes: &mut Changes,
    feed: &Feed,
) -> Duration {
    let looked = Arc::clone(paths);
    let stamps = match blocking(move || look::look(&looked)).await {
        Ok(stamps) => Arc::new(stamps),
        Err(why) => {
            changes.forget();
            feed.fail(why);
            return settings.interval;
        }
    };
    let now = Instant::now();
    match changes.look(&stamps, now, settings.reread) {
        Next::Unsettled => return settings.interval / 4,
        // What could not be read is not confirmed by being unchanged.
        Next::Unchanged if changes.was_good() => feed.confirm(),
        Next::Unchanged => {}
        Next::Read => {
            let (files, looked) = (Arc::clone(&stamps), Arc::clone(paths));
            let read = blocking(move || Ok((look::read(&files), look::look(&looked)))).await;
            let (picture, after) = read.unwrap_or_else(|why| (Err(why.clone()), Err(why)));
            let before = Arc::unwrap_or_clone(stamps);
            if !changes.read(before, after.ok(), picture.is_ok(), now, settings.reread) {
                return settings.interval / 4;
            }
            match picture {
                Ok(picture) => feed.see(picture),
                Err(why) => feed.fail(why),
            }
        }
    }
    settings.interval
}

/// Runs `work` where it may wait for a disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(format!("the files could not be looked at: {error}")))
}
