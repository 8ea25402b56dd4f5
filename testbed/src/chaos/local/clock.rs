//! Wall clocks that can be moved while a process runs, by libfaketime: it is preloaded and reads a file. The
//! monotonic clock stays right, as it does when an operator or NTP sets the time.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Paths at which distributions install libfaketime.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// The clock of one replica, right at first.
pub(super) struct Clock {
    library: &'static str,
    file: PathBuf,
}

impl Clock {
    pub(super) fn new(file: PathBuf) -> anyhow::Result<Self> {
        let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
        let library = library.context("clocks need libfaketime: apt install faketime")?;
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        ensure!(
            maps.contains("libc.so"),
            "clocks need a dynamically linked binary: this one is static, and nothing can be preloaded"
        );
        let clock = Self { library, file };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the clock ahead of the right time by so many seconds; the process sees it about a second later.
    pub(super) fn set(&self, ahead: i64) -> anyhow::Result<()> {
        // Replaced in one step: a half-written file would give another time.
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{ahead:+}\n"))
            .and_then(|()| fs::rename(&next, &self.file))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }

    /// Environment variables for the process that has this clock.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file.to_string_lossy()),
            ("FAKETIME_CACHE_DURATION", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }
}
