//! One page for a result.

use maud::{Markup, html};

use crate::charts::{
    Estimate, Panel, Range, Series, Shape, clock, cursor, document, known, percent, ranges, short,
};
use crate::run::{Comparison, EndpointResult, RunResult};
use crate::windows::Window;

/// The whole file.
pub fn page(result: &RunResult) -> String {
    let names: Vec<&str> = result.endpoints.iter().map(|e| e.name.as_str()).collect();
    let title = format!("Load: {}", names.join(" and "));
    let body = html! {
        header {
            h1 { (title) }
            @for endpoint in &result.endpoints { p.title { (endpoint.name) ": " (endpoint.urls.join(", ")) } }
            p.facts { (facts(result)) }
            @for endpoint in &result.endpoints {
                @if let Some(shortfall) = endpoint.warm_up.shortfall(result.load.warm_up) {
                    p.facts { strong { "Warm-up of " (endpoint.name) ": " (shortfall) "." } }
                }
            }
            @if result.interrupted { p.facts { strong { "Ended before its time." } } }
        }
        main data-until=(result.duration_ms.max(1)) {
            @if let Some(comparison) = &result.comparison {
                section {
                    h2 { "Side by side" }
                    (compared(result, comparison))
                }
            }
            section {
                h2 { "Sums" }
                (sums(&result.endpoints))
            }
            section {
                h2 { "Times, ms" }
                (times(&result.endpoints))
            }
            section {
                h2 { "Errors" }
                (errors(&result.endpoints))
            }
            section {
                h2 { "Over time" }
                p.about { "Point at a plot to read the values of all plots at that time." }
                div.plots {
                    @for panel in panels(&result.endpoints) { (panel.draw(result.duration_ms, &result.marks)) }
                }
            }
        }
        (cursor())
    };
    document(&title, &body)
}

fn facts(result: &RunResult) -> String {
    let load = &result.load;
    let sent = match (load.rate, load.concurrency) {
        (Some(rate), _) => format!("{} /s, {}", short(rate), load.pacing.unwrap_or_default()),
        (None, clients) => format!("{} clients", clients.unwrap_or_default()),
    };
    let prompts = load.prompts.as_ref().map_or_else(
        || "bodies of a file".to_owned(),
        |p| {
            format!(
                "{}, {}, {} groups with {} shared bytes, {} own, {} turns, {} answer tokens",
                p.endpoint,
                if p.stream { "streams" } else { "plain" },
                p.groups,
                p.shared_bytes,
                p.own_bytes,
                p.turns,
                p.max_tokens
            )
        },
    );
    format!(
        "{} loop, {sent}; {prompts}; seed {}, {} rounds; began {}, took {}, grapevine {}",
        load.mode,
        load.seed,
        load.rounds,
        result.began,
        clock(result.duration_ms),
        result.version
    )
}

fn compared(result: &RunResult, comparison: &Comparison) -> Markup {
    let name = |at: usize| result.endpoints.get(at).map_or("", |e| e.name.as_str());
    let estimates = comparison.ratios.iter().map(|ratio| Estimate {
        name: ratio.title.to_owned(),
        ratio: ratio.ratio,
        range: ratio.low.zip(ratio.high),
    });
    let estimates: Vec<_> = estimates.collect();
    let title = format!("{} against {}", name(1), name(0));
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "figure" }
                    @for head in [name(0), name(1), "ratio", "95 % range"] { th.number scope="col" { (head) } }
                    th scope="col" { "difference" }
                }
            }
            tbody {
                @for ratio in &comparison.ratios {
                    tr {
                        th scope="row" { (ratio.title) }
                        td.number { (short(ratio.first)) }
                        td.number { (short(ratio.second)) }
                        td.number { (format!("{:.3}", ratio.ratio)) }
                        td.number {
                            @if let (Some(low), Some(high)) = (ratio.low, ratio.high) {
                                (format!("{low:.3} to {high:.3}"))
                            } @else { "–" }
                            @if ratio.pairs < comparison.rounds { " (" (ratio.pairs) " of " (comparison.rounds) " pairs)" }
                        }
                        td { @if ratio.low.is_none() { "too few pairs" } @else if ratio.is_different() { "yes" } @else { "none seen" } }
                    }
                }
            }
        }
        p.about { (comparison.rounds) " pairs of rounds; " (comparison.method) "." }
        @if !estimates.is_empty() {
            div.plots { (ranges(&title, "Each figure's ratio with its 95 % range; a range that crosses 1 shows no difference.", &estimates)) }
        }
    }
}

fn sums(endpoints: &[EndpointResult]) -> Markup {
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "endpoint" }
                    @for name in ["requests", "answered", "failed", "not sent", "dropped", "requests/s", "waited s",
                        "prompt tokens", "cached %", "answer tokens", "tokens/s"] {
                        th.number scope="col" { (name) }
                    }
                }
            }
            tbody {
                @for endpoint in endpoints {
                    @let s = &endpoint.summary;
                    tr {
                        th scope="row" { (endpoint.name) }
                        td.number { (s.requests) }
                        td.number { (s.succeeded) }
                        td.number { (s.requests - s.succeeded) }
                        td.number { (endpoint.shed) }
                        td.number { (endpoint.unfinished) }
                        td.number { (short(s.requests_per_s)) }
                        td.number { (short(s.elapsed_s - s.active_s)) }
                        td.number { (s.prompt_tokens) }
                        td.number { (percent(s.known_hit_rate())) }
                        td.number { (s.answer_tokens) }
                        td.number { (short(s.answer_tokens_per_s())) }
                    }
                }
            }
        }
    }
}

fn times(endpoints: &[EndpointResult]) -> Markup {
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "time" }
                    th scope="col" { "endpoint" }
                    @for name in ["count", "mean", "p50", "p90", "p99", "max"] { th.number scope="col" { (name) } }
                }
            }
            tbody {
                @for endpoint in endpoints {
                    @for (name, t) in endpoint.summary.times() {
                        tr {
                            th scope="row" { (name) }
                            td { (endpoint.name) }
                            td.number { (t.count) }
                            @for ms in [t.mean_ms, t.p50_ms, t.p90_ms, t.p99_ms, t.max_ms] {
                                td.number { (known(Some(ms))) }
                            }
                        }
                    }
                }
            }
        }
        p.about {
            "latency: from when a request was due to the end of its answer. ttft: to the first event with a part of "
            "the answer. gap: between two such events. tpot: time for each token after the first, by the tokens that "
            "the answer reports."
        }
    }
}

fn errors(endpoints: &[EndpointResult]) -> Markup {
    let is_well = endpoints.iter().all(|e| e.summary.errors.is_empty());
    html! {
        @if is_well {
            p { "None." }
        } @else {
            table {
                thead {
                    tr {
                        th scope="col" { "endpoint" }
                        th.number scope="col" { "count" }
                        th scope="col" { "kind" }
                        th scope="col" { "code" }
                        th scope="col" { "what the first said" }
                    }
                }
                tbody {
                    @for endpoint in endpoints {
                        @for error in &endpoint.summary.errors {
                            tr {
                                td { (endpoint.name) }
                                td.number { (error.count) }
                                td { (error.kind) }
                                td { (error.code) }
                                td { (error.message) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One series of each endpoint.
fn panels(endpoints: &[EndpointResult]) -> Vec<Panel> {
    // While one of two endpoints is loaded, the other is not: a gap. With one, no answer is a fact.
    let others_turn = |w: &Window| endpoints.len() > 1 && w.sent + w.succeeded + w.failed == 0;
    let whole_ms = endpoints
        .iter()
        .flat_map(|e| &e.windows)
        .map(|w| w.length_ms)
        .max();
    // At the end, and the last request ended in it: as a rate it would stand far above all others.
    let is_rest = |w: &Window| 4 * w.length_ms < whole_ms.unwrap_or_default();
    let each = |shape, part: &str, value: fn(&Window) -> Option<f64>| {
        let series = endpoints.iter().map(|endpoint| {
            let points = endpoint.windows.iter();
            // A window's figures stand at its middle.
            let points = points.map(|w| {
                let known = !others_turn(w) && !is_rest(w);
                (w.at_ms + w.length_ms / 2, value(w).filter(|_| known))
            });
            Series::new(format!("{} {part}", endpoint.name), shape, points)
        });
        series.collect::<Vec<_>>()
    };
    let both = |mut one: Vec<Series>, other: Vec<Series>| {
        one.extend(other);
        one
    };
    let panel = |title, about, unit, range, series| Panel {
        title,
        about,
        unit,
        range,
        series,
    };
    let mut panels = vec![
        panel(
            "Requests",
            "Requests that ended, per second.",
            "1/s",
            Range::Needed,
            both(
                each(Shape::Line, "answered", |w| per_s(w, w.succeeded)),
                each(Shape::Bars, "failed", |w| per_s(w, w.failed)),
            ),
        ),
        panel(
            "Time to the first token",
            "From when a request was due, by the second in which the token came.",
            "ms",
            Range::Log,
            both(
                each(Shape::Line, "p50", |w| w.first_token_p50_ms),
                each(Shape::Line, "p99", |w| w.first_token_p99_ms),
            ),
        ),
        panel(
            "Latency",
            "From when a request was due to the end of its answer, by the second in which it ended.",
            "ms",
            Range::Log,
            both(
                each(Shape::Line, "p50", |w| w.p50_ms),
                each(Shape::Line, "p99", |w| w.p99_ms),
            ),
        ),
        panel(
            "Prefix cache hits",
            "Share of prompt tokens that caches supplied, of the answers that tell.",
            "%",
            Range::Fixed(100.0),
            each(Shape::Line, "", |w| {
                w.known_hit_rate().map(|rate| 100.0 * rate)
            }),
        ),
    ];
    panels.retain(|panel| !panel.is_empty());
    panels
}

fn per_s(window: &Window, count: u64) -> Option<f64> {
    (window.length_ms > 0).then(|| 1_000.0 * count as f64 / window.length_ms as f64)
}
