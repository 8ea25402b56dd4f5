//! Which blocks a text became, learned from what engines publish; no tokenizer, no template.
//!
//! A router names the text of each request that it sends, in the request's session id ([`TextName`]), and vLLM repeats
//! that with every block that the request stores. So all who hear an engine learn the same: this text became these
//! blocks. Engines that compute block hashes alike teach each other's: [`crate::hash`] says which do.
//!
//! A text that comes again, or with more behind it, is found by its name, and its blocks are looked up in the
//! [`crate::index`]. Of texts that begin alike the router names what they have in common, too: where the second one
//! leaves the chain of the first is where that common part ends.
//!
//! What follows a prompt's own blocks is the answer. It is part of the next turn of a conversation.

#![allow(
    clippy::disallowed_types,
    reason = "maps are looked up by key and never iterated, so their order shows nowhere"
)]

mod name;
mod tree;

use std::collections::HashMap;

use self::tree::{Place, Tree};
use crate::BlockHash;

pub use self::name::{TextName, TextNameError};

/// What may be kept at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of all texts. Default 500,000, some 30 MB: eight million tokens in vLLM's blocks of 16. The texts that were
    /// not used for longest are forgotten first.
    pub blocks: usize,
    /// Names of texts. Default 200,000, some 20 MB.
    pub names: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            blocks: 500_000,
            names: 200_000,
        }
    }
}

/// What blocks that were stored for a text came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// They belong to a chain that is known from its beginning.
    Followed,
    /// The block before them is not known: it was stored before anybody listened, or is forgotten.
    Unrooted,
}

/// What is known of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its blocks.
    pub prompt_blocks: u32,
    /// The same with those of the answer that was given to it.
    pub blocks: u32,
    end: Place,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Where the text ends.
    prompt: Place,
    /// Where its answer ends, as far as that is known.
    answer: Place,
    /// It is a request's whole text; else the beginning of several.
    is_whole: bool,
    /// It has blocks that no text before it had.
    is_apart: bool,
}

/// The texts that are known.
#[derive(Debug, Default)]
pub struct Texts {
    limits: Limits,
    tree: Tree,
    known: HashMap<u64, Known>,
}

impl Texts {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Blocks that are kept.
    pub fn blocks(&self) -> usize {
        self.tree.blocks()
    }

    /// Names that are known.
    pub fn names(&self) -> usize {
        self.known.len()
    }

    /// Blocks were stored for a text, each the next one's parent; `parent` is the block before the first of them.
    ///
    /// In the order in which the engine tells of them. Blocks of a text without a name may begin one that has one.
    pub fn learn(
        &mut self,
        text: Option<TextName>,
        parent: Option<BlockHash>,
        blocks: &[BlockHash],
    ) -> Learned {
        let Some(start) = self.tree.place_of(parent) else {
            return Learned::Unrooted;
        };
        if blocks.is_empty() {
            return Learned::Followed;
        }
        let known_end = self.tree.follow(start, blocks);
        let known_blocks = (self.tree.depth(known_end) - self.tree.depth(start)) as usize;
        let parts = known_blocks < blocks.len();
        let Some(text) = text else {
            self.add(known_end, &blocks[known_blocks..]);
            return Learned::Followed;
        };
        let before = self.known.get(&text.whole).filter(|known| known.is_whole);
        let before = before.copied();
        if let Some(common) = text.common
            && parts
            && before.is_none_or(|known| !known.is_apart)
        {
            self.note_common(common, known_end);
        }
        let Some(end) = self.add(known_end, &blocks[known_blocks..]) else {
            return Learned::Followed;
        };
        let known = match before {
            Some(known) => self.grown(known, start, end, blocks.len()),
            None => Known {
                prompt: end,
                answer: end,
                is_whole: true,
                is_apart: false,
            },
        };
        let is_apart = known.is_apart || parts;
        self.note(text.whole, Known { is_apart, ..known });
        Learned::Followed
    }

    /// Several blocks in one step are of the prompt: an answer grows by a token or a few.
    fn grown(&self, known: Known, start: Place, end: Place, blocks: usize) -> Known {
        let is_deeper = self.tree.depth(end) > self.tree.depth(known.prompt);
        if blocks > 1 && is_deeper {
            Known {
                prompt: end,
                answer: end,
                ..known
            }
        } else if blocks == 1 && (start == known.answer || start == known.prompt) {
            Known {
                answer: end,
                ..known
            }
        } else {
            known
        }
    }

    /// What two texts have in common ends here at the latest.
    fn note_common(&mut self, common: u64, end: Place) {
        let depth = self.tree.depth(end);
        match self.known.get(&common) {
            // A text of its own, with its own blocks.
            Some(known) if known.is_whole => {}
            Some(known) if self.tree.depth(known.prompt) <= depth => {}
            _ if depth == 0 => {
                self.known.remove(&common);
            }
            _ => self.note(
                common,
                Known {
                    prompt: end,
                    answer: end,
                    is_whole: false,
                    is_apart: false,
                },
            ),
        }
    }

    fn note(&mut self, name: u64, known: Known) {
        while self.known.len() >= self.limits.names && !self.known.contains_key(&name) {
            if !self.forget_oldest(known.answer) {
                return;
            }
        }
        self.tree.name(known.prompt, name);
        self.tree.name(known.answer, name);
        self.known.insert(name, known);
    }

    /// Adds blocks behind a place; none where there is no room for them.
    fn add(&mut self, at: Place, blocks: &[BlockHash]) -> Option<Place> {
        while self.tree.blocks() + blocks.len() > self.limits.blocks {
            if !self.forget_oldest(at) {
                return None;
            }
        }
        Some(self.tree.add(at, blocks))
    }

    /// Forgets the chain that was not used for longest, but not the one of `but`. Whether there was one.
    fn forget_oldest(&mut self, but: Place) -> bool {
        let Some((segment, names)) = self.tree.remove_oldest(but) else {
            return false;
        };
        for name in names {
            let Some(known) = self.known.get_mut(&name) else {
                continue;
            };
            if known.answer.is_in(segment) && !known.prompt.is_in(segment) {
                known.answer = known.prompt;
            }
            if known.prompt.is_in(segment) {
                self.known.remove(&name);
            }
        }
        true
    }

    /// The first of these names that is known, by its number among them, and its blocks; it counts as used.
    pub fn find(&mut self, names: impl IntoIterator<Item = u64>) -> Option<(usize, Found)> {
        let mut names = names.into_iter().enumerate();
        let (at, known) = names.find_map(|(at, name)| Some((at, *self.known.get(&name)?)))?;
        self.tree.touch(known.answer);
        let found = Found {
            prompt_blocks: self.tree.depth(known.prompt),
            blocks: self.tree.depth(known.answer),
            end: known.answer,
        };
        Some((at, found))
    }

    /// The blocks of what was just found, with those of the answer behind it, from the beginning.
    pub fn chain(&self, found: &Found, blocks: &mut Vec<BlockHash>) {
        self.tree.chain(found.end, blocks);
    }
}
