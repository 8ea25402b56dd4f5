//! Model of vLLM's engine: continuous batching in steps, over a prefix cache.
//!
//! Pure: no clock, no tasks. [`Engine::step`] does the work of one forward pass and says how long a
//! real one would take; `pacer` waits for that long and publishes the result. One step gives every
//! decoding sequence one token and spends the rest of the token budget on prefill, running
//! sequences first, then the waiting queue in order of arrival with head-of-line blocking.
//!
//! Differences from vLLM, on purpose: a sequence reserves the blocks of its whole answer on
//! admission (its length is known here), so nothing is ever preempted; by default the time of a step
//! does not depend on context length. [`EngineConfig::llama_8b_h100`] is the model that `replay
//! --virtual` uses, term by term.

use std::collections::VecDeque;
use std::time::Duration;

use super::cache::{BlockCache, Lease};

/// Size and speed of the modelled engine. Times are those of the modelled GPU, before the worker's
/// `speed` factor.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Tokens in a cache block, at least 1. Default 16, as vLLM on CUDA.
    pub block_tokens: u32,
    /// Blocks in the KV cache. Default 16,384, which is 262,144 tokens.
    pub blocks: u32,
    /// Sequences that run at once; more wait. Default 64 (vLLM: `--max-num-seqs`).
    pub running_max: u32,
    /// Tokens that one step may process. Default 2,048 (vLLM: `--max-num-batched-tokens`).
    pub step_tokens_max: u32,
    /// Waiting requests at which further ones are refused; `None`, vLLM's default: no limit
    /// (vLLM: `--max-num-queued-reqs`).
    pub queued_requests_max: Option<u32>,
    /// Waiting prompt tokens above which a request is refused; `None`: no limit
    /// (vLLM: `--max-num-queued-tokens`).
    pub queued_tokens_max: Option<u64>,
    /// Uncached prompt tokens computed per second. Default 10,000.
    pub prefill_tokens_per_s: f64,
    /// Time of a step before anything is in it. Default 10 ms.
    pub step_base: Duration,
    /// Time that each decoding sequence adds to a step. Default 0.2 ms.
    pub step_per_sequence: Duration,
    /// Nanoseconds that each token of context of a decoding sequence adds to a step: its keys and
    /// values are read. At least 0, default 0.
    pub step_per_context_token_ns: f64,
    /// Nanoseconds that each pair of a computed prompt token and a token before it adds to a step:
    /// attention. At least 0, default 0.
    pub attention_pair_ns: f64,
}

impl EngineConfig {
    /// Llama-3.1-8B in bfloat16 on an H100: the constants of the engine in `replay --virtual`, which
    /// says where they come from. **A model, not a measurement.**
    pub fn llama_8b_h100() -> Self {
        Self {
            block_tokens: 16,
            blocks: 25_000,
            running_max: 256,
            step_tokens_max: 8_192,
            queued_requests_max: None,
            queued_tokens_max: None,
            prefill_tokens_per_s: 1e6 / 24.0,
            step_base: Duration::from_micros(6_500),
            step_per_sequence: Duration::from_micros(20),
            step_per_context_token_ns: 48.0,
            attention_pair_ns: 0.8,
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            blocks: 16_384,
            running_max: 64,
            step_tokens_max: 2_048,
            queued_requests_max: None,
            queued_tokens_max: None,
            prefill_tokens_per_s: 10_000.0,
            step_base: Duration::from_millis(10),
            step_per_sequence: Duration::from_micros(200),
            step_per_context_token_ns: 0.0,
            attention_pair_ns: 0.0,
        }
    }
}

/// One sequence to generate. A request with `n` choices or several prompts is several sequences.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// Chosen by the caller, unique among those in the engine.
    pub(crate) id: u64,
    /// Chain hashes of the whole blocks of prompt and answer.
    pub(crate) chain: Vec<u64>,
    /// At least 1.
    pub(crate) prompt_tokens: u32,
    /// Answer length; 0 for an embedding, which ends with its prefill.
    pub(crate) answer_tokens: u32,
}

/// Why a sequence was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `queued_requests_max` reached.
    Requests,
    /// `queued_tokens_max` would be passed.
    Tokens,
}

/// How far a sequence is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Prompt tokens that the prefix cache supplied.
    pub(crate) cached_tokens: u32,
    /// Answer tokens produced so far.
    pub(crate) produced: u32,
    pub(crate) done: bool,
}

/// The outcome of one forward pass.
#[derive(Debug)]
pub(crate) struct Step {
    /// How long it takes on the modelled GPU.
    pub(crate) cost: Duration,
    /// Sequences that got a token or ended, to be published when the time is over.
    pub(crate) progress: Vec<(u64, Progress)>,
}

/// Totals since start, in vLLM's terms (`/metrics`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) queried_tokens: u64,
    pub(crate) hit_tokens: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) refused_requests: u64,
    pub(crate) refused_tokens: u64,
}

/// Gauges of this moment, in vLLM's terms.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Gauges {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Share of blocks that running sequences hold, 0 to 1. Cached but idle blocks do not count.
    pub(crate) cache_usage: f64,
}

/// Prompt tokens that a step computes.
#[derive(Debug, Default)]
struct Prefilled {
    tokens: u32,
    /// Pairs of such a token and one before it.
    pairs: f64,
}

#[derive(Debug)]
struct Running {
    sequence: Sequence,
    lease: Lease,
    cached_tokens: u32,
    /// Tokens of prompt and answer whose keys and values are in the cache.
    computed: u32,
    produced: u32,
    /// Leading entries of `chain` that were hit or offered to the cache.
    stored: usize,
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Engine {
    config: EngineConfig,
    cache: BlockCache,
    waiting: VecDeque<Sequence>,
    waiting_tokens: u64,
    running: Vec<Running>,
    counters: Counters,
}

impl Engine {
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            cache: BlockCache::new(config.blocks as usize),
            config,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            running: Vec::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            cache_usage: self.cache.used() as f64 / f64::from(self.config.blocks.max(1)),
        }
    }

    /// Queues a sequence, or refuses it by a queue limit. The caller made sure that prompt and
    /// answer fit into the cache (`max_model_len`); a longer one would wait for ever.
    ///
    /// As in vLLM, limits look at the queue alone: a burst between two steps is refused even while
    /// slots are free.
    pub(crate) fn submit(&mut self, sequence: Sequence) -> Result<(), Refusal> {
        let tokens = u64::from(sequence.prompt_tokens);
        let over = |limit: Option<u64>, value: u64| limit.is_some_and(|limit| value > limit);
        if over(
            self.config.queued_requests_max.map(u64::from),
            self.waiting.len() as u64 + 1,
        ) {
            self.counters.refused_requests += 1;
            return Err(Refusal::Requests);
        }
        if over(self.config.queued_tokens_max, self.waiting_tokens + tokens) {
            self.counters.refused_tokens += 1;
            return Err(Refusal::Tokens);
        }
        self.waiting_tokens += tokens;
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Forgets what is cached, as a restart does; blocks of running sequences stay until they end.
    pub(crate) fn forget_cache(&mut self) {
        self.cache.clear();
    }

    /// Forgets a sequence and frees its blocks; unknown and ended ids are ignored.
    pub(crate) fn abort(&mut self, id: u64) {
        if let Some(at) = self.running.iter().position(|seq| seq.sequence.id == id) {
            let gone = self.running.remove(at);
            self.cache.release(gone.lease);
        } else if let Some(at) = self.waiting.iter().position(|seq| seq.id == id) {
            let gone = self.waiting.remove(at).expect("position is in range");
            self.waiting_tokens -= u64::from(gone.prompt_tokens);
        }
    }

    /// Runs one forward pass; `None` when there is nothing to do.
    pub(crate) fn step(&mut self) -> Option<Step> {
        let mut budget = self.config.step_tokens_max.max(1);
        let mut prefilled = Prefilled::default();
        let (mut decoding, mut context) = (0, 0);
        for seq in &self.running {
            if seq.computed >= seq.sequence.prompt_tokens {
                decoding += 1;
                context += u64::from(seq.computed);
                budget = budget.saturating_sub(1);
            }
        }
        for seq in &mut self.running {
            seq.prefill(&mut budget, &mut prefilled);
        }
        while budget > 0 && self.running.len() < self.config.running_max as usize {
            let Some(mut seq) = self.admit_next() else {
                break;
            };
            seq.prefill(&mut budget, &mut prefilled);
            self.running.push(seq);
        }
        if self.running.is_empty() {
            return None;
        }
        let config = &self.config;
        let ns = context as f64 * config.step_per_context_token_ns
            + prefilled.pairs * config.attention_pair_ns;
        let prefill_s = f64::from(prefilled.tokens) / config.prefill_tokens_per_s;
        let cost = config.step_base
            + config.step_per_sequence * decoding
            + Duration::from_secs_f64(prefill_s + ns / 1e9);
        Some(Step {
            cost,
            progress: self.collect(),
        })
    }

    /// Takes the head of the queue when the cache has room for it.
    fn admit_next(&mut self) -> Option<Running> {
        let head = self.waiting.front()?;
        let block = self.config.block_tokens;
        let blocks = (head.prompt_tokens + head.answer_tokens).div_ceil(block) as usize;
        // The last prompt token is always computed: its logits are the first answer token.
        let reusable = ((head.prompt_tokens - 1) / block) as usize;
        let reusable = &head.chain[..reusable.min(head.chain.len())];
        let (lease, hits) = self.cache.admit(reusable, blocks)?;

        let sequence = self.waiting.pop_front().expect("front was there");
        let cached_tokens = hits as u32 * block;
        self.waiting_tokens -= u64::from(sequence.prompt_tokens);
        self.counters.queried_tokens += u64::from(sequence.prompt_tokens);
        self.counters.hit_tokens += u64::from(cached_tokens);
        Some(Running {
            sequence,
            lease,
            cached_tokens,
            computed: cached_tokens,
            produced: 0,
            stored: hits,
        })
    }

    /// After the pass: tokens for those whose prompt is complete, computed blocks into the cache,
    /// ended sequences out.
    fn collect(&mut self) -> Vec<(u64, Progress)> {
        let mut progress = Vec::new();
        let mut kept = Vec::with_capacity(self.running.len());
        for mut seq in self.running.drain(..) {
            let prompt_complete = seq.computed >= seq.sequence.prompt_tokens;
            if prompt_complete {
                if seq.produced == 0 {
                    self.counters.prompt_tokens += u64::from(seq.sequence.prompt_tokens);
                } else {
                    seq.computed += 1;
                }
                if seq.produced < seq.sequence.answer_tokens {
                    seq.produced += 1;
                    self.counters.generated_tokens += 1;
                }
            }
            let whole = (seq.computed / self.config.block_tokens) as usize;
            while seq.stored < whole.min(seq.sequence.chain.len()) {
                self.cache
                    .store(&mut seq.lease, seq.sequence.chain[seq.stored]);
                seq.stored += 1;
            }
            let done = prompt_complete && seq.produced >= seq.sequence.answer_tokens;
            if prompt_complete {
                let state = Progress {
                    cached_tokens: seq.cached_tokens,
                    produced: seq.produced,
                    done,
                };
                progress.push((seq.sequence.id, state));
            }
            if done {
                self.cache.release(seq.lease);
            } else {
                kept.push(seq);
            }
        }
        self.running = kept;
        progress
    }
}

impl Running {
    /// Computes as much of the prompt as `budget` allows, and adds it to `sum`.
    fn prefill(&mut self, budget: &mut u32, sum: &mut Prefilled) {
        let left = self.sequence.prompt_tokens.saturating_sub(self.computed);
        let tokens = left.min(*budget);
        sum.tokens += tokens;
        sum.pairs += f64::from(tokens) * (f64::from(self.computed) + f64::from(tokens) / 2.0);
        self.computed += tokens;
        *budget -= tokens;
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
