//! `grapevine load`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::{Progress, print_json};
use crate::client::{Client, Spread, Target};
use crate::load::{self, Arrivals, Endpoint, Plan, Prompts};

/// Arguments of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Where to send: http://host:port, one or more
    #[arg(long = "url", required = true, num_args = 1.., value_delimiter = ',')]
    urls: Vec<Target>,
    /// Which URL gets a request
    #[arg(long, value_enum, default_value = "round-robin")]
    spread: Spread,
    /// Closed loop: this many clients, one request at a time each
    #[arg(long, default_value_t = 16, conflicts_with = "rate")]
    clients: usize,
    /// Open loop: this many requests per second, by Poisson arrivals
    #[arg(long)]
    rate: Option<f64>,
    /// Open loop: requests in flight above which further ones are shed
    #[arg(long, default_value_t = 1_000)]
    in_flight_max: usize,
    /// Requests after which the run ends
    #[arg(long, default_value_t = 1_000)]
    requests: u64,
    /// Time after which nothing new is sent
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s")]
    duration: Duration,
    /// Limit of one request
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s")]
    timeout: Duration,
    /// Seed of prompts and arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Groups of prompts that share a prefix
    #[arg(long, default_value_t = 10)]
    groups: u64,
    /// Bytes that a group shares
    #[arg(long, default_value_t = 2_000)]
    shared_bytes: usize,
    /// Bytes of each request's own
    #[arg(long, default_value_t = 500)]
    own_bytes: usize,
    /// Answer length in tokens
    #[arg(long, default_value_t = 16)]
    max_tokens: u32,
    /// Ask for plain replies instead of streams
    #[arg(long)]
    plain: bool,
    /// Which API to call
    #[arg(long, value_enum, default_value = "chat")]
    endpoint: Endpoint,
    /// Model name
    #[arg(long, default_value = "fake-model")]
    model: String,
    /// Count requests by worker (asks the router to name it)
    #[arg(long)]
    explain: bool,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    /// Runs to the end and prints the result; fails when a request failed.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let arrivals = match self.rate {
            Some(rate) => {
                anyhow::ensure!(rate.is_finite() && rate > 0.0, "--rate must be above 0");
                let in_flight_max = self.in_flight_max;
                Arrivals::Open {
                    rate,
                    in_flight_max,
                }
            }
            None => Arrivals::Closed {
                clients: self.clients,
            },
        };
        let plan = Plan {
            arrivals,
            requests: self.requests,
            duration: self.duration,
            timeout: self.timeout,
            prompts: Prompts {
                seed: self.seed,
                groups: self.groups,
                shared_bytes: self.shared_bytes,
                own_bytes: self.own_bytes,
                max_tokens: self.max_tokens,
                stream: !self.plain,
                endpoint: self.endpoint,
                model: Some(self.model),
            },
            explain: self.explain,
            seed: self.seed,
        };
        let client = Arc::new(Client::new(self.urls, self.spread)?);
        let mut bar = Progress::new("load", self.requests);
        let report = load::run(client, plan, |_, tally| {
            bar.set(tally.requests(), || format!("{} failed", tally.failed()));
        });
        let report = report.await;
        bar.finish();
        if self.json {
            print_json(&serde_json::to_value(&report)?)?;
        } else {
            print!("{}", report.summary);
            if report.shed > 0 {
                println!("shed       {} were due but not sent", report.shed);
            }
        }
        Ok(ExitCode::from(u8::from(
            !report.summary.failures.is_empty(),
        )))
    }
}
