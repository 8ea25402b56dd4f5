//! One page for each record, and an index. Each file stands alone, as [`grapevine_bench::charts`] makes them.

use grapevine_bench::charts::{clock, clock_tenths, cursor, document, known, percent, short};
use maud::{Markup, html};

use super::super::record::{Mark, Promise, Record, Window};
use super::panels::panels;
use super::phases::{Phase, phases};
use super::timeline;

/// Most rows of the table of windows: longer runs show every n-th window.
const ROWS_MAX: usize = 240;
/// A table of failures with more rows is folded.
const FAILURES_OPEN_MAX: usize = 20;

/// The whole file of one record.
pub(super) fn page(record: &Record) -> String {
    let body = html! {
        header {
            h1 { (record.scenario) " " (verdict(record.held())) }
            p.title { (record.title) }
            p.facts { (facts(record)) }
        }
        main data-until=(record.duration_ms.max(1)) {
            section {
                h2 { "Promises" }
                (promises(&record.promises))
            }
            section {
                (timeline::draw(record))
                details {
                    summary { "Events as text (" (record.marks.len()) ")" }
                    (events(&record.marks))
                }
            }
            section {
                h2 { "In parts" }
                (parts(&phases(record)))
            }
            section {
                h2 { "Over time" }
                p.about { "Shaded: a fault was present. Point at a plot to read the values of all plots at that time." }
                div.plots {
                    @for panel in panels(record) { (panel.draw(record.duration_ms, &record.marks)) }
                }
                details {
                    summary { "What clients saw, as numbers" }
                    (windows(&record.windows))
                }
            }
            section {
                h2 { "Failed requests" }
                (failures(record))
            }
            @if !record.notes.is_empty() {
                section {
                    h2 { "Notes" }
                    ul { @for note in &record.notes { li { (note) } } }
                }
            }
        }
        (cursor())
    };
    document(&format!("{}: chaos report", record.scenario), &body)
}

/// The file that links to several records; `pages` are the names of their files.
pub(super) fn index(records: &[Record], pages: &[String]) -> String {
    let body = html! {
        header {
            h1 { "Chaos " (verdict(records.iter().all(Record::held))) }
            p.facts {
                (records.iter().filter(|record| record.held()).count()) " of " (records.len())
                " scenarios kept every promise"
            }
        }
        main {
            table {
                thead {
                    tr {
                        th scope="col" { "scenario" }
                        th scope="col" { "verdict" }
                        th scope="col" { "about" }
                        th.number scope="col" { "answered" }
                        th.number scope="col" { "failed" }
                        th.number scope="col" { "p99 ms" }
                        th.number scope="col" { "hits %" }
                        th.number scope="col" { "length" }
                    }
                }
                tbody {
                    @for (record, page) in records.iter().zip(pages) {
                        tr {
                            th scope="row" { a href=(page) { (record.scenario) } }
                            td { (verdict(record.held())) }
                            td {
                                (record.title)
                                @for promise in record.promises.iter().filter(|promise| !promise.held) {
                                    br; strong { "broken: " } (promise.text) " (" (promise.seen) ")"
                                }
                            }
                            td.number { (record.totals.succeeded) }
                            td.number { (record.totals.requests - record.totals.succeeded) }
                            td.number { (short(record.totals.latency.p99_ms)) }
                            td.number { (percent(Some(record.totals.hit_rate))) }
                            td.number { (clock(record.duration_ms)) }
                        }
                    }
                }
            }
        }
    };
    document("Chaos reports", &body)
}

fn verdict(held: bool) -> Markup {
    html! {
        @if held { span.verdict.held { "✓ held" } } @else { span.verdict.broken { "✗ broken" } }
    }
}

fn facts(record: &Record) -> String {
    let seed = record.seed.map(|seed| format!(", seed {seed}"));
    let totals = &record.totals;
    format!(
        "{}, {}{}, began {}. {} requests, {} answered, {} failed, {} not sent; p50 {} ms, p99 {} ms, {} % of prompt tokens from caches",
        record.place.as_str(),
        clock(record.duration_ms),
        seed.unwrap_or_default(),
        record.began,
        totals.requests,
        totals.succeeded,
        totals.requests - totals.succeeded,
        record.shed,
        short(totals.latency.p50_ms),
        short(totals.latency.p99_ms),
        percent(Some(totals.hit_rate)),
    )
}

fn promises(promises: &[Promise]) -> Markup {
    html! {
        @if promises.is_empty() {
            p { "Nothing was judged." }
        } @else {
            table {
                thead { tr { th scope="col" { "verdict" } th scope="col" { "promise" } th scope="col" { "seen" } } }
                tbody {
                    @for promise in promises {
                        tr {
                            td { (verdict(promise.held)) }
                            td { (promise.text) }
                            td { (promise.seen) }
                        }
                    }
                }
            }
        }
    }
}

fn events(marks: &[Mark]) -> Markup {
    html! {
        table {
            thead {
                tr {
                    th.number scope="col" { "from" }
                    th.number scope="col" { "until" }
                    th scope="col" { "kind" }
                    th scope="col" { "who" }
                    th scope="col" { "what" }
                }
            }
            tbody {
                @for mark in marks {
                    tr {
                        td.number { (clock_tenths(mark.at_ms)) }
                        td.number { @if let Some(until) = mark.until_ms { (clock_tenths(until)) } }
                        td { (mark.kind.as_str()) }
                        td { (mark.node.as_deref().unwrap_or("cluster")) }
                        td { (mark.text) }
                    }
                }
            }
        }
    }
}

fn parts(phases: &[Phase]) -> Markup {
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "part" }
                    th.number scope="col" { "from" }
                    th.number scope="col" { "until" }
                    th.number scope="col" { "answered" }
                    th.number scope="col" { "failed" }
                    th.number scope="col" { "answered/s" }
                    th.number scope="col" { "p50 ms" }
                    th.number scope="col" { "worst p99 ms" }
                    th.number scope="col" { "hits %" }
                    th.number scope="col" { "agreement %" }
                    th.number scope="col" { "without load %" }
                }
            }
            tbody {
                @for phase in phases {
                    tr {
                        th scope="row" { (phase.name) }
                        td.number { (clock_tenths(phase.from_ms)) }
                        td.number { (clock_tenths(phase.until_ms)) }
                        td.number { (phase.succeeded) }
                        td.number { (phase.failed) }
                        td.number { (short(phase.per_s)) }
                        td.number { (known(phase.p50_ms)) }
                        td.number { (known(phase.p99_ms)) }
                        td.number { (percent(phase.hit_rate)) }
                        td.number { (percent(phase.agreement)) }
                        td.number { (percent(phase.agreement_idle)) }
                    }
                }
            }
        }
        p.about { "p50: median over the seconds of each second's median; p99: of the worst second." }
    }
}

fn windows(windows: &[Window]) -> Markup {
    let every = windows.len().div_ceil(ROWS_MAX).max(1);
    html! {
        @if every > 1 { p.about { "One window of " (every) " is shown; the JSON has all." } }
        table {
            thead {
                tr {
                    @for name in ["from", "sent", "answered", "failed", "refused", "p50 ms", "p99 ms",
                        "first token p50 ms", "p99 ms"] {
                        th.number scope="col" { (name) }
                    }
                }
            }
            tbody {
                @for window in windows.iter().step_by(every) {
                    tr {
                        td.number { (clock_tenths(window.at_ms)) }
                        td.number { (window.sent) }
                        td.number { (window.succeeded) }
                        td.number { (window.failed) }
                        td.number { (window.refused) }
                        td.number { (known(window.p50_ms)) }
                        td.number { (known(window.p99_ms)) }
                        td.number { (known(window.first_token_p50_ms)) }
                        td.number { (known(window.first_token_p99_ms)) }
                    }
                }
            }
        }
    }
}

fn failures(record: &Record) -> Markup {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".to_owned());
    let table = html! {
        table {
            thead {
                tr {
                    th.number scope="col" { "sent" }
                    th.number scope="col" { "failed" }
                    th scope="col" { "kind" }
                    th scope="col" { "answer" }
                    th scope="col" { "replica" }
                    th scope="col" { "worker" }
                }
            }
            tbody {
                @for failure in &record.failures {
                    tr {
                        td.number { (clock_tenths(failure.sent_ms)) }
                        td.number { (clock_tenths(failure.failed_ms)) }
                        td { (failure.kind) }
                        td { (if failure.begun { "had begun" } else { "not begun" }) }
                        td { (name(&failure.replica)) }
                        td { (name(&failure.worker)) }
                    }
                }
            }
        }
    };
    let failed = record.totals.requests - record.totals.succeeded;
    html! {
        @if failed == 0 {
            p { "None." }
        } @else {
            ul {
                @for (kind, count) in &record.totals.failures { li { (count) " " (kind) } }
            }
            details open[record.failures.len() <= FAILURES_OPEN_MAX] {
                summary { (record.failures.len()) " of " (failed) ", one by one" }
                (table)
            }
        }
    }
}
