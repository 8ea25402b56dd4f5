//! Starts the watch of pods.

use std::time::Duration;

use grapevine_discovery::kubernetes::run;
use grapevine_discovery::{Watcher, feed};

use super::base::Base;

/// Name of the source in the registry.
const NAME: &str = "kubernetes";
/// A picture is confirmed at the end of each watch, 30 s, or a failure is told some seconds later; this is never
/// reached unless the source is stuck.
const STALE_AFTER: Duration = Duration::from_secs(90);

/// The end at which pictures are read, if pods are to be watched.
pub(super) fn start(base: Base<'_>) -> Option<Watcher> {
    let config = &base.config.kubernetes;
    if !config.enabled {
        return None;
    }
    let (feed, watcher) = feed(NAME, STALE_AFTER);
    base.run(NAME, run(config.source(), feed));
    Some(watcher)
}
