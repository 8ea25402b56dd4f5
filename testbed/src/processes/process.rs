//! A child process: this same binary, with another subcommand.
//!
//! Each child has its own process group, so that Ctrl-C reaches only the parent, which ends its children. A
//! child is killed when its handle is dropped.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Limit for a process to report that it listens, or for a short command to end.
const START_TIMEOUT: Duration = Duration::from_secs(30);

const SHELL: &str = "/bin/sh";

/// A running child.
pub(crate) struct Process {
    name: String,
    child: Child,
    pid: Pid,
    /// The line that it printed when it was bound.
    listening: Value,
    /// Kept open: a child that prints again must not meet a closed pipe.
    _stdout: Lines<BufReader<ChildStdout>>,
}

/// The file of a child's log: it is created, or appended to after a restart.
pub(crate) fn log_file(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.log"))
}

/// If there is a shell, children ignore the signal for a write beyond the limit on file sizes: the write then
/// fails, as on a full disk.
pub(crate) fn survives_full_disk() -> bool {
    Path::new(SHELL).exists()
}

fn command(name: &str, arguments: &[String], logs: &Path) -> anyhow::Result<Command> {
    let path = log_file(logs, name);
    let log: Result<File, _> = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    let program = std::env::current_exe().context("own path is unknown")?;
    let mut command = if survives_full_disk() {
        let mut command = Command::new(SHELL);
        let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
        command.args(["-c", script]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

/// Runs a command that ends by itself.
pub(crate) async fn finish(name: &str, arguments: &[String], logs: &Path) -> anyhow::Result<()> {
    let mut command = command(name, arguments, logs)?;
    command.stdout(Stdio::null());
    let status = timeout(START_TIMEOUT, command.status()).await;
    let status = status.with_context(|| format!("{name} does not end"))??;
    anyhow::ensure!(
        status.success(),
        "`grapevine {}`: {status}; see {}",
        arguments.join(" "),
        log_file(logs, name).display()
    );
    Ok(())
}

impl Process {
    /// Starts a server and waits until it listens.
    pub(crate) async fn start(
        name: &str,
        arguments: &[String],
        environment: &[(String, String)],
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let mut child = command(name, arguments, logs)?
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.with_context(|| format!("{name} ended at once"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut stdout = BufReader::new(stdout).lines();
        let line = timeout(START_TIMEOUT, stdout.next_line()).await;
        let line = line.with_context(|| format!("{name} does not report that it listens"))??;
        let log = log_file(logs, name);
        let line = line.with_context(|| format!("{name} ended at once; see {}", log.display()))?;
        let listening =
            serde_json::from_str(&line).with_context(|| format!("{name} printed {line}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            pid,
            listening,
            _stdout: stdout,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// One of the addresses that it listens on.
    pub(crate) fn address(&self, what: &str) -> anyhow::Result<String> {
        let address = self.listening[what].as_str();
        let address = address.with_context(|| format!("{} has no {what} address", self.name))?;
        Ok(address.to_owned())
    }

    /// Sends a signal; fails when the process is gone.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Waits until it has ended by itself, `limit` at most.
    pub(crate) async fn ended(&mut self, limit: Duration) -> anyhow::Result<()> {
        let name = &self.name;
        let ended = timeout(limit, self.child.wait()).await;
        ended.with_context(|| format!("{name} does not end within {limit:?}"))??;
        Ok(())
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        let name = &self.name;
        self.child
            .kill()
            .await
            .with_context(|| format!("cannot kill {name}"))
    }
}
