//! The testbed's subcommands of the one binary `grapevine`: arguments and entry points.
//!
//! Servers print one JSON line, `{"event":"listening","http":"127.0.0.1:NNN"}`, to stdout once they are
//! bound; all other output goes to the log.

mod balancer;
mod chaos;
mod chaos_runs;
mod demo;
mod fake_kubernetes;
mod fake_worker;
mod replay;
mod replay_split;
mod replay_virtual;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use balancer::BalancerArgs;
pub use chaos::ChaosArgs;
pub use demo::DemoArgs;
pub use fake_kubernetes::FakeKubernetesArgs;
pub use fake_worker::FakeWorkerArgs;
pub use replay::ReplayArgs;

/// Subcommands, to be flattened into the binary's own.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a worker that behaves as vLLM does at the HTTP surface, and fails on demand
    FakeWorker(Box<FakeWorkerArgs>),
    /// Run a Kubernetes API server for pods that fails on demand, to try discovery without a cluster
    FakeKubernetes(FakeKubernetesArgs),
    /// Spread TCP connections over replicas
    Balancer(BalancerArgs),
    /// Send the requests of a recorded trace in scaled time and measure the answers
    Replay(Box<ReplayArgs>),
    /// Start a cluster of processes here, replay a trace, kill a replica and a worker, and check the results
    Demo(DemoArgs),
    /// Inject faults into a cluster under load, by name or at random, and check what it promises
    Chaos(ChaosArgs),
}

/// Runs a subcommand; the exit code reports whether it succeeded.
pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::FakeWorker(args) => args.run().await,
        Command::FakeKubernetes(args) => args.run().await,
        Command::Balancer(args) => args.run().await,
        Command::Replay(args) => args.run().await,
        Command::Demo(args) => args.run().await,
        Command::Chaos(args) => args.run().await,
    }
}

fn announce(addr: SocketAddr) -> anyhow::Result<()> {
    print_json(&json!({ "event": "listening", "http": addr.to_string() }))
}

/// One line on stdout.
fn print_json(value: &Value) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{value}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// SIGTERM, SIGINT and SIGHUP, to be awaited one after the other.
struct StopSignals {
    term: Signal,
    int: Signal,
    hangup: Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopSignal {
    /// Sent by an operator or a supervisor: the command may take its time.
    Term,
    /// Sent by a person at the terminal, or because the terminal is gone: end at once.
    Int,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        let install = |kind| signal(kind).context("cannot handle signals");
        Ok(Self {
            term: install(SignalKind::terminate())?,
            int: install(SignalKind::interrupt())?,
            hangup: install(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.term.recv() => StopSignal::Term,
            _ = self.int.recv() => StopSignal::Int,
            _ = self.hangup.recv() => StopSignal::Int,
        }
    }
}
