//! The engine of one worker in virtual time: passes of the model become events, and an arrival cuts what is under way.

use std::collections::HashMap;

use super::gaps::Gaps;
use crate::engine::{Change, Engine, EngineConfig, Kv, Passes, Sequence};

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
    /// Where its keys and values come from.
    pub(super) kv: Kv,
}

/// What a worker did by the end of its passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The first token of a request, and how many tokens of its prompt were cached.
    First { request: usize, cached: u32 },
    /// The last one.
    Last { request: usize },
}

/// One worker.
pub(super) struct TimedEngine {
    block_tokens: u32,
    engine: Engine,
    /// By request, from its arrival to its last token.
    jobs: HashMap<usize, Here>,
    /// Blocks that requests on this worker will have stored.
    promised: HashMap<u64, u32>,
    underway: Option<Underway>,
}

/// What is known of a request on this worker.
struct Here {
    in_tokens: u32,
    /// Tokens of its prompt that had to be computed when it came.
    new_tokens: u32,
    /// Whole blocks of its prompt that it promises.
    promised: Vec<u64>,
}

/// Passes that run.
#[derive(Debug, Clone, Copy)]
struct Underway {
    start_us: u64,
    end_us: u64,
    passes: Passes,
    /// How many of the planned ones are run.
    count: u64,
}

impl TimedEngine {
    /// `step_tokens`: tokens that one step may process (vLLM: `--max-num-batched-tokens`).
    pub(super) fn new(block_tokens: u32, size: CacheSize, step_tokens: u32) -> Self {
        let engine = Engine::new(EngineConfig {
            block_tokens,
            blocks: size.device_tokens / block_tokens,
            host_blocks: size.host_tokens / block_tokens,
            step_tokens_max: step_tokens,
            ..EngineConfig::llama_8b_h100()
        });
        Self {
            block_tokens,
            engine,
            jobs: HashMap::new(),
            promised: HashMap::new(),
            underway: None,
        }
    }

    /// Keeps what happens to blocks, on the device and on the host, for [`TimedEngine::take_changes`].
    pub(super) fn keep_changes(&mut self) {
        self.engine.keep_changes();
        self.engine.keep_host_changes();
    }

    /// What happened to blocks since the last call: first on the device, then on the host. A block may be in both.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = self.engine.take_changes();
        changes.extend(self.engine.take_host_changes());
        changes
    }

    /// Requests here.
    pub(super) fn requests(&self) -> usize {
        self.jobs.len()
    }

    /// Tokens of prompts here that still have to be computed.
    pub(super) fn pending_tokens(&self) -> u64 {
        let all: u64 = self
            .jobs
            .values()
            .map(|job| u64::from(job.new_tokens))
            .sum();
        let begun = self.engine.running().map(|(request, left, _)| {
            let new = self.jobs[&(request as usize)].new_tokens;
            i64::from(new) - i64::from(left)
        });
        all.saturating_add_signed(-begun.sum::<i64>())
    }

    /// Context tokens of all requests here.
    pub(super) fn context_tokens(&self) -> f64 {
        let prompts: u64 = self.jobs.values().map(|job| u64::from(job.in_tokens)).sum();
        let answered = self.engine.running().map(|(request, _, context)| {
            u64::from(context) - u64::from(self.jobs[&(request as usize)].in_tokens)
        });
        (prompts + answered.sum::<u64>()) as f64
    }

    /// Tokens of a prompt that this worker holds, or will hold once what is here has been computed.
    pub(super) fn matched_tokens(&self, blocks: &[u64], in_tokens: u32) -> u32 {
        let matched = self
            .reusable(blocks, in_tokens)
            .iter()
            .take_while(|&&block| self.promised.contains_key(&block) || self.engine.holds(block))
            .count();
        matched as u32 * self.block_tokens
    }

    /// Takes a request. Answers when to call [`TimedEngine::advance`] next, if that changed.
    pub(super) fn submit(&mut self, now_us: u64, job: Job) -> Option<u64> {
        let promised = self.reusable(&job.blocks, job.in_tokens).to_vec();
        for &block in &promised {
            *self.promised.entry(block).or_default() += 1;
        }
        let mut chain = job.blocks;
        chain.truncate((job.in_tokens / self.block_tokens) as usize);
        chain.extend(job.answer);
        let sequence = Sequence {
            id: job.request as u64,
            chain,
            prompt_tokens: job.in_tokens,
            answer_tokens: job.out_tokens,
        };
        let here = Here {
            in_tokens: job.in_tokens,
            new_tokens: match job.kv {
                // All but the last token comes from the other worker.
                Kv::Remote => 1,
                _ => job.in_tokens - self.engine.cached_tokens(&sequence),
            },
            promised,
        };
        self.jobs.insert(job.request, here);
        self.engine
            .submit_with(sequence, job.kv)
            .expect("a queue without limit");
        self.interrupt(now_us)
    }

    /// The keys and values of a request came from another worker. Answers as [`TimedEngine::submit`].
    pub(super) fn arrived(&mut self, now_us: u64, request: usize) -> Option<u64> {
        self.engine.arrived(request as u64);
        self.interrupt(now_us)
    }

    /// Another worker has read what was kept of a request. Answers as [`TimedEngine::submit`].
    pub(super) fn free(&mut self, now_us: u64, request: usize) -> Option<u64> {
        self.engine.abort(request as u64);
        self.interrupt(now_us)
    }

    /// Requests that got blocks since the last call and wait for a transfer, with the tokens that have to come.
    pub(super) fn take_reserved(&mut self) -> Vec<(usize, u32)> {
        let reserved = self.engine.take_reserved().into_iter();
        reserved
            .map(|(id, progress)| (id as usize, progress.external_tokens))
            .collect()
    }

    /// Something changed: what is under way ends with the pass that runs now.
    fn interrupt(&mut self, now_us: u64) -> Option<u64> {
        match &mut self.underway {
            None => self.begin(now_us),
            // Many decode passes in one: cut at the end of the one that runs now.
            Some(underway) if underway.count > 1 => {
                underway.cut(now_us);
                Some(underway.end_us)
            }
            Some(_) => None,
        }
    }

    /// The running passes end at `now_us`; reports what came of them and answers when the next ones end.
    /// A call for passes that were cut or ended meanwhile does nothing.
    pub(super) fn advance(
        &mut self,
        now_us: u64,
        done: &mut Vec<Done>,
        gaps: &mut Gaps,
    ) -> Option<u64> {
        let underway = self.underway.filter(|underway| underway.end_us == now_us)?;
        self.underway = None;
        let pass_us = (underway.end_us - underway.start_us) / underway.count;
        for (id, progress) in self.engine.finish(underway.count) {
            let request = id as usize;
            if progress.produced == 1 {
                let cached = progress.cached_tokens;
                done.push(Done::First { request, cached });
            } else {
                gaps.add(request, pass_us, underway.count);
            }
            if progress.done {
                self.leave(request);
                done.push(Done::Last { request });
            }
        }
        self.begin(now_us)
    }

    fn reusable<'a>(&self, blocks: &'a [u64], in_tokens: u32) -> &'a [u64] {
        // The last token is always computed, and only whole blocks are reused.
        let whole = (in_tokens.saturating_sub(1) / self.block_tokens) as usize;
        &blocks[..whole.min(blocks.len())]
    }

    /// Starts the next passes, if there is anything to do.
    fn begin(&mut self, now_us: u64) -> Option<u64> {
        let passes = self.engine.begin(u64::MAX)?;
        let us = micros(passes, passes.count);
        let end_us = now_us + us.max(1);
        self.underway = Some(Underway {
            start_us: now_us,
            end_us,
            passes,
            count: passes.count,
        });
        Some(end_us)
    }

    fn leave(&mut self, request: usize) {
        let gone = self.jobs.remove(&request).expect("it was here");
        for block in gone.promised {
            if let Some(count) = self.promised.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    self.promised.remove(&block);
                }
            }
        }
    }
}

impl Underway {
    /// Only as many passes as have begun by now.
    fn cut(&mut self, now_us: u64) {
        let elapsed = now_us - self.start_us;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if micros(self.passes, middle) <= elapsed {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        self.count = (low + 1).min(self.count);
        self.end_us = self.start_us + micros(self.passes, self.count);
    }
}

fn micros(passes: Passes, count: u64) -> u64 {
    passes.cost(count).as_micros() as u64
}
