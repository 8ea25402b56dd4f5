//! The first page: what is wrong, then what there is, then how it was. Pure.

use maud::{Markup, html};

use super::tables::{links, marks, percent, replicas, scrolling, workers};
use super::{Part, and_more, chart, clock, explain, sign};
use crate::page::facts::{Limits, TenantUse};
use crate::page::model::rings::RingRow;
use crate::page::model::{Agreement, Listed, Overview, SourceRow, Standing, reason_in_words};
use crate::shown::words::limit_in_words;

/// The parts of the first page, in their order.
pub fn parts_of(overview: &Overview) -> Vec<Part> {
    let of = overview;
    vec![
        Part::new("headline", &headline(of)),
        Part::new(
            "replicas",
            &html! { h2 { "Replicas" } (replicas(&of.replicas)) },
        ),
        Part::new(
            "links",
            &html! { h2 { "Who hears whom" } (links(&of.links)) },
        ),
        Part::new(
            "workers",
            &html! { h2 { "Workers" } (workers(&of.workers)) },
        ),
        Part::new("hour", &charts(of)),
        Part::new(
            "marks",
            &html! { h2 { "What happened" } (marks(&of.marks)) },
        ),
        Part::new("agreement", &agreement(&of.agreement)),
        Part::new("ring", &rings(of)),
        Part::new("limits", &limits(&of.limits)),
        Part::new("tenants", &tenants(of.has_keys, &of.tenants)),
        Part::new("sources", &sources(&of.sources)),
        Part::new(
            "ask",
            &html! {
                h2 { "Where would a prompt go?" }
                (explain::form(&of.models, of.askers.as_ref(), explain::Chosen::default()))
            },
        ),
    ]
}

fn headline(of: &Overview) -> Markup {
    let standing = match of.headline.is_wrong {
        true => Standing::Bad,
        false => Standing::Well,
    };
    let word = match of.headline.is_wrong {
        true => "Something is wrong",
        false => "All is well",
    };
    html! {
        h1 data-word=(word) data-wrong=[of.headline.is_wrong.then_some("")] {
            (sign(standing)) (word) ": " span { (of.headline.text) }
        }
        @for [id, kept, cut_off] in &of.twins {
            p { (sign(Standing::Bad)) "Two processes run as " b { (id) } ": " (kept) " counts, " (cut_off)
                " is cut off and not ready; end one of them." }
        }
        @if !of.missing.is_empty() {
            p { (sign(Standing::Bad)) "This replica takes no requests: " (of.missing.join(", ")) "." }
        }
        p.soft { "As replica " (of.replica) " sees it at " time { (clock(of.unix_s)) } " UTC." }
    }
}

fn charts(of: &Overview) -> Markup {
    html! {
        h2 { "The last hour" }
        p.soft {
            "Counted by this replica. Marks: "
            span.kind.fault { "▼ fault" } " " span.kind.repair { "▲ repair" } " " span.kind.change { "◆ change" }
            ". Times are UTC."
        }
        div.charts { @for of in &of.charts { (chart::figure(of)) } }
    }
}

fn agreement(of: &Agreement) -> Markup {
    html! {
        h2 { "Do the replicas decide alike?" }
        @if let Some(ratio) = of.ratio {
            p { "Of the last " (of.of) " requests compared, a peer would have chosen the same worker for "
                b { (percent(Some(ratio))) } "." }
        } @else {
            p.soft { "Nothing was compared yet: it needs requests, and another replica that is ready." }
        }
        @if of.reasons.iter().any(|(_, count)| *count > 0) {
            p.soft { "In the last hour:" }
            dl.counts {
                @for (reason, count) in &of.reasons {
                    @if *count > 0 { div { dt { (reason_in_words(reason)) } dd { (count) } } }
                }
            }
        }
    }
}

fn rings(of: &Overview) -> Markup {
    html! {
        h2 { "Who owns what" }
        p { "Digest of all rings: " code { (of.digest) } ". A worker's share is the part of all prefixes whose home it is." }
        @for ring in &of.rings.rows { (one_ring(ring)) }
        (and_more(of.rings.more, "rings"))
    }
}

fn one_ring(ring: &RingRow) -> Markup {
    let widest = ring
        .owners
        .rows
        .iter()
        .map(|(_, share)| *share)
        .fold(1e-9, f64::max);
    html! {
        details open id={ "ring-" (super::encoded(&ring.model)) "-" (ring.role) } {
            summary {
                b { bdi { (ring.model) } }
                @if ring.role != "any" { " (" (ring.role) ")" }
                ": " (ring.count) " workers, policy " (ring.policy) ", digest " code { (ring.digest) }
                @if ring.panics {
                    " " (sign(Standing::Bad)) "more than half are bad: health is not believed"
                }
            }
            ol.owners {
                @for (worker, share) in &ring.owners.rows {
                    li {
                        span.who { bdi { (worker) } }
                        svg.bar viewBox="0 0 60 10" aria-hidden="true" {
                            rect.used width=(format!("{:.1}", share / widest * 60.0)) height="10" {}
                        }
                        span.number { (format!("{:.1} %", share * 100.0)) }
                    }
                }
            }
            @if ring.owners.more > 0 {
                p.soft { "and " (ring.owners.more) " more with " (percent(Some(ring.rest))) " together" }
            }
        }
    }
}

fn limits(of: &Limits) -> Markup {
    let mib = |bytes: u64| bytes >> 20;
    html! {
        h2 { "Limits of this replica" }
        dl.counts {
            div { dt { "requests in progress" } dd { (of.requests) " of " (of.requests_max) } }
            div { dt { "requests that wait" } dd { (of.waiting) } }
            div { dt { "bodies held" } dd { (mib(of.body_bytes)) " of " (mib(of.body_bytes_max)) " MiB" } }
            div { dt { "requests that no worker gets" } dd { (of.quarantined) } }
        }
        @if of.reached.is_empty() {
            p.soft { "No limit was reached since it started." }
        } @else {
            p.soft { "Limits that were reached since it started:" }
            dl.counts { @for (name, times) in &of.reached {
                div { dt { (limit_in_words(name)) } dd { (times) " times" } }
            } }
        }
    }
}

fn tenants(has_keys: bool, listed: &Listed<TenantUse>) -> Markup {
    html! {
        h2 { "Tenants" }
        @if !has_keys {
            p.soft { "No keys are configured: every client is served." }
        } @else if listed.rows.is_empty() {
            p { "No key is valid: every client is refused." }
        } @else {
            (scrolling("Tenants", &html! { table {
                thead { tr {
                    th scope="col" { "Tenant" }
                    th scope="col" { "Requests, whole cluster" }
                    th scope="col" { "Here" }
                    th scope="col" { "Of these, waiting" }
                    th scope="col" { "Limit" }
                } }
                tbody { @for row in &listed.rows { tr {
                    th scope="row" { bdi { (row.name) } }
                    td.number { (row.here + row.elsewhere) }
                    td.number { (row.here) }
                    td.number { (row.waiting_here) }
                    td.number { @match row.most { Some(most) => (most), None => "none" } }
                } } }
            } }))
            (and_more(listed.more, "tenants, none of them busier"))
        }
    }
}

fn sources(listed: &Listed<SourceRow>) -> Markup {
    html! {
        h2 { "Where workers come from" }
        @if listed.rows.is_empty() {
            p.soft { "No source is watched: workers are configured, or added by operators." }
        } @else {
            (scrolling("Sources", &html! { table {
                thead { tr {
                    th scope="col" { "Source" }
                    th scope="col" { "State" }
                    th scope="col" { "Registered" }
                    th scope="col" { "Seen" }
                    th scope="col" { "Ready" }
                    th scope="col" { "Missing" }
                    th scope="col" { "Contested" }
                } }
                tbody { @for row in &listed.rows { tr {
                    th scope="row" { (row.name) }
                    td {
                        @if row.is_up { (sign(Standing::Well)) "up" }
                        @else { (sign(Standing::Doubtful)) "not to be acted on" }
                        @if let Some(why) = &row.failure { br; span.soft { (why) } }
                    }
                    @for count in row.counts { td.number { (count) } }
                } } }
            } }))
            (and_more(listed.more, "sources"))
        }
    }
}
