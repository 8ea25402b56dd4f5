//! The cgroup whose memory limit binds this process, and what the system counts in it.
//!
//! The limit may be changed while the process runs (`systemctl set-property`, `docker update`, a pod that is resized), so
//! it is read each time.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::machine::cgroups::{self, Version, number};

/// A limit beyond this is none: cgroup v1 writes "unlimited" as a number close to 2^63.
const LIMIT_MAX: u64 = 1 << 60;

/// What a version of cgroups calls its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat` that the system takes back before it ends a process: pages of files.
    files: [&'static str; 2],
}

const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_active_file", "total_inactive_file"],
};
const VERSION_2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    files: ["active_file", "inactive_file"],
};

/// Where the limits of this process are read.
#[derive(Debug)]
pub(super) struct Cgroups {
    root: PathBuf,
    /// The process's `/proc/self/cgroup`.
    own: PathBuf,
}

impl Default for Cgroups {
    fn default() -> Self {
        Self {
            root: cgroups::ROOT.into(),
            own: cgroups::OWN.into(),
        }
    }
}

impl Cgroups {
    /// In other folders.
    #[cfg(test)]
    pub(super) fn at(root: PathBuf, own: PathBuf) -> Self {
        Self { root, own }
    }

    /// The cgroup with the smallest limit, of this process's own and those around it; none: there is no limit.
    /// Errors: it cannot be known now; the process has no file descriptors left, for one.
    pub(super) fn smallest(&self) -> io::Result<Option<Cgroup>> {
        match text(&self.own)? {
            Some(own) => Cgroup::smallest(&self.root, &own),
            None => Ok(None),
        }
    }
}

/// What a file holds; none where there is no such file for this process.
fn text(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A cgroup with a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cgroup {
    pub(super) limit: u64,
    folder: PathBuf,
    names: Names,
}

impl Cgroup {
    /// `own`: the process's `/proc/self/cgroup`.
    fn smallest(root: &Path, own: &str) -> io::Result<Option<Self>> {
        let mut smallest: Option<Self> = None;
        for (version, folder) in cgroups::folders(root, own, "memory") {
            let names = match version {
                Version::One => VERSION_1,
                Version::Two => VERSION_2,
            };
            // Version 2 writes `max`, which is no number, where there is none.
            let limit =
                text(&folder.join(names.limit))?.and_then(|limit| limit.trim().parse().ok());
            let Some(limit) = limit.filter(|limit| *limit < LIMIT_MAX) else {
                continue;
            };
            if smallest.as_ref().is_none_or(|known| limit < known.limit) {
                smallest = Some(Self {
                    limit,
                    folder,
                    names,
                });
            }
        }
        Ok(smallest)
    }

    /// What counts against the limit and is not taken back before a process is ended: memory of all its processes,
    /// also the kernel's for their sockets. None where it cannot be read.
    pub(super) fn used(&self) -> Option<u64> {
        let usage = number(&self.folder.join(self.names.usage))?;
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let files = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let is_file = self.names.files.contains(&name);
            bytes.parse::<u64>().ok().filter(|_| is_file)
        });
        Some(usage.saturating_sub(files.sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs::write(file, text).expect("written");
    }

    #[test]
    fn the_smallest_cgroup_limit_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        let limit = |own: &str| {
            let smallest = Cgroup::smallest(root.path(), own).expect("readable");
            smallest.map(|cgroup| cgroup.limit)
        };
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
    fn a_limit_that_cannot_be_read_is_not_taken_for_none() {
        let root = tempfile::tempdir().expect("a folder");
        // As good as any cause but that there is none.
        fs::create_dir_all(root.path().join("a/memory.max")).expect("made");
        assert!(Cgroup::smallest(root.path(), "0::/a\n").is_err());
        let own = root.path().join("own");
        let cgroups = Cgroups::at(root.path().to_owned(), own.clone());
        assert_eq!(cgroups.smallest().ok(), Some(None), "there are no cgroups");
        fs::write(own, "0::/a\n").expect("written");
        assert!(cgroups.smallest().is_err());
    }

    #[test]
    fn pages_of_files_are_not_used() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        write("a/memory.max", "1000\n");
        write("a/memory.current", "900\n");
        write(
            "a/memory.stat",
            "anon 300\nactive_file 200\ninactive_file 100\nsock 300\n",
        );
        write("memory/a/memory.limit_in_bytes", "2000\n");
        write("memory/a/memory.usage_in_bytes", "1500\n");
        write(
            "memory/a/memory.stat",
            "inactive_file 1\ntotal_inactive_file 1000\n",
        );
        let used = |own| {
            let smallest = Cgroup::smallest(root.path(), own).expect("readable");
            smallest.and_then(|cgroup| cgroup.used())
        };
        assert_eq!(used("0::/a\n"), Some(600));
        assert_eq!(used("4:memory:/a\n"), Some(500));
        fs::remove_file(root.path().join("a/memory.stat")).expect("it was there");
        assert_eq!(used("0::/a\n"), None);
    }
}
