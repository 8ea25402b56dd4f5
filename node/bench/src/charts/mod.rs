//! Charts as SVG, and the page that carries them: one file that needs nothing else and no network. Without scripts a
//! page lacks only the values at the cursor.
//!
//! `maud` escapes all texts; the parts that bypass it (style, script, points as JSON) hold no text from outside.

mod bars;
mod mark;
mod plot;
mod ranges;
mod scale;

use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use bars::{Bar, BarPanel, bars};
pub use mark::{Mark, MarkKind};
pub use plot::{Axis, Panel, Range, Series, Shape, by_name, describe, n};
pub use ranges::{Estimate, ranges};
pub use scale::{Scale, clock, clock_tenths, known, percent, short, time_ticks};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A whole page. Its policy forbids requests to anywhere; light or dark, as the reader's system is.
pub fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string()
}

/// What shows the values of all plots at the cursor: stands after `main`, which says how long the run was
/// (`data-until`, in milliseconds).
pub fn cursor() -> Markup {
    html! {
        output #at {}
        script { (PreEscaped(SCRIPT)) }
    }
}
