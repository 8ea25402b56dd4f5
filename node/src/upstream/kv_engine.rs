//! What decisions need of an engine that publishes what its cache holds: read by many, without a lock.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use grapevine_kv_events::index::Holder;
use grapevine_placement::is_far_below;
use tokio::time::Instant;

use super::atomic_instant::AtomicInstant;

/// An answer that reports far less than what its engine had published weighs as much as so many good ones.
const WRONG_WEIGHS: i32 = 4;
/// From here on an engine is not believed.
const WRONG_MAX: i32 = 16;
/// What events say is exact to a block or two.
const FAR_TOKENS: u32 = 128;
/// For so long it is believed behind a loss: replays fill most of them sooner.
const LOST_MAX: Duration = Duration::from_secs(5);
/// For so long.
const DISBELIEVED_FOR: Duration = Duration::from_secs(300);

/// A count of exceptions against the rule: each one adds one, each case of the rule takes one away.
#[derive(Debug, Default)]
struct Tally(AtomicI32);

impl Tally {
    /// From so many on they are the rule.
    const RULE: i32 = 4;
    /// No more are remembered.
    const MAX: i32 = 8;

    fn count(&self, is_exception: bool) {
        let step = if is_exception { 1 } else { -1 };
        let next = |count: i32| Some((count + step).clamp(0, Self::MAX));
        // There is always a next one.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    fn is_rule(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::RULE
    }
}

/// An engine: a worker, or one data-parallel rank of it.
#[derive(Debug, Default)]
pub struct KvEngine {
    /// Bits of its holder in the index; 0: nothing is known.
    holder: AtomicU64,
    /// All of its blocks are known, and nothing of what happened to them is missing.
    tells_all: AtomicBool,
    block_tokens: AtomicU32,
    /// How often answers were far off lately.
    wrong: AtomicI32,
    /// Prompts without the answers before them.
    without_answer: Tally,
    /// It computes block hashes otherwise than the other engines of its model.
    is_odd: AtomicBool,
    /// Another worker is said to publish at the same address.
    is_shared: AtomicBool,
    disbelieved_until: AtomicInstant,
    /// Since when something may be missing; none while nothing is.
    lost_at: AtomicInstant,
}

/// What is known of an engine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvState {
    /// Its place in the index, while it has one.
    pub holder: Option<Holder>,
    /// All of its blocks are known, and nothing of what happened to them is missing.
    pub tells_all: bool,
    /// Tokens of its blocks; 0 before it has said.
    pub block_tokens: u32,
}

impl KvEngine {
    /// This is known now.
    pub fn show(&self, state: KvState) {
        let holder = state.holder.map_or(0, Holder::bits);
        self.holder.store(holder, Ordering::Relaxed);
        self.tells_all.store(state.tells_all, Ordering::Relaxed);
        self.block_tokens
            .store(state.block_tokens, Ordering::Relaxed);
    }

    /// [`Holder::bits`] of its place in the index; none while nothing of it is known.
    pub fn holder(&self) -> Option<u64> {
        let holder = self.holder.load(Ordering::Relaxed);
        (holder != 0).then_some(holder)
    }

    /// Whether a block that it is not known to have is not there.
    pub fn tells_all(&self) -> bool {
        self.tells_all.load(Ordering::Relaxed)
    }

    /// Tokens of its blocks; 0 before it has said.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens.load(Ordering::Relaxed)
    }

    /// Nothing that it published is missing, or something may be.
    pub fn hears_all(&self, hears_all: bool) {
        if hears_all {
            self.lost_at.clear();
        } else {
            self.lost_at.begin(Instant::now());
        }
    }

    /// Whether decisions may go by what it publishes: it is heard, it alone publishes there, answers bear it out, and its
    /// block hashes are those of the others.
    pub fn is_believed(&self) -> bool {
        // The clock is read only where something is wrong: a decision asks every engine.
        let is_heard = |lost_at| Instant::now() < lost_at + LOST_MAX;
        let is_over = |until| Instant::now() >= until;
        self.hashes_alike()
            && !self.is_shared.load(Ordering::Relaxed)
            && self.lost_at.get().is_none_or(is_heard)
            && self.disbelieved_until.get().is_none_or(is_over)
    }

    /// Whether it computes block hashes as other engines do, as far as is known.
    pub fn hashes_alike(&self) -> bool {
        !self.is_odd.load(Ordering::Relaxed)
    }

    /// It computes block hashes otherwise than others, or not any more. Whether that is news.
    pub fn is_found_odd(&self, is_odd: bool) -> bool {
        self.is_odd.swap(is_odd, Ordering::Relaxed) != is_odd
    }

    /// Another worker is said to publish at the same address, or not any more. Whether that is news.
    pub fn is_found_shared(&self, is_shared: bool) -> bool {
        self.is_shared.swap(is_shared, Ordering::Relaxed) != is_shared
    }

    /// Whether the answer to a prompt is part of the next one, as far as its answers show.
    pub fn keeps_answers(&self) -> bool {
        !self.without_answer.is_rule()
    }

    /// A prompt had the answer before it, or not.
    pub fn had_answer(&self, had: bool) {
        self.without_answer.count(!had);
    }

    /// An answer reports its cached tokens, where so many were expected. Whether the engine is not believed from now on.
    pub fn answered(&self, expected: u32, cached: u32) -> bool {
        // What waits in an engine finds other contents than those that were published when it was sent.
        let is_far = is_far_below(expected, cached, FAR_TOKENS);
        if !is_far {
            let fewer = |wrong: i32| (wrong > 0).then_some(wrong - 1);
            // None to take back.
            let _ = self
                .wrong
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
            return false;
        }
        let wrong = self.wrong.fetch_add(WRONG_WEIGHS, Ordering::Relaxed) + WRONG_WEIGHS;
        if wrong < WRONG_MAX {
            return false;
        }
        self.wrong.store(0, Ordering::Relaxed);
        let was_believed = self.is_believed();
        self.disbelieved_until
            .extend(Instant::now() + DISBELIEVED_FOR);
        was_believed
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[test]
    fn exceptions_are_the_rule_from_the_fourth_on_until_they_are_not() {
        let engine = KvEngine::default();
        let answers = |had: &[bool]| {
            had.iter().for_each(|had| engine.had_answer(*had));
            engine.keeps_answers()
        };
        assert!(answers(&[true, false, false, true, false, false]));
        assert!(!answers(&[false]));
        assert!(!answers(&[false; 100]));
        assert!(!answers(&[true; 4]));
        assert!(answers(&[true]));
        assert!(engine.is_found_odd(true) && !engine.is_found_odd(true));
        assert!(!engine.is_believed());
        assert!(engine.is_found_odd(false) && engine.is_believed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_whose_answers_contradict_it_is_not_believed_for_a_time() {
        let engine = KvEngine::default();
        // Few tokens, and small parts, are no reason.
        for _ in 0..100 {
            assert!(!engine.answered(120, 0));
            assert!(!engine.answered(10_000, 8_000));
            assert!(!engine.answered(0, 9_000));
        }
        // One in five is far off: what waits finds another cache.
        for _ in 0..100 {
            assert!(!engine.answered(200, 0));
            (0..4).for_each(|_| assert!(!engine.answered(4_000, 4_000)));
        }
        assert!(engine.is_believed());
        let last: Vec<bool> = (0..4).map(|_| engine.answered(4_000, 0)).collect();
        assert_eq!(last, [false, false, false, true]);
        assert!(!engine.is_believed());
        advance(DISBELIEVED_FOR).await;
        assert!(engine.is_believed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_is_not_heard_is_not_believed_for_long() {
        let engine = KvEngine::default();
        engine.hears_all(false);
        advance(LOST_MAX / 2).await;
        engine.hears_all(false);
        assert!(engine.is_believed());
        advance(LOST_MAX / 2).await;
        assert!(!engine.is_believed());
        engine.hears_all(true);
        assert!(engine.is_believed());
    }
}
