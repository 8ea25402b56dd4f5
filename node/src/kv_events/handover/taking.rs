//! What a peer told, put to what is known here.

use std::collections::BTreeMap;
use std::sync::Arc;

use grapevine_kv_events::handover::{Engine, Piece, Question};
use grapevine_kv_events::publisher::Publisher;
use grapevine_kv_events::stream::Mark;
use grapevine_kv_events::{BlockHash, Tier};

use super::super::caches::{Caches, Key, Offer};

/// Blocks that are stored at once; decisions wait meanwhile.
const BLOCKS_AT_ONCE: usize = 1_024;
/// Numbers of the peer's that are remembered. One beyond it is another number here each time that it is told of, so less
/// is known of who computes hashes alike, and nothing that is wrong.
const NUMBERS_MAX: usize = 1 << 16;

/// What was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) engines: u64,
    pub(super) blocks: u64,
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

    /// Takes a page. What to ask next; none at the end.
    pub(super) fn take(&mut self, caches: &Caches, pieces: Vec<Piece>) -> Option<Question> {
        let mut offer: Option<(Key, Offer)> = None;
        let mut next = None;
        for piece in pieces {
            match piece {
                Piece::Engine(engine) => {
                    keep(caches, offer.take());
                    offer = Some(self.begin(caches, engine));
                }
                Piece::Blocks(tier, blocks) => {
                    if let Some((_, offer)) = &mut offer {
                        self.counts.blocks += put(caches, offer, tier, &blocks.to_vec());
                    }
                }
                Piece::Copies(copies) => {
                    for (tier, block, more) in copies {
                        if let Some((_, offer)) = &mut offer {
                            let again = vec![block.get(); more.min(COPIES_MAX) as usize];
                            put(caches, offer, tier, &again);
                        }
                    }
                }
                Piece::Apart(one, other) => {
                    if let (Some(one), Some(other)) = (self.kinds.get(&one), self.kinds.get(&other))
                    {
                        caches.likeness().take_over(*one, *other);
                    }
                }
                Piece::Run(run) => {
                    let ours = |number| self.number_of(caches, number);
                    caches.texts().take_over(&run, ours);
                }
                Piece::Next(question) => next = question,
            }
        }
        keep(caches, offer);
        next
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

    fn begin(&mut self, caches: &Caches, engine: Engine) -> (Key, Offer) {
        let number = caches.next_number();
        self.numbers.insert(engine.number, number);
        let alike = *self.kinds.entry(engine.kind).or_insert(number);
        caches.likeness().share(alike, number);
        self.counts.engines += 1;
        let (sequence, fingerprint) = engine.mark;
        let offer = Offer {
            number,
            publisher: Publisher::behind(engine.is_whole, engine.group, engine.block_tokens),
            mark: Mark {
                sequence,
                fingerprint,
            },
        };
        ((Arc::from(engine.worker), engine.rank), offer)
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

/// Until the engine is heard here, too.
fn keep(caches: &Caches, offer: Option<(Key, Offer)>) {
    let Some((key, offer)) = offer else {
        return;
    };
    let before = caches.offers().insert(key, offer);
    if let Some(mut before) = before {
        before.publisher.forget(&mut caches.index_mut());
    }
}
