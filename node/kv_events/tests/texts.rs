//! Laws of what is learned of texts: no chain has a block that the text does not have, whatever was stored and lost.

#![allow(clippy::disallowed_types, reason = "sets are asked for members only")]

use std::collections::{BTreeSet, HashSet};

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::handover::{self, Page, Piece};
use grapevine_kv_events::texts::{Learned, Limits, Speaker, TextName, TextNameError, Texts};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// Tokens of a block.
const BLOCK: usize = 4;

fn name_of(text: &[u8]) -> u64 {
    // As the digits carry it.
    xxh3_64(text) & ((1 << 56) - 1)
}

/// The blocks of a text: one byte is one token.
fn blocks_of(text: &[u8]) -> Vec<BlockHash> {
    let whole = text.len() / BLOCK;
    (1..=whole)
        .map(|count| BlockHash(xxh3_64(&text[..count * BLOCK])))
        .collect()
}

const SOMEBODY: Speaker = Speaker {
    engine: 7,
    may_teach: true,
};

/// An engine that stores what it does not have, in chunks of some blocks.
struct Engine {
    has: HashSet<BlockHash>,
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
    fn new(engine: u32, seed: u64) -> Self {
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
    fn run(
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

fn whole(text: &[u8]) -> TextName {
    TextName {
        whole: name_of(text),
        common: None,
    }
}

fn found(texts: &mut Texts, text: &[u8]) -> Option<(u32, Vec<BlockHash>)> {
    let (_, found) = texts.find([name_of(text)])?;
    let mut chain = Vec::new();
    texts.chain(&found, &mut chain);
    assert_eq!(chain.len(), found.blocks as usize);
    Some((found.prompt_blocks, chain))
}

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

/// All that is known, as another one takes it: by frames.
fn taken_over(texts: &Texts, limits: Limits) -> Texts {
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

/// A request: which earlier one it continues, what it adds, how long its answer is, chunk, engine.
type Step = (prop::sample::Index, Vec<u8>, usize, usize, usize);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let added = prop::collection::vec(0_u8..3, 0..30);
    prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            added,
            0_usize..20,
            1_usize..5,
            0_usize..3,
        ),
        1..60,
    )
}

proptest! {
    /// Conversations that part and go on, on engines that forget, with names that are forgotten: whatever is found of a
    /// text, its blocks are those of the text, and of what followed it once.
    #[test]
    fn no_chain_has_a_block_that_is_not_the_texts(steps in steps(), limit in 20_usize..400, forget in 0_u8..5) {
        let mut texts = Texts::new(Limits { blocks: limit, names: limit });
        let mut engines = [0, 1, 2].map(|number| Engine::new(number, 0));
        let mut history: Vec<Vec<u8>> = vec![Vec::new()];
        let mut prompts = BTreeSet::new();
        for (number, (before, added, answer, chunk, engine)) in steps.iter().enumerate() {
            let base = before.get(&history).clone();
            let prompt = [base.as_slice(), added].concat();
            let answer: Vec<u8> = (0..*answer).map(|at| 100 + (number * 7 + at) as u8 % 90).collect();
            // What begins it of all that was sent before.
            let common = history.iter().filter(|text| !text.is_empty() && prompt.starts_with(text) && **text != prompt)
                .max_by_key(|text| text.len()).map(|text| name_of(text));
            let name = TextName { whole: name_of(&prompt), common };
            if forget == 0 || number % 7 == usize::from(forget) {
                engines[*engine].has.retain(|block| block.0 % 3 != 0);
            }
            let learned = engines[*engine].run(&mut texts, name, &prompt, &answer, *chunk);
            prop_assert!(!learned.contains(&Learned::Contradicts));
            prompts.insert(prompt.clone());
            history.push(prompt.clone());
            history.push([prompt, answer].concat());
            prop_assert!(texts.blocks() <= limit && texts.names() <= limit);
            prop_assert!((texts.names()..=2 * texts.names()).contains(&texts.names_kept()));
        }
        let mut taken = taken_over(&texts, Limits { blocks: limit, names: limit });
        prop_assert!((taken.names()..=2 * taken.names()).contains(&taken.names_kept()));
        prop_assert_eq!((taken.blocks(), taken.names()), (texts.blocks(), texts.names()));
        for prompt in &prompts {
            let known = found(&mut texts, prompt);
            prop_assert_eq!(&found(&mut taken, prompt), &known);
            let Some((prompt_blocks, chain)) = known else {
                continue;
            };
            let own = blocks_of(prompt);
            let in_prompt = chain.len().min(own.len());
            prop_assert_eq!(&chain[..in_prompt], &own[..in_prompt]);
            prop_assert!(prompt_blocks as usize <= chain.len());
            let begins = |text: &&Vec<u8>| {
                text.starts_with(prompt) && blocks_of(text).starts_with(&chain)
            };
            prop_assert!(history.iter().any(|text| begins(&text)));
        }
    }
}
