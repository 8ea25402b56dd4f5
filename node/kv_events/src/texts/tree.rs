//! Chains of blocks that share their beginnings: runs of blocks, each behind a block of another run.
//!
//! Whatever a run leads to is kept as long as the run is: only runs without others behind them are removed, the one that
//! was not used for longest first.

use std::collections::{BTreeSet, HashMap};

use super::RunKey;
use crate::BlockHash;

/// Longest chain, in blocks: a million tokens in vLLM's blocks of 16. Decisions look up whole chains.
const CHAIN_MAX: u32 = 1 << 16;

/// The end of a chain: behind the first `length` blocks of a run. [`Place::ROOT`] is the empty chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    run: u32,
    length: u32,
}

impl Place {
    const ROOT: Self = Self {
        run: u32::MAX,
        length: 0,
    };

    pub(super) fn is_in(self, run: u32) -> bool {
        self.run == run
    }

    pub(super) fn run(self) -> u32 {
        self.run
    }

    pub(super) fn length(self) -> u32 {
        self.length
    }
}

#[derive(Debug, Default)]
pub(super) struct Run {
    /// Where it begins; none for one that is free.
    from: Option<Place>,
    /// Blocks before its first one.
    before: u32,
    pub(super) blocks: Vec<BlockHash>,
    /// Runs that begin in it.
    children: u32,
    /// The engine that told of its first block.
    pub(super) teacher: u32,
    /// When it was used last, by the tree's clock.
    pub(super) used: u64,
    /// Texts whose prompts or answers end in it, and no others.
    pub(super) names: BTreeSet<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    runs: Vec<Run>,
    free: Vec<u32>,
    /// Where each block stands.
    places: HashMap<BlockHash, Place>,
    /// Runs without others behind them, by last use.
    leaves: BTreeSet<(u64, u32)>,
    /// Counts uses.
    clock: u64,
}

impl Tree {
    pub(super) fn blocks(&self) -> usize {
        self.places.len()
    }

    /// The end of the chain whose last block this is; none if that is not known.
    pub(super) fn place_of(&self, block: Option<BlockHash>) -> Option<Place> {
        match block {
            None => Some(Place::ROOT),
            Some(block) => self.places.get(&block).copied(),
        }
    }

    /// Blocks up to here.
    pub(super) fn depth(&self, place: Place) -> u32 {
        self.run(place).map_or(0, |run| run.before) + place.length
    }

    /// Blocks that cannot be removed while the run of a place is kept: its own, and those of all that lead to it.
    pub(super) fn kept_by(&self, place: Place) -> usize {
        let mut blocks = 0;
        let mut place = place;
        while let Some(run) = self.run(place) {
            blocks += run.blocks.len();
            place = run.from.expect("a run in use begins somewhere");
        }
        blocks
    }

    /// The end of the first so many blocks of what ends at a place; at most its depth.
    pub(super) fn at(&self, place: Place, depth: u32) -> Place {
        let mut place = place;
        while let Some(run) = self.run(place) {
            if run.before < depth {
                let length = depth - run.before;
                return Place { length, ..place };
            }
            place = run.from.expect("a run in use begins somewhere");
        }
        Place::ROOT
    }

    fn run(&self, place: Place) -> Option<&Run> {
        self.runs.get(place.run as usize)
    }

    /// The engine that told of the run up to here; none of the empty chain.
    pub(super) fn teacher(&self, place: Place) -> Option<u32> {
        self.run(place).map(|run| run.teacher)
    }

    /// How far these blocks are known behind a place. A block's hash covers all before it: each has one place.
    pub(super) fn follow(&self, from: Place, blocks: &[BlockHash]) -> Place {
        let mut place = from;
        for block in blocks {
            match self.places.get(block) {
                Some(next) if self.depth(*next) == self.depth(place) + 1 => place = *next,
                _ => break,
            }
        }
        place
    }

    /// Adds blocks behind a place, and answers where they end. One that stands elsewhere ends the chain: its publisher
    /// does not tell the truth, or two hashes collide. So does the greatest length.
    pub(super) fn add(&mut self, at: Place, blocks: &[BlockHash], teacher: u32) -> Place {
        let mut end = at;
        let room = CHAIN_MAX.saturating_sub(self.depth(at)) as usize;
        for &block in blocks.iter().take(room) {
            if self.places.contains_key(&block) {
                break;
            }
            let is_end = self
                .run(end)
                .is_some_and(|run| run.blocks.len() == end.length as usize);
            if !is_end {
                end = self.begin(end, teacher);
            }
            let run = &mut self.runs[end.run as usize];
            run.blocks.push(block);
            end.length += 1;
            self.places.insert(block, end);
        }
        self.touch(end);
        end
    }

    /// A new run behind a place.
    fn begin(&mut self, from: Place, teacher: u32) -> Place {
        let before = self.depth(from);
        if let Some(parent) = self.runs.get_mut(from.run as usize) {
            self.leaves.remove(&(parent.used, from.run));
            parent.children += 1;
        }
        let run = Run {
            from: Some(from),
            before,
            teacher,
            used: self.clock,
            ..Run::default()
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.runs[number as usize] = run;
                number
            }
            None => {
                self.runs.push(run);
                (self.runs.len() - 1) as u32
            }
        };
        self.leaves.insert((self.clock, number));
        Place {
            run: number,
            length: 0,
        }
    }

    /// It is used.
    pub(super) fn touch(&mut self, place: Place) {
        self.touch_at(place, self.clock.saturating_add(1));
    }

    /// It was used then, by the clock of a tree that this one goes on from.
    pub(super) fn touch_at(&mut self, place: Place, clock: u64) {
        self.clock = self.clock.max(clock);
        let Some(run) = self.runs.get_mut(place.run as usize) else {
            return;
        };
        if self.leaves.remove(&(run.used, place.run)) {
            self.leaves.insert((clock, place.run));
        }
        run.used = clock;
    }

    /// Every run in use.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunKey> + '_ {
        let runs = (0..).zip(&self.runs);
        runs.filter(|(_, run)| run.from.is_some())
            .map(|(number, run)| RunKey {
                before: run.before,
                number,
            })
    }

    /// A run in use.
    pub(super) fn run_of(&self, number: u32) -> Option<&Run> {
        let run = self.runs.get(number as usize)?;
        run.from.is_some().then_some(run)
    }

    /// Where a run begins, if that is in another one.
    pub(super) fn beginning_of(&self, run: &Run) -> Option<Place> {
        run.from.filter(|from| self.run(*from).is_some())
    }

    /// The block before a run; none before the first one of a text.
    pub(super) fn parent_of(&self, run: &Run) -> Option<BlockHash> {
        let from = run.from?;
        let parent = self.run(from)?;
        Some(parent.blocks[from.length as usize - 1])
    }

    /// A name that goes with the run of a place.
    pub(super) fn name(&mut self, place: Place, name: u64) {
        if let Some(run) = self.runs.get_mut(place.run as usize) {
            run.names.insert(name);
        }
    }

    /// A name that does not go with the run of a place any more.
    pub(super) fn take_name(&mut self, place: Place, name: u64) {
        if let Some(run) = self.runs.get_mut(place.run as usize) {
            run.names.remove(&name);
        }
    }

    /// Names of all runs.
    pub(super) fn names(&self) -> usize {
        self.runs.iter().map(|run| run.names.len()).sum()
    }

    /// Removes the run that was not used for longest, but not the one of `but`; answers its number and names.
    pub(super) fn remove_oldest(&mut self, but: Place) -> Option<(u32, BTreeSet<u64>)> {
        let oldest = self.leaves.iter().find(|(_, run)| !but.is_in(*run));
        let (used, number) = *oldest?;
        self.leaves.remove(&(used, number));
        let run = std::mem::take(&mut self.runs[number as usize]);
        for block in &run.blocks {
            self.places.remove(block);
        }
        self.free.push(number);
        if let Some(from) = run.from
            && let Some(parent) = self.runs.get_mut(from.run as usize)
        {
            parent.children -= 1;
            parent.used = parent.used.max(used);
            if parent.children == 0 {
                self.leaves.insert((parent.used, from.run));
            }
        }
        Some((number, run.names))
    }

    /// All blocks up to here, from the beginning.
    pub(super) fn chain(&self, end: Place, blocks: &mut Vec<BlockHash>) {
        blocks.clear();
        blocks.resize(self.depth(end) as usize, BlockHash(0));
        let mut place = end;
        while let Some(run) = self.run(place) {
            let from = run.before as usize;
            let length = place.length as usize;
            blocks[from..from + length].copy_from_slice(&run.blocks[..length]);
            place = run.from.expect("a run in use begins somewhere");
        }
    }
}
