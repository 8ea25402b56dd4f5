//! What events teach of texts, of what they have in common, and of who computes hashes alike.

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::texts::{Learned, Limits, Speaker, TextName, TextNameError, Texts};

use crate::engine::{Engine, SOMEBODY, blocks_of, found, name_of, whole};

#[test]
fn a_text_that_was_computed_is_known_with_its_answer() {
    let (mut texts, mut engine) = (Texts::new(Limits::default()), Engine::default());
    let (prompt, answer) = (
        b"system and a first question of some length".as_slice(),
        b" and an answer".as_slice(),
    );
    engine.run(&mut texts, whole(prompt), prompt, answer, 5);
    let all = blocks_of(&[prompt, answer].concat());
    assert_eq!(found(&mut texts, prompt), Some((10, all.clone())));
    // The next turn goes on behind the answer; what it stores follows.
    let next = [prompt, answer, b" and the second question"].concat();
    engine.run(&mut texts, whole(&next), &next, b"", 64);
    assert_eq!(
        found(&mut texts, &next),
        Some((next.len() as u32 / 4, blocks_of(&next)))
    );
    assert_eq!(found(&mut texts, prompt), Some((10, all)));
    assert_eq!(found(&mut texts, b"something else"), None);
}

#[test]
fn what_texts_have_in_common_ends_where_the_second_leaves_the_first() {
    let (mut texts, mut engine) = (Texts::new(Limits::default()), Engine::default());
    let system = b"a long system prompt for everybody, ".as_slice();
    let common = name_of(system);
    let ask = |question: &[u8]| [system, question].concat();
    engine.run(
        &mut texts,
        whole(&ask(b"what is 1 + 1?")),
        &ask(b"what is 1 + 1?"),
        b"",
        2,
    );
    assert_eq!(found(&mut texts, system), None);
    for (question, blocks) in [
        (b"what is 2 + 2?".as_slice(), 11),
        (b"why is water wet?", 9),
        (b"what is 3 + 3?", 9),
    ] {
        let text = ask(question);
        let name = TextName {
            whole: name_of(&text),
            common: Some(common),
        };
        // Another engine, which has nothing: what it stores again is known.
        Engine::default().run(&mut texts, name, &text, b"", 2);
        assert_eq!(
            found(&mut texts, system),
            Some((blocks, blocks_of(&text)[..blocks as usize].to_vec()))
        );
    }
}

#[test]
fn chains_without_a_beginning_are_not_learned() {
    let mut texts = Texts::new(Limits::default());
    let blocks = blocks_of(b"some text that is long enough");
    let learn = texts.learn(SOMEBODY, Some(whole(b"x")), Some(BlockHash(7)), &blocks);
    assert_eq!(
        (learn.learned, texts.blocks(), texts.names()),
        (Learned::Unrooted, 0, 0)
    );
}

#[test]
fn what_somebody_else_began_is_followed() {
    let mut texts = Texts::new(Limits::default());
    let blocks = blocks_of(b"a system prompt that somebody else sent first, and a question");
    assert_eq!(
        texts.learn(SOMEBODY, None, None, &blocks[..8]).learned,
        Learned::Followed
    );
    let name = whole(b"ours");
    assert_eq!(
        texts
            .learn(SOMEBODY, Some(name), Some(blocks[7]), &blocks[8..])
            .learned,
        Learned::Followed
    );
    let (_, found) = texts.find([name.whole]).unwrap();
    assert_eq!(found.prompt_blocks as usize, blocks.len());
}

#[test]
fn engines_that_hash_alike_agree_and_others_contradict() {
    let mut texts = Texts::new(Limits::default());
    let text = b"a prompt that several engines compute, one after the other".as_slice();
    let run = |texts: &mut Texts, engine: u32, seed: u64, may_teach| {
        let mut blocks = blocks_of(text);
        blocks.iter_mut().for_each(|block| block.0 ^= seed);
        let speaker = Speaker { engine, may_teach };
        let lesson = texts.learn(speaker, Some(whole(text)), None, &blocks);
        (lesson.shares_with, lesson.contradicts)
    };
    // An odd one speaks first.
    assert_eq!(run(&mut texts, 4, 0xff, true), (None, None));
    assert_eq!(run(&mut texts, 1, 0, false), (None, Some(4)));
    assert_eq!(run(&mut texts, 2, 0, false), (Some(1), Some(4)));
    // Its word counts no more: then those that are alike teach.
    texts.forget_taught_by(|engine| engine == 4);
    assert!(found(&mut texts, text).is_none());
    assert_eq!(run(&mut texts, 2, 0, true), (Some(1), None));
    assert_eq!(run(&mut texts, 3, 0, true), (Some(1), None));
    assert_eq!(run(&mut texts, 4, 0xff, false), (None, Some(2)));
    assert_eq!(found(&mut texts, text).expect("known").1, blocks_of(text));
    // What an engine contradicts is its own word: the text became something else.
    assert_eq!(run(&mut texts, 2, 0xaa, true), (None, None));
    // A single block proves nothing against anybody: it may be the first of an answer.
    let short = |texts: &mut Texts, engine, block| {
        let speaker = Speaker {
            engine,
            may_teach: true,
        };
        texts.learn(speaker, Some(whole(b"hi")), None, &[BlockHash(block)])
    };
    assert_eq!(short(&mut texts, 1, 77).contradicts, None);
    assert_eq!(short(&mut texts, 4, 78).contradicts, None);
}

#[test]
fn prefixes_are_what_texts_share_and_what_each_has_alone() {
    let (mut texts, mut engine) = (Texts::new(Limits::default()), Engine::default());
    let system = b"a long system prompt for everybody, ".as_slice();
    for question in [b"what is 1 + 1?".as_slice(), b"why is water wet?", b"who?"] {
        let text = [system, question].concat();
        let name = TextName {
            whole: name_of(&text),
            common: Some(name_of(system)),
        };
        engine.run(&mut texts, name, &text, b"", 64);
    }
    let mut seen: Vec<_> = texts
        .prefixes()
        .iter()
        .map(|prefix| (prefix.before, prefix.blocks, prefix.texts, prefix.name))
        .collect();
    seen.sort_unstable();
    let name = |question: &[u8]| Some(name_of(&[system, question].concat()));
    let mut expected = [
        (0, 9, 3, Some(name_of(system))),
        (9, 12, 1, name(b"what is 1 + 1?")),
        (9, 13, 1, name(b"why is water wet?")),
        (9, 10, 1, name(b"who?")),
    ];
    expected.sort_unstable();
    assert_eq!(seen, expected);
    let longest = texts
        .prefixes()
        .into_iter()
        .max_by_key(|prefix| prefix.blocks);
    let mut chain = Vec::new();
    texts.chain_of(&longest.expect("some"), &mut chain);
    assert_eq!(chain.len(), 13);
    assert!(chain.starts_with(&blocks_of(system)));
}

#[test]
fn names_are_read_as_they_are_written() {
    for (name, text) in [
        (
            TextName {
                whole: 0xab,
                common: None,
            },
            "gv1-000000000000ab",
        ),
        (
            TextName {
                whole: u64::MAX,
                common: Some(1),
            },
            "gv1-ffffffffffffff-00000000000001",
        ),
    ] {
        assert_eq!(name.to_string(), text);
        let low = (1 << 56) - 1;
        let read: TextName = text.parse().unwrap();
        assert_eq!((read.whole, read.common), (name.whole & low, name.common));
    }
    for text in [
        "",
        "gv1-",
        "gv1-00",
        "gv1-000000000000AB",
        "gv1-000000000000ab-",
        "gv2-000000000000ab",
        "gv1-000000000000ab-00000000000001-00000000000001",
        "gv1-+00000000000ab",
        "my session",
    ] {
        assert_eq!(text.parse::<TextName>(), Err(TextNameError), "{text}");
    }
}
