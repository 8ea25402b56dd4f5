//! The figures of a record that are plotted, and how each is computed. Pure.

use super::super::record::{Agreement, Record, ReplicaSample, Sample, Window};
use grapevine_bench::charts::{Panel, Range, Series, Shape, by_name};
use grapevine_bench::tally::share;

/// Windows over which the hit rate is taken: single seconds hold few requests, so their rate jumps.
const HIT_RATE_WINDOWS: usize = 5;
const MIB: f64 = 1_048_576.0;

pub(super) fn panels(record: &Record) -> Vec<Panel> {
    let mut panels = of_clients(record);
    panels.extend(of_replicas(record));
    panels.retain(|panel| !panel.is_empty());
    panels
}

fn of_clients(record: &Record) -> Vec<Panel> {
    let windows = |name: &str, shape, value: fn(&Window) -> Option<f64>| {
        // A window's figures stand at its middle.
        let points = record.windows.iter();
        let points = points.map(|window| (window.at_ms + window.length_ms / 2, value(window)));
        Series::new(name, shape, points)
    };
    vec![
        Panel {
            title: "Requests",
            about: "Requests that ended, per second, as clients saw them; refused: status 429 and 503.",
            unit: "1/s",
            range: Range::Needed,
            series: vec![
                windows("answered", Shape::Line, |w| per_s(w, w.succeeded)),
                windows("sent", Shape::Line, |w| per_s(w, w.sent)),
                windows("refused", Shape::Line, |w| per_s(w, w.refused)),
                windows("failed, of any kind", Shape::Bars, |w| per_s(w, w.failed)),
            ],
        },
        Panel {
            title: "Latency",
            about: "From when a request was due to the end of its answer, by the second in which it ended.",
            unit: "ms",
            range: Range::Log,
            series: vec![
                windows("p50", Shape::Line, |w| w.p50_ms),
                windows("p99", Shape::Line, |w| w.p99_ms),
            ],
        },
        Panel {
            title: "Time to the first token",
            about: "From when a request was due to the first event of its stream, by the second in which that came.",
            unit: "ms",
            range: Range::Log,
            series: vec![
                windows("p50", Shape::Line, |w| w.first_token_p50_ms),
                windows("p99", Shape::Line, |w| w.first_token_p99_ms),
            ],
        },
        Panel {
            title: "Prefix cache hits",
            about: "Share of prompt tokens that workers' caches supplied, as the replies report it, over five windows.",
            unit: "%",
            range: Range::Fixed(100.0),
            series: vec![Series::new(
                "hit rate",
                Shape::Line,
                hit_rate(&record.windows),
            )],
        },
        Panel {
            title: "Requests by worker",
            about: "Requests that ended, per second, by the worker that the reply names.",
            unit: "1/s",
            range: Range::Needed,
            series: by_worker(&record.windows),
        },
    ]
}

fn of_replicas(record: &Record) -> Vec<Panel> {
    let samples = |name: &str, shape, value: fn(&Sample) -> Option<f64>| {
        let points = record.samples.iter();
        Series::new(
            name,
            shape,
            points.map(|sample| (sample.at_ms, value(sample))),
        )
    };
    let agreed = |name: &str, of| Series::new(name, Shape::Line, agreement(&record.samples, of));
    let each = |shape, value: fn(&ReplicaSample) -> Option<f64>| {
        let points = record.samples.iter().flat_map(|sample| {
            let replicas = sample.replicas.iter();
            replicas.map(|one| (sample.at_ms, one.name.as_str(), value(one)))
        });
        by_name(shape, points)
    };
    vec![
        Panel {
            title: "Agreement",
            about: "Share of sampled prompts that all answering replicas would send to the same worker: with each one's view of the load, and without regard to load.",
            unit: "%",
            range: Range::Fixed(100.0),
            series: vec![
                agreed("under load", |sample| sample.agreement),
                agreed("without load", |sample| sample.agreement_idle),
            ],
        },
        Panel {
            title: "Different views",
            about: "How many different ring digests and registry digests the replicas that answer hold: 1 is agreement.",
            unit: "digests",
            range: Range::Whole,
            series: vec![
                samples("rings", Shape::Step, |s| distinct(s.rings().len())),
                samples("registries", Shape::Step, |s| {
                    distinct(s.registries().len())
                }),
            ],
        },
        Panel {
            title: "Live peers",
            about: "Other replicas that each replica sees as alive.",
            unit: "replicas",
            range: Range::Whole,
            series: each(Shape::Step, |one| {
                Some(one.seen.as_ref()?.live_peers as f64)
            }),
        },
        Panel {
            title: "In flight",
            about: "Requests in progress on each replica.",
            unit: "requests",
            range: Range::Whole,
            series: each(Shape::Line, |one| Some(one.seen.as_ref()?.in_flight as f64)),
        },
        Panel {
            title: "Memory",
            about: "Resident memory of each replica.",
            unit: "MiB",
            range: Range::Needed,
            series: each(Shape::Line, |one| Some(one.rss_bytes? as f64 / MIB)),
        },
        Panel {
            title: "Open files",
            about: "File descriptors of each replica, sockets included.",
            unit: "files",
            range: Range::Whole,
            series: each(Shape::Line, |one| Some(one.open_files? as f64)),
        },
        Panel {
            title: "Processor",
            about: "Processors that each replica keeps busy, between two samples.",
            unit: "cores",
            range: Range::Needed,
            series: each(Shape::Line, |one| one.cpu_s)
                .into_iter()
                .map(rate)
                .collect(),
        },
    ]
}

fn per_s(window: &Window, count: u64) -> Option<f64> {
    Some(count as f64 * 1_000.0 / window.length_ms.max(1) as f64)
}

fn distinct(digests: usize) -> Option<f64> {
    (digests > 0).then_some(digests as f64)
}

/// In percent. Questions are rarer than samples: a question that was not asked leaves no gap in the line, one
/// without an answer does.
fn agreement(
    samples: &[Sample],
    of: fn(&Sample) -> Option<Agreement>,
) -> impl Iterator<Item = (u64, Option<f64>)> {
    samples.iter().filter_map(move |sample| {
        let seen = of(sample)?;
        let percent = 100.0 * share(seen.equal as u64, seen.asked as u64);
        Some((sample.at_ms, (seen.asked > 0).then_some(percent)))
    })
}

fn hit_rate(windows: &[Window]) -> impl Iterator<Item = (u64, Option<f64>)> {
    windows.iter().enumerate().map(|(index, window)| {
        let recent = &windows[(index + 1).saturating_sub(HIT_RATE_WINDOWS)..=index];
        let prompt = recent.iter().map(|w| w.prompt_tokens).sum();
        let cached = recent.iter().map(|w| w.cached_tokens).sum();
        let percent = (prompt > 0).then(|| 100.0 * share(cached, prompt));
        (window.at_ms + window.length_ms / 2, percent)
    })
}

/// A worker that is not named in a window had no requests in it.
fn by_worker(windows: &[Window]) -> Vec<Series> {
    let mut names: Vec<&str> = windows
        .iter()
        .flat_map(|window| window.by_worker.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    let one = |name: &str| {
        let points = windows.iter().map(|window| {
            let count = window.by_worker.get(name).copied().unwrap_or(0);
            (window.at_ms + window.length_ms / 2, per_s(window, count))
        });
        Series::new(name, Shape::Line, points)
    };
    names.into_iter().map(one).collect()
}

/// Growth a second between two points; unknown where it fell, as in a new process, and at the first.
fn rate(total: Series) -> Series {
    let mut before: Option<(u64, f64)> = None;
    let points = total.points.iter().map(|(ms, value)| {
        let grown = before.zip(*value).and_then(|((at, old), new)| {
            let seconds = ms.saturating_sub(at) as f64 / 1_000.0;
            (new >= old && seconds > 0.0).then(|| (new - old) / seconds)
        });
        before = value.map(|value| (*ms, value));
        (*ms, grown)
    });
    let points: Vec<_> = points.collect();
    Series { points, ..total }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_a_new_process_does_not_count_against_the_old() {
        let points = [
            (0, Some(1.0)),
            (1_000, Some(1.5)),
            (3_000, Some(0.1)),
            (3_500, Some(0.6)),
        ];
        let rates = rate(Series::new("r1", Shape::Line, points.into_iter()));
        let values: Vec<_> = rates.points.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [None, Some(0.5), None, Some(1.0)]);
    }

    #[test]
    fn agreement_has_a_gap_where_nobody_could_be_compared_and_none_where_nobody_was_asked() {
        let asked = |asked, equal| Some(Agreement { asked, equal });
        let answers = [asked(4, 4), None, asked(0, 0), None, asked(4, 1)];
        let samples = answers
            .into_iter()
            .zip(0..)
            .map(|(agreement, at_ms)| Sample {
                at_ms,
                replicas: Vec::new(),
                agreement,
                agreement_idle: None,
            });
        let samples: Vec<Sample> = samples.collect();
        let points: Vec<_> = agreement(&samples, |sample| sample.agreement).collect();
        assert_eq!(points, [(0, Some(100.0)), (2, None), (4, Some(25.0))]);
    }

    #[test]
    fn the_hit_rate_weighs_tokens_and_looks_back() {
        let window = |at_ms, prompt_tokens, cached_tokens| Window {
            at_ms,
            length_ms: 1_000,
            prompt_tokens,
            cached_tokens,
            ..Window::default()
        };
        let mut windows = vec![
            window(0, 0, 0),
            window(1_000, 100, 100),
            window(2_000, 300, 0),
        ];
        windows.extend((3..8).map(|n| window(n * 1_000, 0, 0)));
        let rates: Vec<_> = hit_rate(&windows).map(|(_, rate)| rate).collect();
        assert_eq!(rates[..3], [None, Some(100.0), Some(25.0)]);
        assert_eq!((rates[6], rates[7]), (Some(0.0), None));
    }
}
