//! `grapevine replay`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::print_json;
use super::replay_virtual::VirtualArgs;
use crate::replay::{self, Asking, Messages, Plan, Shape, Trace};
use crate::virtual_replay::copies;
use grapevine_bench::client::{Client, Spread, Target};
use grapevine_bench::load::Endpoint;
use grapevine_bench::progress::Progress;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Where to send: http://host:port, one or more
    #[arg(long = "url", required_unless_present = "enabled", num_args = 1.., value_delimiter = ',')]
    urls: Vec<Target>,
    /// Which URL gets a request
    #[arg(long, value_enum, default_value = "round-robin")]
    spread: Spread,
    /// NAME.jsonl.gz with NAME.meta.json beside it; several with --virtual [default: the slice that comes with
    /// the binary]
    #[arg(long, num_args = 1.., value_delimiter = ',')]
    trace: Vec<PathBuf>,
    /// Requests to replay, from the start of the trace [default: all]
    #[arg(long)]
    requests: Option<usize>,
    /// Trace seconds per real second
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Factor on the rate at which rows and sessions start; gaps within sessions stay as they are. With
    /// --virtual: run at this rate and print JSON lines [default: 1, and with --virtual what is searched]
    #[arg(long)]
    rate: Option<f64>,
    /// Share of the requests, from the first on, that are sent but not counted
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// Copies of the sessions of a closed-loop trace; where --virtual searches a rate, it takes more copies for higher
    /// ones [default: 1, with --virtual 12]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    copies: Option<u64>,
    /// Send chat messages or plain completions
    #[arg(long, value_enum, default_value = "chat")]
    endpoint: Endpoint,
    /// Where the messages of a chat end
    #[arg(long, value_enum, default_value = "equal")]
    messages: Messages,
    /// Factor on prompt lengths
    #[arg(long, default_value_t = 1.0)]
    tokens_scale: f64,
    /// Factor on answer lengths
    #[arg(long, default_value_t = 1.0)]
    answers_scale: f64,
    /// Requests at once; the waiting time of further ones counts into their latency
    #[arg(long, default_value_t = 512)]
    in_flight_max: usize,
    /// Limit of one request
    #[arg(long, value_parser = humantime::parse_duration, default_value = "300s")]
    timeout: Duration,
    /// Model name
    #[arg(long, default_value = "fake-model")]
    model: String,
    /// Workers whose own cache counters are read before and after
    #[arg(long, num_args = 1.., value_delimiter = ',')]
    worker_urls: Vec<Target>,
    /// Admin ports of replicas: before a request is sent, two of them are asked where it would go, to see
    /// whether they agree
    #[arg(long, num_args = 2.., value_delimiter = ',')]
    admin_urls: Vec<Target>,
    /// Share of the requests about which replicas are asked
    #[arg(long, default_value_t = 0.25, requires = "admin_urls")]
    ask_share: f64,
    /// Count requests by worker (asks the router to name it)
    #[arg(long)]
    explain: bool,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    virtually: VirtualArgs,
}

impl ReplayArgs {
    /// Replays to the end and prints the result; fails when a request failed.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        if self.virtually.enabled {
            // It computes for minutes, so it must not block a runtime thread.
            let run = move || {
                let copies = self.copies.unwrap_or(12);
                self.virtually
                    .run(&self.trace, self.requests, copies, self.rate)
            };
            return tokio::task::spawn_blocking(run).await?;
        }
        let rate = self.rate.unwrap_or(1.0);
        for (name, share) in [("--warm-up", self.warm_up), ("--ask-share", self.ask_share)] {
            anyhow::ensure!((0.0..=1.0).contains(&share), "{name} is from 0 to 1");
        }
        for (name, factor) in [
            ("--rate", rate),
            ("--speed", self.speed),
            ("--tokens-scale", self.tokens_scale),
            ("--answers-scale", self.answers_scale),
        ] {
            anyhow::ensure!(factor.is_finite() && factor > 0.0, "{name} must be above 0");
        }
        let mut trace = match self.trace.as_slice() {
            [] => Trace::embedded()?,
            [path] => Trace::load(path)?,
            _ => anyhow::bail!("several traces are for --virtual; give one --trace"),
        };
        trace.truncate(self.requests.unwrap_or(usize::MAX));
        if let Some(count) = self.copies {
            trace = copies(&trace, count);
        }
        let mut bar = Progress::new("replay", trace.rows.len() as u64);
        let plan = Plan {
            trace: Arc::new(trace),
            speed: self.speed,
            rate,
            warm_up: self.warm_up,
            shape: Shape {
                endpoint: self.endpoint,
                messages: self.messages,
                tokens_scale: self.tokens_scale,
                answers_scale: self.answers_scale,
                model: Some(self.model),
                explain: self.explain,
            },
            in_flight_max: self.in_flight_max,
            timeout: self.timeout,
            worker_urls: self.worker_urls,
            asking: (!self.admin_urls.is_empty()).then_some(Asking {
                admins: self.admin_urls,
                share: self.ask_share,
            }),
        };
        let client = Arc::new(Client::new(self.urls, self.spread)?);
        let report = replay::run(client, plan, |now| {
            bar.set(now.tally.requests(), || {
                format!(
                    "hit {:.1} %, {} failed",
                    now.tally.hit_rate() * 100.0,
                    now.tally.failed()
                )
            });
        });
        let report = report.await?;
        bar.finish();
        if self.json {
            print_json(&serde_json::to_value(&report)?)?;
        } else {
            print!("{}", report.summary);
            if report.asked > 0 {
                let agreed = 100.0 * report.agreed as f64 / report.asked as f64;
                println!("agreement  {agreed:.1} % of {} asked about", report.asked);
            }
            if let Some(counted) = report.worker_cache {
                println!(
                    "workers    counted {:.2} % hits of {} tokens",
                    counted.hit_rate() * 100.0,
                    counted.queried_tokens
                );
            }
        }
        Ok(ExitCode::from(u8::from(
            !report.summary.failures.is_empty(),
        )))
    }
}
