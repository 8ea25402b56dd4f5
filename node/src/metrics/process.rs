//! What is counted of the process itself: by names of our own, and by those that every program has for Prometheus.

use std::sync::atomic::AtomicU64;

use procfs::process::{LimitValue, Process};

use super::{Counter, Family, FloatGauge, Gauge, label_sets, metrics};

label_sets! {
    /// What was built.
    BuildLabels { version: &'static str, revision: &'static str }
    /// A task that stands as long as the replica.
    TaskLabels { task: &'static str }
}

metrics! {
    /// The process: its build, its log, its lanes, its memory, its timers.
    pub ProcessMetrics {
        build: Family<BuildLabels, Gauge>, "build_info", "1; the labels are the release and the commit of this build";
        log_lines_dropped: Counter, "log_lines_dropped", "Log lines dropped because standard error was not read or could not be written";
        panics: Counter, "panics", "Panics of threads and tasks: each is a bug, and an ERROR in the log";
        lost_tasks: Family<TaskLabels, Gauge>, "lost_tasks", "1: a panic ended this task, and what it did is missed until the replica starts again";
        lanes_stalled: Gauge, "lanes_stalled", "Threads that serve clients and stand still";
        memory_live: Gauge, "memory_live" Bytes, "Memory in use by this process's data, as its allocator counts";
        timer_lag: Counter<f64, AtomicU64>, "timer_lag" Seconds, "Time by which the timers of gossip and probes were late";
    }
    then ProcessMetrics::begin
}

metrics! {
    /// The process as the system sees it; these names have no prefix.
    pub SystemMetrics {
        cpu: Counter<f64, AtomicU64>, "process_cpu" Seconds, "Processor time of this process, the system's included";
        threads: Gauge, "process_threads", "Threads of this process";
        open_files: Gauge, "process_open_fds", "Open file descriptors";
        files_max: Gauge, "process_max_fds", "Most file descriptors that may be open";
        resident: Gauge, "process_resident_memory" Bytes, "Resident memory of this process";
        virtual_size: Gauge, "process_virtual_memory" Bytes, "Address space of this process";
        virtual_max: FloatGauge, "process_virtual_memory_max" Bytes, "Most address space that it may have; 2^64: unlimited";
        started: FloatGauge, "process_start_time" Seconds, "When this process started, since 1970";
    }
}

impl ProcessMetrics {
    fn begin(&self) {
        let labels = BuildLabels {
            version: env!("CARGO_PKG_VERSION"),
            revision: env!("GRAPEVINE_REVISION"),
        };
        self.build.get_or_create(&labels).set(1);
    }
}

impl SystemMetrics {
    /// Reads what the system says now; what it does not say stays as it was.
    pub fn read(&self) {
        let Ok(own) = Process::myself() else { return };
        if let Ok(stat) = own.stat() {
            let ticks = procfs::ticks_per_second() as f64;
            let used = (stat.utime + stat.stime) as f64 / ticks;
            self.cpu.inc_by((used - self.cpu.get()).max(0.0));
            self.threads.set(stat.num_threads);
            self.virtual_size.set(whole(stat.vsize));
            self.resident
                .set(whole(stat.rss.saturating_mul(procfs::page_size())));
            if let Ok(boot) = procfs::boot_time_secs() {
                self.started
                    .set(boot as f64 + stat.starttime as f64 / ticks);
            }
        }
        if let Ok(open) = own.fd_count() {
            self.open_files.set(whole(open as u64));
        }
        if let Ok(limits) = own.limits() {
            let files = limits.max_open_files.soft_limit;
            self.files_max.set(limit(files).map_or(i64::MAX, whole));
            let memory = limit(limits.max_address_space.soft_limit);
            self.virtual_max.set(memory.unwrap_or(u64::MAX) as f64);
        }
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn limit(value: LimitValue) -> Option<u64> {
    match value {
        LimitValue::Unlimited => None,
        LimitValue::Value(most) => Some(most),
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn the_system_says_everything() {
        let metrics = SystemMetrics::register(&mut Registry::default());
        metrics.read();
        assert!(metrics.threads.get() >= 1);
        assert!(
            metrics.open_files.get() > 2,
            "the three that every process has"
        );
        assert!(metrics.files_max.get() >= metrics.open_files.get());
        assert!(metrics.resident.get() > 1 << 20);
        assert!(metrics.virtual_size.get() >= metrics.resident.get());
        assert!(metrics.virtual_max.get() > 0.0);
        let year_2020 = 1_577_836_800.0;
        assert!(metrics.started.get() > year_2020, "{:?}", metrics.started);
    }

    #[test]
    fn processor_time_only_grows() {
        let metrics = SystemMetrics::register(&mut Registry::default());
        metrics.cpu.inc_by(1e9);
        metrics.read();
        assert!(metrics.cpu.get() >= 1e9);
    }
}
