//! Pages of one worker and of one replica. Pure.

use maud::{Markup, html};
use serde_json::Value;

use super::tables::{marks, replicas, workers};
use super::{Part, chart, sign};
use crate::page::facts::Facts;
use crate::page::history::{History, Moment};
use crate::page::model::charts::{Chart, of_replica, of_worker};
use crate::page::model::marks::listed;
use crate::page::model::{Listed, Standing, replicas as of_replicas, workers as of_workers};
use crate::shown::{field, rows};

/// Whether a worker of this id is registered, as far as this replica knows.
pub fn has_worker(facts: &Facts, id: &str) -> bool {
    facts.workers.iter().any(|worker| field(worker, "id") == id)
}

/// Whether this replica knows one of this id.
pub fn has_replica(facts: &Facts, id: &str) -> bool {
    let all = rows(&facts.cluster, "replicas");
    all.iter().any(|replica| field(replica, "id") == id)
}

/// Parts of the page of a worker.
pub fn worker(facts: &Facts, history: &History, id: &str, now: Moment) -> Vec<Part> {
    let found = facts
        .workers
        .iter()
        .find(|worker| field(worker, "id") == id);
    let about = html! {
        h1 { "Worker " (id) }
        @match found {
            None => (missing("No worker of this id is registered, as far as this replica knows.")),
            Some(worker) => {
                (workers(&only(of_workers::row(worker))))
                h2 { "All that is known of it" }
                (description(worker))
            }
        }
    };
    let of_it = history.marks.iter().filter(|mark| mark.is_of_worker(id));
    // Two numbers from the ends of one list are what a row needs.
    let of_it: Vec<_> = of_it.collect();
    vec![
        Part::new("about", &about),
        Part::new("hour", &charts(&of_worker(history, id, now))),
        Part::new(
            "marks",
            &html! {
                h2 { "What happened to it" }
                (marks(&listed(of_it.iter().copied(), now)))
            },
        ),
    ]
}

/// Parts of the page of a replica.
pub fn replica(facts: &Facts, history: &History, id: &str, now: Moment) -> Vec<Part> {
    let all = rows(&facts.cluster, "replicas");
    let found = all.iter().find(|replica| field(replica, "id") == id);
    let about = html! {
        h1 { "Replica " (id) }
        @match found {
            None => (missing("No replica of this id is known to this one.")),
            Some(replica) => {
                (replicas(&only(of_replicas::row(&facts.cluster, replica))))
                p.soft {
                    "Whom it hears itself is on its own page, at its admin port: "
                    code { "http://" (field(replica, "admin")) "/" }
                }
                h2 { "All that is known of it" }
                (description(replica))
            }
        }
    };
    let of_it: Vec<_> = history
        .marks
        .iter()
        .filter(|mark| mark.is_of_replica(id))
        .collect();
    vec![
        Part::new("about", &about),
        Part::new("hour", &charts(&of_replica(history, id, now))),
        Part::new(
            "marks",
            &html! {
                h2 { "What happened to it" }
                (marks(&listed(of_it.iter().copied(), now)))
            },
        ),
    ]
}

fn only<T>(row: T) -> Listed<T> {
    Listed {
        rows: vec![row],
        more: 0,
    }
}

fn missing(what: &str) -> Markup {
    html! { p { (sign(Standing::Doubtful)) (what) } }
}

fn charts(charts: &[Chart]) -> Markup {
    html! {
        h2 { "The last hour" }
        @if charts.is_empty() {
            p.soft { "No history: it came within the last seconds, or there are too many to keep one of each." }
        } @else {
            div.charts { @for of in charts { (chart::figure(of)) } }
        }
    }
}

/// Every field of the admin API's answer, but for parts of several fields.
fn description(row: &Value) -> Markup {
    let fields = row.as_object().into_iter().flatten();
    let fields = fields.filter(|(_, value)| !value.is_object() && !value.is_null());
    let is_plain = |value: &Value| match value.as_array() {
        Some(list) => list.iter().all(|item| !item.is_object()) && !list.is_empty(),
        None => true,
    };
    html! {
        dl.counts {
            @for (name, _) in fields.filter(|(_, value)| is_plain(value)) {
                div { dt { (name.replace('_', " ")) } dd { (field(row, name)) } }
            }
            @for (name, value) in row["labels"].as_object().into_iter().flatten() {
                div { dt { "label " (name) } dd { (value.as_str().unwrap_or_default()) } }
            }
        }
    }
}
