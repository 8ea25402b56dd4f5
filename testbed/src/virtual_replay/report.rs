//! The comparison as a table, as CSV and as a plot.

use std::fmt::Write as _;

use super::grid::Line;
use grapevine_bench::charts::{Bar, BarPanel, bars};

/// A table for people, one block a load.
pub fn table(lines: &[Line]) -> String {
    let mut text = String::new();
    let mut load = None;
    for line in lines {
        if load != Some(&line.load) {
            load = Some(&line.load);
            let rate = match line.rate.is_finite() {
                true => format!("{:.1} requests/s", line.rate),
                false => "once: all its sessions together are no load for these workers".to_owned(),
            };
            let _ = writeln!(
                text,
                "\n{} at {rate}\n{:<22} {:>2} {:>3} {:>4} {:>5} {:>6} {:>6} {:>8} {:>7} {:>7} {:>8} {:>7} {:>6} {:>6} {:>6}",
                line.load,
                "policy",
                "R",
                "W",
                "ms",
                "loss",
                "cap %",
                "hit %",
                "TTFT ms",
                "p50",
                "p90",
                "p99",
                "good/s",
                "imbal",
                "over %",
                "agree",
            );
        }
        let or_dash = |number: f64, text: String| {
            if number.is_nan() {
                "-".to_owned()
            } else {
                text
            }
        };
        let capacity = or_dash(line.capacity, format!("{:.1}", line.capacity * 100.0));
        let o = &line.outcome;
        let _ = writeln!(
            text,
            "{:<22} {:>2} {:>3} {:>4} {:>5} {:>6} {:>6.1} {:>8.0} {:>7.0} {:>7.0} {:>8.0} {:>7.1} {:>6.2} {:>6.2} {:>6}",
            line.policy,
            line.replicas,
            line.workers,
            line.load_age_ms,
            line.loss,
            capacity,
            o.hit_rate * 100.0,
            o.ttft_mean_ms,
            o.ttft_p50_ms,
            o.ttft_p90_ms,
            o.ttft_p99_ms,
            o.goodput,
            o.imbalance,
            o.over_bound * 100.0,
            or_dash(o.agreement, format!("{:.3}", o.agreement)),
        );
    }
    text
}

/// All numbers, one line a run.
pub fn csv(lines: &[Line]) -> String {
    let mut text = String::from(
        "load,policy,replicas,workers,load_age_ms,loss,rate,capacity,requests,hit_rate,elsewhere,gone,ttft_mean_ms,ttft_p50_ms,\
         ttft_p90_ms,ttft_p99_ms,good_share,goodput,imbalance,over_bound,worst_excess,agreement,agreement_known,half_known,\
         evidence_bytes,load_bytes,prefix_index_entries,corrections\n",
    );
    for line in lines {
        let o = &line.outcome;
        let numbers = [
            line.loss,
            line.rate,
            line.capacity,
            o.requests as f64,
            o.hit_rate,
            o.elsewhere,
            o.gone,
            o.ttft_mean_ms,
            o.ttft_p50_ms,
            o.ttft_p90_ms,
            o.ttft_p99_ms,
            o.good_share,
            o.goodput,
            o.imbalance,
            o.over_bound,
            o.worst_excess,
            o.agreement,
            o.agreement_known,
            o.half_known,
            o.evidence_bytes,
            o.load_bytes,
            o.prefix_index_entries as f64,
            o.corrections,
        ];
        let _ = write!(
            text,
            "{},{},{},{},{}",
            line.load, line.policy, line.replicas, line.workers, line.load_age_ms
        );
        for number in numbers {
            // Empty where nothing was measured.
            let _ = if number.is_nan() {
                write!(text, ",")
            } else {
                write!(text, ",{}", (number * 1e6).round() / 1e6)
            };
        }
        text.push('\n');
    }
    text
}

/// Bars of the good share at 90 % load, or of the capacity where it was searched: a panel for each load.
pub fn svg(lines: &[Line]) -> String {
    let mut panels: Vec<(String, Vec<&Line>)> = Vec::new();
    for line in lines {
        let lost = if line.loss > 0.0 {
            format!(", {:.0} % of gossip lost", line.loss * 100.0)
        } else {
            String::new()
        };
        let name = format!(
            "{}, R = {}, {} workers, {} ms{lost}",
            line.load, line.replicas, line.workers, line.load_age_ms
        );
        match panels.iter_mut().find(|(known, _)| *known == name) {
            // A rule that several parts of a grid contain has one bar: its numbers in one cluster are equal.
            Some((_, panel)) if panel.iter().any(|known| known.policy == line.policy) => {}
            Some((_, panel)) => panel.push(line),
            None => panels.push((name, vec![line])),
        }
    }
    // A panel with one bar compares nothing.
    panels.retain(|(_, panel)| panel.len() > 1);
    let panels: Vec<BarPanel> = panels
        .iter()
        .map(|(name, lines)| panel(name, lines))
        .collect();
    bars(&panels)
}

fn panel(name: &str, lines: &[&Line]) -> BarPanel {
    let searched = lines.iter().all(|line| !line.capacity.is_nan());
    let (what, share): (_, fn(&Line) -> f64) = if searched {
        ("capacity", |line| line.capacity)
    } else {
        ("in time at 90 % load", |line| line.outcome.good_share)
    };
    let bar = |line: &&Line| Bar {
        label: line.policy.clone(),
        share: share(line),
        is_ours: line.policy == "prefix",
    };
    BarPanel {
        title: format!("{name}: {what}, %"),
        bars: lines.iter().map(bar).collect(),
    }
}
