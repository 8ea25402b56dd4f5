//! The allocator, and what it says of the memory that it holds.
//!
//! jemalloc, because it gives free pages back by itself: after a burst of connections the C library's allocator kept
//! what they had used for as long as the process lived. Its own thread does so also when no part asks for memory any
//! more. And it counts what is in use, which the size of a process does not show.

use std::sync::atomic::{AtomicBool, Ordering};

use tikv_jemalloc_ctl::{Access, AsName, Error, background_thread, epoch, max_background_threads};
use tikv_jemalloc_ctl::{arenas, stats};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Within this time free pages are given back while there is enough memory. Less costs page faults, and an idle
/// replica would hardly be smaller.
const KEPT_MS: isize = 10_000;
/// The default of arenas to come.
const KEPT_BY_NEW: &str = "arenas.dirty_decay_ms\0";

/// Has free pages given back in the background from now on.
pub fn start() {
    let started = max_background_threads::write(1)
        .and_then(|()| background_thread::write(true))
        .and_then(|()| KEPT_BY_NEW.name().write(KEPT_MS));
    if let Err(error) = started {
        // It then gives pages back only while it is asked for memory.
        tracing::info!(%error, "the allocator has no thread of its own");
    }
}

/// Bytes that the allocator holds in the process's memory without use: free pages, and gaps in others.
pub fn unused_bytes() -> Option<u64> {
    epoch::advance().ok()?;
    let used = stats::allocated::read().ok()? + stats::metadata::read().ok()?;
    Some(stats::resident::read().ok()?.saturating_sub(used) as u64)
}

/// Bytes in use by the process's data.
pub fn live_bytes() -> Option<u64> {
    epoch::advance().ok()?;
    stats::allocated::read().ok().map(|bytes| bytes as u64)
}

/// Whether free pages are given back at once, those that are free now included, instead of within a while. May take
/// some milliseconds.
#[derive(Debug, Default)]
pub struct GivingBack(AtomicBool);

impl GivingBack {
    /// Whether it is so.
    pub fn is_at_once(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes it, if it is not so already.
    pub fn at_once(&self, wanted: bool) {
        if self.0.swap(wanted, Ordering::Relaxed) != wanted {
            let kept = if wanted { 0 } else { KEPT_MS };
            if let Err(error) = keep_free_for(kept) {
                tracing::debug!(%error, "the allocator cannot be configured");
            }
        }
    }
}

fn keep_free_for(ms: isize) -> Result<(), Error> {
    KEPT_BY_NEW.name().write(ms)?;
    for arena in 0..arenas::narenas::read()? {
        // Not every number has an arena yet.
        let _ = format!("arena.{arena}.dirty_decay_ms\0").name().write(ms);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own: other tests of this one take and free as much at the same time.
    #[test]
    fn what_is_freed_is_unused_and_then_given_back() {
        const ALONE: &str = "GRAPEVINE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let (_crate, module) = module_path!().split_once("::").expect("a module of it");
            let name = format!("{module}::what_is_freed_is_unused_and_then_given_back");
            let this = std::env::current_exe().expect("Linux tells");
            let alone = std::process::Command::new(this)
                .args(["--exact", &name, "--nocapture"])
                .env(ALONE, "1")
                .output();
            let alone = alone.expect("it starts");
            let said = [alone.stdout, alone.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(
                alone.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        const BYTES: usize = 64 << 20;
        let before = live_bytes().expect("it counts");
        let blocks: Vec<Vec<u8>> = (0..BYTES >> 14).map(|_| vec![1; 1 << 14]).collect();
        let held = live_bytes().expect("it counts");
        assert!(held >= before + BYTES as u64 / 10 * 9, "{before} {held}");
        let resident = crate::memory::resident_bytes().expect("Linux tells");
        drop(blocks);
        let giving_back = GivingBack::default();
        giving_back.at_once(true);
        let after = crate::memory::resident_bytes().expect("Linux tells");
        let given = resident.saturating_sub(after);
        assert!(given >= BYTES as u64 / 2, "{given} of {BYTES} given back");
        giving_back.at_once(false);
    }
}
