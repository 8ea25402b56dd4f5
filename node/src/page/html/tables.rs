//! Tables of replicas and workers, and lists of what happened. Pure.

use maud::{Markup, html};

use super::{and_more, clock, replica_path, sign, worker_path};
use crate::page::model::Listed;
use crate::page::model::marks::MarkRow;
use crate::page::model::replicas::ReplicaRow;
use crate::page::model::workers::{WorkerRow, short};
use crate::shown::links::{Cell, Matrix};

/// A table that scrolls by itself where it is too wide; reachable by the keyboard for that.
pub(super) fn scrolling(label: &str, table: &Markup) -> Markup {
    html! { div.scroll tabindex="0" role="region" aria-label=(label) { (table) } }
}

pub(super) fn replicas(listed: &Listed<ReplicaRow>) -> Markup {
    scrolling(
        "Replicas",
        &html! {
            table {
                thead { tr {
                    th scope="col" { "Replica" }
                    th scope="col" { "State" }
                    th scope="col" { "Heard from here" }
                    th scope="col" { "Ring" }
                    th scope="col" { "Registry" }
                    th scope="col" { "Certificate" }
                    th scope="col" { "Version" }
                    th scope="col" { "Admin port" }
                } }
                tbody {
                    @for row in &listed.rows {
                        tr {
                            th scope="row" { a href=(replica_path(&row.id)) { bdi { (row.id) } } }
                            td.state { (sign(row.standing)) (row.state) }
                            td.state { @if row.is_silent { (doubt()) } (row.heard) }
                            td.code { (row.ring)
                                @if row.is_other_ring { " " (doubt()) "another ring" }
                                @if row.is_other_settings { " " (doubt()) "other settings" }
                            }
                            td.code { (row.registry) }
                            td { @if row.is_certificate_short { (doubt()) } (row.certificate) }
                            td { @if row.is_other_version { (doubt()) } (row.version) }
                            td.code { (row.admin) }
                        }
                    }
                }
            }
            (and_more(listed.more, "replicas"))
        },
    )
}

/// A row for each live replica, as it tells by itself.
pub(super) fn links(matrix: &Matrix) -> Markup {
    html! {
        @if matrix.ids.len() < 2 {
            p.soft { "There is no other live replica." }
        } @else {
            (scrolling("Who hears whom", &html! { table.links {
                thead { tr {
                    th scope="col" { "Replica" }
                    @for id in &matrix.ids { th scope="col" { "hears " (id) } }
                } }
                tbody { @for (id, row) in matrix.ids.iter().zip(&matrix.rows) { tr {
                    th scope="row" { a href=(replica_path(id)) { (id) } }
                    @for cell in row {
                        td { @if *cell == Cell::Unheard { (bad()) } (cell.word()) }
                    }
                } } }
            } }))
            @if matrix.rows.iter().flatten().any(|cell| *cell == Cell::Untold) {
                p.soft { "?: it is not heard by this replica, or its release does not tell." }
            }
            (and_more(matrix.more, matrix.rest_in_words()))
        }
    }
}

pub(super) fn workers(listed: &Listed<WorkerRow>) -> Markup {
    let busiest = listed
        .rows
        .iter()
        .map(|row| row.in_flight)
        .fold(1.0, f64::max);
    scrolling(
        "Workers",
        &html! {
            table {
                thead { tr {
                    th scope="col" { "Worker" }
                    th scope="col" { "State" }
                    th scope="col" { "In flight" }
                    th scope="col" { "Breaker" }
                    th scope="col" { "Cache hits, 10 min" }
                    th scope="col" { "Role" }
                    th scope="col" { "Models" }
                    th scope="col" { "Source" }
                } }
                tbody {
                    @for row in &listed.rows {
                        tr {
                            th scope="row" { a href=(worker_path(&row.id)) { bdi { (row.id) } } }
                            td.state { (sign(row.standing)) (row.state)
                                @for note in &row.notes { br; span.soft { (note) } }
                            }
                            td.number { (load(row, busiest)) }
                            td { @if row.breaker != "closed" { (doubt()) } (row.breaker) }
                            td.number { (percent(row.hit_rate)) }
                            td { (row.role) }
                            td.name { bdi { (row.models) } }
                            td.name { bdi { (row.sources) } }
                        }
                    }
                }
            }
            (and_more(listed.more, "workers, none of them worse or busier"))
        },
    )
}

/// A number and a bar beside it: of its own limit, or else of the busiest.
fn load(row: &WorkerRow, busiest: f64) -> Markup {
    let most = row.most.map_or(busiest, |most| most as f64).max(1.0);
    let width = (row.in_flight / most * 60.0).clamp(0.0, 60.0);
    html! {
        (short(row.in_flight))
        @if let Some(most) = row.most { " of " (most) }
        " "
        svg.bar viewBox="0 0 60 10" aria-hidden="true" {
            rect.room width="60" height="10" {}
            rect.used width=(short(width)) height="10" {}
        }
        br;
        span.soft { (row.here) " from here" }
    }
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// What happened, the latest first.
pub(super) fn marks(listed: &Listed<MarkRow>) -> Markup {
    html! {
        @if listed.rows.is_empty() {
            p.soft { "Nothing in the last hour, or since this replica started." }
        } @else {
            ol.marks {
                @for row in &listed.rows {
                    li class=(row.kind.as_str()) {
                        time { (clock(row.unix_s)) } " "
                        span class={ "kind " (row.kind.as_str()) } { (row.kind.as_str()) } " "
                        @match &row.link {
                            Some(("workers", id)) => a href=(worker_path(id)) { bdi { (row.who) } },
                            Some((_, id)) => a href=(replica_path(id)) { bdi { (row.who) } },
                            None => b { bdi { (row.who) } },
                        }
                        " " (row.text)
                    }
                }
            }
            (and_more(listed.more, "before that"))
        }
    }
}

fn bad() -> Markup {
    sign(crate::page::model::Standing::Bad)
}

pub(super) fn doubt() -> Markup {
    sign(crate::page::model::Standing::Doubtful)
}
