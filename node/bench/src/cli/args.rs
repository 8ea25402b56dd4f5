//! The command line of `grapevine bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::client::{Spread, Target};
use crate::load::{Endpoint, Pacing};

/// Sends load to any OpenAI endpoint and measures the answers; or to two in turn, and compares them.
///
/// Prompts are made from a seed, or taken from a file. A run is always bounded, by a number of requests and by time.
/// With --rate, latency counts from when a request was due, so an endpoint that stalls cannot hide it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Base URL of the endpoint, with or without /v1; several are used in turn, as one endpoint
    #[arg(long = "url", required = true, num_args = 1.., value_delimiter = ',', value_name = "URL")]
    pub(super) urls: Vec<Target>,
    /// Base URL of a second endpoint, which gets the same requests in turn with the first, round by round
    #[arg(long, num_args = 1.., value_delimiter = ',', value_name = "URL")]
    pub(super) against: Vec<Target>,
    /// Pairs of rounds with --against; --requests and --duration are shared out among them
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000), requires = "against")]
    pub(super) rounds: u64,
    /// Which of several URLs gets a request
    #[arg(long, value_enum, default_value = "round-robin")]
    pub(super) spread: Spread,

    /// Model to ask for [default: the only one that the endpoint lists]
    #[arg(long)]
    pub(super) model: Option<String>,
    /// Variable of the environment that holds the API key
    #[arg(long, value_name = "NAME", conflicts_with = "api_key_file")]
    pub(super) api_key_env: Option<String>,
    /// File whose first line is the API key
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Certificates of the authorities to believe, in PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,

    /// Closed loop: this many clients, one request at a time each
    #[arg(long, alias = "clients", default_value_t = 16, value_parser = count, conflicts_with = "rate", help_heading = "Load")]
    pub(super) concurrency: usize,
    /// Open loop: this many requests (or conversations) a second, whatever becomes of them
    #[arg(long, help_heading = "Load")]
    pub(super) rate: Option<f64>,
    /// Open loop: how the requests are spread over time
    #[arg(
        long,
        value_enum,
        default_value = "poisson",
        requires = "rate",
        help_heading = "Load"
    )]
    pub(super) pacing: Pacing,
    /// Open loop: requests (or conversations) in flight above which further ones are not sent, but counted
    #[arg(long, default_value_t = 1_000, value_parser = count, requires = "rate", help_heading = "Load")]
    pub(super) in_flight_max: usize,
    /// Requests to each endpoint, after which the run ends; of several rounds each gets the same, rounded up
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), help_heading = "Load")]
    pub(super) requests: u64,
    /// Time of sending to each endpoint, after which nothing new is sent
    #[arg(long, value_parser = time, default_value = "60s", help_heading = "Load")]
    pub(super) duration: Duration,
    /// Limit of one request, at most 1h
    #[arg(long, value_parser = limit, default_value = "60s", help_heading = "Load")]
    pub(super) timeout: Duration,
    /// Requests to each endpoint beforehand that are not counted; --duration ends them, too
    #[arg(long, default_value_t = 0, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(..=1_000_000), help_heading = "Load")]
    pub(super) warm_up: u64,
    /// Seed of texts and arrivals: the same seed sends the same requests
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    pub(super) seed: u64,

    /// What requests have in common
    #[arg(long, value_enum, default_value = "shared", help_heading = "Requests")]
    pub(super) shape: Shape,
    /// Groups of requests that share a prefix
    #[arg(long, default_value_t = 10, help_heading = "Requests")]
    pub(super) groups: u64,
    /// Bytes of the prefix that a group shares [default: 2000, and 0 with --shape unique]
    #[arg(long, value_parser = bytes, help_heading = "Requests")]
    pub(super) shared_bytes: Option<usize>,
    /// Bytes of each request's, or turn's, own
    #[arg(long, default_value_t = 500, value_parser = bytes, help_heading = "Requests")]
    pub(super) own_bytes: usize,
    /// Requests of one conversation [default: 5 with --shape conversations, else 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000), help_heading = "Requests")]
    pub(super) turns: Option<u64>,
    /// Answer length in tokens [default: 16, and with --bodies what each body asks for]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Requests")]
    pub(super) max_tokens: Option<u32>,
    /// Ask for plain answers instead of streams
    #[arg(long, help_heading = "Requests")]
    pub(super) plain: bool,
    /// Which API to call
    #[arg(long, value_enum, default_value = "chat", help_heading = "Requests")]
    pub(super) endpoint: Endpoint,
    /// File of requests to send instead, one JSON body a line; from its beginning again when it has ended
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shape", "groups", "shared_bytes", "own_bytes", "turns", "endpoint"], help_heading = "Requests")]
    pub(super) bodies: Option<PathBuf>,
    /// Ask a Grapevine router which worker answered, and count by worker
    #[arg(long, help_heading = "Requests")]
    pub(super) explain: bool,

    /// Print the result as JSON instead of a table
    #[arg(long, help_heading = "Results")]
    pub(super) json: bool,
    /// Write a page with tables and charts, too; it needs nothing else and no network
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) html: Option<PathBuf>,
}

/// What made requests have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shape {
    /// Groups of requests begin alike, as with one system prompt each
    Shared,
    /// Nothing
    Unique,
    /// Each turn of a conversation sends all that was said before it
    Conversations,
}

/// Prompts above this are no prompts.
const BYTES_MAX: usize = 64 << 20;
/// Sockets, tasks and patience have an end.
const COUNT_MAX: usize = 100_000;

/// Longer runs are many runs.
const TIME_MAX: Duration = Duration::from_secs(30 * 86_400);

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = !time.is_zero() && time <= TIME_MAX;
    fits.then_some(time)
        .ok_or_else(|| "not above 0, or above 30 days".to_owned())
}

/// Longer times would be shown as an hour.
fn limit(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    let fits = time <= Duration::from_secs(3_600);
    fits.then_some(time)
        .ok_or_else(|| "above 1 hour".to_owned())
}

fn bytes(text: &str) -> Result<usize, String> {
    up_to(text, 0, BYTES_MAX)
}

fn count(text: &str) -> Result<usize, String> {
    up_to(text, 1, COUNT_MAX)
}

fn up_to(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("not a number from {least} to {most}"))
}

const EXAMPLES: &str = "\
Examples:
  How fast is it with 32 clients, and a page with charts:
    grapevine bench --url http://127.0.0.1:30000 --concurrency 32 --html bench.html
  At 20 requests a second for 5 minutes, from when each was due:
    grapevine bench --url http://127.0.0.1:30000 --rate 20 --requests 6000 --duration 5m
  Conversations of 8 turns, after a warm-up:
    grapevine bench --url http://127.0.0.1:30000 --shape conversations --turns 8 --warm-up 100
  Grapevine against another router, same requests, in turn:
    grapevine bench --url http://127.0.0.1:8080 --against http://127.0.0.1:30000 --requests 4000
  Requests of your own, with a key:
    grapevine bench --url https://api.example.com/v1 --bodies chats.jsonl \\
      --api-key-env OPENAI_API_KEY

Ctrl-C ends sending, waits for what is in flight, and shows what there is; a second one does not wait.

Exit codes:
  0    every request that was due was sent and answered
  1    some failed (the result says which) or were shed, an endpoint got none or
       refuses to list its models, or a report cannot be written
  2    the command line is wrong; nothing was sent
  3    an endpoint cannot be connected to, or does not reply when it is asked for its models
  130  ended by Ctrl-C";
