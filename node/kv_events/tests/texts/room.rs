//! Limits: what is forgotten first, and what that leaves behind.

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::handover;
use grapevine_kv_events::texts::{Learned, Limits, TextName, Texts};

use crate::engine::{Engine, SOMEBODY, blocks_of, found, whole};

#[test]
fn no_chain_is_longer_than_a_decision_can_look_up() {
    let mut texts = Texts::new(Limits::default());
    let blocks: Vec<_> = (0..100_000).map(BlockHash).collect();
    for (at, blocks) in blocks.chunks(1_000).enumerate() {
        let parent = (at > 0).then(|| BlockHash(at as u64 * 1_000 - 1));
        texts.learn(SOMEBODY, Some(whole(b"endless")), parent, blocks);
    }
    let (prompt_blocks, _) = found(&mut texts, b"endless").unwrap();
    assert_eq!((prompt_blocks, texts.blocks()), (1 << 16, 1 << 16));
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let limits = Limits {
        blocks: 100,
        names: 1_000,
    };
    let (mut texts, mut engine) = (Texts::new(limits), Engine::default());
    let text = |number: u32| format!("{number:04} {}", "t".repeat(75)).into_bytes();
    for number in 0..5 {
        engine.run(&mut texts, whole(&text(number)), &text(number), b"", 64);
    }
    assert_eq!(texts.blocks(), 100);
    assert!(found(&mut texts, &text(0)).is_some(), "and is used now");
    engine.run(&mut texts, whole(&text(5)), &text(5), b"", 64);
    assert_eq!(found(&mut texts, &text(1)), None);
    assert!(found(&mut texts, &text(0)).is_some() && found(&mut texts, &text(5)).is_some());
    let few = Limits {
        blocks: 100,
        names: 2,
    };
    let (mut texts, mut engine) = (Texts::new(few), Engine::default());
    for number in 0..50 {
        engine.run(&mut texts, whole(&text(number)), &text(number), b"", 64);
    }
    assert_eq!(texts.names(), 2);
    assert!(found(&mut texts, &text(49)).is_some());
}

#[test]
fn what_has_no_room_at_all_takes_nobody_elses() {
    let limits = Limits {
        blocks: 20,
        names: 10,
    };
    let mut texts = Texts::new(limits);
    let chain: Vec<_> = (1..=12).map(BlockHash).collect();
    let others: Vec<_> = (101..=105).map(BlockHash).collect();
    let long: Vec<_> = (201..=221).map(BlockHash).collect();
    let as_told = |parent: Option<BlockHash>, blocks: &[BlockHash]| handover::Run {
        parent: parent.into(),
        teacher: 0,
        used: 0,
        blocks: blocks.into(),
        names: Vec::new(),
    };
    texts.learn(SOMEBODY, Some(whole(b"chain")), None, &chain);
    texts.learn(SOMEBODY, Some(whole(b"others")), None, &others);
    // More than there is room for; and more than is left behind a chain that it needs, or beside the rest of one.
    for (parent, blocks) in [
        (None, &long[..]),
        (Some(chain[11]), &long[..9]),
        (Some(chain[2]), &long[..9]),
    ] {
        texts.learn(SOMEBODY, Some(whole(b"long")), parent, blocks);
        texts.take_over(&as_told(parent, blocks), |_| 0);
        assert_eq!((texts.blocks(), texts.names()), (17, 2));
    }
    assert_eq!(found(&mut texts, b"others"), Some((5, others)));
    // What has room behind its own chain takes that of others.
    texts.learn(SOMEBODY, Some(whole(b"long")), Some(chain[11]), &long[..8]);
    assert_eq!((texts.blocks(), texts.names()), (20, 2));
    assert_eq!(found(&mut texts, b"others"), None);
}

#[test]
fn a_prompt_that_all_begin_with_keeps_no_names_of_texts_that_left_it() {
    let mut texts = Texts::new(Limits {
        blocks: 1_000,
        names: 1_000,
    });
    let shared: Vec<_> = (1..=10).map(BlockHash).collect();
    for number in 0..500 {
        let name = TextName {
            whole: 1_000 + number,
            common: Some(number % 2),
        };
        // Its prefill comes in two parts: it ends in the shared run, and then no more.
        texts.learn(SOMEBODY, Some(name), None, &shared);
        let own = [1, 2].map(|at| BlockHash(1_000 * (number + 1) + at));
        texts.learn(SOMEBODY, Some(name), Some(shared[9]), &own);
        assert!(texts.names_kept() <= 2 * texts.names());
    }
    texts.forget_taught_by(|engine| engine == SOMEBODY.engine);
    assert_eq!((texts.names(), texts.names_kept()), (0, 0));
    assert_eq!(texts.blocks(), 1_000);
    // What several had in common is nothing at all.
    let both = |whole| TextName {
        whole,
        common: Some(7),
    };
    texts.learn(SOMEBODY, Some(both(8)), None, &shared);
    texts.learn(SOMEBODY, Some(both(9)), Some(shared[9]), &[BlockHash(77)]);
    assert!(texts.find([7]).is_some());
    texts.learn(SOMEBODY, Some(both(10)), None, &[BlockHash(78)]);
    assert!(texts.find([7]).is_none());
    assert!(texts.names_kept() <= 2 * texts.names());
}

#[test]
fn a_text_that_made_room_for_its_own_blocks_is_a_new_one() {
    // A text of one block that becomes another, behind a chain that is full.
    let limits = Limits {
        blocks: 6,
        names: 10,
    };
    let mut texts = Texts::new(limits);
    let chain: Vec<_> = (1..=6).map(BlockHash).collect();
    texts.learn(SOMEBODY, Some(whole(b"other")), None, &chain[..5]);
    texts.learn(SOMEBODY, Some(whole(b"own")), None, &[BlockHash(100)]);
    let own = Some(whole(b"own"));
    let lesson = texts.learn(SOMEBODY, own, Some(chain[4]), &chain[5..]);
    assert_eq!((lesson.learned, texts.blocks()), (Learned::Followed, 6));
    assert_eq!(found(&mut texts, b"own"), Some((6, chain)));
}

#[test]
fn a_prefix_that_was_forgotten_is_not_another_one_in_its_place() {
    let limits = Limits {
        blocks: 10,
        names: 10,
    };
    let mut texts = Texts::new(limits);
    let learn = |texts: &mut Texts, text: &[u8]| {
        texts.learn(SOMEBODY, Some(whole(text)), None, &blocks_of(text))
    };
    let (first, second) = (
        b"the first text, of ten blocks in all....",
        b"another one, of as many blocks as it has",
    );
    learn(&mut texts, first);
    let prefix = texts.prefixes()[0];
    let mut chain = Vec::new();
    texts.chain_of(&prefix, &mut chain);
    assert_eq!(chain, blocks_of(first));
    // Its run has the same number and the same length.
    learn(&mut texts, second);
    assert_eq!(texts.runs()[0].number, 0);
    texts.chain_of(&prefix, &mut chain);
    assert_eq!(chain, []);
    // Once it is there again it is found, wherever it stands.
    learn(&mut texts, first);
    texts.chain_of(&prefix, &mut chain);
    assert_eq!(chain, blocks_of(first));
}
