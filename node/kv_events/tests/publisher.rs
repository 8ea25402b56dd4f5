//! What a publisher's events make known, where a connector tells of blocks in other places than the GPU.

use grapevine_kv_events::batch::{Batch, Event, Stored};
use grapevine_kv_events::index::{Index, Limits};
use grapevine_kv_events::publisher::{Knowledge, Publisher};
use grapevine_kv_events::{BlockHash, Tier};

/// Blocks of this group that were stored, each of so many tokens.
fn stored(tier: Tier, group: u32, block_tokens: u32, blocks: &[u64]) -> Event {
    Event::Stored(Stored {
        hashes: blocks.iter().copied().map(BlockHash).collect(),
        parent: None,
        tokens: Vec::new(),
        block_tokens,
        tier,
        lora: None,
        group,
        text: None,
        is_full_attention: true,
    })
}

struct Scene {
    publisher: Publisher,
    index: Index,
}

impl Scene {
    fn new(is_first: bool) -> Self {
        let mut publisher = Publisher::default();
        publisher.begin(is_first);
        let index = Index::new(Limits::default(), 7);
        Self { publisher, index }
    }

    fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        let batch = Batch {
            time: 0.0,
            events: events.into_iter().collect(),
            rank: None,
            unknown_events: 0,
        };
        self.publisher.apply(&batch, &mut self.index);
    }

    /// Blocks by tier.
    fn held(&self) -> [u32; 3] {
        let holder = self.publisher.holder();
        Tier::ALL.map(|tier| holder.map_or(0, |holder| self.index.held(holder, tier)))
    }
}

#[test]
fn how_many_tokens_a_block_has_is_said_by_the_gpu() {
    let mut scene = Scene::new(true);
    scene.apply([stored(Tier::Gpu, 0, 16, &[1, 2])]);
    // As vLLM's `OffloadingConnector` tells of a block.
    scene.apply([stored(Tier::Host, 0, 0, &[1])]);
    assert_eq!(
        (scene.publisher.block_tokens(), scene.held()),
        (16, [2, 1, 0])
    );
    // Pieces of 256 tokens, by other hashes: LMCache, which never says that one is gone.
    scene.apply([
        stored(Tier::Host, 0, 256, &[100]),
        stored(Tier::Storage, 0, 256, &[101]),
    ]);
    assert_eq!(
        (scene.publisher.block_tokens(), scene.held()),
        (16, [2, 1, 0])
    );
    scene.apply([stored(Tier::Host, 0, 16, &[2])]);
    assert_eq!(
        (scene.publisher.block_tokens(), scene.held()),
        (16, [2, 2, 0])
    );
}

#[test]
fn the_group_that_is_followed_is_one_of_the_gpu() {
    let mut scene = Scene::new(false);
    // The first that is heard: a block of a group with a sliding window, of which nothing says so.
    scene.apply([stored(Tier::Host, 1, 0, &[1])]);
    assert_eq!((scene.publisher.group(), scene.held()), (None, [0, 0, 0]));
    scene.apply([stored(Tier::Gpu, 0, 16, &[2])]);
    assert_eq!(
        (scene.publisher.group(), scene.held()),
        (Some(0), [1, 0, 0])
    );
}

#[test]
fn a_gpu_that_was_cleared_says_nothing_of_other_places() {
    for (elsewhere, expected) in [
        (None, Knowledge::Whole),
        (Some(Tier::Host), Knowledge::Partial),
        (Some(Tier::Storage), Knowledge::Partial),
    ] {
        let mut scene = Scene::new(true);
        scene.apply([stored(Tier::Gpu, 0, 16, &[1])]);
        scene.apply(elsewhere.map(|tier| stored(tier, 0, 0, &[1])));
        scene.apply([Event::Cleared]);
        assert_eq!(scene.publisher.knowledge(), expected, "{elsewhere:?}");
        assert_eq!(scene.held(), [0, 0, 0]);
    }
}

/// What a connector has is still there when the GPU is cleared, whether or not it is still known what that is.
#[test]
fn what_was_forgotten_of_other_places_stays_unknown_when_the_gpu_is_cleared() {
    for (elsewhere, expected) in [
        (None, Knowledge::Whole),
        (Some(Tier::Host), Knowledge::Partial),
    ] {
        let mut scene = Scene::new(true);
        scene.apply([stored(Tier::Gpu, 0, 16, &[1])]);
        scene.apply(elsewhere.map(|tier| stored(tier, 0, 0, &[1])));
        scene.publisher.unreadable(&mut scene.index);
        assert_eq!(scene.publisher.knowledge(), Knowledge::Partial);
        scene.apply([Event::Cleared]);
        assert_eq!(scene.publisher.knowledge(), expected, "{elsewhere:?}");
        // Another process has nothing anywhere.
        scene.publisher.forget(&mut scene.index);
        scene.publisher.begin(false);
        scene.apply([Event::Cleared]);
        assert_eq!(scene.publisher.knowledge(), Knowledge::Whole);
    }
}
