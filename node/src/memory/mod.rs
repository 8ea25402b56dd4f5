//! Whether there is memory for more requests, and how it is got back.
//!
//! Bodies, connections and tables have limits of their own; this one holds for their sum, whatever they cost.
//!
//! The rule, four times a second:
//!
//! 1. **Counted** is what the system holds against the limit: for `limits.memory` the process's resident memory, for a
//!    cgroup's limit all that the cgroup uses but pages of files. **Unused** of it is what the allocator holds
//!    without use. From 75 % counted on the allocator gives its free pages back at once, so counted follows what is
//!    used.
//! 2. The replica is **short** from 85 % of the limit in use (counted without unused) until below 80 %: gaps between
//!    what is in use are filled by the requests to come, and must not keep them out.
//! 3. It is short as well from 95 % counted until below 90 %, whatever is unused of it: beyond the limit the system
//!    ends the process.
//!
//! While it is short, requests are refused but for one at a time, and readiness says so. What requests hold comes back
//! by itself; what idle connections hold does not, so after a second of it the longest idle are asked to leave.

#[cfg_attr(feature = "jemalloc", path = "jemalloc.rs")]
#[cfg_attr(not(feature = "jemalloc"), path = "c_library.rs")]
pub mod allocator;
mod cgroup;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::allocator::GivingBack;
use self::cgroup::Cgroup;
use crate::config::ByteSize;
use crate::seats::Seats;
use crate::shutdown::Phase;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// For how long a replica is short before idle connections leave for it.
const RELIEF_AFTER: Duration = Duration::from_secs(1);

/// Shares of the limit between which a state changes, in percent: it begins at the first and ends below the second.
type Band = (u64, u64);
/// Of counted memory: free pages are given back at once.
const GIVING_BACK: Band = (75, 70);
/// Of memory in use: short.
const IN_USE: Band = (85, 80);
/// Of counted memory: short.
const COUNTED: Band = (95, 90);

/// The process's memory against its limit.
#[derive(Debug)]
pub struct Memory {
    limit: Option<Limit>,
    is_short: AtomicBool,
    giving_back: Arc<GivingBack>,
}

#[derive(Debug)]
enum Limit {
    /// `limits.memory`.
    Set(u64),
    /// The system's.
    Cgroup(Cgroup),
}

impl Limit {
    fn bytes(&self) -> u64 {
        match self {
            Self::Set(bytes) => *bytes,
            Self::Cgroup(cgroup) => cgroup.limit,
        }
    }

    fn counted(&self) -> Option<u64> {
        match self {
            Self::Set(_) => resident_bytes(),
            Self::Cgroup(cgroup) => cgroup.used().or_else(resident_bytes),
        }
    }
}

/// What a look found, in bytes.
#[derive(Debug, Clone, Copy)]
struct Seen {
    counted: u64,
    in_use: u64,
}

impl Memory {
    /// With this limit, else with that of the process's cgroup.
    #[must_use]
    pub fn of(limit: Option<ByteSize>) -> Self {
        let set = limit.map(|limit| Limit::Set(limit.0));
        Self {
            limit: set.or_else(|| Cgroup::own().map(Limit::Cgroup)),
            is_short: AtomicBool::new(false),
            giving_back: Arc::default(),
        }
    }

    /// The limit in bytes, and what counts against it now; none where there is no limit.
    #[must_use]
    pub fn limit(&self) -> Option<(u64, Option<u64>)> {
        let limit = self.limit.as_ref()?;
        Some((limit.bytes(), limit.counted()))
    }

    /// Whether new requests should be turned away.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Looks every quarter of a second until the replica is closed; at once done where there is no limit. `seats`:
    /// whose idle connections leave while memory is short.
    pub async fn watch(self: Arc<Self>, seats: Arc<Seats>, phase: Phase) {
        let Some(limit) = &self.limit else { return };
        tracing::info!(
            limit = limit.bytes(),
            "new requests are refused from 85 % of this memory on"
        );
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut short_since = None;
        loop {
            tokio::select! {
                () = phase.closed() => return,
                _ = looks.tick() => {}
            }
            let Some(seen) = self.look(limit).await else {
                continue;
            };
            self.judge(seen, limit.bytes());
            if !self.is_short() {
                short_since = None;
                continue;
            }
            let since = *short_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= RELIEF_AFTER {
                seats.relieve();
            }
        }
    }

    /// Gives free pages back first where that matters.
    async fn look(&self, limit: &Limit) -> Option<Seen> {
        let counted = limit.counted()?;
        let was = self.giving_back.is_at_once();
        let is = is_within(GIVING_BACK, was, counted, limit.bytes());
        if is != was {
            let giving_back = Arc::clone(&self.giving_back);
            // Many pages take milliseconds, which are no other task's business.
            let _ = spawn_blocking(move || giving_back.at_once(is)).await;
        }
        if !is {
            let in_use = counted;
            return Some(Seen { counted, in_use });
        }
        let counted = limit.counted()?;
        let unused = allocator::unused_bytes().unwrap_or_default();
        let in_use = counted.saturating_sub(unused);
        Some(Seen { counted, in_use })
    }

    fn judge(&self, seen: Seen, limit: u64) {
        let was_short = self.is_short();
        let is_short = is_short(was_short, seen, limit);
        self.is_short.store(is_short, Ordering::Relaxed);
        let Seen { counted, in_use } = seen;
        match (was_short, is_short) {
            (false, true) => tracing::warn!(
                in_use,
                counted,
                limit,
                "short of memory: new requests get 503"
            ),
            (true, false) => tracing::info!(in_use, counted, limit, "enough memory again"),
            _ => {}
        }
    }
}

fn is_short(was_short: bool, seen: Seen, limit: u64) -> bool {
    is_within(IN_USE, was_short, seen.in_use, limit)
        || is_within(COUNTED, was_short, seen.counted, limit)
}

fn is_within((begin, end): Band, was_within: bool, bytes: u64, limit: u64) -> bool {
    let percent = if was_within { end } else { begin };
    bytes >= limit / 100 * percent
}

/// Resident memory of this process; none where the system does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shedding_begins_and_ends_at_different_shares() {
        let short = |was, in_use, counted| is_short(was, Seen { counted, in_use }, 1_000);
        assert!(!short(false, 849, 849));
        assert!(short(false, 850, 850));
        assert!(short(true, 800, 800));
        assert!(!short(true, 799, 799));
        assert!(is_short(
            false,
            Seen {
                counted: 10,
                in_use: 10
            },
            0
        ));
    }

    #[test]
    fn what_nobody_uses_keeps_nobody_out_unless_the_system_would_end_the_process() {
        let short = |was, in_use, counted| is_short(was, Seen { counted, in_use }, 1_000);
        assert!(!short(false, 100, 949));
        assert!(short(false, 100, 950));
        assert!(short(true, 100, 900));
        assert!(!short(true, 100, 899));
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes().expect("Linux tells") > 100 << 10);
    }
}
