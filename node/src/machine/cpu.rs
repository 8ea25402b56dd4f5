//! Processors: how many this process may use, and whether a quota of its cgroup holds it up.

use std::thread;

use serde::Serialize;

use super::held_up::HeldUp;
use super::quota::own_quota;

/// Processors of this process.
#[derive(Debug, PartialEq, Serialize)]
pub struct Cpu {
    /// Within its affinity and its quota, rounded up to one.
    usable: usize,
    /// The smallest quota of its cgroups, in processors; null where there is none.
    quota: Option<f64>,
    /// Of the periods in which its cgroup worked within the last hour, or since this replica started, the share in which
    /// the quota was used up, 0 to 1; null where there is no quota, or there was no period.
    held_up: Option<f64>,
}

impl Cpu {
    pub(super) fn look(held_up: &HeldUp) -> Self {
        let (quota, periods) = own_quota().unzip();
        Self {
            usable: thread::available_parallelism().map_or(1, usize::from),
            quota,
            held_up: periods.flatten().and_then(|now| held_up.share(now)),
        }
    }
}
