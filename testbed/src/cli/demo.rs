//! `grapevine demo`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::StopSignals;
use crate::demo::{self, DemoPlan};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Router replicas
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
    replicas: u8,
    /// Fake workers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=64))]
    workers: u8,
    /// Requests of the trace, at most 1,500
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u16).range(1..=1_500))]
    requests: u16,
    /// Trace seconds per real second
    #[arg(long, default_value_t = 20.0)]
    speed: f64,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    /// Runs the demo; succeeds when every promise held. On SIGINT and SIGTERM it ends its processes first.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.speed.is_finite() && self.speed > 0.0,
            "--speed must be above 0"
        );
        let mut signals = StopSignals::new()?;
        let dir = tempfile::Builder::new().prefix("grapevine-demo-").tempdir();
        let dir = dir.context("cannot make a temporary directory")?;
        let plan = DemoPlan {
            replicas: self.replicas.into(),
            workers: self.workers.into(),
            requests: self.requests.into(),
            speed: self.speed,
            tokens_scale: 0.5,
            answers_scale: 0.25,
            // With prompts of half their length, a worker of 2 M tokens of cache (GPU and host
            // memory) and 12,000 tokens/s: the reuse in this trace is minutes apart.
            worker_flags: [
                "--num-gpu-blocks",
                "65536",
                "--prefill-tokens-per-s",
                "6000",
            ]
            .map(Into::into)
            .into(),
        };
        let held = tokio::select! {
            held = demo::run(&plan, dir.path(), self.json) => held,
            _ = signals.next() => {
                eprintln!("stopped");
                return Ok(ExitCode::from(130));
            }
        };
        if !matches!(held, Ok(true)) {
            eprintln!("logs of all processes are in {}", dir.keep().display());
        }
        Ok(if held? {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::replay::Trace;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: DemoArgs,
    }

    #[test]
    fn no_more_requests_than_its_trace_has_are_asked_for() {
        let read = |requests: &str| Line::try_parse_from(["demo", "--requests", requests]);
        let most = read("1500").expect("all of it").args.requests;
        let rows = Trace::embedded().expect("a trace").rows.len();
        assert_eq!(rows, usize::from(most));
        for wrong in ["0", "1501"] {
            let refused = read(wrong).expect_err(wrong).to_string();
            assert!(refused.contains("1..=1500"), "{refused}");
        }
    }
}
