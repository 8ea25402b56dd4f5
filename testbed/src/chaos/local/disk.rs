//! A full disk, for one process.

use crate::processes::Process;

/// Sets a limit of zero bytes on files: a write then fails as it does on a full disk.
#[cfg(target_os = "linux")]
pub(super) fn full_disk(process: &Process, full: bool) -> anyhow::Result<()> {
    use anyhow::{Context, ensure};
    use rustix::process::{Resource, Rlimit, prlimit};

    use crate::processes::survives_full_disk;

    ensure!(survives_full_disk(), "a full disk needs /bin/sh");
    let limit = Rlimit {
        current: full.then_some(0),
        maximum: None,
    };
    prlimit(Some(process.pid()), Resource::Fsize, limit).context("cannot limit its files")?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn full_disk(_: &Process, _: bool) -> anyhow::Result<()> {
    anyhow::bail!("a full disk needs Linux here")
}
