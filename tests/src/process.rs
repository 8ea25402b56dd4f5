//! One running `grapevine`, of any command: its log goes to a file, and it is killed when dropped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, kill_process, prlimit};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

pub use rustix::process::Signal;

use crate::binary::grapevine;

/// From the start of a process to the line with its addresses.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// From the last signal to the end of a process.
const ENDS_WITHIN: Duration = Duration::from_secs(40);

/// Changes to the program under test, if any.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// The binary of another release.
    pub binary: Option<PathBuf>,
    /// Variables of its environment.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// A server that has printed its addresses.
pub struct Process {
    child: Child,
    pid: Pid,
    log: PathBuf,
    /// Kept open as long as the process lives, so that it can write.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `grapevine` with these arguments and reads the line that it prints once it is bound.
    ///
    /// `log`: file for its standard error.
    pub async fn start<T: DeserializeOwned>(args: &[String], log: &Path) -> (Self, T) {
        Self::start_as(&Program::default(), args, log).await
    }

    /// The same of another release, or in another environment.
    pub async fn start_as<T: DeserializeOwned>(
        program: &Program,
        args: &[String],
        log: &Path,
    ) -> (Self, T) {
        let stderr = File::create(log).expect("a log file can be made");
        Self::spawn(program, args, stderr.into(), log).await
    }

    /// The same with another standard error; a pipe stays open and is never read.
    pub async fn start_with<T: DeserializeOwned>(args: &[String], stderr: Stdio) -> (Self, T) {
        Self::spawn(&Program::default(), args, stderr, Path::new("/dev/null")).await
    }

    async fn spawn<T: DeserializeOwned>(
        program: &Program,
        args: &[String],
        stderr: Stdio,
        log: &Path,
    ) -> (Self, T) {
        let binary = program.binary.as_deref();
        let mut child = Command::new(binary.unwrap_or_else(|| grapevine()))
            .args(args)
            .envs(program.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .expect("grapevine can be started");
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let stdout = child.stdout.take().expect("standard output is a pipe");
        let mut stdout = BufReader::new(stdout).lines();
        let line = timeout(LISTENS_WITHIN, stdout.next_line()).await;
        let Ok(Ok(Some(line))) = line else {
            panic!(
                "`grapevine {}` did not say where it listens ({line:?}); its log:\n{}",
                args.join(" "),
                read(log)
            );
        };
        let listening = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("`{line}` is no listening line: {error}"));
        let process = Self {
            child,
            pid: pid.expect("a running child has an id"),
            log: log.to_owned(),
            _stdout: stdout,
        };
        (process, listening)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("the process is there");
    }

    /// Pauses it, as on a suspended machine; its sockets stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for the process's end.
    pub async fn ended(&mut self) -> ExitStatus {
        match timeout(ENDS_WITHIN, self.child.wait()).await {
            Ok(status) => status.expect("a child can be waited for"),
            Err(_) => panic!(
                "did not end within {ENDS_WITHIN:?}; its log:\n{}",
                self.log()
            ),
        }
    }

    /// Its log.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// Open file descriptors.
    pub fn descriptors(&self) -> u64 {
        let path = format!("/proc/{}/fd", self.pid.as_raw_nonzero());
        fs::read_dir(path).expect("the process is there").count() as u64
    }

    /// Lets it open so many file descriptors and no more.
    pub fn limit_descriptors(&self, count: u64) {
        let limit = Rlimit {
            current: Some(count),
            maximum: Some(count),
        };
        prlimit(Some(self.pid), Resource::Nofile, limit).expect("limits can be lowered");
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        let status = fs::read_to_string(path).expect("the process is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .expect("Linux tells the resident size")
    }
}

/// Text of a log file; bytes that are not UTF-8 are replaced.
pub fn read(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_else(|error| error.to_string().into_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command that ended by itself.
pub struct Finished {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output and standard error, in this order.
    pub text: String,
}

/// Runs `grapevine` with these arguments to its end.
pub async fn run(args: &[&str]) -> Finished {
    run_with(&[], args).await
}

/// The same, with these variables.
pub async fn run_with(variables: &[(&str, &str)], args: &[&str]) -> Finished {
    let output = Command::new(grapevine())
        .args(args)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(ENDS_WITHIN, output)
        .await
        .unwrap_or_else(|_| panic!("`grapevine {}` did not end", args.join(" ")))
        .expect("grapevine can be started");
    let text = [output.stdout, output.stderr].concat();
    Finished {
        code: output.status.code(),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}
