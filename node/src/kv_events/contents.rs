//! What workers say that their caches hold of a prompt: its text's blocks, looked up in the index.

use std::cell::RefCell;

use grapevine_kv_events::BlockHash;
use grapevine_kv_events::index::{Match, Search};
use grapevine_kv_events::texts::Found;
use grapevine_placement::{Candidate, Key, Told};

use super::caches::Caches;
use crate::upstream::{KvEngine, Worker};

/// A prompt of which events told so much less than its length lets expect was broken off while it was computed. Text takes
/// up to three times fewer tokens than estimated where most of it is white space.
const LENGTH_MAX: f64 = 3.0;
/// So many links are looked up from the prompt's end on, some 64 tokens each; before them its marks alone.
const LINKS_MAX: usize = 512;

thread_local! {
    /// One per runtime thread, so that a look-up allocates nothing.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    chain: Vec<BlockHash>,
    search: Search,
    /// By the number of the holder.
    matches: Vec<Option<Match>>,
}

/// The name of a text that ends at this link or mark: a mark's lowest byte is its size.
pub fn name_of(link: u64) -> u64 {
    link >> 8
}

/// What is known of a prompt's text, in the tokens of its key.
struct Text {
    found: Found,
    /// Tokens up to the end of what is known, without an answer behind it.
    tokens: f64,
    /// It is all of the prompt: what was once answered to it is not part of it.
    is_all: bool,
    prompt_tokens: u32,
}

impl Text {
    fn of(key: &Key, (at, found): (usize, Found)) -> Self {
        let links = key.links().len().min(LINKS_MAX);
        let marks = key.marks();
        let link = match at < links {
            true => key.links()[key.links().len() - 1 - at],
            false => marks[marks.len() - 1 - (at - links)],
        };
        Self {
            found,
            tokens: f64::from(link.tokens),
            is_all: at == 0 && links > 0,
            prompt_tokens: key.prompt_tokens(),
        }
    }

    /// The same for an engine with blocks of so many tokens, which shows how long it is.
    fn with_blocks_of(&self, block_tokens: u32) -> Self {
        let told = f64::from(self.found.prompt_blocks) * f64::from(block_tokens);
        let is_broken_off = block_tokens > 0 && self.tokens > told * LENGTH_MAX;
        Self {
            found: self.found,
            tokens: if is_broken_off { told } else { self.tokens },
            is_all: self.is_all && !is_broken_off,
            prompt_tokens: self.prompt_tokens,
        }
    }

    /// The blocks that belong to the prompt.
    fn blocks(&self) -> u32 {
        match self.is_all {
            true => self.found.prompt_blocks,
            false => self.found.blocks,
        }
    }

    /// Estimated tokens of so many blocks.
    fn tokens_of(&self, blocks: f64) -> u32 {
        let of_prompt = f64::from(self.found.prompt_blocks.max(1));
        let tokens = self.tokens * blocks / of_prompt;
        tokens.min(f64::from(self.prompt_tokens)) as u32
    }
}

impl Caches {
    /// Fills in what workers, in the order of the candidates, say of a prompt. Nothing for those that publish nothing,
    /// and for a text of which nobody knows which blocks it became.
    pub fn tell<'a>(
        &self,
        workers: impl Iterator<Item = &'a Worker>,
        key: &Key,
        candidates: &mut [Candidate],
    ) {
        if !self.hears_any() {
            return;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let Some(text) = self.find(key, scratch) else {
                return;
            };
            for (worker, candidate) in workers.zip(candidates) {
                candidate.told = self.told(worker, &text, &scratch.matches);
            }
        });
    }

    /// Whether a worker says that it holds the first so many tokens of a prompt, but for a tenth at most.
    pub fn is_held(&self, worker: &Worker, key: &Key, tokens: u32) -> bool {
        let mut candidate = [Candidate::default()];
        self.tell(std::iter::once(worker), key, &mut candidate);
        let told = candidate[0].told.unwrap_or_default();
        u64::from(told.held_tokens) * 10 >= u64::from(tokens) * 9
    }

    /// What is known of the text, and who has how many of its blocks.
    fn find(&self, key: &Key, scratch: &mut Scratch) -> Option<Text> {
        let links = key.links().iter().rev().take(LINKS_MAX);
        let names = links.chain(key.marks().iter().rev());
        let text = {
            let mut texts = self.texts();
            let found = texts.find(names.map(|link| name_of(link.hash)))?;
            texts.chain(&found.1, &mut scratch.chain);
            Text::of(key, found)
        };
        scratch.chain.truncate(text.blocks() as usize);
        let matches = &mut scratch.matches;
        matches.clear();
        let index = self.index();
        for found in index.search(&scratch.chain, &mut scratch.search) {
            let number = found.holder.number();
            if matches.len() <= number {
                matches.resize(number + 1, None);
            }
            matches[number] = Some(*found);
        }
        Some(text)
    }

    fn told(&self, worker: &Worker, text: &Text, matches: &[Option<Match>]) -> Option<Told> {
        let engines = worker.kv_engines.load();
        if engines.is_empty() || !engines.iter().all(|engine| engine.is_believed()) {
            return None;
        }
        let block_tokens = engines.iter().map(|engine| engine.block_tokens()).max();
        let text = &text.with_blocks_of(block_tokens.unwrap_or(0));
        let keeps_answers = engines.iter().all(|engine| engine.keeps_answers());
        let known = match keeps_answers {
            true => text.blocks(),
            false => text.blocks().min(text.found.prompt_blocks),
        };
        // Which of several ranks will have the request is not known: the one with most of it is hoped for.
        let found = engines.iter().filter_map(|engine| {
            let found = found_in(engine, matches)?;
            let counted = f64::from(found.blocks.min(known)) / f64::from(found.blocks);
            Some((
                self.worth_of(found) * counted,
                found.blocks,
                engine.block_tokens(),
            ))
        });
        let most = found.max_by(|a, b| a.0.total_cmp(&b.0));
        let (worth, blocks, block_tokens) = most.unwrap_or_default();
        let of_prompt = blocks.min(text.found.prompt_blocks);
        let tells_all = engines.iter().all(|engine| engine.tells_all());
        let told = Told {
            held_tokens: text.tokens_of(worth),
            until_tokens: match tells_all {
                // Behind a block that is missing nothing can be used.
                true if text.is_all || blocks < known => text.prompt_tokens,
                true => text.tokens_of(f64::from(known)),
                false => 0,
            },
            // An engine says what it likes of its blocks.
            cached_tokens: of_prompt.saturating_mul(block_tokens),
            answer_tokens: (blocks - of_prompt).saturating_mul(block_tokens),
        };
        (told != Told::default()).then_some(told)
    }

    /// Blocks on the GPU that these are worth.
    fn worth_of(&self, found: Match) -> f64 {
        let by_tier = found.by_tier.iter().zip(self.worth);
        by_tier
            .map(|(blocks, worth)| f64::from(*blocks) * worth)
            .sum()
    }
}

fn found_in(engine: &KvEngine, matches: &[Option<Match>]) -> Option<Match> {
    let bits = engine.holder()?;
    // The holder's number is in the lowest bits.
    let number = usize::from(bits as u16);
    let found = (*matches.get(number)?)?;
    (found.holder.bits() == bits).then_some(found)
}

#[cfg(test)]
mod tests {
    use grapevine_kv_events::texts::{Limits, Speaker, TextName, Texts};
    use grapevine_placement::{ClusterSettings, KeyBuilder};

    use super::super::tests::Scene;
    use super::*;

    #[test]
    fn a_prompt_that_was_broken_off_is_as_long_as_what_was_told_of_it() {
        let mut texts = Texts::new(Limits::default());
        let speaker = Speaker {
            engine: 0,
            may_teach: true,
        };
        let name = TextName {
            whole: 7,
            common: None,
        };
        let blocks: Vec<_> = (1..=24).map(BlockHash).collect();
        texts.learn(speaker, Some(name), None, &blocks);
        let (_, found) = texts.find([7]).expect("known");
        let text = |tokens: f64| Text {
            found,
            tokens,
            is_all: true,
            prompt_tokens: tokens as u32,
        };
        let check = |tokens, block_tokens, expected: (u32, bool)| {
            let seen = text(tokens).with_blocks_of(block_tokens);
            assert_eq!((seen.tokens_of(24.0), seen.is_all), expected);
        };
        check(400.0, 16, (400, true));
        check(1_100.0, 16, (1_100, true));
        check(2_740.0, 16, (384, false));
        check(2_740.0, 0, (2_740, true));
    }

    #[test]
    fn an_engine_may_say_any_size_of_its_blocks() {
        let scene = Scene::of(1);
        let engine = &scene.begin()[0];
        engine.begin(true);
        engine.stands(true, true, Some(0));
        let settings = ClusterSettings::default();
        let mut builder = KeyBuilder::new(&settings.key, "m", b"");
        builder.begin_message("user");
        builder.text("word ".repeat(800));
        builder.end_message();
        let key = builder.finish();
        // An earlier prompt that this one goes on from, then its answer a block at a time.
        let before = key.links().len() - 2;
        let text = name_of(key.links()[before].hash);
        scene.tell(engine, text, None, &[1, 2, 3]);
        scene.tell(engine, text, Some(3), &[4]);
        scene.tell_of_size(engine, u32::MAX, text, Some(4), &[5]);
        let mut candidate = [Candidate::default()];
        let worker = std::iter::once(&*scene.workers[0]);
        scene.caches().tell(worker, &key, &mut candidate);
        let told = candidate[0].told.expect("the text is known");
        assert_eq!(
            (told.cached_tokens, told.answer_tokens),
            (u32::MAX, u32::MAX)
        );
        assert!((1..=key.prompt_tokens()).contains(&told.held_tokens));
    }
}
