//! Laws: no chain has a block that the text does not have, whatever was stored and lost.

use std::collections::BTreeSet;

use grapevine_kv_events::texts::{Learned, Limits, TextName, Texts};
use proptest::prelude::*;

use crate::engine::{Engine, blocks_of, found, name_of};
use crate::handover::taken_over;

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
