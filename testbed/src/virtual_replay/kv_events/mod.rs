//! KV events: what each replica has heard of the workers' caches, some time after it happened.
//!
//! Each worker sends a message of what its last passes stored and removed. Every replica applies it to a copy of its
//! own, after a delay of its own. The blocks of a prompt are then looked up in these copies. A router that cannot
//! tokenize knows these blocks only as far as it has seen the same text before ([`learned`]).

mod learned;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use grapevine_placement::{Candidate, Told};

use self::learned::Learned;
use super::scenario::{Scenario, chance};
use super::workload::Request;
use crate::engine::Change;

/// Time in which replicas tell each other what they have learned, batching included.
const TELL_US: u64 = 10_000;

/// What the replicas hear of the workers' caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvEvents {
    /// Mean time from a change until a replica knows of it, in µs. Each message takes from half of that to one and a
    /// half times as long, drawn for each replica; none overtakes another one of the same worker.
    pub delay_us: u64,
    /// For which part of a prompt the blocks are known.
    pub extent: Extent,
}

/// For which part of a prompt a replica knows the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it, as with a tokenizer.
    Whole,
    /// As far as the replica's own earlier requests have shown them.
    Learned,
    /// As far as earlier requests of any replica have shown them: replicas tell each other.
    Shared,
}

impl KvEvents {
    /// `events@5ms`: of whole prompts; `learned@5ms`: as far as the replica has learned them; `shared@5ms`: as far
    /// as any replica has. `None` if it is none of these.
    pub fn named(name: &str) -> Option<Self> {
        let (extent, delay) = name.split_once('@')?;
        let extent = match extent {
            "events" => Extent::Whole,
            "learned" => Extent::Learned,
            "shared" => Extent::Shared,
            _ => return None,
        };
        let delay: Duration = humantime::parse_duration(delay).ok()?;
        Some(Self {
            delay_us: u64::try_from(delay.as_micros()).ok()?,
            extent,
        })
    }
}

/// A replica's copy of one worker's cache.
#[derive(Debug, Default)]
struct Copy {
    /// On their way, in order: when they are there, and what they say.
    messages: VecDeque<(u64, Rc<[Change]>)>,
    /// In how many tiers each block is.
    blocks: HashMap<u64, u32>,
    /// It hears nothing of this worker.
    is_deaf: bool,
}

impl Copy {
    fn catch_up(&mut self, now_us: u64) {
        while self.messages.front().is_some_and(|&(at, _)| at <= now_us) {
            let (_, changes) = self.messages.pop_front().expect("there is a first one");
            for &change in &*changes {
                self.apply(change);
            }
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored { block, .. } => *self.blocks.entry(block).or_default() += 1,
            Change::Removed(block) => {
                let count = self.blocks.get_mut(&block).expect("it was stored before");
                *count -= 1;
                if *count == 0 {
                    self.blocks.remove(&block);
                }
            }
        }
    }

    /// Leading blocks that are there.
    fn matched(&self, chain: &[u64]) -> u32 {
        let held = chain
            .iter()
            .take_while(|&block| self.blocks.contains_key(block));
        held.count() as u32
    }
}

/// What one replica knows.
#[derive(Debug)]
struct Listener {
    copies: Vec<Copy>,
    learned: Learned,
}

/// What all replicas know.
#[derive(Debug)]
pub(super) struct Heard {
    events: KvEvents,
    block_tokens: u32,
    seed: u64,
    messages: u64,
    listeners: Vec<Listener>,
}

impl Heard {
    /// Nothing is heard yet, and all caches are empty. The first replica never hears of the first
    /// [`Scenario::unheard_workers`].
    pub(super) fn new(events: KvEvents, scenario: &Scenario, block_tokens: u32) -> Self {
        let copy = |replica: usize, worker: usize| Copy {
            is_deaf: replica == 0 && worker < scenario.unheard_workers,
            ..Copy::default()
        };
        let listener = |replica| Listener {
            copies: (0..scenario.all_workers())
                .map(|worker| copy(replica, worker))
                .collect(),
            learned: Learned::default(),
        };
        Self {
            events,
            block_tokens,
            seed: scenario.seed,
            messages: 0,
            listeners: (0..scenario.replicas).map(listener).collect(),
        }
    }

    /// A worker says what has happened to its cache.
    pub(super) fn publish(&mut self, now_us: u64, worker: usize, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        self.messages += 1;
        let changes: Rc<[Change]> = changes.into();
        for (replica, listener) in self.listeners.iter_mut().enumerate() {
            let copy = &mut listener.copies[worker];
            if copy.is_deaf {
                continue;
            }
            let share = 0.5 + chance(self.seed ^ 3, worker, replica, self.messages);
            let at_us = now_us + (self.events.delay_us as f64 * share) as u64;
            let at_us = copy.messages.back().map_or(at_us, |&(at, _)| at_us.max(at));
            copy.messages.push_back((at_us, Rc::clone(&changes)));
        }
    }

    /// A worker has computed a prompt that this replica sent: which blocks its text became is known once the events are
    /// here.
    pub(super) fn computed(&mut self, now_us: u64, replica: usize, request: &Request) {
        let whole = (request.in_tokens / self.block_tokens) as usize;
        let chain = &request.blocks[..whole.min(request.blocks.len())];
        self.learn(now_us, replica, chain);
    }

    /// And it has answered.
    pub(super) fn answered(&mut self, now_us: u64, replica: usize, request: &Request) {
        let whole = (request.in_tokens / self.block_tokens) as usize;
        let mut chain = request.blocks[..whole.min(request.blocks.len())].to_vec();
        chain.extend(&request.answer);
        self.learn(now_us, replica, &chain);
    }

    fn learn(&mut self, now_us: u64, replica: usize, chain: &[u64]) {
        let at_us = now_us + self.events.delay_us;
        for (to, listener) in self.listeners.iter_mut().enumerate() {
            let late_us = match self.events.extent {
                Extent::Learned | Extent::Shared if to == replica => 0,
                Extent::Shared => TELL_US,
                Extent::Whole | Extent::Learned => continue,
            };
            listener.learned.expect(at_us + late_us, chain);
        }
    }

    /// Notes what the candidates, which are the workers at these places, say of a prompt.
    pub(super) fn tell(
        &mut self,
        now_us: u64,
        replica: usize,
        places: Range<usize>,
        request: &Request,
        candidates: &mut [Candidate],
    ) {
        let listener = &mut self.listeners[replica];
        let all = request.key.prompt_tokens();
        // The last token is always computed, and only whole blocks are reused.
        let whole = (request.in_tokens.saturating_sub(1) / self.block_tokens) as usize;
        let reusable = &request.blocks[..whole.min(request.blocks.len())];
        let known = match self.events.extent {
            Extent::Whole => reusable,
            Extent::Learned | Extent::Shared => {
                listener.learned.catch_up(now_us);
                &reusable[..listener.learned.known(reusable)]
            }
        };
        // Nothing is known to miss where nothing is known at all.
        if known.is_empty() && self.events.extent != Extent::Whole {
            return;
        }
        let is_whole = known.len() == reusable.len();
        for (copy, candidate) in listener.copies[places].iter_mut().zip(candidates) {
            if copy.is_deaf {
                continue;
            }
            copy.catch_up(now_us);
            let held = copy.matched(known);
            // What follows a block that is not there is of no use, whatever it is.
            let until_tokens = if is_whole || (held as usize) < known.len() {
                all
            } else {
                held * self.block_tokens
            };
            candidate.told = Some(Told {
                held_tokens: (held * self.block_tokens).min(all),
                until_tokens: until_tokens.min(all),
                ..Told::default()
            });
        }
    }
}
