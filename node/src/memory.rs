//! Whether there is memory for more requests: resident memory against the limit at which the system ends the process.
//!
//! Bodies, connections and tables have limits of their own; this one holds for their sum, whatever they cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::config::ByteSize;
use crate::shutdown::Phase;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// From this share of the limit on there is no memory for more requests ...
const SHORT_FROM_PERCENT: u64 = 85;
/// ... until less than this share is used.
const ENOUGH_BELOW_PERCENT: u64 = 80;
/// A limit beyond this is none: cgroup v1 writes "unlimited" as a number close to 2^63.
const LIMIT_MAX: u64 = 1 << 60;

/// The process's memory against its limit.
#[derive(Debug)]
pub struct Memory {
    limit: Option<u64>,
    is_short: AtomicBool,
}

impl Memory {
    /// With this limit, else with that of the process's cgroup.
    #[must_use]
    pub fn of(limit: Option<ByteSize>) -> Self {
        let of_cgroup = || {
            let own = fs::read_to_string("/proc/self/cgroup").ok()?;
            cgroup_limit(Path::new("/sys/fs/cgroup"), &own)
        };
        Self {
            limit: limit.map(|limit| limit.0).or_else(of_cgroup),
            is_short: AtomicBool::new(false),
        }
    }

    /// Whether new requests should be turned away.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Looks every quarter of a second until the replica is closed; at once done where there is no limit.
    pub async fn watch(self: Arc<Self>, phase: Phase) {
        let Some(limit) = self.limit else { return };
        tracing::info!(
            limit,
            "new requests are refused from 85 % of this memory on"
        );
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = phase.closed() => return,
                _ = looks.tick() => {}
            }
            let Some(used) = resident_bytes() else {
                continue;
            };
            let was_short = self.is_short();
            let is_short = is_short(was_short, used, limit);
            self.is_short.store(is_short, Ordering::Relaxed);
            match (was_short, is_short) {
                (false, true) => {
                    tracing::warn!(used, limit, "short of memory: new requests get 503")
                }
                (true, false) => tracing::info!(used, limit, "enough memory again"),
                _ => {}
            }
        }
    }
}

fn is_short(was_short: bool, used: u64, limit: u64) -> bool {
    let percent = if was_short {
        ENOUGH_BELOW_PERCENT
    } else {
        SHORT_FROM_PERCENT
    };
    used >= limit / 100 * percent
}

/// Resident memory of this process; none where the system does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The smallest limit of a process's cgroup and of those around it. `own`: the process's `/proc/self/cgroup`.
fn cgroup_limit(root: &Path, own: &str) -> Option<u64> {
    let limits = own.lines().flat_map(|line| {
        // hierarchy:controllers:path; version 2 has hierarchy 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (parts.next(), parts.next(), parts.next());
        let (folder, file) = match (hierarchy, controllers) {
            (Some("0"), Some("")) => (root.to_owned(), "memory.max"),
            (_, Some(names)) if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        limits_on_the_way(&folder, path.unwrap_or_default(), file)
    });
    limits.filter(|limit| *limit < LIMIT_MAX).min()
}

/// Limits in the folder and in each folder below it along the path. In a container the path may be that of the host,
/// and not there; the container's own limit is then in the first folder.
fn limits_on_the_way(folder: &Path, path: &str, file: &str) -> Vec<u64> {
    let mut at: PathBuf = folder.to_owned();
    let mut files = vec![at.join(file)];
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at.push(name);
        files.push(at.join(file));
    }
    let number = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    files.iter().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shedding_begins_and_ends_at_different_shares() {
        let limit = 1_000;
        assert!(!is_short(false, 849, limit));
        assert!(is_short(false, 850, limit));
        assert!(is_short(true, 800, limit));
        assert!(!is_short(true, 799, limit));
        assert!(is_short(false, 10, 0));
    }

    #[test]
    fn the_smallest_cgroup_limit_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        };
        let limit = |own: &str| cgroup_limit(root.path(), own);
        assert_eq!(limit("0::/a/b\n"), None);
        write("memory.max", "max\n");
        write("a/memory.max", "500\n");
        write("a/b/memory.max", "800\n");
        assert_eq!(limit("0::/a/b\n"), Some(500));
        assert_eq!(limit("0::/elsewhere\n"), None);
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/c/memory.limit_in_bytes", "700\n");
        let version_1 = "5:cpu,cpuacct:/c\n4:memory:/c\n";
        assert_eq!(limit(version_1), Some(700));
        assert_eq!(limit("4:memory:/of/the/host\n"), None);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes().expect("Linux tells") > 100 << 10);
    }
}
