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
    /// Tokens that are expected to be cached, where one engine will have it, and tells all.
    expected: Option<(u32, Arc<KvEngine>)>,
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
        let told = decision.told.filter(|told| told.until_tokens > 0);
        let expected = match (told, engines.as_slice()) {
            (Some(told), [engine]) => Some((told.cached_tokens, Arc::clone(engine))),
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
        let (Some((expected, engine)), Some(cached)) = (&prediction.expected, usage.cached_tokens)
        else {
            return;
        };
        let block_tokens = engine.block_tokens().max(1);
        // The last token is computed in any case, and with it the block that it completes.
        let most = (usage.prompt_tokens.saturating_sub(1) as u32) / block_tokens * block_tokens;
        let (expected, cached) = (
            (*expected).min(most),
            u32::try_from(cached).unwrap_or(u32::MAX),
        );
        let result = if expected.abs_diff(cached) < block_tokens {
            EXACT
        } else if expected > cached {
            OVER
        } else {
            UNDER
        };
        self.metrics.predicted(result, expected, cached);
        if engine.answered(expected, cached) {
            self.metrics.disbelieved.inc();
            tracing::warn!(
                expected,
                cached,
                "answers of a worker contradict the KV events that it publishes; they are not believed for five minutes"
            );
        }
    }
}
