//! The quota of processors that cgroups leave this process, and how often it was used up.

use std::fs;
use std::path::Path;

use super::cgroups::{self, Version, number};

/// Periods of a cgroup since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Periods {
    /// In which it worked.
    pub(super) all: u64,
    /// Of them, those in which its quota was used up.
    pub(super) held_up: u64,
}

impl Periods {
    /// Those that came after the earlier ones; none: these are of another cgroup.
    pub(super) fn since(self, earlier: Self) -> Option<Self> {
        Some(Self {
            all: self.all.checked_sub(earlier.all)?,
            held_up: self.held_up.checked_sub(earlier.held_up)?,
        })
    }
}

/// The periods of the cgroup whose quota is the smallest; none where there is no quota.
pub(super) fn periods() -> Option<Periods> {
    own_quota()?.1
}

/// In processors, and the periods of its cgroup where the system says; none where there is no quota.
pub(super) fn own_quota() -> Option<(f64, Option<Periods>)> {
    quota(Path::new(cgroups::ROOT), &cgroups::own()?)
}

/// The smallest quota on the way, and the periods of its cgroup.
fn quota(root: &Path, own: &str) -> Option<(f64, Option<Periods>)> {
    let folders = cgroups::folders(root, own, "cpu").into_iter();
    let limited = folders.filter_map(|(version, folder)| {
        let quota = match version {
            Version::One => quota_of_version_1(&folder),
            Version::Two => quota_of_version_2(&folder),
        };
        Some((quota?, folder))
    });
    let (quota, folder) = limited.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some((quota, periods_of(&folder)))
}

/// `cpu.max`: `max 100000` or `50000 100000`.
fn quota_of_version_2(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    share(quota.parse().ok()?, period.parse().ok()?)
}

fn quota_of_version_1(folder: &Path) -> Option<f64> {
    // -1, which is no such number, where there is none.
    let quota = number(&folder.join("cpu.cfs_quota_us"))?;
    share(quota, number(&folder.join("cpu.cfs_period_us"))?)
}

fn share(quota: u64, period: u64) -> Option<f64> {
    (period > 0).then(|| quota as f64 / period as f64)
}

/// From `cpu.stat`, which is alike in both versions.
fn periods_of(folder: &Path) -> Option<Periods> {
    let stat = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    let of = |wanted: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        let (_, number) = lines.find(|(name, _)| *name == wanted)?;
        number.trim().parse::<u64>().ok()
    };
    Some(Periods {
        all: of("nr_periods")?,
        held_up: of("nr_throttled")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_quota_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        };
        let found = |own: &str| quota(root.path(), own);
        assert_eq!(found("0::/a/b\n"), None);
        write("cpu.max", "max 100000\n");
        write("a/cpu.max", "50000 100000\n");
        write("a/b/cpu.max", "300000 100000\n");
        assert_eq!(found("0::/a/b\n"), Some((0.5, None)));
        write(
            "a/cpu.stat",
            "usage_usec 12\nnr_periods 200\nnr_throttled 50\nthrottled_usec 9\n",
        );
        let counted = Periods {
            all: 200,
            held_up: 50,
        };
        assert_eq!(found("0::/a/b\n"), Some((0.5, Some(counted))));
        assert_eq!(found("0::/elsewhere\n"), None);
        write("cpu/cpu.cfs_quota_us", "-1\n");
        write("cpu/cpu.cfs_period_us", "100000\n");
        assert_eq!(found("5:cpu,cpuacct:/c\n"), None);
        write("cpu/c/cpu.cfs_quota_us", "150000\n");
        write("cpu/c/cpu.cfs_period_us", "100000\n");
        write("cpu/c/cpu.stat", "nr_periods 0\nnr_throttled 0\n");
        let none = Some(Periods::default());
        assert_eq!(found("5:cpu,cpuacct:/c\n4:memory:/d\n"), Some((1.5, none)));
    }
}
