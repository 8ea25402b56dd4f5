//! The wrapped command: started with the worker's registration, ended after it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::report;
use crate::cli::failure::Failure;

/// How long it may take to end when it is asked to.
const END_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at what it started itself.
const LOOK: Duration = Duration::from_millis(100);

/// A command that is running, or none.
pub(super) struct Wrapped {
    child: Option<Child>,
    /// The group of all that it started, which may outlive it.
    group: Option<Pid>,
    /// How it ended, once it has ended by itself.
    ended: Option<ExitCode>,
}

impl Wrapped {
    /// Starts the command; none if there are no words.
    /// Errors: it cannot be started.
    pub(super) fn start(words: &[OsString]) -> Result<Self, Failure> {
        let child = match words.split_first() {
            None => None,
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                // A group of its own: Ctrl-C in a terminal would end it before it has been drained.
                command.args(arguments).process_group(0).kill_on_drop(true);
                let spawned = command.spawn().map_err(|error| {
                    Failure::Refused(format!("{}: {error}", program.to_string_lossy()))
                });
                Some(spawned?)
            }
        };
        let id = child.as_ref().and_then(Child::id);
        Ok(Self {
            child,
            group: id.and_then(|id| Pid::from_raw(id.cast_signed())),
            ended: None,
        })
    }

    /// Returns when the command has ended; never, if there is none.
    pub(super) async fn ended(&mut self) {
        match &mut self.child {
            Some(child) => self.ended = Some(code(child.wait().await.ok())),
            None => std::future::pending().await,
        }
    }

    /// Whether the command was there and has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        let Some(child) = &mut self.child else {
            return false;
        };
        match child.try_wait() {
            Ok(None) => {}
            ended => self.ended = Some(code(ended.ok().flatten())),
        }
        self.ended.is_some()
    }

    /// Asks the command to end, and ends it by force when it does not; with it all that it started in its group, as an
    /// engine behind a shell, and the processes of its GPUs. Its exit code, if it had ended by itself.
    pub(super) async fn end(&mut self) -> ExitCode {
        self.has_ended();
        let (Some(child), Some(group)) = (&mut self.child, self.group) else {
            return ExitCode::SUCCESS;
        };
        // They may have ended meanwhile, here and below.
        let _ = kill_process_group(group, Signal::TERM);
        let all_ended = async {
            let _ = child.wait().await;
            while !is_empty(group) {
                sleep(LOOK).await;
            }
        };
        match timeout(END_WITHIN, all_ended).await {
            Ok(()) => self.ended.unwrap_or(ExitCode::SUCCESS),
            Err(_) => {
                report(match self.ended {
                    None => "the command does not end; it is killed",
                    Some(_) => "what the command has left does not end; it is killed",
                });
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait().await;
                self.ended.unwrap_or(ExitCode::FAILURE)
            }
        }
    }
}

/// Whether none of a group is there any more.
fn is_empty(group: Pid) -> bool {
    // As the first process of a container this one is the parent of those whose own has ended.
    while matches!(waitpgid(group, WaitOptions::NOHANG), Ok(Some(_))) {}
    test_kill_process_group(group).is_err()
}

/// As shells report it: 128 and the signal for one that was killed.
fn code(status: Option<ExitStatus>) -> ExitCode {
    let code = status.map_or(1, |status| {
        let signalled = status.signal().map(|signal| 128 + signal);
        status.code().or(signalled).unwrap_or(1)
    });
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
