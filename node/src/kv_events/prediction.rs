//! What events had said of a request's prompt, compared with what its answer reports.

use std::sync::Arc;

use grapevine_kv_events::texts::TextName;
use grapevine_placement::{Decision, Key};

use super::caches::Caches;
use super::contents::name_of;
use super::metrics::{EVENTS, EVIDENCE, EXACT, OVER, UNDER};
use crate::http::sse::Usage;
use crate::upstream::{KvEngine, Worker};

/// What goes with a request to a worker that publishes.
#[derive(Debug)]
pub struct Prediction {
    /// Names its text.
    name: TextName,
    /// What is expected to be cached, where one engine will have it, and tells all.
    expected: Option<Expected>,
}

/// Cached tokens that an engine's events let expect.
#[derive(Debug)]
struct Expected {
    worker: Arc<str>,
    engine: Arc<KvEngine>,
    /// It tells all; else more may be cached.
    is_all: bool,
    /// Without the answer before it.
    prompt_tokens: u32,
    /// Tokens of that answer.
    answer_tokens: u32,
    /// It is expected to be part of the prompt.
    with_answer: bool,
}

impl Expected {
    /// What is expected of a prompt of so many tokens: the last one is computed in any case, and with it the block that
    /// it completes.
    fn of(&self, prompt_tokens: u64, with_answer: bool) -> u32 {
        let block_tokens = self.block_tokens();
        let before_last = u32::try_from(prompt_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let most = before_last / block_tokens * block_tokens;
        let answer = if with_answer { self.answer_tokens } else { 0 };
        self.prompt_tokens.saturating_add(answer).min(most)
    }

    fn block_tokens(&self) -> u32 {
        self.engine.block_tokens().max(1)
    }
}

impl Prediction {
    /// The session id that the worker is to say with the blocks that the request stores.
    pub fn name(&self) -> TextName {
        self.name
    }
}

impl Caches {
    /// Of a request that was placed on this worker; none if the worker publishes nothing, or the prompt has no text.
    pub fn predict(&self, worker: &Worker, key: &Key, decision: &Decision) -> Option<Prediction> {
        let engines = worker.kv_engines.load();
        let whole = name_of(key.links().last()?.hash);
        if engines.is_empty() {
            return None;
        }
        let marks = key.marks();
        let common = marks.partition_point(|mark| mark.tokens <= decision.common_tokens);
        let common = common.checked_sub(1).map(|last| name_of(marks[last].hash));
        let source = match decision.told {
            Some(_) => EVENTS,
            None => EVIDENCE,
        };
        self.metrics.decided(source);
        let told = decision.told;
        let told = told.filter(|told| told.until_tokens > 0 || told.cached_tokens > 0);
        let expected = match (told, engines.as_slice()) {
            (Some(told), [engine]) => Some(Expected {
                worker: Arc::clone(&worker.label),
                is_all: told.until_tokens > 0,
                engine: Arc::clone(engine),
                prompt_tokens: told.cached_tokens,
                answer_tokens: told.answer_tokens,
                with_answer: engine.keeps_answers(),
            }),
            _ => None,
        };
        Some(Prediction {
            name: TextName {
                whole,
                common: common.filter(|common| *common != whole),
            },
            expected,
        })
    }

    /// Its answer reports how much was cached.
    pub fn check(&self, prediction: &Prediction, usage: &Usage) {
        let (Some(expected), Some(cached)) = (&prediction.expected, usage.cached_tokens) else {
            return;
        };
        let (engine, block_tokens) = (&expected.engine, expected.block_tokens());
        let (worker, is_all) = (&*expected.worker, expected.is_all);
        let cached = u32::try_from(cached).unwrap_or(u32::MAX);
        let had_answer =
            |with| expected.of(usage.prompt_tokens, with).abs_diff(cached) < block_tokens;
        if expected.answer_tokens > block_tokens && had_answer(true) != had_answer(false) {
            engine.had_answer(had_answer(true));
        }
        // An answer that does not come back is the template's doing: what the engine published was true.
        let was_true = expected.of(usage.prompt_tokens, had_answer(true));
        let expected = expected.of(usage.prompt_tokens, expected.with_answer);
        let result = if expected.abs_diff(cached) < block_tokens {
            EXACT
        } else if expected > cached {
            OVER
        } else {
            UNDER
        };
        if is_all {
            self.metrics.predicted(result, expected, cached);
        }
        if engine.answered(was_true, cached) {
            self.metrics.disbelieved.inc();
            tracing::warn!(
                worker,
                expected,
                cached,
                "answers of a worker contradict the KV events that it publishes; they are not believed for five minutes"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::KvState;

    #[test]
    fn what_is_expected_is_bounded_whatever_an_engine_says() {
        let engine = KvEngine::default();
        engine.show(KvState {
            holder: None,
            tells_all: true,
            block_tokens: 16,
        });
        let expected = Expected {
            worker: "w0".into(),
            engine: Arc::new(engine),
            is_all: true,
            prompt_tokens: u32::MAX,
            answer_tokens: u32::MAX,
            with_answer: true,
        };
        assert_eq!(expected.of(100, true), 96);
        assert_eq!(expected.of(0, true), 0);
        let most = u32::MAX / 16 * 16;
        assert_eq!(expected.of(u64::from(u32::MAX) + 100, true), most);
        assert_eq!(expected.of(u64::MAX, false), most);
    }
}
