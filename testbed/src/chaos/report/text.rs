//! A record for the terminal.

use std::fmt;

use super::super::record::Record;
use super::phases::phases;
use grapevine_bench::charts::{clock, clock_tenths, known, percent, short};

/// Events that are printed; the page and the JSON have all.
const EVENTS_MAX: usize = 40;
/// Failed requests that are printed.
const FAILURES_MAX: usize = 5;

/// Shows a record as text.
pub(super) struct Text<'a>(pub(super) &'a Record);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0;
        let seed = record.seed.map(|seed| format!(", seed {seed}"));
        writeln!(
            f,
            "\n{}: {} ({}, {}{})",
            record.scenario,
            record.title,
            record.place.as_str(),
            clock(record.duration_ms),
            seed.unwrap_or_default()
        )?;
        events(record, f)?;
        parts(record, f)?;
        totals(record, f)?;
        for note in &record.notes {
            writeln!(f, "note       {note}")?;
        }
        writeln!(f)?;
        for promise in &record.promises {
            let verdict = if promise.held { "ok    " } else { "FAILED" };
            writeln!(f, "{verdict} {}: {}", promise.text, promise.seen)?;
        }
        if record.promises.is_empty() {
            writeln!(f, "FAILED nothing was judged")?;
        }
        Ok(())
    }
}

fn events(record: &Record, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !record.marks.is_empty() {
        writeln!(
            f,
            "\n{:>9} {:>9}  {:<6} {:<10} what",
            "from", "until", "", "who"
        )?;
    }
    for mark in record.marks.iter().take(EVENTS_MAX) {
        writeln!(
            f,
            "{:>9} {:>9}  {:<6} {:<10} {}",
            clock_tenths(mark.at_ms),
            mark.until_ms.map(clock_tenths).unwrap_or_default(),
            mark.kind.as_str(),
            mark.node.as_deref().unwrap_or("cluster"),
            mark.text
        )?;
    }
    let beyond = record.marks.len().saturating_sub(EVENTS_MAX);
    if beyond > 0 {
        writeln!(f, "  ... and {beyond} more")?;
    }
    Ok(())
}

fn parts(record: &Record, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let phases = phases(record);
    if phases.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "\n{:<20} {:>9} {:>9} {:>7} {:>8} {:>10} {:>7} {:>11} {:>9}",
        "part",
        "from",
        "answered",
        "failed",
        "p50 ms",
        "worst p99",
        "hits %",
        "agreement %",
        "idle %"
    )?;
    for phase in phases {
        writeln!(
            f,
            "{:<20} {:>9} {:>9} {:>7} {:>8} {:>10} {:>7} {:>11} {:>9}",
            phase.name,
            clock_tenths(phase.from_ms),
            phase.succeeded,
            phase.failed,
            known(phase.p50_ms),
            known(phase.p99_ms),
            percent(phase.hit_rate),
            percent(phase.agreement),
            percent(phase.agreement_idle)
        )?;
    }
    Ok(())
}

fn totals(record: &Record, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let totals = &record.totals;
    writeln!(
        f,
        "\nrequests   {} ({}/s), {} answered, {} failed, {} due but not sent; p50 {} ms, p99 {} ms, hits {:.1} %",
        totals.requests,
        short(totals.requests_per_s),
        totals.succeeded,
        totals.requests - totals.succeeded,
        record.shed,
        short(totals.latency.p50_ms),
        short(totals.latency.p99_ms),
        100.0 * totals.hit_rate
    )?;
    for (kind, count) in &totals.failures {
        writeln!(f, "  failed   {count} {kind}")?;
    }
    for failure in record.failures.iter().take(FAILURES_MAX) {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".to_owned());
        writeln!(
            f,
            "           {} sent {}, failed {}, {}, replica {}, worker {}",
            failure.kind,
            clock_tenths(failure.sent_ms),
            clock_tenths(failure.failed_ms),
            if failure.begun { "begun" } else { "not begun" },
            name(&failure.replica),
            name(&failure.worker)
        )?;
    }
    Ok(())
}
