//! The result of a run: what `--json` prints and every report is made from. Its form is documented in `docs/bench.md`.

use serde::Serialize;

use super::comparison::Comparison;
use super::{Setup, Stop};
use crate::charts::Mark;
use crate::load::{Arrivals, Endpoint, Source};
use crate::tally::Summary;
use crate::windows::{Origin, Window};

/// The form of the JSON. It is raised when a field changes its meaning or leaves; new fields do not raise it.
pub const SCHEMA: u32 = 3;

/// A run and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// RFC 3339, UTC: when the first measured request was due.
    pub began: String,
    /// From then until the last request had ended, in milliseconds.
    pub duration_ms: u64,
    /// Whether somebody ended it before its time.
    pub interrupted: bool,
    /// What was sent.
    pub load: LoadShown,
    /// One, or two that were compared.
    pub endpoints: Vec<EndpointResult>,
    /// The second against the first, if there are two.
    pub comparison: Option<Comparison>,
    /// When which endpoint was loaded, if there are two.
    pub marks: Vec<Mark>,
}

/// The load, as it was asked for.
#[derive(Debug, Clone, Serialize)]
pub struct LoadShown {
    /// `closed` or `open`.
    pub mode: &'static str,
    /// Closed loop: clients.
    pub concurrency: Option<usize>,
    /// Open loop: requests (or conversations) a second.
    pub rate: Option<f64>,
    /// Open loop: `poisson` or `even`.
    pub pacing: Option<&'static str>,
    /// Requests to each endpoint in each round.
    pub requests: u64,
    /// Time after which a round sends nothing new.
    pub duration_s: f64,
    /// Limit of one request.
    pub timeout_s: f64,
    /// Rounds.
    pub rounds: u64,
    /// Requests before the measured ones.
    pub warm_up: u64,
    /// Seed of texts and arrivals.
    pub seed: u64,
    /// `made` or `file`.
    pub source: &'static str,
    /// Made requests: how they look.
    pub prompts: Option<PromptsShown>,
}

/// How made requests look.
#[derive(Debug, Clone, Serialize)]
pub struct PromptsShown {
    /// `chat` or `completions`.
    pub endpoint: &'static str,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether answers are streams.
    pub stream: bool,
    /// Groups that share a prefix.
    pub groups: u64,
    /// Bytes that a group shares.
    pub shared_bytes: usize,
    /// Bytes of each request's, or turn's, own.
    pub own_bytes: usize,
    /// Requests of a conversation.
    pub turns: u64,
    /// Answer length in tokens.
    pub max_tokens: u32,
}

/// What one endpoint did.
#[derive(Debug, Clone, Serialize)]
pub struct EndpointResult {
    /// As it is called here.
    pub name: String,
    /// Where it was asked.
    pub urls: Vec<String>,
    /// What became of the warm-up.
    pub warm_up: WarmUp,
    /// Over all rounds.
    pub summary: Summary,
    /// Open loop: requests that were due but not sent.
    pub shed: u64,
    /// Requests that were sent and dropped, because somebody ended the run.
    pub unfinished: u64,
    /// Each round that was not broken off.
    pub rounds: Vec<Summary>,
    /// By time.
    pub windows: Vec<Window>,
}

/// What became of a warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WarmUp {
    /// Requests sent; time, or somebody, may have ended it early.
    pub requests: u64,
    /// Of those, answered whole.
    pub succeeded: u64,
}

impl WarmUp {
    /// For people: what is missing where `asked` requests were wanted; `None` if all were answered.
    pub fn shortfall(&self, asked: u64) -> Option<String> {
        let Self {
            requests,
            succeeded,
        } = self;
        (*succeeded < asked)
            .then(|| format!("{requests} of {asked} were sent, {succeeded} answered whole"))
    }
}

impl RunResult {
    pub(super) fn new(
        setup: &Setup,
        origin: Origin,
        duration_ms: u64,
        marks: Vec<Mark>,
        endpoints: Vec<EndpointResult>,
        stop: &Stop,
    ) -> Self {
        let comparison = match endpoints.as_slice() {
            [first, second] => {
                let seed = setup.plan.seed;
                Some(Comparison::of(&first.rounds, &second.rounds, seed))
            }
            _ => None,
        };
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            began: origin.wall(),
            duration_ms,
            interrupted: stop.sending.is_cancelled(),
            load: LoadShown::of(setup),
            endpoints,
            comparison,
            marks,
        }
    }

    /// Requests that failed, of all endpoints.
    pub fn failed(&self) -> u64 {
        let failed = |endpoint: &EndpointResult| endpoint.summary.failures.values().sum::<u64>();
        self.endpoints.iter().map(failed).sum()
    }

    /// Whether each endpoint was sent what was due, and answered all of it.
    pub fn is_answered(&self) -> bool {
        let is_answered = |endpoint: &EndpointResult| {
            let summary = &endpoint.summary;
            let all = summary.requests + endpoint.shed + endpoint.unfinished;
            all > 0 && summary.succeeded == all
        };
        self.endpoints.iter().all(is_answered)
    }

    /// Whether one of the endpoints could not be connected to even once.
    pub fn is_unreachable(&self) -> bool {
        self.endpoints.iter().any(|endpoint| {
            let summary = &endpoint.summary;
            let refused = summary.failures.get("connect").copied();
            summary.requests > 0 && refused == Some(summary.requests)
        })
    }
}

impl LoadShown {
    fn of(setup: &Setup) -> Self {
        let plan = &setup.plan;
        let (mode, concurrency, rate, pacing) = match plan.arrivals {
            Arrivals::Closed { clients } => ("closed", Some(clients), None, None),
            Arrivals::Open { rate, pacing, .. } => {
                ("open", None, Some(rate), Some(pacing.as_str()))
            }
        };
        let (source, prompts) = match &plan.source {
            Source::Made(prompts) => ("made", Some(prompts)),
            Source::Recorded(_) => ("file", None),
        };
        Self {
            mode,
            concurrency,
            rate,
            pacing,
            requests: plan.requests,
            duration_s: plan.duration.as_secs_f64(),
            timeout_s: plan.timeout.as_secs_f64(),
            rounds: setup.rounds,
            warm_up: setup.warm_up,
            seed: plan.seed,
            source,
            prompts: prompts.map(|prompts| PromptsShown {
                endpoint: match prompts.endpoint {
                    Endpoint::Chat => "chat",
                    Endpoint::Completions => "completions",
                },
                model: prompts.model.clone(),
                stream: prompts.stream,
                groups: prompts.groups,
                shared_bytes: prompts.shared_bytes,
                own_bytes: prompts.own_bytes,
                turns: prompts.turns,
                max_tokens: prompts.max_tokens,
            }),
        }
    }
}
