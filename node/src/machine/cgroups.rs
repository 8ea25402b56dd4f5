//! Where the cgroups of a process are: the folders from the root to its own, of both versions.

use std::fs;
use std::path::{Path, PathBuf};

/// Where cgroups are mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Where this process's cgroups are named.
pub(crate) const OWN: &str = "/proc/self/cgroup";

/// A version of cgroups: each calls its files otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy.
    Two,
}

/// This process's `/proc/self/cgroup`.
pub(crate) fn own() -> Option<String> {
    fs::read_to_string(OWN).ok()
}

/// The folders that may limit what this controller gives a process, the outermost first. `own`: its
/// `/proc/self/cgroup`. In a container the path may be that of the host, and not there; the container's own limit is
/// then in the first folder.
pub(crate) fn folders(root: &Path, own: &str, controller: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in own.lines() {
        // hierarchy:controllers:path; version 2 has hierarchy 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (parts.next(), parts.next(), parts.next());
        let (mut at, version) = match (hierarchy, controllers) {
            (Some("0"), Some("")) => (root.to_owned(), Version::Two),
            (_, Some(names)) if names.split(',').any(|name| name == controller) => {
                (root.join(controller), Version::One)
            }
            _ => continue,
        };
        found.push((version, at.clone()));
        let names = path.unwrap_or_default().split('/');
        for name in names.filter(|name| !name.is_empty()) {
            at.push(name);
            found.push((version, at.clone()));
        }
    }
    found
}

/// The number that a file holds, and nothing else.
pub(crate) fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
