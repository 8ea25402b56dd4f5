//! Laws that no input may break. Each function takes any bytes and panics when a law does not hold.
//!
//! `cargo fuzz` looks for bytes that break one (`README.md` has the command); `tests/corpus.rs` replays the
//! kept inputs, on every toolchain.

mod answer;
mod body;
mod config;
mod frame;
mod head;
mod kv_events;
mod requests;
mod sse;

pub use answer::answer;
pub use body::body;
pub use config::config;
pub use frame::frame;
pub use head::head;
pub use kv_events::kv_events;
pub use requests::requests;
pub use sse::sse;

/// A law, by the name of its corpus.
pub type Law = (&'static str, fn(&[u8]));

/// All of them.
pub const LAWS: [Law; 8] = [
    ("answer", answer),
    ("body", body),
    ("config", config),
    ("frame", frame),
    ("head", head),
    ("kv_events", kv_events),
    ("requests", requests),
    ("sse", sse),
];
