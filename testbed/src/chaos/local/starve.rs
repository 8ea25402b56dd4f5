//! Gives a process little processor time: stops and continues it many times a second.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Length of one stop and one run together.
const PERIOD: Duration = Duration::from_millis(100);

/// Goes on until dropped; then the process runs freely. Drop it before waiting for the process: afterwards
/// the id may belong to another one.
pub(super) struct Starving {
    pid: Pid,
    task: AbortOnDropHandle<()>,
}

impl Starving {
    /// Lets the process run for `share` of the time, above 0 and below 1.
    pub(super) fn start(pid: Pid, share: f64) -> Self {
        let run = PERIOD.mul_f64(share);
        let task = tokio::spawn(async move {
            loop {
                for (signal, time) in [(Signal::STOP, PERIOD - run), (Signal::CONT, run)] {
                    // The process may have ended; the task that waits for it reports that.
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
