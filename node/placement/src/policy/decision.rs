//! What goes into a decision for each worker, and what comes out.

use std::{fmt, time::Duration};

use crate::{
    key::{Key, Link},
    load::Load,
    rate::Rate,
};

named! {
    /// Whether a worker may take a request, before load is looked at.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Standing {
        /// Healthy or not yet probed.
        #[default]
        Usable = "usable",
        /// At its own limit of requests in flight, or asked to be left alone for a while (`Retry-After`).
        Full = "full",
        /// Failing probes, its breaker waits for a trial, or it delivers no tokens.
        Unhealthy = "unhealthy",
        /// Its breaker is open: requests failed there, and it is left alone for a time.
        Resting = "resting",
        /// It refuses or drops connections.
        Unreachable = "unreachable",
        /// Another replica claims so, and this one knows no better: used when no other can be.
        Doubted = "doubted",
        /// Leaves, or is not to be used yet: no new requests.
        Draining = "draining",
        /// Its engine sleeps, as it says: it would keep requests until it is woken.
        Asleep = "asleep",
    }
}

impl Standing {
    /// It takes no requests, and nothing is wrong with it: somebody wanted it so.
    pub const fn is_out(self) -> bool {
        matches!(self, Self::Draining | Self::Asleep)
    }

    /// This replica found out itself that something is wrong.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Unhealthy | Self::Resting | Self::Unreachable)
    }
}

/// What a worker says that its cache holds of a prompt. Estimated tokens, as those of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// So many tokens at the prompt's beginning.
    pub held_tokens: u32,
    /// It speaks of the first so many tokens: of what follows nobody knows yet which blocks it becomes; of all, where it
    /// lacks a block of what is known. 0 where it does not tell all that it holds.
    pub until_tokens: u32,
    /// What it holds of an earlier prompt that begins this one, in tokens as the worker counts them: whole blocks.
    pub cached_tokens: u32,
    /// What it holds behind that of the answer to that prompt; counted in `held_tokens` where answers come back whole.
    pub answer_tokens: u32,
}

/// A worker as the decision sees it now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Cluster-wide load that all replicas know of, damped by age ([`crate::load::Seen::common`]).
    pub load: Load,
    /// Its requests in flight, as exactly as this replica knows ([`crate::load::Seen::exact_requests`]).
    pub exact_requests: f64,
    /// The same if the other replicas are in the middle of the same surge ([`crate::load::Seen::surge_requests`]).
    pub surge_requests: f64,
    /// How long it needs for a token to compute.
    pub rate: Rate,
    /// Whether it may be used.
    pub standing: Standing,
    /// Its health is bad, and it is at its own limit of requests in flight besides: not to be used even where health
    /// is not believed.
    pub at_cap: bool,
    /// While it starts slowly: the share of the mean requests in flight that it may have ([`crate::slow_start`]);
    /// never less than one request.
    pub slow_start: Option<f64>,
    /// Tokens of this prompt that it is known to hold ([`crate::PrefixIndex::fill`]).
    pub held_tokens: u32,
    /// How many placements ago, of those that this replica knows of, it was last sent the whole prompt; none where that
    /// is not known, as of what it only says itself that it holds.
    pub whole_ago: Option<u64>,
    /// What it says itself of this prompt, where it publishes what its cache holds.
    pub told: Option<Told>,
    /// Tokens of all prompts that it is known to hold; only policy `cache_aware` looks at them.
    pub known_tokens: u64,
    /// Tokens of keys and values that its cache holds, as it reports itself; `None` where that is not known. Only
    /// policy `least_kv` looks at it.
    pub kv_tokens: Option<u64>,
}

named! {
    /// Why a worker was chosen. Labels of a metric: stable.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reason {
        /// The home of the key.
        Home = "home",
        /// Home of an explicit session, policy `sticky`.
        Sticky = "sticky",
        /// The home is usable, another worker is cheaper.
        SpillPrice = "spill_price",
        /// The home is at the bound on requests in flight.
        SpillBound = "spill_bound",
        /// The home is at its own limit.
        SpillFull = "spill_full",
        /// The home's cache has no room for the prompt, policy `least_kv`.
        SpillRoom = "spill_room",
        /// The home is unhealthy, doubted, or asleep, or was tried.
        Failover = "failover",
        /// The home starts slowly and has all that it may have for now.
        SlowStart = "slow_start",
        /// The home is draining.
        Drain = "drain",
        /// Another worker holds more of the prompt, policies `prefix` and `least_kv`.
        Evidence = "evidence",
        /// Longest known match, policy `cache_aware`.
        LongestMatch = "longest_match",
        /// No match is long enough, and least is known of this worker, policy `cache_aware`.
        SmallestTree = "smallest_tree",
        /// Policy `least_request`.
        LeastRequest = "least_request",
        /// Policy `power_of_two`.
        PowerOfTwo = "power_of_two",
        /// Policy `random`.
        Random = "random",
        /// Policy `round_robin`, or `sticky` without a session.
        RoundRobin = "round_robin",
    }
}

/// The worker for a request, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the worker among the ring's members.
    pub worker: usize,
    /// Index of the key's home.
    pub home: usize,
    /// Why this worker.
    pub reason: Reason,
    /// Tokens of the prompt expected in this worker's cache.
    pub expected_tokens: u32,
    /// Tokens that have to be computed on this worker before the first one of the answer, this prompt's included: what
    /// [`crate::rate::Observed::see`] gets once that one is there.
    pub tokens_before: u64,
    /// How long that is expected to take, by the worker's rate.
    pub first_token: Duration,
    /// Tokens of the prompt that the chosen worker shares because they are hot: every replica knows that. 0 in policy
    /// `cache_aware`, which does not go by heat.
    pub shared_tokens: u32,
    /// A worker is known to hold more of the prompt than what is hot: policies that believe evidence go by that.
    pub known: bool,
    /// Tokens of the prompt that some worker is known to hold, or that are hot: it was sent before so far.
    pub common_tokens: u32,
    /// What the chosen worker says of the prompt itself.
    pub told: Option<Told>,
    /// Health is not believed: the worker is used although its health is bad.
    pub panic: bool,
    /// It is known to refuse connections, and the last resort: that it does so again is no news.
    pub unreachable: bool,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
}

impl Decision {
    /// Tokens this worker is expected to compute: what [`Load::prefill_tokens`] grows by until the first byte, or until
    /// [`Decision::likely_computed`].
    pub fn prefill_tokens(&self) -> u32 {
        self.prompt_tokens - self.expected_tokens
    }

    /// After this a prompt whose answer comes whole is taken for computed: the first byte of such an answer is its last. Twice
    /// the time to the first token, and at least a second.
    ///
    /// Shorter: prompts that wait are believed to be computed. Longer: workers that write long plain answers look busy with
    /// prompts, and others leave what they have cached.
    pub fn likely_computed(&self) -> Duration {
        const LEAST: Duration = Duration::from_secs(1);
        self.first_token.saturating_mul(2).max(LEAST)
    }

    /// Marks of the prompt that the worker will hold and heat alone does not show: what [`crate::PrefixIndex::record`]
    /// gets, and others receive as evidence.
    pub fn marks<'a>(&self, key: &'a Key) -> &'a [Link] {
        let shared = key
            .marks()
            .partition_point(|mark| mark.tokens <= self.shared_tokens);
        &key.marks()[shared..]
    }
}

named! {
    /// Why no worker can take a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NoWorker {
        /// The pool has no workers.
        Empty = "empty",
        /// All that could be used were tried.
        Tried = "tried",
        /// All that are left are at their own limit: back-pressure, not failure.
        Full = "full",
        /// All that are left are unhealthy.
        Unhealthy = "unhealthy",
        /// All are draining.
        Draining = "draining",
        /// All that do not drain are asleep.
        Asleep = "asleep",
    }
}

impl NoWorker {
    /// Why neither of two choices found a worker: where one may find room in a moment, it is room that is lacking; else
    /// what the first found.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match other {
            Self::Full => other,
            _ => self,
        }
    }
}

impl fmt::Display for NoWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no worker serves this model",
            Self::Tried => "every usable worker was tried",
            Self::Full => "every worker is at its limit of requests in flight, or asked to be left alone for a while",
            Self::Unhealthy => "no worker is healthy",
            Self::Draining => "every worker is draining",
            Self::Asleep => "every worker is asleep, until somebody wakes it",
        })
    }
}

impl std::error::Error for NoWorker {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_reasons_lists_every_reason() {
        let page = include_str!("../../../../docs/placement.md");
        let (_, section) = page.split_once("## Reasons").expect("it has reasons");
        let (section, _) = section.split_once("\n## ").expect("it ends");
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.filter_map(|row| row.split(" | ").next());
        let mut listed: Vec<&str> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect();
        let mut expected = Reason::ALL.map(Reason::as_str);
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}
