//! Child processes of the demo: this same binary, with another subcommand.
//!
//! Each has its own process group, so that Ctrl-C reaches the demo alone and the demo ends its
//! children; each is killed when its handle is dropped. Logs go to files in the demo's directory.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Limit for a process to say that it listens, or for a short command to end.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running child.
pub(super) struct Process {
    name: String,
    child: Child,
    /// What it said when it was bound.
    listening: Value,
    /// Kept open: a child that prints again must not meet a closed pipe.
    _stdout: Lines<BufReader<ChildStdout>>,
}

fn command(name: &str, arguments: &[String], logs: &Path) -> anyhow::Result<Command> {
    let log = logs.join(format!("{name}.log"));
    let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let program = std::env::current_exe().context("own path is unknown")?;
    let mut command = Command::new(program);
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
pub(super) async fn finish(name: &str, arguments: &[String], logs: &Path) -> anyhow::Result<()> {
    let mut command = command(name, arguments, logs)?;
    command.stdout(Stdio::null());
    let status = timeout(START_TIMEOUT, command.status()).await;
    let status = status.with_context(|| format!("{name} does not end"))??;
    anyhow::ensure!(
        status.success(),
        "`grapevine {}`: {status}",
        arguments.join(" ")
    );
    Ok(())
}

impl Process {
    /// Starts a server and waits until it listens.
    pub(super) async fn start(
        name: &str,
        arguments: &[String],
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let mut child = command(name, arguments, logs)?
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut stdout = BufReader::new(stdout).lines();
        let line = timeout(START_TIMEOUT, stdout.next_line()).await;
        let line = line.with_context(|| format!("{name} does not say that it listens"))??;
        let line = line.with_context(|| format!("{name} ended at once"))?;
        let listening =
            serde_json::from_str(&line).with_context(|| format!("{name} said {line}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            listening,
            _stdout: stdout,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// One of the addresses that it listens on.
    pub(super) fn address(&self, what: &str) -> anyhow::Result<String> {
        let address = self.listening[what].as_str();
        let address = address.with_context(|| format!("{} has no {what} address", self.name))?;
        Ok(address.to_owned())
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        let name = &self.name;
        self.child
            .kill()
            .await
            .with_context(|| format!("cannot kill {name}"))
    }
}
