//! Model of vLLM's engine: continuous batching in passes, over a prefix cache.
//!
//! Pure: no clock, no tasks. [`Engine::begin`] plans the next forward pass and says how long a real one would take; its
//! caller waits for that long, in real or in virtual time, and [`Engine::finish`] does what it did. A pass gives every
//! decoding sequence one token and spends the rest of the token budget on prefill, running sequences first, then the
//! waiting queue in order of arrival with head-of-line blocking. Passes without prefill can be taken many at a time:
//! nothing changes between two arrivals or ends, so a second of decoding costs as much to simulate as one pass.
//!
//! Differences from vLLM, on purpose: a sequence reserves the blocks of its whole answer on admission (its length is
//! known here), so nothing is ever preempted; by default the time of a pass does not depend on context length.

mod block_cache;
mod changes;
mod config;
mod host_tier;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use self::block_cache::{BlockCache, Lease};
pub(crate) use self::changes::Change;
pub use self::config::EngineConfig;
use self::host_tier::HostTier;

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

/// Where the keys and values of a sequence come from, and what becomes of its blocks at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Kv {
    /// Computed here, freed at the end.
    #[default]
    Local,
    /// Computed here; the blocks stay occupied after the end, until [`Engine::abort`]: another worker will read them.
    Kept,
    /// The prompt comes from another worker: the sequence gets its blocks and waits for [`Engine::arrived`].
    Remote,
    /// So many leading blocks of the prompt are in a shared store; those that are not in the cache are copied from there,
    /// at the speed of the host tier.
    Stored(u32),
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
    /// Prompt tokens that another worker or a store supplies.
    pub(crate) external_tokens: u32,
    /// It has its blocks, and waits for the keys and values of another worker.
    pub(crate) reserved: bool,
    /// Answer tokens produced so far.
    pub(crate) produced: u32,
    pub(crate) done: bool,
}

/// Forward passes of which each does the same: one with prefill, or decoding alone until a sequence ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passes {
    /// At least 1.
    pub(crate) count: u64,
    /// Nanoseconds of the prompts' tokens.
    prefill_ns: f64,
    /// Nanoseconds of the first pass, its prefill apart.
    first_ns: f64,
    /// Nanoseconds that each later pass takes more than the one before: the context has grown.
    growth_ns: f64,
}

impl Passes {
    /// How long so many of them take on the modelled GPU.
    pub(crate) fn cost(&self, count: u64) -> Duration {
        let count = count as f64;
        let grown = self.growth_ns * count * (count - 1.0) / 2.0;
        Duration::from_nanos((self.prefill_ns + self.first_ns * count + grown).round() as u64)
    }
}

/// Totals since start, in vLLM's terms (`/metrics`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) queried_tokens: u64,
    pub(crate) hit_tokens: u64,
    /// Prompt tokens that another worker or a store supplied.
    pub(crate) external_tokens: u64,
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
    /// Sequences that wait for keys and values of another worker; not in `waiting`.
    pub(crate) deferred: usize,
    /// Share of blocks that are in use, 0 to 1: by sequences that run or wait for a transfer, and by ended ones whose
    /// blocks are kept. Cached but idle blocks do not count.
    pub(crate) cache_usage: f64,
}

#[derive(Debug)]
struct Waiting {
    sequence: Sequence,
    kv: Kv,
}

#[derive(Debug)]
struct Running {
    sequence: Sequence,
    kv: Kv,
    lease: Lease,
    cached_tokens: u32,
    external_tokens: u32,
    /// Of these, tokens that the next pass has to copy from the host.
    on_host: u32,
    /// Tokens of prompt and answer whose keys and values are in the cache.
    computed: u32,
    /// Prompt tokens that the pass under way computes.
    chunk: u32,
    produced: u32,
    /// Leading entries of `chain` that were hit or offered to the cache.
    stored: usize,
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Engine {
    config: EngineConfig,
    cache: BlockCache,
    host: HostTier,
    waiting: VecDeque<Waiting>,
    waiting_tokens: u64,
    /// They have blocks and wait for the keys and values of another worker.
    receiving: Vec<Running>,
    /// Their keys and values came; they run as soon as there is a slot.
    ready: VecDeque<Running>,
    running: Vec<Running>,
    /// Blocks of ended sequences that stay occupied.
    kept: HashMap<u64, Lease>,
    /// Sequences that began to wait for a transfer since the last look.
    reserved: Vec<(u64, Progress)>,
    counters: Counters,
}

impl Engine {
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            cache: BlockCache::new(config.blocks as usize),
            host: HostTier::new(config.host_blocks as usize),
            config,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            receiving: Vec::new(),
            ready: VecDeque::new(),
            running: Vec::new(),
            kept: HashMap::new(),
            reserved: Vec::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len() + self.ready.len(),
            deferred: self.receiving.len(),
            cache_usage: self.cache.used() as f64 / f64::from(self.config.blocks.max(1)),
        }
    }

    /// Whether a whole block is in the cache or on the host.
    pub(crate) fn holds(&self, block: u64) -> bool {
        self.cache.contains(block) || self.host.contains(block)
    }

    /// Prompt tokens of this sequence that would not be computed if it began now.
    pub(crate) fn cached_tokens(&self, sequence: &Sequence) -> u32 {
        let (device, host) = self.matched(self.reusable(sequence));
        (device + host) as u32 * self.config.block_tokens
    }

    /// Prompt tokens left to compute, and context tokens, of the sequences that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = (u64, u32, u32)> {
        self.running.iter().map(|seq| {
            let left = seq.sequence.prompt_tokens.saturating_sub(seq.computed);
            (
                seq.sequence.id,
                left,
                seq.sequence.prompt_tokens.max(seq.computed),
            )
        })
    }

    /// Queues a sequence, or refuses it by a queue limit. One that is longer than the whole cache gets all of it: vLLM
    /// would refuse it (`max_model_len`).
    ///
    /// As in vLLM, limits look at the queue alone: a burst between two steps is refused even while
    /// slots are free.
    #[cfg(test)]
    pub(crate) fn submit(&mut self, sequence: Sequence) -> Result<(), Refusal> {
        self.submit_with(sequence, Kv::Local)
    }

    /// As [`Engine::submit`], for a sequence that takes part in a transfer.
    pub(crate) fn submit_with(&mut self, sequence: Sequence, kv: Kv) -> Result<(), Refusal> {
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
        self.waiting.push_back(Waiting { sequence, kv });
        Ok(())
    }

    /// The prompt's keys and values of this sequence are here. An unknown id is ignored.
    pub(crate) fn arrived(&mut self, id: u64) {
        let Some(at) = self.receiving.iter().position(|seq| seq.sequence.id == id) else {
            return;
        };
        let mut seq = self.receiving.remove(at);
        self.counters.external_tokens += u64::from(seq.external_tokens);
        // The last token runs once more: its logits are the first answer token.
        seq.computed = seq.sequence.prompt_tokens.saturating_sub(1);
        self.ready.push_back(seq);
    }

    /// Sequences that got their blocks since the last call, and now wait for [`Engine::arrived`].
    pub(crate) fn take_reserved(&mut self) -> Vec<(u64, Progress)> {
        std::mem::take(&mut self.reserved)
    }

    /// Keeps what happens to blocks from now on, for [`Engine::take_changes`].
    pub(crate) fn keep_changes(&mut self) {
        self.cache.changes.keep();
    }

    /// What happened to blocks since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        self.cache.changes.take()
    }

    /// Keeps what happens to blocks on the host, too, from now on, for [`Engine::take_host_changes`].
    pub(crate) fn keep_host_changes(&mut self) {
        self.host.changes.keep();
    }

    /// What happened to blocks on the host since the last call.
    pub(crate) fn take_host_changes(&mut self) -> Vec<Change> {
        self.host.changes.take()
    }

    /// All blocks in the cache, in no order; those on the host are not among them.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        self.cache.blocks()
    }

    /// Forgets what is cached, as a restart does; blocks of running sequences stay until they end.
    pub(crate) fn forget_cache(&mut self) {
        self.cache.clear();
    }

    /// Forgets a sequence and frees its blocks, also those kept after its end; other ids are ignored.
    pub(crate) fn abort(&mut self, id: u64) {
        let is_it = |seq: &Running| seq.sequence.id == id;
        if let Some(at) = self.running.iter().position(is_it) {
            self.cache.release(self.running.remove(at).lease);
        } else if let Some(at) = self.receiving.iter().position(is_it) {
            self.cache.release(self.receiving.remove(at).lease);
        } else if let Some(at) = self.ready.iter().position(is_it) {
            let gone = self.ready.remove(at).expect("position is in range");
            self.cache.release(gone.lease);
        } else if let Some(lease) = self.kept.remove(&id) {
            self.cache.release(lease);
        } else if let Some(at) = self.waiting.iter().position(|seq| seq.sequence.id == id) {
            let gone = self.waiting.remove(at).expect("position is in range");
            self.waiting_tokens -= u64::from(gone.sequence.prompt_tokens);
        }
    }

    /// Plans the next passes, at most so many; `None` when there is nothing to do. [`Engine::finish`] ends them, all or
    /// fewer.
    pub(crate) fn begin(&mut self, passes_max: u64) -> Option<Passes> {
        let decoding = self.running.iter().filter(|seq| seq.is_decoding());
        let (sequences, context) = decoding.fold((0, 0), |(sequences, context), seq| {
            (sequences + 1_u32, context + u64::from(seq.computed))
        });
        let mut budget = self.config.step_tokens_max.max(1).saturating_sub(sequences);
        let mut prefill_ns = 0.0;
        for seq in &mut self.running {
            prefill_ns += seq.plan(&mut budget, &self.config);
        }
        while budget > 0 && self.running.len() < self.config.running_max as usize {
            let Some(mut seq) = self.ready.pop_front().or_else(|| self.admit_next()) else {
                break;
            };
            prefill_ns += seq.plan(&mut budget, &self.config);
            self.running.push(seq);
        }
        let count = if self.running.iter().any(|seq| seq.chunk > 0) {
            1
        } else {
            let left = self.running.iter().filter(|seq| seq.is_decoding());
            let left = left.map(|seq| seq.sequence.answer_tokens - seq.produced);
            u64::from(left.min()?).clamp(1, passes_max.max(1))
        };
        let nanos = |time: Duration| time.as_nanos() as f64;
        let config = &self.config;
        let growth_ns = f64::from(sequences) * config.step_per_context_token_ns;
        Some(Passes {
            count,
            prefill_ns,
            first_ns: nanos(config.step_base)
                + nanos(config.step_per_sequence) * f64::from(sequences)
                + context as f64 * config.step_per_context_token_ns,
            growth_ns,
        })
    }

    /// So many of the planned passes are over: tokens for those whose prompt is complete, computed blocks into the
    /// cache, ended sequences out. Answers who got a token or ended.
    pub(crate) fn finish(&mut self, passes: u64) -> Vec<(u64, Progress)> {
        let mut progress = Vec::with_capacity(self.running.len());
        let block_tokens = self.config.block_tokens;
        let (cache, host, counters) = (&mut self.cache, &mut self.host, &mut self.counters);
        let kept = &mut self.kept;
        self.running.retain_mut(|seq| {
            let got = seq.advance(passes as u32, counters);
            let whole = (seq.computed / block_tokens) as usize;
            let whole = whole.min(seq.sequence.chain.len());
            for at in seq.stored.min(whole)..whole {
                let chain = &seq.sequence.chain;
                let parent = at.checked_sub(1).map(|before| chain[before]);
                cache.store_behind(&mut seq.lease, parent, chain[at]);
            }
            seq.stored = seq.stored.max(whole);
            progress.extend(got.map(|progress| (seq.sequence.id, progress)));
            let done = got.is_some_and(|progress| progress.done);
            if done {
                host.touch(&seq.sequence.chain[..whole]);
                let lease = std::mem::take(&mut seq.lease);
                match seq.kv {
                    Kv::Kept => drop(kept.insert(seq.sequence.id, lease)),
                    _ => cache.release(lease),
                }
            }
            !done
        });
        progress
    }

    /// Whole blocks of the prompt. Its last token is always computed: its logits are the first answer token.
    fn reusable<'a>(&self, sequence: &'a Sequence) -> &'a [u64] {
        let whole = (sequence.prompt_tokens.saturating_sub(1) / self.config.block_tokens) as usize;
        &sequence.chain[..whole.min(sequence.chain.len())]
    }

    /// Leading blocks in the cache, and those behind them on the host.
    fn matched(&self, reusable: &[u64]) -> (usize, usize) {
        let device = self.cache.matched(reusable);
        let rest = reusable[device..].iter();
        let host = rest.take_while(|&&block| self.host.contains(block));
        (device, host.count())
    }

    /// Takes the next sequence that can run from the queue, when the cache has room for it. Those in front of it whose
    /// prompt comes from another worker get their blocks, too, and wait aside.
    fn admit_next(&mut self) -> Option<Running> {
        loop {
            let seq = self.admit_head()?;
            if seq.kv != Kv::Remote {
                return Some(seq);
            }
            let progress = Progress {
                reserved: true,
                ..seq.progress()
            };
            self.reserved.push((seq.sequence.id, progress));
            self.receiving.push(seq);
        }
    }

    /// Takes the head of the queue when the cache has room for it.
    fn admit_head(&mut self) -> Option<Running> {
        let Waiting { sequence: head, kv } = self.waiting.front()?;
        let kv = *kv;
        let block = self.config.block_tokens;
        let blocks = (head.prompt_tokens + head.answer_tokens).div_ceil(block);
        let reusable = self.reusable(head);
        let (_, on_host) = self.matched(reusable);
        let whole = reusable.len() as u32;
        let blocks = blocks.min(self.config.blocks) as usize;
        let (mut lease, hits) = self.cache.admit(reusable, blocks)?;

        let Waiting { sequence, .. } = self.waiting.pop_front().expect("front was there");
        lease.owner = sequence.id;
        let on_host = on_host as u32 * block;
        let cached_tokens = hits as u32 * block + on_host;
        let external_tokens = match kv {
            Kv::Local | Kv::Kept => 0,
            Kv::Remote => sequence.prompt_tokens - cached_tokens,
            Kv::Stored(stored) => (stored.min(whole) * block).saturating_sub(cached_tokens),
        };
        self.waiting_tokens -= u64::from(sequence.prompt_tokens);
        self.counters.queried_tokens += u64::from(sequence.prompt_tokens);
        self.counters.hit_tokens += u64::from(cached_tokens);
        let mut copied = on_host;
        if let Kv::Stored(_) = kv {
            self.counters.external_tokens += u64::from(external_tokens);
            copied += external_tokens;
        }
        Some(Running {
            kv,
            lease,
            cached_tokens,
            external_tokens,
            on_host: copied,
            computed: cached_tokens + external_tokens,
            chunk: 0,
            produced: 0,
            stored: hits,
            sequence,
        })
    }
}

impl Running {
    fn is_decoding(&self) -> bool {
        self.computed >= self.sequence.prompt_tokens
    }

    /// Takes as much of the prompt as `budget` allows into the next pass; the nanoseconds that it costs.
    fn plan(&mut self, budget: &mut u32, config: &EngineConfig) -> f64 {
        let left = self.sequence.prompt_tokens.saturating_sub(self.computed);
        self.chunk = left.min(*budget);
        *budget -= self.chunk;
        if self.chunk == 0 {
            return 0.0;
        }
        let tokens = f64::from(self.chunk);
        let pairs = tokens * (f64::from(self.computed) + tokens / 2.0);
        let copied = f64::from(std::mem::take(&mut self.on_host));
        tokens * 1e9 / config.prefill_tokens_per_s
            + pairs * config.attention_pair_ns
            + copied * config.host_token_ns
    }

    /// What the passes did for it: nothing to report while its prompt is incomplete.
    fn advance(&mut self, passes: u32, counters: &mut Counters) -> Option<Progress> {
        if self.is_decoding() {
            self.computed += passes;
            self.produced += passes;
            counters.generated_tokens += u64::from(passes);
        } else {
            self.computed += std::mem::take(&mut self.chunk);
            if !self.is_decoding() {
                return None;
            }
            counters.prompt_tokens += u64::from(self.sequence.prompt_tokens);
            // An embedding has no token.
            self.produced = self.sequence.answer_tokens.min(1);
            counters.generated_tokens += u64::from(self.produced);
        }
        Some(Progress {
            produced: self.produced,
            done: self.produced >= self.sequence.answer_tokens,
            ..self.progress()
        })
    }

    /// What is known before the first token.
    fn progress(&self) -> Progress {
        Progress {
            cached_tokens: self.cached_tokens,
            external_tokens: self.external_tokens,
            ..Progress::default()
        }
    }
}
