//! Pages of one worker and of one replica. Pure.

use maud::{Markup, html};
use serde_json::Value;

use super::tables::{marks, replicas, workers};
use super::{Part, chart, sign};
use crate::page::history::watcher::NAMED_MAX;
use crate::page::model::charts::Chart;
use crate::page::model::{Hour, Listed, Standing, replicas as of_replicas, workers as of_workers};
use crate::shown::{field, rows};

/// A replica of this id, if this one knows it.
pub fn replica_of<'a>(cluster: &'a Value, id: &str) -> Option<&'a Value> {
    let mut all = rows(cluster, "replicas").iter();
    all.find(|replica| field(replica, "id") == id)
}

/// Parts of the page of a worker.
pub fn worker(found: Option<&Value>, id: &str, hour: &Hour) -> Vec<Part> {
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
    let happened = html! {
        h2 { "What happened to it" }
        (marks(&hour.marks))
        p.soft {
            "What befell more than " (NAMED_MAX) " workers at once is here for the first " (NAMED_MAX)
            " of them alone: the overview has it."
        }
    };
    vec![
        Part::new("about", &about),
        Part::new("hour", &charts(&hour.charts)),
        Part::new("marks", &happened),
    ]
}

/// Parts of the page of a replica.
pub fn replica(cluster: &Value, id: &str, hour: &Hour) -> Vec<Part> {
    let about = html! {
        h1 { "Replica " (id) }
        @match replica_of(cluster, id) {
            None => (missing("No replica of this id is known to this one.")),
            Some(replica) => {
                (replicas(&only(of_replicas::row(cluster, replica))))
                p.soft {
                    "Whom it hears itself is on its own page, at its admin port: "
                    code { "http://" (field(replica, "admin")) "/" }
                }
                h2 { "All that is known of it" }
                (description(replica))
            }
        }
    };
    let happened = html! {
        h2 { "What happened to it" }
        (marks(&hour.marks))
    };
    vec![
        Part::new("about", &about),
        Part::new("hour", &charts(&hour.charts)),
        Part::new("marks", &happened),
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
