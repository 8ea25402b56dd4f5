//! `grapevine replay`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::print_json;
use super::replay_virtual::VirtualArgs;
use crate::replay::{self, Asking, Messages, Plan, Shape, Trace};
use crate::virtual_replay::copies;
use grapevine_bench::client::{Client, Spread, Target};
use grapevine_bench::load::Endpoint;
use grapevine_bench::progress::Progress;

/// Range of `--speed` and of `--rate`: beyond it, times are longer than clocks hold or shorter than they tell apart.
const FACTORS: RangeInclusive<f64> = 0.001..=1_000_000.0;

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
    /// Requests to replay, from the start of the trace, 1 or more [default: all]
    #[arg(long)]
    requests: Option<usize>,
    /// Trace seconds per real second, 0.001 to 1,000,000
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Factor on the rate at which rows and sessions start; gaps within sessions stay as they are. With
    /// --virtual: run at this rate and print JSON lines [default: 1, and with --virtual what is searched]
    #[arg(long)]
    rate: Option<f64>,
    /// Share of the requests, from the first on, that are sent but in no figure, 0 to below 1
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
        self.check()?;
        if self.virtually.enabled {
            // It computes for minutes, so it must not block a runtime thread.
            let run = move || {
                let copies = self.copies.unwrap_or(12);
                self.virtually
                    .run(&self.trace, self.requests, copies, self.rate)
            };
            return tokio::task::spawn_blocking(run).await?;
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
            rate: self.rate.unwrap_or(1.0),
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

    /// What the parser cannot see. `--rate` of a virtual replay is checked where it is used.
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.requests != Some(0), "--requests is 1 or more");
        if self.virtually.enabled {
            return Ok(());
        }
        ensure!(
            (0.0..1.0).contains(&self.warm_up),
            "--warm-up is from 0 to below 1, or nothing would be counted"
        );
        ensure!(
            (0.0..=1.0).contains(&self.ask_share),
            "--ask-share is from 0 to 1"
        );
        let rate = self.rate.unwrap_or(1.0);
        for (name, factor) in [("--rate", rate), ("--speed", self.speed)] {
            let (least, most) = FACTORS.into_inner();
            ensure!(
                FACTORS.contains(&factor),
                "{name} is from {least} to {most}"
            );
        }
        for (name, factor) in [
            ("--tokens-scale", self.tokens_scale),
            ("--answers-scale", self.answers_scale),
        ] {
            ensure!(factor.is_finite() && factor > 0.0, "{name} must be above 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ReplayArgs,
    }

    #[test]
    fn what_is_for_a_virtual_replay_alone_is_refused_without_it() {
        let read = |words: &str| {
            let line = format!("replay --url http://127.0.0.1:1 {words}");
            Line::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
        };
        for words in [
            "--grid core",
            "--gossip-loss 0.5",
            "--workers 4",
            "--seed 2",
            "--csv x.csv",
            "--loads 0.5",
            "--prefill-workers 2 --decode-workers 2",
            "--split-json",
        ] {
            let refused = read(words).expect_err(words);
            assert!(refused.contains("--virtual"), "{words}: {refused}");
            read(&format!("--virtual {words}")).expect(words);
        }
        read("").expect("defaults of such flags are no flags");
    }

    #[test]
    fn what_cannot_be_replayed_is_refused_with_words() {
        let checked = |words: &str| {
            let line = format!("replay --url http://127.0.0.1:1 {words}");
            let line = Line::try_parse_from(line.split_whitespace()).expect("a command line");
            line.args.check().map_err(|error| error.to_string())
        };
        for good in [
            "",
            "--requests 1 --warm-up 0.9 --ask-share 1 --admin-urls http://a:1 http://b:1",
            "--speed 0.001 --rate 1000000",
        ] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
        for (bad, named) in [
            ("--requests 0", "--requests"),
            ("--warm-up 1", "--warm-up"),
            ("--warm-up NaN", "--warm-up"),
            ("--speed 1e-20", "--speed"),
            ("--speed inf", "--speed"),
            ("--rate 0", "--rate"),
            ("--tokens-scale 0", "--tokens-scale"),
        ] {
            let words = checked(bad).expect_err(bad);
            assert!(words.starts_with(named), "{bad}: {words}");
        }
    }
}
