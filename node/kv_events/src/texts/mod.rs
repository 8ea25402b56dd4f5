//! Which blocks a text became, learned from what engines publish; no tokenizer, no template.
//!
//! A router names the text of each request that it sends, in the request's session id ([`TextName`]), and vLLM repeats
//! that with every block that the request stores. So all who hear an engine learn the same: this text became these
//! blocks. Engines that compute block hashes alike teach each other's: [`crate::hash`] says which do. One that does not
//! contradicts what the others taught, and [`crate::likeness`] says who is right.
//!
//! A text that comes again, or with more behind it, is found by its name, and its blocks are looked up in the
//! [`crate::index`]. Of texts that begin alike the router names what they have in common, too: where the second one
//! leaves the chain of the first is where that common part ends.
//!
//! What follows a prompt's own blocks is the answer. It is part of the next turn of a conversation.

#![allow(
    clippy::disallowed_types,
    reason = "maps are looked up by key or filtered as a whole, so their order shows nowhere"
)]

mod name;
mod tree;

use std::collections::{BTreeMap, HashMap};

use self::tree::{Place, Tree};
use crate::BlockHash;
use crate::handover::{Name, Run};

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
    /// The same, and another engine had told of blocks among them, or before them: both compute hashes alike.
    Agrees,
    /// Another engine taught other blocks for the same text: it computes hashes in another way, or the text became
    /// something else since.
    Contradicts,
    /// The block before them is not known: it was stored before anybody listened, or is forgotten.
    Unrooted,
}

/// What was learned, and what that says of other engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// What the blocks came to.
    pub learned: Learned,
    /// An engine that told of a block of theirs.
    pub shares_with: Option<u32>,
    /// The engine that taught other blocks for the text.
    pub contradicts: Option<u32>,
}

impl Lesson {
    /// Nothing of others.
    fn alone(learned: Learned) -> Self {
        Self {
            learned,
            shares_with: None,
            contradicts: None,
        }
    }
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
    /// The engine that told of it.
    teacher: u32,
}

/// Names a run of [`Texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunKey {
    /// Blocks before its first one.
    pub before: u32,
    /// Another run may have it later.
    pub number: u32,
}

/// What some texts begin with, or all of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Blocks that a shorter prefix has.
    pub before: u32,
    /// Blocks from the beginning.
    pub blocks: u32,
    /// Texts that begin with it and are remembered.
    pub texts: u32,
    /// The name of what they have in common, or of one that ends here.
    pub name: Option<u64>,
    /// Its last block: runs get the numbers of others that were forgotten, a block stays what it is.
    last: BlockHash,
}

/// Latest use that is taken from others: so many are never counted.
const CLOCK_MAX: u64 = 1 << 62;

/// Who tells of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// Another number for each engine.
    pub engine: u32,
    /// What it says of texts is remembered; else it is compared with what others said.
    pub may_teach: bool,
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

    /// Names that all runs keep together, each where its prompt and its answer end: at most two of each text. O(runs).
    pub fn names_kept(&self) -> usize {
        self.tree.names()
    }

    /// Blocks were stored for a text, each the next one's parent; `parent` is the block before the first of them.
    ///
    /// In the order in which the engine tells of them. Blocks of a text without a name may begin one that has one.
    pub fn learn(
        &mut self,
        speaker: Speaker,
        text: Option<TextName>,
        parent: Option<BlockHash>,
        blocks: &[BlockHash],
    ) -> Lesson {
        let Some(start) = self.tree.place_of(parent) else {
            return Lesson::alone(Learned::Unrooted);
        };
        if blocks.is_empty() {
            return Lesson::alone(Learned::Followed);
        }
        let known_end = self.tree.follow(start, blocks);
        let known_blocks = (self.tree.depth(known_end) - self.tree.depth(start)) as usize;
        let teacher = self.tree.teacher(known_end);
        let shares_with = teacher.filter(|teacher| *teacher != speaker.engine);
        let parts = known_blocks < blocks.len();
        let is_apart = text
            .and_then(|text| self.whole_of(text))
            .is_some_and(|known| known.is_apart);
        if let Some(common) = text.and_then(|text| text.common)
            && parts
            && speaker.may_teach
            && !is_apart
        {
            self.note_common(common, known_end, speaker.engine);
        }
        let end = self.add(known_end, &blocks[known_blocks..], speaker.engine);
        let learned = match shares_with {
            Some(_) => Learned::Agrees,
            None => Learned::Followed,
        };
        let lesson = Lesson {
            learned,
            shares_with,
            contradicts: None,
        };
        let (Some(text), Some(end)) = (text, end) else {
            return lesson;
        };
        // Room for the blocks may have been made where it stood.
        let before = self.whole_of(text);
        let parted = before.filter(|known| self.parts_within(known.prompt, end));
        let contradicts = parted.map(|known| known.teacher);
        let contradicts = contradicts.filter(|teacher| *teacher != speaker.engine);
        let learned = contradicts.map_or(learned, |_| Learned::Contradicts);
        // Of a text that became other blocks, the latest count.
        let known = match before.filter(|_| parted.is_none()) {
            Some(known) => self.grown(known, start, end, blocks.len()),
            None => Known {
                prompt: end,
                answer: end,
                is_whole: true,
                is_apart: false,
                teacher: speaker.engine,
            },
        };
        if speaker.may_teach && self.tree.depth(end) > 0 {
            let is_apart = is_apart || known.is_apart || parts;
            self.note(text.whole, Known { is_apart, ..known }, end);
        }
        Lesson {
            learned,
            contradicts,
            ..lesson
        }
    }

    /// What is known of a request's whole text.
    fn whole_of(&self, text: TextName) -> Option<Known> {
        let known = self.known.get(&text.whole).copied();
        known.filter(|known| known.is_whole)
    }

    /// Whether two ends of one prompt, as far as both go, are on chains of different blocks. The last block may be the
    /// first one of an answer.
    fn parts_within(&self, one: Place, other: Place) -> bool {
        let depth = self.tree.depth(one).min(self.tree.depth(other));
        let depth = depth.saturating_sub(1);
        self.tree.at(one, depth) != self.tree.at(other, depth)
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
    fn note_common(&mut self, common: u64, end: Place, teacher: u32) {
        let depth = self.tree.depth(end);
        match self.known.get(&common) {
            // A text of its own, with its own blocks.
            Some(known) if known.is_whole => {}
            Some(known) if self.tree.depth(known.prompt) <= depth => {}
            _ if depth == 0 => self.forget(common),
            _ => self.note(
                common,
                Known {
                    prompt: end,
                    answer: end,
                    is_whole: false,
                    is_apart: false,
                    teacher,
                },
                end,
            ),
        }
    }

    /// Remembers a text; those that were not used for longest make room for it, but not the chain of `keep`, which leads
    /// to it or goes on behind it.
    fn note(&mut self, name: u64, known: Known, keep: Place) {
        while self.known.len() >= self.limits.names && !self.known.contains_key(&name) {
            if !self.forget_oldest(keep) {
                return;
            }
        }
        let before = self.known.insert(name, known);
        self.tree.name(known.prompt, name);
        self.tree.name(known.answer, name);
        if let Some(before) = before {
            self.leave_runs(name, before, Some(known));
        }
    }

    /// Forgets a text; its blocks stay.
    fn forget(&mut self, name: u64) {
        if let Some(before) = self.known.remove(&name) {
            self.leave_runs(name, before, None);
        }
    }

    /// Takes a name from the runs that its text ended in, but not from those where it ends now: a run that many texts end
    /// in may stay for good.
    fn leave_runs(&mut self, name: u64, before: Known, now: Option<Known>) {
        for place in [before.prompt, before.answer] {
            let is_there = |now: Known| {
                [now.prompt, now.answer]
                    .map(Place::run)
                    .contains(&place.run())
            };
            if !now.is_some_and(is_there) {
                self.tree.take_name(place, name);
            }
        }
    }

    /// Adds blocks behind a place; none where there is no room for them.
    fn add(&mut self, at: Place, blocks: &[BlockHash], teacher: u32) -> Option<Place> {
        // What cannot be learned makes nobody forget anything.
        let is_full = self.tree.blocks() + blocks.len() > self.limits.blocks;
        if is_full && self.tree.kept_by(at) + blocks.len() > self.limits.blocks {
            return None;
        }
        while self.tree.blocks() + blocks.len() > self.limits.blocks {
            if !self.forget_oldest(at) {
                return None;
            }
        }
        Some(self.tree.add(at, blocks, teacher))
    }

    /// Forgets the chain that was not used for longest, but not the one of `but`. Whether there was one.
    fn forget_oldest(&mut self, but: Place) -> bool {
        let Some((run, names)) = self.tree.remove_oldest(but) else {
            return false;
        };
        for name in names {
            let Some(known) = self.known.get_mut(&name) else {
                continue;
            };
            if known.answer.is_in(run) && !known.prompt.is_in(run) {
                known.answer = known.prompt;
            }
            if known.prompt.is_in(run) {
                self.forget(name);
            }
        }
        true
    }

    /// Forgets the texts that these engines told of. O(names).
    pub fn forget_taught_by(&mut self, is_one: impl Fn(u32) -> bool) {
        let names = self.known.iter();
        let names = names.filter(|(_, known)| is_one(known.teacher));
        let names: Vec<_> = names.map(|(name, _)| *name).collect();
        names.into_iter().for_each(|name| self.forget(name));
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

    /// The runs that all chains consist of, to be asked for by [`Texts::run`]. Sorted, each comes after the one that it
    /// begins in.
    pub fn runs(&self) -> Vec<RunKey> {
        self.tree.runs().collect()
    }

    /// What texts have in common, and what each has alone: a prefix ends wherever texts part, and where one ends that
    /// nothing follows. O(n log n) of runs and names.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let mut runs: Vec<_> = self.runs();
        runs.sort_unstable();
        // By run, where others begin in it, with the texts that they lead to.
        let mut parts: HashMap<u32, BTreeMap<u32, u32>> = HashMap::new();
        let mut prefixes = Vec::new();
        // Those behind come first.
        for key in runs.iter().rev() {
            let Some(run) = self.tree.run_of(key.number) else {
                continue;
            };
            let mut cuts = parts.remove(&key.number).unwrap_or_default();
            cuts.entry(run.blocks.len() as u32).or_default();
            let named = |name: &u64| {
                let known = self.known.get(name)?;
                let is_its = known.prompt.is_in(key.number);
                is_its.then(|| (known.prompt.length(), known.is_whole, *name))
            };
            let mut names: Vec<_> = run.names.iter().filter_map(named).collect();
            names.sort_unstable_by_key(|(end, ..)| *end);
            let mut texts = 0;
            for (cut, behind) in cuts.iter().rev() {
                let start = cuts.range(..cut).next_back().map_or(0, |(start, _)| *start);
                let here = names.split_off(names.partition_point(|(end, ..)| *end <= start));
                let whole = here.iter().filter(|(_, is_whole, _)| *is_whole);
                texts += behind + whole.count() as u32;
                // What several texts begin with has the better name.
                let name = here
                    .iter()
                    .min_by_key(|(_, is_whole, name)| (*is_whole, *name));
                prefixes.push(Prefix {
                    before: key.before + start,
                    blocks: key.before + cut,
                    texts,
                    name: name.map(|(.., name)| *name),
                    last: run.blocks[*cut as usize - 1],
                });
            }
            if let Some(from) = self.tree.beginning_of(run) {
                *parts
                    .entry(from.run())
                    .or_default()
                    .entry(from.length())
                    .or_default() += texts;
            }
        }
        prefixes
    }

    /// The blocks up to the end of a prefix; none if it was forgotten.
    pub fn chain_of(&self, prefix: &Prefix, blocks: &mut Vec<BlockHash>) {
        blocks.clear();
        let end = self.tree.place_of(Some(prefix.last));
        if let Some(end) = end.filter(|end| self.tree.depth(*end) == prefix.blocks) {
            self.tree.chain(end, blocks);
        }
    }

    /// A run as it is now, and the texts whose answers end in it; none if it was forgotten.
    pub fn run(&self, key: RunKey) -> Option<Run> {
        let run = self.tree.run_of(key.number)?;
        let named = |name: &u64| {
            let known = self.known.get(name)?;
            let is_its = known.answer.is_in(key.number);
            is_its.then(|| Name {
                name: *name,
                prompt_blocks: self.tree.depth(known.prompt),
                blocks: self.tree.depth(known.answer),
                is_whole: known.is_whole,
                is_apart: known.is_apart,
                teacher: known.teacher,
            })
        };
        Some(Run {
            parent: self.tree.parent_of(run).into(),
            teacher: run.teacher,
            used: run.used,
            blocks: run.blocks.as_slice().into(),
            names: run.names.iter().filter_map(named).collect(),
        })
    }

    /// Takes a run of somebody who knows more; `teacher` gives our number of an engine that has another one there. What
    /// does not fit to what is known is left out.
    pub fn take_over(&mut self, run: &Run, mut teacher: impl FnMut(u32) -> u32) {
        let blocks = run.blocks.to_vec();
        let Some(start) = self.tree.place_of(run.parent.get()) else {
            return;
        };
        let known = self.tree.follow(start, &blocks);
        let known_blocks = (self.tree.depth(known) - self.tree.depth(start)) as usize;
        let told_by = teacher(run.teacher);
        let Some(end) = self.add(known, &blocks[known_blocks..], told_by) else {
            return;
        };
        self.tree.touch_at(end, run.used.min(CLOCK_MAX));
        for name in &run.names {
            let is_within =
                name.prompt_blocks <= name.blocks && name.blocks <= self.tree.depth(end);
            if !is_within || name.prompt_blocks == 0 || self.known.contains_key(&name.name) {
                continue;
            }
            let known = Known {
                prompt: self.tree.at(end, name.prompt_blocks),
                answer: self.tree.at(end, name.blocks),
                is_whole: name.is_whole,
                is_apart: name.is_apart,
                teacher: teacher(name.teacher),
            };
            self.note(name.name, known, end);
        }
    }
}
