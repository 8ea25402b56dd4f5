//! A process that gets little processor time: it is stopped and continued many times a second.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Of one stop and one run together.
const PERIOD: Duration = Duration::from_millis(100);

/// Goes on until dropped; then the process runs. Drop it before the process is waited for: its id
/// may be another's afterwards.
pub(super) struct Starving {
    pid: Pid,
    task: AbortOnDropHandle<()>,
}

impl Starving {
    /// `share` of the time it may run, above 0 and below 1.
    pub(super) fn start(pid: Pid, share: f64) -> Self {
        let run = PERIOD.mul_f64(share);
        let task = tokio::spawn(async move {
            loop {
                for (signal, time) in [(Signal::STOP, PERIOD - run), (Signal::CONT, run)] {
                    // It may have ended; whoever waits for it will say so.
                    let _ = kill_process(pid, signal);
                    sleep(time).await;
                }
            }
        });
        Self {
            pid,
            task: AbortOnDropHandle::new(task),
        }
    }
}

impl Drop for Starving {
    fn drop(&mut self) {
        self.task.abort();
        let _ = kill_process(self.pid, Signal::CONT);
    }
}
