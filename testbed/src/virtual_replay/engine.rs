//! Engine of one worker: continuous batching with chunked prefill, in virtual time.
//!
//! A step takes `base + prefill·tokens + attention·(tokens x context) + sequence·decoding + context·their context`.
//! The terms are a roofline of Llama-3.1-8B in bfloat16 on an H100 SXM (989 TFLOP/s dense, 3.35 TB/s, NVIDIA's data
//! sheet): 16.1 GFLOP of matrices a token at two thirds of the peak (24 µs); 524,288 FLOP a pair of token and context
//! at the rate that FlashAttention-3 reports for causal attention, about 650 TFLOP/s (0.8 ns); 131,072 bytes of
//! keys and values a context token at 2.7 TB/s (48 ns); 16 GB of weights and the launch of a step (6.5 ms).
//! The host tier is read over PCIe 5 at about 50 GB/s (2.6 µs a token). **A model, not a measurement.**
//!
//! Steps without prefill are taken many at a time: nothing changes between two arrivals or ends, so a second of
//! decoding costs as much to simulate as one step.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::cache::{Hit, HostTier};
use crate::fake_worker::cache::{BlockCache, Lease};

const BASE_US: f64 = 6_500.0;
const PREFILL_US: f64 = 24.0;
const ATTENTION_US: f64 = 0.8e-3;
const SEQUENCE_US: f64 = 20.0;
const CONTEXT_US: f64 = 0.048;
const HOST_US: f64 = 2.6;
/// Tokens of one step (vLLM's `max_num_batched_tokens` for online serving on this class of accelerator).
const STEP_TOKENS: u32 = 8_192;
/// Sequences at once (vLLM's `max_num_seqs`).
const SEQUENCES_MAX: usize = 256;

/// Cache of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
    /// Tokens in the accelerator: 80 GB less weights and activations leave about 400,000.
    pub device_tokens: u32,
    /// Tokens on the host, 0 without a tier.
    pub host_tokens: u32,
}

/// A request on its worker.
#[derive(Debug)]
pub(super) struct Job {
    /// Index of the request.
    pub(super) request: usize,
    pub(super) blocks: Vec<u64>,
    /// The whole blocks that follow the prompt's whole blocks when all is answered.
    pub(super) answer: Vec<u64>,
    pub(super) in_tokens: u32,
    pub(super) out_tokens: u32,
}

/// What a worker did by the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The first token of a request, and how many tokens of its prompt were cached.
    First { request: usize, cached: u32 },
    /// The last one.
    Last { request: usize },
}

struct Sequence {
    job: Job,
    lease: Lease,
    cached: u32,
    /// Tokens of the prompt that are in the cache by now.
    computed: u32,
    stored: usize,
    load_us: f64,
}

/// One worker.
pub(super) struct Engine {
    block_tokens: u32,
    /// A prompt that needs more gets these: vLLM would refuse it.
    cache_blocks: usize,
    cache: BlockCache,
    host: HostTier,
    /// With the tokens that each was counted with as pending.
    waiting: VecDeque<(Job, u64)>,
    prefilling: VecDeque<Sequence>,
    decoding: HashMap<usize, Sequence>,
    /// (number of the decode step after which it ends, request), the next end first.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    decode_steps: u64,
    /// Context of all decoding sequences now.
    context: f64,
    /// Blocks that requests on this worker will have stored.
    promised: HashMap<u64, u32>,
    /// Tokens of prompts that still have to be computed.
    pending: u64,
    /// The step that runs: when it ends, and how many plain decode steps it stands for.
    running: Option<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    start_us: u64,
    end_us: u64,
    /// 0: a step with prefill.
    decode_only: u64,
}

impl Engine {
    pub(super) fn new(block_tokens: u32, size: CacheSize) -> Self {
        let cache_blocks = (size.device_tokens / block_tokens) as usize;
        Self {
            block_tokens,
            cache_blocks,
            cache: BlockCache::new(cache_blocks),
            host: HostTier::new((size.host_tokens / block_tokens) as usize),
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            decoding: HashMap::new(),
            ends: BinaryHeap::new(),
            decode_steps: 0,
            context: 0.0,
            promised: HashMap::new(),
            pending: 0,
            running: None,
        }
    }

    /// Requests here.
    pub(super) fn requests(&self) -> usize {
        self.waiting.len() + self.prefilling.len() + self.decoding.len()
    }

    /// Tokens of prompts here that still have to be computed.
    pub(super) fn pending_tokens(&self) -> u64 {
        self.pending
    }

    /// Context tokens of all requests here.
    pub(super) fn context_tokens(&self) -> f64 {
        let waiting: u64 = self
            .waiting
            .iter()
            .map(|(job, _)| u64::from(job.in_tokens))
            .sum();
        let prefilling: u64 = self
            .prefilling
            .iter()
            .map(|s| u64::from(s.job.in_tokens))
            .sum();
        self.context + (waiting + prefilling) as f64
    }

    /// Tokens of a prompt that this worker holds, or will hold once what is here has been computed.
    pub(super) fn matched_tokens(&self, blocks: &[u64], in_tokens: u32) -> u32 {
        let reusable = self.reusable(blocks, in_tokens);
        let matched = reusable
            .iter()
            .take_while(|&&block| {
                self.promised.contains_key(&block)
                    || self.host.contains(block)
                    || self.cache.matched(&[block]) == 1
            })
            .count();
        matched as u32 * self.block_tokens
    }

    /// Takes a request. Answers when to call [`Engine::advance`] next, if that changed.
    pub(super) fn submit(&mut self, now_us: u64, job: Job) -> Option<u64> {
        for &block in self.reusable(&job.blocks, job.in_tokens).to_vec().iter() {
            *self.promised.entry(block).or_default() += 1;
        }
        let known = self.matched(self.reusable(&job.blocks, job.in_tokens));
        let cached = (known.device + known.host) as u32 * self.block_tokens;
        let new = u64::from(job.in_tokens - cached);
        self.pending += new;
        self.waiting.push_back((job, new));
        match self.running {
            None => self.begin(now_us),
            // Many decode steps in one: cut at the end of the step that runs now.
            Some(step) if step.decode_only > 1 => {
                let done = self.steps_by(now_us - step.start_us, step.decode_only) + 1;
                let end_us = step.start_us + self.decode_us(done.min(step.decode_only));
                self.running = Some(Step {
                    decode_only: done.min(step.decode_only),
                    end_us,
                    ..step
                });
                Some(end_us)
            }
            Some(_) => None,
        }
    }

    /// The running step ends at `now_us`; reports what came of it and answers when the next one ends.
    /// A call for a step that was cut or ended meanwhile does nothing.
    pub(super) fn advance(&mut self, now_us: u64, done: &mut Vec<Done>) -> Option<u64> {
        let step = self.running.filter(|step| step.end_us == now_us)?;
        self.running = None;
        let steps = step.decode_only.max(1);
        self.decode_steps += steps;
        self.context += (steps * self.decoding.len() as u64) as f64;
        while let Some(&Reverse((end, request))) = self.ends.peek() {
            if end > self.decode_steps {
                break;
            }
            self.ends.pop();
            self.finish(request, done);
        }
        if step.decode_only == 0 {
            self.end_prefill(done);
        }
        self.begin(now_us)
    }

    fn reusable<'a>(&self, blocks: &'a [u64], in_tokens: u32) -> &'a [u64] {
        // The last token is always computed, and only whole blocks are reused.
        let whole = (in_tokens.saturating_sub(1) / self.block_tokens) as usize;
        &blocks[..whole.min(blocks.len())]
    }

    fn matched(&self, reusable: &[u64]) -> Hit {
        let device = self.cache.matched(reusable);
        let rest = reusable[device..].iter();
        Hit {
            device,
            host: rest.take_while(|&&block| self.host.contains(block)).count(),
        }
    }

    /// Starts the next step, if there is anything to do.
    fn begin(&mut self, now_us: u64) -> Option<u64> {
        self.admit();
        let (us, decode_only) = if self.prefilling.is_empty() {
            let &Reverse((end, _)) = self.ends.peek()?;
            let steps = end - self.decode_steps;
            (self.decode_us(steps), steps)
        } else {
            (self.prefill_us(), 0)
        };
        let end_us = now_us + us.max(1);
        self.running = Some(Step {
            start_us: now_us,
            end_us,
            decode_only,
        });
        Some(end_us)
    }

    fn admit(&mut self) {
        while let Some((job, _)) = self.waiting.front() {
            // A prompt behind others waits until their prefill leaves room in a step.
            let queued: u32 = self
                .prefilling
                .iter()
                .map(|s| s.job.in_tokens - s.computed)
                .sum();
            if queued >= STEP_TOKENS || self.prefilling.len() + self.decoding.len() >= SEQUENCES_MAX
            {
                return;
            }
            let reusable = self.reusable(&job.blocks, job.in_tokens);
            let hit = self.matched(reusable);
            let needed = (job.in_tokens + job.out_tokens).div_ceil(self.block_tokens) as usize;
            let Some((lease, _)) = self.cache.admit(reusable, needed.min(self.cache_blocks)) else {
                return;
            };
            let cached = (hit.device + hit.host) as u32 * self.block_tokens;
            let (job, counted) = self.waiting.pop_front().expect("it was in front");
            self.pending = self.pending - counted + u64::from(job.in_tokens - cached);
            self.prefilling.push_back(Sequence {
                lease,
                cached,
                computed: cached,
                stored: hit.device,
                load_us: f64::from(hit.host as u32 * self.block_tokens) * HOST_US,
                job,
            });
        }
    }

    /// Duration of a step with prefill: decoding sequences first, chunks with the rest of its tokens.
    fn prefill_us(&self) -> u64 {
        let mut us = BASE_US + self.decode_term();
        let mut budget = STEP_TOKENS.saturating_sub(self.decoding.len() as u32);
        for sequence in &self.prefilling {
            let chunk = budget.min(sequence.job.in_tokens - sequence.computed);
            let context = f64::from(sequence.computed) + f64::from(chunk) / 2.0;
            us += f64::from(chunk) * (PREFILL_US + ATTENTION_US * context) + sequence.load_us;
            budget -= chunk;
            if budget == 0 {
                break;
            }
        }
        us as u64
    }

    fn end_prefill(&mut self, done: &mut Vec<Done>) {
        let mut budget = STEP_TOKENS.saturating_sub(self.decoding.len() as u32);
        let mut left = VecDeque::new();
        while let Some(mut sequence) = self.prefilling.pop_front() {
            let chunk = budget.min(sequence.job.in_tokens - sequence.computed);
            budget -= chunk;
            sequence.computed += chunk;
            if chunk > 0 {
                sequence.load_us = 0.0;
            }
            self.pending = self.pending.saturating_sub(u64::from(chunk));
            let whole = (sequence.computed / self.block_tokens) as usize;
            let whole = whole.min(sequence.job.blocks.len());
            for &block in &sequence.job.blocks[sequence.stored.min(whole)..whole] {
                self.cache.store(&mut sequence.lease, block);
            }
            sequence.stored = sequence.stored.max(whole);
            if sequence.computed < sequence.job.in_tokens {
                left.push_back(sequence);
                continue;
            }
            let request = sequence.job.request;
            done.push(Done::First {
                request,
                cached: sequence.cached,
            });
            self.context += f64::from(sequence.job.in_tokens);
            let end = self.decode_steps + u64::from(sequence.job.out_tokens) - 1;
            let ended = sequence.job.out_tokens == 1;
            self.decoding.insert(request, sequence);
            if ended {
                self.finish(request, done);
            } else {
                self.ends.push(Reverse((end, request)));
            }
        }
        self.prefilling = left;
    }

    fn finish(&mut self, request: usize, done: &mut Vec<Done>) {
        let mut sequence = self.decoding.remove(&request).expect("it was decoding");
        let answered = f64::from(sequence.job.out_tokens - 1);
        self.context -= f64::from(sequence.job.in_tokens) + answered;
        let reusable = self.reusable(&sequence.job.blocks, sequence.job.in_tokens);
        for block in reusable {
            if let Some(count) = self.promised.get_mut(block) {
                *count -= 1;
                if *count == 0 {
                    self.promised.remove(block);
                }
            }
        }
        // The blocks of the answer enter the cache only now, not as decoding fills them: the lease has had room for
        // them since the admission and nothing pinned is evicted, so evictions are the same, and nobody asks for a part
        // of an answer before its end.
        for &block in &sequence.job.answer {
            self.cache.store(&mut sequence.lease, block);
        }
        let whole = (sequence.job.in_tokens / self.block_tokens) as usize;
        let prompt = &sequence.job.blocks[..whole.min(sequence.job.blocks.len())];
        self.host.touch(&sequence.job.answer);
        self.host.touch(prompt);
        self.cache.release(sequence.lease);
        done.push(Done::Last { request });
    }

    fn decode_term(&self) -> f64 {
        self.decoding.len() as f64 * SEQUENCE_US + self.context * CONTEXT_US
    }

    /// Duration of so many steps of decoding alone: the context grows by one token a sequence and step.
    fn decode_us(&self, steps: u64) -> u64 {
        let (steps, sequences) = (steps as f64, self.decoding.len() as f64);
        let growth = CONTEXT_US * sequences * steps * (steps - 1.0) / 2.0;
        (steps * (BASE_US + self.decode_term()) + growth) as u64
    }

    /// Whole decode steps within a time, at most `limit`.
    fn steps_by(&self, us: u64, limit: u64) -> u64 {
        let (mut low, mut high) = (0, limit);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.decode_us(middle) <= us {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}
