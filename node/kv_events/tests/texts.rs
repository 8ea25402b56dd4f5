//! Laws of what is learned of texts: no chain has a block that the text does not have, whatever was stored and lost.

#![allow(clippy::disallowed_types, reason = "sets are asked for members only")]

use std::collections::{BTreeSet, HashSet};

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::texts::{Learned, Limits, TextName, TextNameError, Texts};
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

/// An engine that stores what it does not have, in chunks of some blocks.
#[derive(Default)]
struct Engine {
    has: HashSet<BlockHash>,
}

impl Engine {
    fn run(
        &mut self,
        texts: &mut Texts,
        name: TextName,
        prompt: &[u8],
        answer: &[u8],
        chunk: usize,
    ) {
        let all = blocks_of(&[prompt, answer].concat());
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
                texts.learn(Some(name), parent, blocks);
            }
            self.has.extend(blocks);
            parent = blocks.last().copied();
        }
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
    let learn = texts.learn(Some(whole(b"x")), Some(BlockHash(7)), &blocks);
    assert_eq!(
        (learn, texts.blocks(), texts.names()),
        (Learned::Unrooted, 0, 0)
    );
}

#[test]
fn what_somebody_else_began_is_followed() {
    let mut texts = Texts::new(Limits::default());
    let blocks = blocks_of(b"a system prompt that somebody else sent first, and a question");
    assert_eq!(texts.learn(None, None, &blocks[..8]), Learned::Followed);
    let name = whole(b"ours");
    assert_eq!(
        texts.learn(Some(name), Some(blocks[7]), &blocks[8..]),
        Learned::Followed
    );
    let (_, found) = texts.find([name.whole]).unwrap();
    assert_eq!(found.prompt_blocks as usize, blocks.len());
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
    // A chain that has no room at all is not kept, and nothing hangs.
    let long = "l".repeat(500).into_bytes();
    engine.run(&mut texts, whole(&long), &long, b"", 1_000);
    assert!(texts.blocks() <= 100);
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
        let mut engines: [Engine; 3] = Default::default();
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
            engines[*engine].run(&mut texts, name, &prompt, &answer, *chunk);
            prompts.insert(prompt.clone());
            history.push(prompt.clone());
            history.push([prompt, answer].concat());
            prop_assert!(texts.blocks() <= limit && texts.names() <= limit);
        }
        for prompt in &prompts {
            let Some((prompt_blocks, chain)) = found(&mut texts, prompt) else {
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
