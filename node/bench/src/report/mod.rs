//! How results are shown: as text, as JSON, and as an HTML file that needs nothing else.

mod html;
mod text;

pub use html::page;
pub use text::Text;

use crate::run::RunResult;

/// The result as one JSON document, indented.
pub fn json(result: &RunResult) -> String {
    serde_json::to_string_pretty(result).expect("numbers, texts and lists")
}
