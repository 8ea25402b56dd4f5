//! Rows of workers. Pure.

use std::cmp::Reverse;

use serde_json::Value;

use super::{Listed, Standing, WORKERS_SHOWN, texts};
use crate::shown::trouble::{
    ON_TRIAL, PAUSED, is_asleep, is_on_trial, own_trouble, worker_rank, worker_trouble,
};
use crate::shown::{clean, field, seconds};

/// Models and sources of a row that are named.
const NAMED: usize = 3;
/// Letters of why its latest check failed.
const WHY_MAX: usize = 160;

/// One worker, as the replica that shows the page sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerRow {
    /// Its id.
    pub id: String,
    /// How it stands.
    pub standing: Standing,
    /// The same in words: `giving no tokens for 12 s`.
    pub state: String,
    /// More to know of it, each a short sentence.
    pub notes: Vec<String>,
    /// Which half of a request it takes; `any`: the whole.
    pub role: String,
    /// Its models, the first of them.
    pub models: String,
    /// Requests there, from all replicas.
    pub in_flight: f64,
    /// Of these, from this replica.
    pub here: u64,
    /// Most of them, if that is limited.
    pub most: Option<u64>,
    /// `closed`, or what its breaker waits for.
    pub breaker: String,
    /// Share of its prompts that came from its cache, 0 to 1.
    pub hit_rate: Option<f64>,
    /// Who says that it is there.
    pub sources: String,
}

/// The worst first, then the busiest.
pub fn listed(workers: &[Value]) -> Listed<WorkerRow> {
    let listed = Listed::first(sorted(workers), WORKERS_SHOWN);
    Listed {
        rows: listed.rows.into_iter().map(row).collect(),
        more: listed.more,
    }
}

/// The worst first, then the busiest.
pub fn sorted(workers: &[Value]) -> Vec<&Value> {
    let mut workers: Vec<&Value> = workers.iter().collect();
    // Once for each: there may be thousands. The bits of numbers from 0 on are in their order.
    let busy = |worker: &Value| worker["in_flight"].as_f64().unwrap_or(0.0).max(0.0);
    workers.sort_by_cached_key(|of| (worker_rank(of), Reverse(busy(of).to_bits())));
    workers
}

/// One worker.
pub fn row(worker: &Value) -> WorkerRow {
    let id = field(worker, "id");
    let lasts = worker["verdict_for_s"].as_u64().unwrap_or(0);
    let state = field(worker, "state");
    let (standing, state) = match (own_trouble(worker), state.as_str()) {
        (Some(what), _) => (Standing::Bad, format!("{what} for {}", seconds(lasts))),
        (None, "active") if is_asleep(worker) => {
            let how = field(worker, "asleep");
            (Standing::Meant, format!("asleep ({how})"))
        }
        (None, "active") if is_on_trial(worker) => {
            let what = format!("{ON_TRIAL} for {}", seconds(lasts));
            (Standing::Doubtful, what)
        }
        // For how long is not known here.
        (None, "active") if worker["doubted"].is_string() => {
            let what = format!("doubted by another replica ({})", field(worker, "doubted"));
            (Standing::Doubtful, what)
        }
        (None, "active") => (Standing::Well, format!("well for {}", seconds(lasts))),
        (None, _) => (Standing::Meant, state),
    };
    WorkerRow {
        standing,
        state,
        notes: notes(worker),
        role: field(worker, "role"),
        models: first_of(texts(worker, "models"), "not known yet"),
        in_flight: worker["in_flight"].as_f64().unwrap_or(0.0),
        here: worker["in_flight_here"].as_u64().unwrap_or(0),
        most: worker["max_in_flight"].as_u64(),
        breaker: breaker(worker),
        hit_rate: worker["hit_rate"].as_f64(),
        sources: first_of(texts(worker, "sources"), "-"),
        id,
    }
}

fn notes(worker: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    let state = field(worker, "state");
    if worker_trouble(worker).is_some() && state != "active" {
        notes.push(state);
    }
    if let Some(why) = worker["why"]
        .as_str()
        .filter(|_| own_trouble(worker).is_some())
    {
        notes.push(clean(why).chars().take(WHY_MAX).collect());
    }
    if worker["drained"] == true {
        notes.push("drained by an operator".to_owned());
    }
    if let Some(share) = worker["slow_start"].as_f64() {
        notes.push(format!(
            "starts slowly: {:.0} % of the mean load",
            share * 100.0
        ));
    }
    if let Some(left) = worker["paused_s"].as_u64() {
        notes.push(format!("{PAUSED} for {}", seconds(left)));
    }
    let warm_up = &worker["warm_up"];
    if warm_up.is_object() {
        let left = seconds(warm_up["left_ms"].as_u64().unwrap_or(0) / 1_000);
        notes.push(format!("warmed by {}, {left} left", field(warm_up, "by")));
        let count = |name: &str| warm_up[name].as_u64();
        // The replica that warms it alone knows.
        if let (Some(warmed), Some(held), Some(all)) = (count("warmed"), count("held"), count("of"))
        {
            notes.push(format!("holds {} of {all} hot prompts", warmed + held));
        }
    }
    notes
}

fn breaker(worker: &Value) -> String {
    let breaker = field(worker, "breaker");
    match worker["ejected_for_ms"].as_u64() {
        Some(ms) if ms > 0 => format!("{breaker}, trial in {}", seconds(ms.div_ceil(1_000))),
        _ => breaker,
    }
}

/// The first of these, and how many more.
fn first_of(names: Vec<String>, without: &str) -> String {
    if names.is_empty() {
        return without.to_owned();
    }
    let more = names.len().saturating_sub(NAMED);
    let named = names[..names.len() - more].join(", ");
    match more {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// At most three digits: `0.42`, `3.1`, `120`.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
