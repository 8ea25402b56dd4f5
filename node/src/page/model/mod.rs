//! What the page shows, as data: made from answers of the admin API and from the history. Pure.
//!
//! Every list has a limit and says how many more there are.

pub mod charts;
pub mod marks;
pub mod replicas;
pub mod rings;
#[cfg(test)]
mod tests;
pub mod workers;

use serde_json::Value;

use self::charts::Chart;
use self::marks::MarkRow;
use self::replicas::ReplicaRow;
use self::rings::RingRow;
use self::workers::WorkerRow;
use super::facts::{Facts, Limits, TenantUse};
use super::history::{History, Moment, VERDICTS};
use crate::shown::links::Matrix;
use crate::shown::models::askable;
use crate::shown::summary::{Summary, summary};
use crate::shown::{clean, field, rows};

/// Workers in the table.
pub const WORKERS_SHOWN: usize = 50;
/// Replicas in the table.
pub const REPLICAS_SHOWN: usize = 50;
/// Replicas in the table of who hears whom: a cell for each pair.
pub const LINKS_SHOWN: usize = 16;
/// Rings in the list.
pub const RINGS_SHOWN: usize = 12;
/// Tenants in the table.
pub const TENANTS_SHOWN: usize = 50;
/// Sources of workers in the table.
pub const SOURCES_SHOWN: usize = 20;
/// Tenants that can be chosen in the form; where there are more, one is typed.
pub const ASKERS_SHOWN: usize = 200;
/// Models that can be chosen in the form.
pub const MODELS_SHOWN: usize = 200;

/// The first rows of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// How many more there are.
    pub more: usize,
}

/// How something stands. The page shows a sign, a word and a colour for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It does not work.
    Bad,
    /// Somebody should look.
    Doubtful,
    /// It is as somebody wants it: draining, warming, leaving.
    Meant,
    /// It works.
    Well,
}

/// The first page.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The replica that shows it.
    pub replica: String,
    /// Seconds since 1970.
    pub unix_s: u64,
    /// What is wrong.
    pub headline: Summary,
    /// What keeps this replica from being ready.
    pub missing: Vec<String>,
    /// Two processes under one id: the id, the address that counts, the other one.
    pub twins: Vec<[String; 3]>,
    /// The replicas, the worst first.
    pub replicas: Listed<ReplicaRow>,
    /// Who hears whom.
    pub links: Matrix,
    /// The workers, the worst first.
    pub workers: Listed<WorkerRow>,
    /// The rings.
    pub rings: Listed<RingRow>,
    /// Digest of all rings.
    pub digest: String,
    /// Figures over the last hour.
    pub charts: Vec<Chart>,
    /// What happened, the latest first.
    pub marks: Listed<MarkRow>,
    /// Comparisons with peers.
    pub agreement: Agreement,
    /// Sources of workers.
    pub sources: Listed<SourceRow>,
    /// Keys are configured; without, every client is served.
    pub has_keys: bool,
    /// Tenants, the busiest first.
    pub tenants: Listed<TenantUse>,
    /// Limits.
    pub limits: Limits,
    /// Models that can be asked for.
    pub models: Listed<String>,
    /// Tenants in whose name may be asked where a prompt would go; none: prompts are nobody's.
    pub askers: Option<Listed<String>>,
}

/// How often peers would have chosen the same worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// Of the latest comparisons; none before the first.
    pub ratio: Option<f64>,
    /// How many these are.
    pub of: u64,
    /// Of the last hour, by what was found.
    pub reasons: Vec<(&'static str, u64)>,
}

/// A source of workers.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceRow {
    /// Its name.
    pub name: String,
    /// Whether its picture may be acted on.
    pub is_up: bool,
    /// Why it cannot be seen.
    pub failure: Option<String>,
    /// Workers: registered, seen, ready, missing, contested.
    pub counts: [u64; 5],
}

impl<T> Listed<T> {
    /// The first of these.
    pub fn first(mut rows: Vec<T>, most: usize) -> Self {
        let more = rows.len().saturating_sub(most);
        rows.truncate(most);
        Self { rows, more }
    }
}

/// What a page shows of the history. A page is made when it has this: those who write the history wait for a look at it.
#[derive(Debug, Clone)]
pub struct Hour {
    /// When.
    pub now: Moment,
    /// Figures.
    pub charts: Vec<Chart>,
    /// What happened, the latest first.
    pub marks: Listed<MarkRow>,
    /// Comparisons with peers, of the whole cluster.
    pub reasons: Vec<(&'static str, u64)>,
}

impl Hour {
    /// Of the whole cluster.
    pub fn of_cluster(history: &History, now: Moment) -> Self {
        Self {
            charts: charts::of_cluster(history, now),
            marks: marks::listed(history.marks.iter(), now),
            reasons: reasons(history),
            now,
        }
    }

    /// Of one worker.
    pub fn of_worker(history: &History, id: &str, now: Moment) -> Self {
        let marks = history.marks.iter().filter(|mark| mark.is_of_worker(id));
        Self {
            charts: charts::of_worker(history, id, now),
            marks: marks::listed(marks, now),
            reasons: Vec::new(),
            now,
        }
    }

    /// Of one replica.
    pub fn of_replica(history: &History, id: &str, now: Moment) -> Self {
        let marks = history.marks.iter().filter(|mark| mark.is_of_replica(id));
        Self {
            charts: charts::of_replica(history, id, now),
            marks: marks::listed(marks, now),
            reasons: Vec::new(),
            now,
        }
    }
}

impl Overview {
    /// Of what there is, and what was.
    pub fn of(facts: &Facts, hour: Hour) -> Self {
        let cluster = &facts.cluster;
        let twins = rows(cluster, "twins").iter();
        let twin = |twin: &Value| ["id", "kept", "cut_off"].map(|name| field(twin, name));
        let mut tenants = facts.tenants.clone();
        tenants.sort_by_key(|tenant| std::cmp::Reverse(tenant.here + tenant.elsewhere));
        let sources = facts.sources.iter().map(source_row).collect();
        let models = askable(&facts.rings, cluster).into_iter();
        let models = models.map(|model| clean(&model).into_owned()).collect();
        Self {
            replica: field(cluster, "replica"),
            unix_s: hour.now.unix_s(hour.now.at),
            headline: summary(cluster, &facts.workers),
            missing: texts(cluster, "missing"),
            twins: twins.map(twin).collect(),
            replicas: replicas::listed(cluster),
            links: Matrix::of(&facts.links, LINKS_SHOWN),
            workers: workers::listed(&facts.workers),
            rings: rings::listed(&facts.rings),
            digest: field(cluster, "digest"),
            charts: hour.charts,
            marks: hour.marks,
            agreement: Agreement {
                ratio: cluster["agreement"].as_f64(),
                of: cluster["agreement_samples"].as_u64().unwrap_or(0),
                reasons: hour.reasons,
            },
            sources: Listed::first(sources, SOURCES_SHOWN),
            has_keys: facts.has_keys,
            tenants: Listed::first(tenants, TENANTS_SHOWN),
            limits: facts.limits.clone(),
            models: Listed::first(models, MODELS_SHOWN),
            askers: facts.has_tenants.then(|| {
                let names = facts.tenants.iter().map(|tenant| tenant.name.clone());
                Listed::first(names.collect(), ASKERS_SHOWN)
            }),
        }
    }
}

/// The texts of a list.
fn texts(row: &Value, name: &str) -> Vec<String> {
    let texts = rows(row, name).iter().filter_map(Value::as_str);
    texts.map(|text| clean(text).into_owned()).collect()
}

/// Comparisons with peers within the last hour, by what they found.
pub fn reasons(history: &History) -> Vec<(&'static str, u64)> {
    let count = |at: usize| history.samples().map(|of| u64::from(of.verdicts[at])).sum();
    let reasons = VERDICTS.into_iter().enumerate();
    reasons.map(|(at, name)| (name, count(at))).collect()
}

/// What a comparison found, in words.
pub fn reason_in_words(reason: &str) -> &str {
    match reason {
        "same" => "the same worker",
        "settings" => "settings differ: a mistake in a configuration",
        "membership" => "the lists of workers differ",
        "heat" => "other prefixes count as hot",
        "evidence" => "one knows more of what workers hold",
        "health" => "one passes over a worker",
        "load" => "load looks different",
        "unanswered" => "the peer gave no answer",
        other => other,
    }
}

fn source_row(source: &Value) -> SourceRow {
    SourceRow {
        name: field(source, "source"),
        is_up: source["up"] == true,
        failure: source["failure"].as_str().map(str::to_owned),
        counts: ["registered", "seen", "ready", "missing", "contested"]
            .map(|name| source[name].as_u64().unwrap_or(0)),
    }
}
