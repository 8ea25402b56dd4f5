//! What is counted of the process itself.

use std::sync::atomic::AtomicU64;

use super::{Counter, Gauge, metrics};

metrics! {
    /// The process: its log, its memory, its timers.
    pub ProcessMetrics {
        log_lines_dropped: Counter, "log_lines_dropped", "Log lines dropped because standard error was not read";
        memory: Gauge, "memory" Bytes, "Resident memory of this process";
        memory_live: Gauge, "memory_live" Bytes, "Memory in use by this process's data, as its allocator counts";
        timer_lag: Counter<f64, AtomicU64>, "timer_lag" Seconds, "Time by which this process's timers were late";
    }
}
