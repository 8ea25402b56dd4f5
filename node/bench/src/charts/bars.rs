//! Shares as bars, several panels in one SVG that stands alone.

use maud::{Markup, html};

const PANEL: f64 = 330.0;
const TITLE: f64 = 26.0;
const BAR: f64 = 17.0;
const LABEL: f64 = 130.0;
const COLUMNS: usize = 2;
/// Share that a bar of the whole width has.
const MOST: f64 = 1.25;

/// Bars that are compared.
pub struct BarPanel {
    pub title: String,
    pub bars: Vec<Bar>,
}

/// A share of 0 up; what is more than [`MOST`] is cut.
pub struct Bar {
    pub label: String,
    pub share: f64,
    /// In the colour of what the picture is about.
    pub is_ours: bool,
}

/// The picture, two panels beside each other.
pub fn bars(panels: &[BarPanel]) -> String {
    let most = panels.iter().map(|panel| panel.bars.len()).max();
    let (width, height) = (LABEL + PANEL, TITLE + most.unwrap_or(0) as f64 * BAR + 24.0);
    let rows = panels.len().div_ceil(COLUMNS) as f64;
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width * COLUMNS as f64) height=(height * rows)
            font-family="sans-serif" font-size="11" {
            rect width="100%" height="100%" fill="white" {}
            @for (at, panel) in panels.iter().enumerate() {
                (panel.draw((at % COLUMNS) as f64 * width, (at / COLUMNS) as f64 * height))
            }
        }
    };
    picture.into_string() + "\n"
}

impl BarPanel {
    fn draw(&self, left: f64, top: f64) -> Markup {
        html! {
            text x=(left + 8.0) y=(top + 16.0) font-weight="bold" { (self.title) }
            @for (row, bar) in self.bars.iter().enumerate() {
                (bar.draw(left + LABEL, top + TITLE + row as f64 * BAR))
            }
        }
    }
}

impl Bar {
    fn draw(&self, left: f64, top: f64) -> Markup {
        let long = self.share.clamp(0.0, MOST) / MOST * (PANEL - 60.0);
        let colour = if self.is_ours { "#2a7f3f" } else { "#8aa4bd" };
        html! {
            text x=(left - 6.0) y=(top + 11.0) text-anchor="end" { (self.label) }
            rect x=(left) y=(top) width=(format!("{long:.1}")) height=(BAR - 4.0) fill=(colour) {}
            text x=(format!("{:.1}", left + long + 4.0)) y=(top + 11.0) { (format!("{:.0}", self.share * 100.0)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_leave_their_place() {
        let bar = |label: &str, share| Bar {
            label: label.to_owned(),
            share,
            is_ours: false,
        };
        let panel = BarPanel {
            title: "<script>".to_owned(),
            bars: vec![bar("a & b", 0.5), bar("far", 9.0)],
        };
        let drawn = bars(&[panel]);
        assert!(drawn.contains("&lt;script&gt;") && drawn.contains("a &amp; b"));
        assert!(
            drawn.contains("width=\"108.0\"") && drawn.contains("width=\"270.0\""),
            "{drawn}"
        );
    }
}
