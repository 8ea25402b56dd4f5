//! What another one takes over, by frames.

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::handover::{self, Page, Piece};
use grapevine_kv_events::texts::{Learned, Limits, TextName, Texts};

use crate::engine::{SOMEBODY, blocks_of, whole};

/// All that is known, as another one takes it: by frames.
pub(crate) fn taken_over(texts: &Texts, limits: Limits) -> Texts {
    let mut runs = texts.runs();
    runs.sort_unstable();
    let mut page = Page::default();
    for key in runs {
        page.push_run(texts.run(key).expect("it is in use"));
    }
    let mut taken = Texts::new(limits);
    for frame in page.into_frames(None) {
        for piece in handover::read(&frame).expect("pieces") {
            if let Piece::Run(run) = piece {
                taken.take_over(&run, |teacher| teacher + 100);
            }
        }
    }
    taken
}

#[test]
fn names_that_have_no_room_do_not_take_the_run_that_brings_them() {
    let limits = Limits {
        blocks: 100,
        names: 1,
    };
    let mut texts = Texts::new(limits);
    let run = |parent: Option<BlockHash>, blocks: [u64; 2], name: u64| handover::Run {
        parent: parent.into(),
        teacher: 0,
        used: 0,
        blocks: blocks.map(BlockHash).as_slice().into(),
        names: vec![handover::Name {
            name,
            prompt_blocks: 1,
            blocks: 1,
            is_whole: true,
            is_apart: true,
            teacher: 0,
        }],
    };
    texts.take_over(&run(None, [1, 2], 7), |_| 0);
    // Its name is of a place before it, which is kept, as is the one that is there.
    texts.take_over(&run(Some(BlockHash(1)), [5, 6], 8), |_| 0);
    assert_eq!((texts.blocks(), texts.names()), (4, 1));
}

#[test]
fn long_runs_and_many_texts_are_handed_over_in_pieces() {
    // A text that grows: each state of it names a place in one run.
    let mut texts = Texts::new(Limits::default());
    let blocks: Vec<_> = (1..=20_000).map(BlockHash).collect();
    for (at, some) in blocks.chunks(20).enumerate() {
        let parent = (at > 0).then(|| BlockHash(at as u64 * 20));
        let name = TextName {
            whole: 1_000_000 + at as u64,
            common: None,
        };
        texts.learn(SOMEBODY, Some(name), parent, some);
    }
    let mut taken = taken_over(&texts, Limits::default());
    assert_eq!((taken.blocks(), taken.names()), (20_000, 1_000));
    for at in [0, 1, 499, 999] {
        let (_, found) = taken.find([1_000_000 + at as u64]).unwrap();
        let mut chain = Vec::new();
        taken.chain(&found, &mut chain);
        assert_eq!(chain, blocks[..(at + 1) * 20]);
    }
    // Who has less room keeps what was used last.
    let few = Limits {
        blocks: 10_000,
        names: 50,
    };
    let few = taken_over(&texts, few);
    assert!(few.blocks() <= 10_000 && few.names() <= 50);
}

#[test]
fn what_is_no_handover_is_refused() {
    assert_eq!(handover::read(&[]), Ok(Vec::new()));
    assert!(handover::read(&[99]).is_err());
    assert!(handover::read(&vec![0; handover::FRAME_BYTES_MAX + 1]).is_err());
    let mut page = Page::default();
    page.push_blocks(grapevine_kv_events::Tier::Storage, &[BlockHash(1)]);
    let mut frame = page.into_frames(None).remove(0);
    assert_eq!(handover::read(&frame).unwrap().len(), 2);
    // There is no fourth tier.
    frame[1] = 3;
    assert!(handover::read(&frame).is_err());
    // A run that begins nowhere, with a text that ends behind it.
    let mut texts = Texts::new(Limits::default());
    let run = |parent: Option<BlockHash>, blocks: u32| handover::Run {
        parent: parent.into(),
        teacher: 0,
        used: u64::MAX,
        blocks: [BlockHash(1), BlockHash(2)].as_slice().into(),
        names: vec![handover::Name {
            name: 7,
            prompt_blocks: 1,
            blocks,
            is_whole: true,
            is_apart: true,
            teacher: 0,
        }],
    };
    texts.take_over(&run(Some(BlockHash(9)), 2), |_| 0);
    assert_eq!((texts.blocks(), texts.names()), (0, 0));
    texts.take_over(&run(None, 3), |_| 0);
    assert_eq!((texts.blocks(), texts.names()), (2, 0));
    texts.take_over(&run(None, 2), |_| 0);
    assert_eq!((texts.blocks(), texts.names()), (2, 1));
    // After a run that claims to be used at the end of time others are learned all the same.
    let lesson = texts.learn(
        SOMEBODY,
        Some(whole(b"more")),
        None,
        &blocks_of(b"another text"),
    );
    assert_eq!(lesson.learned, Learned::Followed);
    assert_eq!((texts.blocks(), texts.names()), (5, 2));
}
