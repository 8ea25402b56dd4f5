//! What is in the caches, for people: by prefix and by worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use grapevine_kv_events::Tier;
use grapevine_kv_events::index::{PARTS, Search};
use grapevine_kv_events::texts::{Prefix, TextName};
use serde::Serialize;

use super::caches::Caches;

/// Prefixes whose holders are looked up: so many of the longest, and so many of those that most texts begin with.
const LOOKED_UP: usize = 500;

/// `GET /cache`.
#[derive(Debug, Serialize)]
pub struct CacheView {
    /// By the room that they take, on all workers together.
    prefixes: Vec<PrefixView>,
    workers: Vec<WorkerView>,
}

#[derive(Debug, Serialize)]
struct PrefixView {
    /// The name by which engines know it; null for what nobody has named.
    name: Option<String>,
    /// Length from the beginning, in tokens.
    tokens: u64,
    /// The same without what shorter prefixes have.
    own_tokens: u64,
    /// Remembered texts that begin with it.
    texts: u32,
    /// Tokens of room that its own part takes, on all workers together.
    held_tokens: u64,
    /// Who has how many of its tokens, the most first.
    workers: Vec<HolderView>,
}

#[derive(Debug, Serialize)]
struct HolderView {
    worker: Arc<str>,
    tokens: u64,
}

#[derive(Debug, Default, Serialize)]
struct WorkerView {
    worker: Arc<str>,
    /// Tokens that it holds, by where they lie.
    tokens: BTreeMap<&'static str, u64>,
    /// Tokens that no other worker holds: what would be lost with it.
    only_here_tokens: u64,
}

/// An engine, by the number of its holder.
struct Engine {
    worker: Arc<str>,
    bits: u64,
    block_tokens: u64,
    blocks: [u32; Tier::ALL.len()],
}

impl Caches {
    /// What is in the caches: so many prefixes, and all workers that publish. Takes some milliseconds, and waits for locks
    /// that decisions take.
    pub fn top(&self, count: usize) -> CacheView {
        let engines = self.engines_by_holder();
        let mut prefixes: Vec<_> = self
            .chosen()
            .into_iter()
            .filter_map(|prefix| self.describe_prefix(prefix, &engines))
            .collect();
        prefixes.sort_by(|a, b| (b.held_tokens, &a.name).cmp(&(a.held_tokens, &b.name)));
        prefixes.truncate(count);
        CacheView {
            prefixes,
            workers: self.describe_workers(&engines),
        }
    }

    fn engines_by_holder(&self) -> BTreeMap<usize, Engine> {
        let mut engines = BTreeMap::new();
        for ((worker, _), engine) in self.listed() {
            let state = engine.state();
            let Some(holder) = state.publisher.holder() else {
                continue;
            };
            let index = self.index();
            let engine = Engine {
                worker,
                bits: holder.bits(),
                block_tokens: state.publisher.block_tokens().into(),
                blocks: Tier::ALL.map(|tier| index.held(holder, tier)),
            };
            engines.insert(holder.number(), engine);
        }
        engines
    }

    /// Those that may take most room.
    fn chosen(&self) -> Vec<Prefix> {
        let mut prefixes = self.texts().prefixes();
        let own = |prefix: &Prefix| prefix.blocks - prefix.before;
        prefixes.sort_unstable_by_key(|prefix| std::cmp::Reverse((own(prefix), prefix.name)));
        let mut others = prefixes.split_off(prefixes.len().min(LOOKED_UP));
        others.sort_unstable_by_key(|prefix| std::cmp::Reverse((prefix.texts, prefix.name)));
        prefixes.extend(others.into_iter().take(LOOKED_UP));
        prefixes
    }

    /// None for one that nobody holds.
    fn describe_prefix(
        &self,
        prefix: Prefix,
        engines: &BTreeMap<usize, Engine>,
    ) -> Option<PrefixView> {
        let (mut chain, mut search) = (Vec::new(), Search::default());
        self.texts().chain_of(&prefix, &mut chain);
        let mut by_worker: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
        let (mut held_tokens, mut block_tokens) = (0, 0);
        for found in self.index().search(&chain, &mut search) {
            let engine = engines.get(&found.holder.number());
            let Some(engine) = engine.filter(|engine| engine.bits == found.holder.bits()) else {
                continue;
            };
            let own = found.blocks.saturating_sub(prefix.before);
            if own == 0 {
                continue;
            }
            block_tokens = engine.block_tokens;
            held_tokens += u64::from(own) * engine.block_tokens;
            let tokens = by_worker.entry(&engine.worker).or_default();
            *tokens = (*tokens).max(u64::from(found.blocks) * engine.block_tokens);
        }
        let mut workers: Vec<_> = by_worker
            .into_iter()
            .map(|(worker, tokens)| HolderView {
                worker: Arc::clone(worker),
                tokens,
            })
            .collect();
        workers.sort_by(|a, b| (b.tokens, &a.worker).cmp(&(a.tokens, &b.worker)));
        let name = prefix.name.map(|whole| TextName {
            whole,
            common: None,
        });
        (held_tokens > 0).then(|| PrefixView {
            name: name.map(|name| name.to_string()),
            tokens: u64::from(prefix.blocks) * block_tokens,
            own_tokens: u64::from(prefix.blocks - prefix.before) * block_tokens,
            texts: prefix.texts,
            held_tokens,
            workers,
        })
    }

    fn describe_workers(&self, engines: &BTreeMap<usize, Engine>) -> Vec<WorkerView> {
        let mut alone = Vec::new();
        for part in 0..PARTS {
            self.index().count_alone(part, &mut alone);
        }
        let mut workers: BTreeMap<&Arc<str>, WorkerView> = BTreeMap::new();
        for (number, engine) in engines {
            let view = workers.entry(&engine.worker).or_default();
            view.worker = Arc::clone(&engine.worker);
            for (tier, blocks) in Tier::ALL.into_iter().zip(engine.blocks) {
                let tokens = view.tokens.entry(tier.as_str()).or_default();
                *tokens += u64::from(blocks) * engine.block_tokens;
            }
            let alone = alone.get(*number).copied().unwrap_or(0);
            view.only_here_tokens += u64::from(alone) * engine.block_tokens;
        }
        workers.into_values().collect()
    }
}
