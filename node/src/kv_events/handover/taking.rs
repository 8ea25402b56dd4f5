//! What a peer told, put to what is known here.

use std::collections::BTreeMap;
use std::sync::Arc;

use grapevine_kv_events::handover::{self, Copied, Engine, Piece, Question};
use grapevine_kv_events::publisher::Publisher;
use grapevine_kv_events::stream::Mark;
use grapevine_kv_events::{BlockHash, Tier};
use tokio::time::Instant;

use super::super::caches::{Caches, Key, Offer};
use super::Failure;

/// Blocks that are stored at once; decisions wait meanwhile.
const BLOCKS_AT_ONCE: usize = 1_024;
/// Numbers of the peer's that are remembered. One beyond it is another number here each time that it is told of, so less
/// is known of who computes hashes alike, and nothing that is wrong.
const NUMBERS_MAX: usize = 1 << 16;

/// What was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) engines: usize,
    pub(super) blocks: u64,
    /// Engines beyond as many as the index may have: they are heard from the beginning.
    pub(super) left_out: u64,
}

/// Takes what one peer tells.
#[derive(Debug, Default)]
pub(super) struct Taking {
    counts: Counts,
    /// The numbers of engines there, and here.
    numbers: BTreeMap<u32, u32>,
    /// The number here of an engine of each kind there.
    kinds: BTreeMap<u32, u32>,
}

impl Taking {
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes the frames of a page. What to ask next; none at the end.
    ///
    /// A frame is read when the one before was taken: its pieces take more memory than its bytes.
    /// Errors: the frames are none, or it is `until` by now: what was taken stays, but for the engine that was being
    /// told of.
    pub(super) fn take(
        &mut self,
        caches: &Caches,
        frames: &[Vec<u8>],
        until: Instant,
    ) -> Result<Option<Question>, Failure> {
        let mut offer = None;
        let next = self.take_frames(caches, frames, until, &mut offer);
        if next.is_ok() {
            keep(caches, offer);
        } else if let Some((_, offer)) = offer {
            // A part of it would pass for all.
            forget(caches, offer);
        }
        next
    }

    fn take_frames(
        &mut self,
        caches: &Caches,
        frames: &[Vec<u8>],
        until: Instant,
        offer: &mut Option<(Key, Offer)>,
    ) -> Result<Option<Question>, Failure> {
        let mut next = None;
        for frame in frames {
            for piece in handover::read(frame)? {
                if Instant::now() >= until {
                    return Err(Failure::Late);
                }
                if let Piece::Next(question) = piece {
                    next = question;
                } else {
                    self.take_piece(caches, piece, offer);
                }
            }
        }
        Ok(next)
    }

    /// `offer`: of the engine that was told of last.
    fn take_piece(&mut self, caches: &Caches, piece: Piece, offer: &mut Option<(Key, Offer)>) {
        match (piece, &mut *offer) {
            (Piece::Engine(engine), _) => {
                keep(caches, offer.take());
                *offer = self.begin(caches, engine);
            }
            (Piece::Blocks(tier, blocks), Some((_, offer))) => {
                self.counts.blocks += put(caches, offer, tier, &blocks.to_vec());
            }
            (Piece::Copies(copies), Some((_, offer))) => put_copies(caches, offer, &copies),
            (Piece::Apart(one, other), _) => {
                if let (Some(one), Some(other)) = (self.kinds.get(&one), self.kinds.get(&other)) {
                    caches.likeness().take_over(*one, *other);
                }
            }
            (Piece::Run(run), _) => {
                let ours = |number| self.number_of(caches, number);
                caches.texts().take_over(&run, ours);
            }
            // Of an engine that was left out.
            (Piece::Blocks(..) | Piece::Copies(_), None) | (Piece::Next(_), _) => {}
        }
    }

    /// The number here of an engine that taught there. One that is not heard there any more, or has had another number since,
    /// gets its own: which engines compute hashes as it did shows when they tell of its blocks.
    fn number_of(&mut self, caches: &Caches, number: u32) -> u32 {
        if let Some(ours) = self.numbers.get(&number) {
            return *ours;
        }
        let ours = caches.next_number();
        if self.numbers.len() < NUMBERS_MAX {
            self.numbers.insert(number, ours);
        }
        ours
    }

    /// None for one that the index would have no room for.
    fn begin(&mut self, caches: &Caches, engine: Engine) -> Option<(Key, Offer)> {
        if self.counts.engines >= caches.index().limits().holders {
            self.counts.left_out += 1;
            return None;
        }
        self.counts.engines += 1;
        let number = caches.next_number();
        self.numbers.insert(engine.number, number);
        let alike = *self.kinds.entry(engine.kind).or_insert(number);
        caches.likeness().share(alike, number);
        let (sequence, fingerprint) = engine.mark;
        let offer = Offer {
            number,
            publisher: Publisher::behind(engine.is_whole, engine.group, engine.block_tokens),
            mark: Mark {
                sequence,
                fingerprint,
            },
        };
        Some(((Arc::from(engine.worker), engine.rank), offer))
    }
}

/// Further copies of one block that are taken: vLLM has one for each request that computed it at the same time.
const COPIES_MAX: u32 = 4_096;

fn put(caches: &Caches, offer: &mut Offer, tier: u8, blocks: &[BlockHash]) -> u64 {
    let Some(tier) = Tier::ALL.get(usize::from(tier)) else {
        return 0;
    };
    let some = blocks.chunks(BLOCKS_AT_ONCE);
    some.map(|some| offer.publisher.put(*tier, some, &mut caches.index_mut()))
        .sum()
}

fn put_copies(caches: &Caches, offer: &mut Offer, copies: &[(u8, Copied, u32)]) {
    for some in copies.chunks(BLOCKS_AT_ONCE) {
        let mut index = caches.index_mut();
        for (tier, block, more) in some {
            if let Some(tier) = Tier::ALL.get(usize::from(*tier)) {
                let more = (*more).min(COPIES_MAX);
                offer
                    .publisher
                    .put_copies(*tier, block.get(), more, &mut index);
            }
        }
    }
}

/// Until the engine is heard here, too.
fn keep(caches: &Caches, offer: Option<(Key, Offer)>) {
    let Some((key, offer)) = offer else {
        return;
    };
    let before = caches.offers().insert(key, offer);
    if let Some(before) = before {
        forget(caches, before);
    }
}

fn forget(caches: &Caches, mut offer: Offer) {
    offer.publisher.forget(&mut caches.index_mut());
}
