//! The views of `grapevine top`.

/// The views, in the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum View {
    /// What is wrong, and the worst of everything.
    Overview,
    /// Replicas, and who hears whom.
    Replicas,
    /// Workers, the worst and busiest first.
    Workers,
    /// Who owns what.
    Rings,
    /// The last hour.
    Hour,
    /// Whether replicas decide alike.
    Agreement,
    /// What happened.
    Events,
}

impl View {
    pub(super) const ALL: [Self; 7] = [
        Self::Overview,
        Self::Replicas,
        Self::Workers,
        Self::Rings,
        Self::Hour,
        Self::Agreement,
        Self::Events,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Replicas => "Replicas",
            Self::Workers => "Workers",
            Self::Rings => "Rings",
            Self::Hour => "Last hour",
            Self::Agreement => "Agreement",
            Self::Events => "Events",
        }
    }

    /// The one so many places further, round and round.
    pub(super) fn next(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}
