//! Heat: which prefixes carry so much of the traffic that one worker is not enough for them.
//!
//! Each replica counts the marks of its own requests ([`HeatCounter`]) and sends the others a [`HeatReport`]. The
//! [`HotSet`] is a pure function of the sum of all live replicas' reports, so replicas with the same reports walk
//! every prompt to the same home ([`crate::policy`]). Hysteresis lives in the reports alone: a count that moved
//! little is reported unchanged, so the sum has no history of its own.
//!
//! Invariants, each a test of that name: `order_of_reports_is_irrelevant`, `counter_memory_is_bounded`,
//! `small_changes_are_not_reported`, `hot_sets_nest`.

mod counter;
mod hot_set;

pub use counter::{HeatCounter, HeatSettings};
pub use hot_set::HotSet;

/// Most links in one report.
pub const REPORT_LINKS_MAX: usize = 512;

/// What one replica counted: sent to the others whole, each time it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatReport {
    /// Grows with each change.
    pub version: u64,
    /// Link and decayed count in sixteenths of a request, sorted by link; at most [`REPORT_LINKS_MAX`].
    pub counts: Vec<(u64, u32)>,
    /// Decayed count of all requests, in sixteenths.
    pub total: u32,
}
