//! What decisions need of an engine that publishes what its cache holds: read by many, without a lock.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use grapevine_kv_events::index::Holder;
use tokio::time::Instant;

use super::atomic_instant::AtomicInstant;

/// An answer that reports far less than what its engine had published weighs as much as so many good ones.
const WRONG_WEIGHS: i32 = 4;
/// From here on an engine is not believed.
const WRONG_MAX: i32 = 16;
/// For so long.
const DISBELIEVED_FOR: Duration = Duration::from_secs(300);
/// Far less: below this part of it ...
const FAR_SHARE: f64 = 0.75;
/// ... and by more than so many tokens. What waits in an engine finds other contents than those that were published when
/// it was sent.
const FAR_TOKENS: u32 = 512;

/// From here on a prompt is not expected to begin with the answer before it: its model's template drops parts of answers.
const LACKING_MIN: i32 = 4;
const LACKING_MAX: i32 = 8;

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
    /// How often prompts lacked the answers before them lately, of [`LACKING_MAX`].
    lacking: AtomicI32,
    disbelieved_until: AtomicInstant,
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

    /// Whether what it publishes was true lately.
    pub fn is_believed(&self) -> bool {
        self.disbelieved_until
            .get()
            .is_none_or(|until| Instant::now() >= until)
    }

    /// Whether the answer to a prompt is part of the next one, as far as its answers show.
    pub fn keeps_answers(&self) -> bool {
        self.lacking.load(Ordering::Relaxed) < LACKING_MIN
    }

    /// A prompt had the answer before it, or not.
    pub fn had_answer(&self, had: bool) {
        let step = if had { -1 } else { 1 };
        let next = |lacking: i32| Some((lacking + step).clamp(0, LACKING_MAX));
        // It always has a next one.
        let _ = self
            .lacking
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// An answer reports its cached tokens, where so many were expected. Whether the engine is not believed from now on.
    pub fn answered(&self, expected: u32, cached: u32) -> bool {
        let is_far = cached.saturating_add(FAR_TOKENS) < expected
            && f64::from(cached) < f64::from(expected) * FAR_SHARE;
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
    fn answers_that_do_not_come_back_are_not_expected() {
        let engine = KvEngine::default();
        let seen = |had: &[bool]| {
            had.iter().for_each(|had| engine.had_answer(*had));
            engine.keeps_answers()
        };
        assert!(seen(&[true, false, false, true, false, false]));
        assert!(!seen(&[false]));
        assert!(!seen(&[false; 100]));
        assert!(!seen(&[true; 4]));
        assert!(seen(&[true]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_whose_answers_contradict_it_is_not_believed_for_a_time() {
        let engine = KvEngine::default();
        // Few tokens, and small parts, are no reason.
        for _ in 0..100 {
            assert!(!engine.answered(500, 0));
            assert!(!engine.answered(10_000, 8_000));
            assert!(!engine.answered(0, 9_000));
        }
        // One in five is far off: what waits finds another cache.
        for _ in 0..100 {
            assert!(!engine.answered(4_000, 0));
            (0..4).for_each(|_| assert!(!engine.answered(4_000, 4_000)));
        }
        assert!(engine.is_believed());
        let last: Vec<bool> = (0..4).map(|_| engine.answered(4_000, 0)).collect();
        assert_eq!(last, [false, false, false, true]);
        assert!(!engine.is_believed());
        advance(DISBELIEVED_FOR).await;
        assert!(engine.is_believed());
    }
}
