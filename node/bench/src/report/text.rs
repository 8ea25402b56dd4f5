//! Results for a terminal.

use std::fmt;

use crate::run::{Comparison, EndpointResult, RunResult};

/// Least width of a column of numbers.
const NUMBER_WIDTH: usize = 10;

/// Sums of each endpoint, then the comparison.
pub struct Text<'a>(pub &'a RunResult);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for endpoint in &self.0.endpoints {
            sums(f, endpoint, self.0.load.warm_up)?;
        }
        if let Some(comparison) = &self.0.comparison {
            table(f, self.0, comparison)?;
        }
        if self.0.interrupted {
            writeln!(
                f,
                "The run was ended before its time; this is what there was."
            )?;
        }
        Ok(())
    }
}

fn sums(f: &mut fmt::Formatter<'_>, endpoint: &EndpointResult, warm_up: u64) -> fmt::Result {
    writeln!(f, "{}: {}", endpoint.name, endpoint.urls.join(", "))?;
    if let Some(shortfall) = endpoint.warm_up.shortfall(warm_up) {
        writeln!(f, "warm-up    {shortfall}")?;
    }
    write!(f, "{}", endpoint.summary)?;
    if endpoint.shed > 0 {
        writeln!(f, "shed       {} were due but not sent", endpoint.shed)?;
    }
    if endpoint.unfinished > 0 {
        writeln!(
            f,
            "unfinished {} were dropped at the end",
            endpoint.unfinished
        )?;
    }
    writeln!(f)
}

fn table(f: &mut fmt::Formatter<'_>, result: &RunResult, comparison: &Comparison) -> fmt::Result {
    let [first, second] = result.endpoints.as_slice() else {
        return Ok(());
    };
    let (first, second) = (&first.name, &second.name);
    let width = first.len().max(second.len()).max(NUMBER_WIDTH);
    writeln!(
        f,
        "{second} against {first}, medians of {} pairs of rounds",
        comparison.rounds
    )?;
    writeln!(
        f,
        "{:<20} {first:>width$} {second:>width$} {:>8}   95 % range",
        "", "ratio"
    )?;
    for ratio in &comparison.ratios {
        let mut range = match (ratio.low, ratio.high) {
            (Some(low), Some(high)) => format!("{low:.3} to {high:.3}"),
            _ => "not known: fewer than 6 pairs".to_owned(),
        };
        if ratio.pairs < comparison.rounds {
            range += &format!(" ({} of {} pairs)", ratio.pairs, comparison.rounds);
        }
        let verdict = match ratio.low {
            Some(_) if !ratio.is_different() => "  no difference seen",
            _ => "",
        };
        writeln!(
            f,
            "{:<20} {:>width$.2} {:>width$.2} {:>8.3}   {range}{verdict}",
            ratio.title, ratio.first, ratio.second, ratio.ratio
        )?;
    }
    Ok(())
}
