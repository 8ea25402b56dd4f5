//! Texts of which one byte is one token, and an engine that computes them.

#![allow(clippy::disallowed_types, reason = "sets are asked for members only")]

use std::collections::HashSet;

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::texts::{Learned, Speaker, TextName, Texts};
use xxhash_rust::xxh3::xxh3_64;

/// Tokens of a block.
const BLOCK: usize = 4;

pub(crate) fn name_of(text: &[u8]) -> u64 {
    // As the digits carry it.
    xxh3_64(text) & ((1 << 56) - 1)
}

/// The blocks of a text: one byte is one token.
pub(crate) fn blocks_of(text: &[u8]) -> Vec<BlockHash> {
    let whole = text.len() / BLOCK;
    (1..=whole)
        .map(|count| BlockHash(xxh3_64(&text[..count * BLOCK])))
        .collect()
}

pub(crate) const SOMEBODY: Speaker = Speaker {
    engine: 7,
    may_teach: true,
};

/// An engine that stores what it does not have, in chunks of some blocks.
pub(crate) struct Engine {
    pub(crate) has: HashSet<BlockHash>,
    speaker: Speaker,
    /// Its hashes are others than those of engines with another one.
    seed: u64,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl Engine {
    pub(crate) fn new(engine: u32, seed: u64) -> Self {
        Self {
            has: HashSet::new(),
            speaker: Speaker {
                engine,
                may_teach: true,
            },
            seed,
        }
    }

    /// What the texts made of each event.
    pub(crate) fn run(
        &mut self,
        texts: &mut Texts,
        name: TextName,
        prompt: &[u8],
        answer: &[u8],
        chunk: usize,
    ) -> Vec<Learned> {
        let mut all = blocks_of(&[prompt, answer].concat());
        all.iter_mut().for_each(|block| block.0 ^= self.seed);
        let mut learned = Vec::new();
        let prompt_blocks = prompt.len() / BLOCK;
        let hit = all[..prompt_blocks]
            .iter()
            .take_while(|block| self.has.contains(block))
            .count();
        let mut parent = hit.checked_sub(1).map(|last| all[last]);
        let prefill = all[hit..prompt_blocks].chunks(chunk.max(1));
        let decode = all[prompt_blocks..].chunks(1);
        for blocks in prefill.chain(decode) {
            let new = blocks.iter().any(|block| !self.has.contains(block));
            if new {
                learned.push(
                    texts
                        .learn(self.speaker, Some(name), parent, blocks)
                        .learned,
                );
            }
            self.has.extend(blocks);
            parent = blocks.last().copied();
        }
        learned
    }
}

pub(crate) fn whole(text: &[u8]) -> TextName {
    TextName {
        whole: name_of(text),
        common: None,
    }
}

pub(crate) fn found(texts: &mut Texts, text: &[u8]) -> Option<(u32, Vec<BlockHash>)> {
    let (_, found) = texts.find([name_of(text)])?;
    let mut chain = Vec::new();
    texts.chain(&found, &mut chain);
    assert_eq!(chain.len(), found.blocks as usize);
    Some((found.prompt_blocks, chain))
}
