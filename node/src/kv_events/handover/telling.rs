//! What is known here, a page at a time.

use grapevine_kv_events::handover::{Engine as Told, PAGE_BYTES, Page, Piece, Question};
use grapevine_kv_events::index::PARTS;
use grapevine_kv_events::publisher::Knowledge;
use grapevine_kv_events::texts::RunKey;
use grapevine_kv_events::{BlockHash, Tier};

use super::super::caches::{Caches, Engine, Key, State};

/// Runs of texts that are read in one piece; decisions wait meanwhile.
const RUNS_AT_ONCE: usize = 256;
/// Bytes of a block.
const BLOCK_BYTES: usize = size_of::<u64>();
/// Blocks of one engine that are told of; a page must have room for them.
const BLOCKS_MAX: usize = PAGE_BYTES / BLOCK_BYTES;
/// Engines of a page; those with few blocks take little more than their names.
const ENGINES_MAX: usize = 1_024;

/// Engines behind one, with what they hold.
///
/// Those of a page stand still while it is made: all of it is as of the message that it names. Their listeners wait, and
/// nobody else does.
pub(super) fn engines(caches: &Caches, after: Option<&(String, u32)>) -> Vec<Vec<u8>> {
    let is_behind = |(worker, rank): &Key| {
        after.is_none_or(|(of, after)| (&**worker, *rank) > (of.as_str(), *after))
    };
    let all = caches.listed();
    let behind: Vec<_> = all.iter().filter(|(key, _)| is_behind(key)).collect();
    let mut page = Vec::new();
    let mut blocks = 0;
    for (key, engine) in &behind {
        let still = engine.stands_still();
        let state = engine.state();
        let index = caches.index();
        let held: u32 = Tier::ALL.iter().map(|tier| state.held(&index, *tier)).sum();
        drop(index);
        blocks += held as usize;
        if !page.is_empty() && (blocks > BLOCKS_MAX || page.len() >= ENGINES_MAX) {
            break;
        }
        let holder = state.publisher.holder().map(|holder| holder.number());
        drop(state);
        page.push((key, engine, holder, still));
    }
    let is_last = page.len() == behind.len();
    let mut told = Page::default();
    let contents = contents(caches, page.iter().map(|(_, _, holder, _)| *holder));
    for ((key, engine, ..), mut held) in page.iter().zip(contents) {
        let state = engine.state();
        // One that ended meanwhile is not known any more, and is not told of.
        let Some(engine) = describe(caches, key, engine, &state, &mut held) else {
            continue;
        };
        told.push(&Piece::Engine(engine));
        for (tier, blocks) in Tier::ALL.into_iter().zip(&held) {
            told.push_blocks(tier, blocks);
        }
        if let Some(holder) = state.publisher.holder() {
            let copies: Vec<_> = caches.index().copies(holder).collect();
            told.push_copies(&copies);
        }
    }
    let next = page
        .last()
        .filter(|_| !is_last)
        .map(|((worker, rank), ..)| {
            let last = (worker.to_string(), *rank);
            Question::Engines(Some(last))
        });
    told.into_frames(Some(next.unwrap_or(Question::Texts(None))))
}

/// What is told of an engine; none if nothing is known of it. Of one that holds too much a part is told.
fn describe(
    caches: &Caches,
    key: &Key,
    engine: &Engine,
    state: &State,
    held: &mut Held,
) -> Option<Told> {
    let knowledge = state.publisher.knowledge();
    let mark = state.mark.filter(|_| knowledge != Knowledge::Unknown)?;
    let mut room = BLOCKS_MAX;
    let mut is_whole = knowledge == Knowledge::Whole;
    for blocks in held {
        is_whole &= blocks.len() <= room;
        blocks.truncate(room);
        room -= blocks.len();
    }
    Some(Told {
        worker: key.0.to_string(),
        rank: key.1,
        number: engine.number(),
        kind: caches.likeness().kind(engine.number()),
        mark: (mark.sequence, mark.fingerprint),
        is_whole,
        group: state.publisher.group(),
        block_tokens: state.publisher.block_tokens(),
    })
}

type Held = [Vec<BlockHash>; Tier::ALL.len()];

/// What holders of these numbers hold, by tier.
fn contents(caches: &Caches, holders: impl Iterator<Item = Option<usize>>) -> Vec<Held> {
    // By the holder's number.
    let mut position = Vec::new();
    let mut count = 0;
    for holder in holders {
        if let Some(number) = holder {
            if position.len() <= number {
                position.resize(number + 1, usize::MAX);
            }
            position[number] = count;
        }
        count += 1;
    }
    let mut contents = vec![Held::default(); count];
    for part in 0..PARTS {
        // Decisions and other engines read and write in between.
        caches.index().visit(part, |holder, tier, block| {
            let at = position.get(holder).copied().unwrap_or(usize::MAX);
            if let Some(held) = contents.get_mut(at) {
                held[tier as usize].push(block);
            }
        });
    }
    contents
}

/// Texts behind a run.
pub(super) fn texts(caches: &Caches, after: Option<(u32, u32)>) -> Vec<Vec<u8>> {
    let mut runs = caches.texts().runs();
    runs.sort_unstable();
    let after = after.map(|(before, number)| RunKey { before, number });
    let behind = runs.partition_point(|run| Some(*run) <= after);
    let mut told = Page::default();
    if after.is_none() {
        let apart: Vec<_> = caches.likeness().apart().collect();
        for (one, other) in apart {
            told.push(&Piece::Apart(one, other));
        }
    }
    let mut next = None;
    'page: for some in runs[behind..].chunks(RUNS_AT_ONCE) {
        let texts = caches.texts();
        let some_runs: Vec<_> = some.iter().map(|key| (key, texts.run(*key))).collect();
        drop(texts);
        for (key, run) in some_runs {
            if told.bytes() >= PAGE_BYTES {
                break 'page;
            }
            // One that was forgotten meanwhile is none.
            run.into_iter().for_each(|run| told.push_run(run));
            next = Some(key);
        }
    }
    let is_last = next == runs.last();
    let next = next.filter(|_| !is_last);
    told.into_frames(next.map(|run| Question::Texts(Some((run.before, run.number)))))
}
