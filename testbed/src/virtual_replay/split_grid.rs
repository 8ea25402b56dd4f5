//! Layouts of the same number of workers, compared: all of them whole, or some that prefill and some that decode.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::contender::Contender;
use super::grid::in_parallel;
use super::measure::Outcome;
use super::scenario::Scenario;
use super::search::capacity;
use super::sim::run;
use super::split::Split;
use super::workload::Workload;

/// What the workers of a cluster are.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Workers that do both.
    pub whole: usize,
    /// The others.
    pub split: Option<Split>,
    /// Tokens that one step may process.
    pub step_tokens: u32,
}

impl Layout {
    fn scenario(&self, base: &Scenario) -> Scenario {
        Scenario {
            workers: self.whole,
            split: self.split,
            step_tokens: self.step_tokens,
            ..base.clone()
        }
    }

    fn name(&self) -> String {
        let whole = match (self.whole, &self.split) {
            (0, Some(_)) => String::new(),
            (whole, _) => format!("{whole} whole "),
        };
        let split = self.split.as_ref().map_or(String::new(), |split| {
            format!("{}P:{}D ", split.prefill_workers, split.decode_workers)
        });
        format!("{split}{whole}").trim_end().to_owned()
    }
}

/// One line of the comparison.
#[derive(Debug, Clone, Serialize)]
pub struct SplitLine {
    /// The workload.
    pub load: String,
    /// Part of the whole workers' capacity.
    pub share: f64,
    /// Requests a second.
    pub rate: f64,
    /// Prefill, decode and whole workers.
    pub layout: String,
    /// Tokens that one step may process.
    pub step_tokens: u32,
    /// See [`Divide::short_prompt_tokens`]; `None` for whole workers alone.
    pub short_prompt_tokens: Option<u32>,
    /// See [`Divide::wait_for_pair`], in ms; `None` for whole workers alone.
    pub wait_for_pair_ms: Option<u64>,
    /// What was measured.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Runs every layout at these parts of the capacity of the first one, which is that of policy `prefix`.
pub fn compare_layouts(
    workloads: &[Workload],
    base: &Scenario,
    layouts: &[Layout],
    shares: &[f64],
    progress: impl Fn(usize, usize, &str) + Sync,
) -> Vec<SplitLine> {
    let Some(first) = layouts.first() else {
        return Vec::new();
    };
    let prefix = Contender::prefix();
    let best = in_parallel(workloads.iter().collect(), |_, workload| {
        progress(0, 0, &workload.name);
        capacity(workload, &prefix, &first.scenario(base), 1.0, || ())
    });
    let mut jobs = Vec::new();
    for (workload, best) in workloads.iter().zip(best) {
        for &share in shares {
            for layout in layouts {
                jobs.push((workload, share, best * share, layout));
            }
        }
    }
    let (total, done) = (jobs.len(), AtomicUsize::new(0));
    in_parallel(jobs, |_, &(workload, share, speed, layout)| {
        let (load, factor) = workload
            .at(speed)
            .expect("it is below a rate that was tried");
        let scenario = Scenario {
            speed: factor,
            ..layout.scenario(base)
        };
        let outcome = run(&load, &prefix, &scenario, false).expect("it runs to its end");
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(done, total, &format!("{}, {}", load.name, layout.name()));
        SplitLine {
            load: workload.name.clone(),
            share,
            rate: workload.rate() * speed,
            layout: layout.name(),
            step_tokens: layout.step_tokens,
            short_prompt_tokens: layout.split.map(|split| split.divide.short_prompt_tokens),
            wait_for_pair_ms: layout
                .split
                .map(|split| split.divide.wait_for_pair.as_millis() as u64),
            outcome,
        }
    })
}

/// A table for people, one block for each load and rate.
pub fn split_table(lines: &[SplitLine]) -> String {
    let mut text = String::new();
    let mut block = None;
    for line in lines {
        if block != Some((&line.load, line.rate)) {
            block = Some((&line.load, line.rate));
            let _ = writeln!(
                text,
                "\n{} at {:.1} requests/s, {:.0} % of the whole workers' capacity; ms\n{:<16} {:>5} {:>6} {:>6} {:>6} {:>7} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6} {:>8} {:>6}",
                line.load,
                line.rate,
                line.share * 100.0,
                "layout",
                "step",
                "short",
                "wait",
                "hit %",
                "TTFT 50",
                "99",
                "ITL 50",
                "99",
                "gap 99",
                "99.9",
                "good %",
                "split%",
                "moved",
                "agree",
            );
        }
        let o = &line.outcome;
        let told = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let short = told(line.short_prompt_tokens.map(u64::from));
        let wait = told(line.wait_for_pair_ms);
        let _ = writeln!(
            text,
            "{:<16} {:>5} {:>6} {:>6} {:>6.1} {:>7.0} {:>8.0} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>6.1} {:>8.0} {:>6.3}",
            line.layout,
            line.step_tokens,
            short,
            wait,
            o.hit_rate * 100.0,
            o.ttft_p50_ms,
            o.ttft_p99_ms,
            o.between_p50_ms,
            o.between_p99_ms,
            o.gap_p99_ms,
            o.gap_p999_ms,
            o.smooth_share * 100.0,
            o.divided * 100.0,
            o.transferred,
            o.agreement,
        );
    }
    text
}
