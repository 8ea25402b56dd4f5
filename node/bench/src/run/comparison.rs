//! Two endpoints side by side: the ratio of each figure, round by round. Pure.

use serde::Serialize;

use crate::stats::{median, median_range};
use crate::tally::Summary;

/// A figure that is compared: its name in results, what people call it, and where it is; `None` where a round has it
/// not.
type Figure = (&'static str, &'static str, fn(&Summary) -> Option<f64>);

/// The figures that are compared, in the order of reports.
const FIGURES: [Figure; 8] = [
    ("ttft_p50_ms", "TTFT p50, ms", |s| above_0(s.ttft.p50_ms)),
    ("ttft_p99_ms", "TTFT p99, ms", |s| above_0(s.ttft.p99_ms)),
    ("gap_p50_ms", "inter-token p50, ms", |s| {
        above_0(s.gap.p50_ms)
    }),
    ("tpot_p50_ms", "TPOT p50, ms", |s| above_0(s.tpot.p50_ms)),
    ("latency_p50_ms", "latency p50, ms", |s| {
        above_0(s.latency.p50_ms)
    }),
    ("latency_p99_ms", "latency p99, ms", |s| {
        above_0(s.latency.p99_ms)
    }),
    ("answered_per_s", "answered/s", |s| {
        (s.requests > 0).then(|| s.answered_per_s())
    }),
    (TOKENS, "answer tokens/s", |s| {
        let is_measured = s.answer_tokens_per_s() > 0.0 || s.requests > 0 && s.succeeded == 0;
        is_measured.then(|| s.answer_tokens_per_s())
    }),
];

/// The figure that is of tokens, or of events where those are not told.
const TOKENS: &str = "answer_tokens_per_s";

/// How the range was found, for readers of results.
const METHOD: &str = "median of the rounds' ratios, second over first; 95 % percentile bootstrap over rounds, 10,000 draws";

/// The second endpoint against the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// How ratios and ranges were found.
    pub method: &'static str,
    /// Pairs of rounds.
    pub rounds: u64,
    /// Those figures that both endpoints have in at least one pair.
    pub ratios: Vec<Ratio>,
}

/// One figure of both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// Its name in results.
    pub figure: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// Median over the rounds, of the first endpoint.
    pub first: f64,
    /// The same of the second.
    pub second: f64,
    /// Median of the rounds' ratios, second over first.
    pub ratio: f64,
    /// From where that may lie; `None` with fewer than 6 pairs.
    pub low: Option<f64>,
    /// To where.
    pub high: Option<f64>,
    /// Pairs of rounds in which both have it.
    pub pairs: u64,
}

impl Comparison {
    /// Of the rounds of both, in their order.
    pub(super) fn of(first: &[Summary], second: &[Summary], seed: u64) -> Self {
        let ratios = FIGURES.iter();
        let ratios = ratios.filter_map(|figure| Ratio::of(figure, first, second, seed));
        Self {
            method: METHOD,
            rounds: first.len().min(second.len()) as u64,
            ratios: ratios.collect(),
        }
    }
}

impl Ratio {
    fn of(figure: &Figure, first: &[Summary], second: &[Summary], seed: u64) -> Option<Self> {
        let (name, title, read) = *figure;
        let pairs = first.iter().zip(second);
        // Tokens are not compared with events, each of which may carry several.
        let by_events = |s: &Summary| s.succeeded > 0 && s.answers_by_events > 0;
        let are_alike = |first: &Summary, second: &Summary| {
            let is_silent = first.succeeded == 0 || second.succeeded == 0;
            name != TOKENS || is_silent || by_events(first) == by_events(second)
        };
        let pairs = pairs.filter(|(first, second)| are_alike(first, second));
        let pairs = pairs.filter_map(|(first, second)| Some((read(first)?, read(second)?)));
        // Nothing is so many times as much as nothing.
        let pairs = pairs.filter(|(first, _)| *first > 0.0);
        let pairs: Vec<(f64, f64)> = pairs.collect();
        let ratios: Vec<f64> = pairs.iter().map(|(first, second)| second / first).collect();
        let (firsts, seconds): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let range = median_range(&ratios, seed);
        Some(Self {
            figure: name,
            title,
            first: median(&firsts)?,
            second: median(&seconds)?,
            ratio: median(&ratios)?,
            low: range.map(|range| range.0),
            high: range.map(|range| range.1),
            pairs: ratios.len() as u64,
        })
    }

    /// What may be said of it: whether a range that is known leaves 1 out.
    pub fn is_different(&self) -> bool {
        self.low.is_some_and(|low| low > 1.0) || self.high.is_some_and(|high| high < 1.0)
    }
}

/// A time that was not measured is 0.
fn above_0(value: f64) -> Option<f64> {
    (value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Times;

    fn rounds(ttfts: &[f64]) -> Vec<Summary> {
        let round = |ttft: &f64| Summary {
            ttft: Times {
                count: 1,
                p50_ms: *ttft,
                ..Times::default()
            },
            ..Summary::default()
        };
        ttfts.iter().map(round).collect()
    }

    #[test]
    fn a_drift_that_both_see_is_no_difference() {
        let first = rounds(&[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
        let second = rounds(&[12.0, 24.0, 36.0, 48.0, 60.0, 72.0, 84.0, 96.0]);
        let found = Comparison::of(&first, &second, 1);
        let [ttft] = found.ratios.as_slice() else {
            panic!("what nobody measured is left out: {found:?}");
        };
        assert_eq!((ttft.figure, ttft.pairs), ("ttft_p50_ms", 8));
        assert!((ttft.ratio - 1.2).abs() < 1e-9 && ttft.is_different());
        assert!(ttft.high.expect("8 pairs") - ttft.low.expect("8 pairs") < 1e-9);
        assert!(!Comparison::of(&first, &first, 1).ratios[0].is_different());
    }

    #[test]
    fn rounds_in_which_one_endpoint_answers_nothing_count() {
        let answers = |succeeded: u64| Summary {
            requests: 10,
            succeeded,
            active_s: 1.0,
            answer_tokens: succeeded * 100,
            ..Summary::default()
        };
        let first = [10; 7].map(answers);
        let second = [10, 0, 0, 10, 0, 0, 10].map(answers);
        let found = Comparison::of(&first, &second, 1);
        let seen: Vec<_> = found
            .ratios
            .iter()
            .map(|r| (r.figure, r.pairs, r.ratio))
            .collect();
        assert_eq!(seen, [("answered_per_s", 7, 0.0), (TOKENS, 7, 0.0)]);
        assert!(
            Comparison::of(&second, &first, 1)
                .ratios
                .iter()
                .all(|r| r.pairs == 3)
        );
    }

    #[test]
    fn tokens_are_not_compared_with_events() {
        let told = Summary {
            requests: 1,
            succeeded: 1,
            active_s: 1.0,
            answer_tokens: 100,
            answer_events: 10,
            ..Summary::default()
        };
        let untold = Summary {
            answer_tokens: 0,
            answers_by_events: 1,
            events_for_tokens: 10,
            ..told.clone()
        };
        let figures = |first: &Summary, second: &Summary| {
            let found =
                Comparison::of(std::slice::from_ref(first), std::slice::from_ref(second), 1);
            found.ratios.iter().map(|r| r.figure).collect::<Vec<_>>()
        };
        assert_eq!(figures(&told, &untold), ["answered_per_s"]);
        assert_eq!(figures(&untold, &untold), ["answered_per_s", TOKENS]);
    }

    #[test]
    fn few_rounds_and_rounds_without_a_partner_give_no_range() {
        let found = Comparison::of(&rounds(&[1.0; 7]), &rounds(&[2.0, 2.0, 0.0]), 1);
        assert_eq!((found.rounds, found.ratios[0].pairs), (3, 2));
        assert_eq!(
            (found.ratios[0].low, found.ratios[0].is_different()),
            (None, false)
        );
    }
}
