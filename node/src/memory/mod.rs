//! Whether there is memory for more requests, and how it is got back.
//!
//! Bodies, connections and tables have limits of their own; this one holds for their sum, whatever they cost.
//!
//! The rule, four times a second, in which the limit is read, too: a cgroup's may be changed at any time:
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
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::allocator::GivingBack;
use self::cgroup::{Cgroup, Cgroups};
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
    source: Source,
    is_short: AtomicBool,
    giving_back: Arc<GivingBack>,
}

/// Where the limit stands.
#[derive(Debug)]
enum Source {
    /// In `limits.memory`.
    Set(u64),
    /// At the system, which may change it at any time.
    System(Cgroups),
}

impl Source {
    /// The limit as it is now, if there is one.
    /// Errors: it cannot be known now.
    fn limit(&self) -> io::Result<Option<Limit>> {
        match self {
            Self::Set(bytes) => Ok(Some(Limit::Set(*bytes))),
            Self::System(cgroups) => Ok(cgroups.smallest()?.map(Limit::Cgroup)),
        }
    }
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
    /// With this limit, else with that of the process's cgroup, as it is at the time.
    pub fn of(limit: Option<ByteSize>) -> Self {
        let system = || Source::System(Cgroups::default());
        Self::by(limit.map_or_else(system, |limit| Source::Set(limit.0)))
    }

    fn by(source: Source) -> Self {
        Self {
            source,
            is_short: AtomicBool::new(false),
            giving_back: Arc::default(),
        }
    }

    /// The limit in bytes, and what counts against it, both now; none where there is no limit.
    pub fn limit(&self) -> Option<(u64, Option<u64>)> {
        let limit = self.source.limit().ok()??;
        Some((limit.bytes(), limit.counted()))
    }

    /// Whether new requests should be turned away.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Looks every quarter of a second until the replica is closed, also at the limit itself. `seats`: whose idle
    /// connections leave while memory is short.
    pub async fn watch(self: Arc<Self>, seats: Arc<Seats>, phase: Phase) {
        let mut limit = None;
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut short_since = None;
        loop {
            tokio::select! {
                () = phase.closed() => return,
                _ = looks.tick() => {}
            }
            // One that cannot be read now is as it was.
            if let Ok(now) = self.source.limit() {
                tell(limit.as_ref(), now.as_ref());
                limit = now;
            }
            match &limit {
                None => self.unbind().await,
                Some(limit) => {
                    let Some(seen) = self.look(limit).await else {
                        continue;
                    };
                    self.judge(seen, limit.bytes());
                }
            }
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
            self.give_back(is).await;
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

    /// There is no limit, or none any more.
    async fn unbind(&self) {
        if self.giving_back.is_at_once() {
            self.give_back(false).await;
        }
        self.is_short.store(false, Ordering::Relaxed);
    }

    async fn give_back(&self, at_once: bool) {
        let giving_back = Arc::clone(&self.giving_back);
        // Many pages take milliseconds, which are no other task's business.
        let _ = spawn_blocking(move || giving_back.at_once(at_once)).await;
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

/// Reports a limit that was not there before, or changed.
fn tell(former: Option<&Limit>, now: Option<&Limit>) {
    match (former.map(Limit::bytes), now.map(Limit::bytes)) {
        (former, Some(limit)) if former != Some(limit) => {
            tracing::info!(
                limit,
                "new requests are refused from 85 % of this memory on"
            );
        }
        (Some(former), None) => tracing::info!(former, "memory has no limit any more"),
        _ => {}
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
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::seats::{Counts, SeatLimits};
    use crate::shutdown::Shutdown;

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

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_changes_counts_from_then_on() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            fs::write(root.path().join(name), text).expect("written");
        };
        write("own", "0::/\n");
        write("memory.current", "96000\n");
        write("memory.stat", "anon 96000\n");
        let cgroups = Cgroups::at(root.path().to_owned(), root.path().join("own"));
        let memory = Arc::new(Memory::by(Source::System(cgroups)));
        let limits = SeatLimits {
            capacity: 1,
            share_percent: 100,
            per_address: None,
            proxies: Vec::new(),
        };
        let seats = Seats::new(limits, Counts::default());
        let shutdown = Shutdown::new();
        let watching = tokio::spawn(Arc::clone(&memory).watch(seats, shutdown.phase()));
        // None at first; then one that is nearly used up, which the system raises, lowers, and takes away.
        for (limit, is_short) in [
            (None, false),
            (Some(100_000), true),
            (Some(200_000), false),
            (Some(100_000), true),
            (None, false),
        ] {
            let text = limit.map_or("max".to_owned(), |limit: u64| limit.to_string());
            write("memory.max", &text);
            let seen = timeout(Duration::from_secs(60), async {
                tokio::time::sleep(2 * LOOK).await;
                while memory.is_short() != is_short {
                    tokio::time::sleep(LOOK).await;
                }
            });
            seen.await.unwrap_or_else(|_| panic!("limit {limit:?}"));
            let known = memory.limit();
            assert_eq!(known, limit.map(|limit| (limit, Some(96_000))));
        }
        drop(shutdown);
        watching.await.expect("it ends with the replica");
        assert!(!memory.giving_back.is_at_once());
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes().expect("Linux tells") > 100 << 10);
    }
}
