//! The views of `grapevine top`.

use grapevine_placement::named;

named! {
    /// The views, in the order of their keys.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
    pub(super) enum View {
        /// What is wrong, and the worst of everything.
        Overview = "Overview",
        /// Replicas, and who hears whom.
        Replicas = "Replicas",
        /// Workers, the worst and busiest first.
        Workers = "Workers",
        /// Who owns what.
        Rings = "Rings",
        /// The last hour.
        Hour = "Last hour",
        /// Whether replicas decide alike.
        Agreement = "Agreement",
        /// What happened.
        Events = "Events",
    }
}

impl View {
    /// The one so many places further, round and round.
    pub(super) fn next(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}
