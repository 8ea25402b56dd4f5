//! Ratios with their ranges, one a row, beside the line of "no difference". Pure.

use maud::{Markup, html};

use super::plot::n;
use super::scale::short;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 690.0;
const ROW: f64 = 24.0;
const TOP: f64 = 8.0;
/// The axis reaches at least from 1 / this to this, so that a difference of a thousandth looks like none.
const REACH_MIN: f64 = 1.1;
/// What lies further out sticks to the edge.
const REACH_MAX: f64 = 100.0;

/// A ratio, and from where to where it may lie.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// What it is a ratio of.
    pub name: String,
    /// Above 0.
    pub ratio: f64,
    /// From where to where; `None` where that is not known.
    pub range: Option<(f64, f64)>,
}

/// The picture: a point and a line a row, on an axis of factors with 1 in its middle.
pub fn ranges(title: &str, about: &str, estimates: &[Estimate]) -> Markup {
    let far = |value: f64| value.max(1.0 / value);
    let reach = estimates.iter().flat_map(|estimate| {
        let (low, high) = estimate.range.unwrap_or((estimate.ratio, estimate.ratio));
        [far(low), far(high), far(estimate.ratio)]
    });
    let reach = reach.filter(|reach| reach.is_finite());
    let reach = (reach.fold(REACH_MIN, f64::max) * 1.02).min(REACH_MAX);
    let x = |ratio: f64| {
        let share = (ratio.max(1e-9).ln() / reach.ln()).clamp(-1.0, 1.0);
        LEFT + (share + 1.0) / 2.0 * (RIGHT - LEFT)
    };
    let bottom = TOP + ROW * estimates.len() as f64;
    html! {
        figure.plot {
            figcaption { strong { (title) } }
            svg viewBox={ "0 0 " (WIDTH) " " (bottom + 24.0) } role="img" {
                title { (title) ". " (about) }
                @for tick in [1.0 / reach, reach.sqrt().recip(), 1.0, reach.sqrt(), reach] {
                    line.grid x1=(n(x(tick))) x2=(n(x(tick))) y1=(n(TOP)) y2=(n(bottom)) {}
                    text.label x=(n(x(tick))) y=(n(bottom + 16.0)) text-anchor="middle" { (short(tick)) "×" }
                }
                line.tick x1=(n(x(1.0))) x2=(n(x(1.0))) y1=(n(TOP)) y2=(n(bottom)) {}
                @for (row, estimate) in estimates.iter().enumerate() {
                    @let y = TOP + ROW * (row as f64 + 0.5);
                    text class="label name" x=(n(LEFT - 10.0)) y=(n(y + 4.0)) text-anchor="end" { (estimate.name) }
                    @if let Some((low, high)) = estimate.range {
                        line.estimate x1=(n(x(low))) x2=(n(x(high))) y1=(n(y)) y2=(n(y)) {}
                    }
                    circle.estimate cx=(n(x(estimate.ratio))) cy=(n(y)) r="4" {}
                }
            }
            p.about { (about) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lies_in_the_middle_and_nothing_outside() {
        let estimate = |name: &str, ratio, range| Estimate {
            name: name.to_owned(),
            ratio,
            range,
        };
        let drawn = ranges(
            "t",
            "a",
            &[
                estimate("<b>", 1.0, None),
                estimate("far", 1e9, Some((0.5, f64::INFINITY))),
            ],
        );
        let drawn = drawn.into_string();
        assert!(
            drawn.contains("cx=\"440.0\"") && drawn.contains("cx=\"690.0\""),
            "{drawn}"
        );
        assert!(
            drawn.contains("&lt;b&gt;") && !drawn.contains("NaN"),
            "{drawn}"
        );
    }
}
