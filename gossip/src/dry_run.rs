//! Dry runs: what would another replica decide about this request?
//!
//! Pure; `planes/dry_run.rs` is what replicas ask each other. A replica samples its own requests and asks one peer; how often both name the same worker is
//! the cluster's agreement as a live number. Nothing is placed by it. What the hashes mean is
//! placement's business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::replica::ReplicaId;
use crate::worker::WorkerId;

/// Greatest length of a pool's name in bytes.
pub const POOL_BYTES_MAX: usize = 256;
/// Greatest number of marks in a question.
pub const MARKS_MAX: usize = 256;
/// Greatest length of the reason of an answer in bytes.
pub const REASON_BYTES_MAX: usize = 32;

/// What a decision looks at in a request: hashes and lengths, no text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyParts {
    /// Hash that stands for all requests to the model.
    pub model: u64,
    /// Hash and tokens of what a group of conversations shares.
    pub group: Option<(u64, u32)>,
    /// Position on the ring.
    pub home: u64,
    /// Hash of the session that the client named.
    pub session: Option<u64>,
    /// Hash of the user that the client named.
    pub user: Option<u64>,
    /// Tokens that an earlier request can have left in a cache.
    pub stable_tokens: u32,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u32,
    /// Hashes of prefixes and their tokens, shortest first; at most [`MARKS_MAX`].
    pub marks: Vec<(u64, u32)>,
}

/// The question: to which worker would you have sent this request, if it had come to you at that moment?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Name of the pool, as the model is named; at most [`POOL_BYTES_MAX`], no control characters.
    pub pool: String,
    /// The request.
    pub key: KeyParts,
    /// The moment by the asker's clock of load, in microseconds ([`crate::load::LoadBoard::clock_us`]); `None`: when it is
    /// asked. Load counts for all replicas at one moment, but questions take time.
    pub at_us: Option<u64>,
}

impl DryRun {
    /// True if it keeps to its limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.pool.len() <= POOL_BYTES_MAX
            && !self.pool.chars().any(char::is_control)
            && self.key.marks.len() <= MARKS_MAX
            && self.key.marks.is_sorted_by_key(|(_, tokens)| *tokens)
    }
}

/// The decision, and the sums that show why two replicas decide differently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRunAnswer {
    /// The worker that it would choose; `None` if none may take the request.
    pub worker: Option<WorkerId>,
    /// Why: visible ASCII, at most [`REASON_BYTES_MAX`].
    pub reason: String,
    /// Digest of the pool's ring: differs if the worker sets do.
    pub ring: u32,
    /// Fingerprint of the cluster-wide settings.
    pub settings: u32,
    /// Digest of the hot set.
    pub heat: u32,
    /// The home of the request, whether it was chosen or not.
    pub home: Option<WorkerId>,
    /// Tokens that the chosen worker is expected to hold.
    pub expected_tokens: u32,
}

impl DryRunAnswer {
    /// True if it keeps to its limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.reason.len() <= REASON_BYTES_MAX && self.reason.bytes().all(|b| b.is_ascii_graphic())
    }
}

/// What comes back to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The decision.
    Decided(DryRunAnswer),
    /// No decision.
    Refused(Refusal),
}

/// Why a peer did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not know the pool, cannot decide now, or does not remember the moment.
    #[error("it knows no such pool, or not what counted at that moment")]
    Declined,
    /// Nothing at the peer answers dry runs.
    #[error("it answers no dry runs")]
    NotServed,
    /// It was asked more often than it allows.
    #[error("it was asked too often")]
    TooMany,
    /// A reason of a later release.
    #[error("for a reason that this release does not know")]
    Other,
}

/// Why a question got no decision. Nothing was changed, and asking again later does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The question breaks a limit; it was not sent.
    #[error("the question breaks a limit")]
    Malformed,
    /// This replica asks this peer too often, or waits for too many of its answers; it was not sent.
    #[error("this peer was asked too often")]
    TooMany,
    /// There is no connection to the peer now.
    #[error("not connected")]
    NotLinked,
    /// The peer ended the stream without an answer: a release that does not know the question.
    #[error("the peer's release knows no dry runs")]
    TooOld,
    /// No answer within a second.
    #[error("no answer in time")]
    TimedOut,
    /// The peer did not decide.
    #[error("the peer refused: {0}")]
    Refused(Refusal),
    /// The connection broke, or the answer is damaged.
    #[error("answer broken off")]
    Broken,
}

impl AskError {
    /// Label of the counter.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooMany => "too_many",
            Self::NotLinked => "not_linked",
            Self::TooOld => "too_old",
            Self::TimedOut => "timed_out",
            Self::Refused(_) => "refused",
            Self::Broken => "broken",
        }
    }
}

/// Questions by peer: how many each may ask us, or we each.
#[derive(Debug)]
pub(crate) struct Quota {
    per_s: u32,
    peers: BTreeMap<ReplicaId, Course>,
}

#[derive(Debug)]
struct Course {
    budget: Budget,
    /// Shared with each permit.
    open: Arc<()>,
    used: Instant,
}

/// A question that counts as open until it is dropped, answered or not.
#[derive(Debug)]
pub(crate) struct Permit {
    _open: Arc<()>,
}

impl Course {
    fn open(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }
}

impl Quota {
    /// For the side that asks: half of what the other side allows.
    pub(crate) fn asking() -> Self {
        Self::new(ASKED_PER_S)
    }

    /// For the side that answers.
    pub(crate) fn answering() -> Self {
        Self::new(ANSWERED_PER_S)
    }

    fn new(per_s: u32) -> Self {
        Self {
            per_s,
            peers: BTreeMap::new(),
        }
    }

    /// Forgets peers with which there was nothing for a while; their budgets are full again.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.peers.retain(|_, course| {
            course.open() > 0 || now.saturating_duration_since(course.used) < FORGOTTEN_AFTER
        });
    }

    /// Takes one question; `None` if it is one too many.
    pub(crate) fn open(&mut self, peer: &ReplicaId, now: Instant) -> Option<Permit> {
        if !self.peers.contains_key(peer) && self.peers.len() >= PEERS_MAX {
            self.expire(now);
            if self.peers.len() >= PEERS_MAX {
                return None;
            }
        }
        let per_s = self.per_s;
        let course = self.peers.entry(peer.clone()).or_insert_with(|| Course {
            budget: Budget::new(per_s, per_s, now),
            open: Arc::default(),
            used: now,
        });
        course.used = now;
        if course.open() >= OPEN_MAX || !course.budget.is_open(now) {
            return None;
        }
        course.budget.spend(1);
        Some(Permit {
            _open: course.open.clone(),
        })
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(crate) fn remembers(&self, peer: &ReplicaId) -> bool {
        self.peers.contains_key(peer)
    }
}

/// How long a question waits for its answer.
pub(crate) const ASK_WITHIN: Duration = Duration::from_secs(1);
/// Questions to one peer, and bursts of as many.
const ASKED_PER_S: u32 = 50;
/// Questions of one peer that are answered: at 50 microseconds each, half a percent of a core.
const ANSWERED_PER_S: u32 = 2 * ASKED_PER_S;
/// Questions to one peer that wait for an answer at once: a silent one must not use up the streams
/// that the registry needs.
const OPEN_MAX: usize = 4;
/// As many as are remembered for their offences.
const PEERS_MAX: usize = 512;
/// A full budget has nothing to remember.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::start;

    fn id(n: usize) -> ReplicaId {
        format!("r{n}").parse().expect("valid")
    }

    #[test]
    fn limits_of_questions_and_answers() {
        let check = |expected: bool, change: fn(&mut DryRun)| {
            let mut question = DryRun::default();
            change(&mut question);
            assert_eq!(question.is_valid(), expected, "{question:?}");
        };
        check(true, |_| {});
        check(true, |q| q.pool = "m".repeat(POOL_BYTES_MAX));
        check(false, |q| q.pool = "m".repeat(POOL_BYTES_MAX + 1));
        check(false, |q| q.pool = "a\nb".into());
        check(true, |q| q.key.marks = vec![(9, 1), (3, 2)]);
        check(false, |q| q.key.marks = vec![(9, 2), (3, 1)]);
        check(true, |q| q.key.marks = vec![(1, 1); MARKS_MAX]);
        check(false, |q| q.key.marks = vec![(1, 1); MARKS_MAX + 1]);
        let reason = |reason: String| DryRunAnswer {
            reason,
            ..DryRunAnswer::default()
        };
        assert!(reason("r".repeat(REASON_BYTES_MAX)).is_valid());
        assert!(!reason("r".repeat(REASON_BYTES_MAX + 1)).is_valid());
        assert!(!reason("ü".into()).is_valid());
        assert!(!reason("a b".into()).is_valid());
    }

    #[test]
    fn an_honest_asker_stays_within_what_is_answered() {
        let (mut asking, mut answering, start) = (Quota::asking(), Quota::answering(), start());
        let mut asked = 0;
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            if asking.open(&id(0), now).is_some() {
                asked += 1;
                assert!(answering.open(&id(0), now).is_some(), "after {ms} ms");
            }
        }
        assert!((500..=552).contains(&asked), "{asked}");
        let flood = (0..1_000).filter(|_| answering.open(&id(1), start).is_some());
        assert!(flood.count() <= 100);
    }

    #[test]
    fn open_questions_and_peers_are_bounded() {
        let (mut quota, start) = (Quota::asking(), start());
        let mut waiting: Vec<_> = (0..OPEN_MAX)
            .map(|_| quota.open(&id(0), start).expect("one of few"))
            .collect();
        assert!(
            quota.open(&id(0), start).is_none(),
            "all wait for an answer"
        );
        waiting.pop();
        waiting.push(quota.open(&id(0), start).expect("one was answered"));
        for n in 1..PEERS_MAX {
            assert!(quota.open(&id(n), start).is_some());
        }
        assert!(quota.open(&id(PEERS_MAX), start).is_none());
        let later = start + FORGOTTEN_AFTER;
        let new = quota.open(&id(PEERS_MAX), later);
        assert!(new.is_some());
        assert_eq!(quota.peers.len(), 2, "one waits, one is new");
    }
}
