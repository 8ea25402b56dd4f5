//! Retrieved passages before a question: what repeats is in the middle of prompts, and mostly not at their beginning.
//!
//! Prompts share as many passages as they have in the same order. What an engine that keeps blocks by prefix could reuse
//! is that and no more.

use rand::Rng;
use rand::rngs::StdRng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::workload::Draft;
use super::{BLOCK, Sizes, exponential};
use crate::replay::Row;

const REQUESTS: u64 = 8_000;
/// Mean time between two requests at rate 1.
const START_MS: f64 = 50.0;
const SYSTEM_BLOCKS: u32 = 10;
const TOPICS: usize = 500;
const TOPICS_SKEW: f64 = 0.8;
const OF_TOPIC: usize = 8;
const TAKEN: usize = 4;
/// By so many ranks at most a question changes the score of a passage.
const NOISE: f64 = 2.0;
const PASSAGE_BLOCKS: (u32, u32) = (6, 24);
const QUESTION_TOKENS: (u32, u32) = (30, 200);
const ANSWER_TOKENS: (u32, u32) = (50, 300);

/// Adds the requests; `apart`: a message ends where a passage does.
pub(super) fn draw(apart: bool, random: &mut StdRng, drafts: &mut Vec<Draft>) {
    let lengths: Vec<u32> = (0..TOPICS * OF_TOPIC)
        .map(|_| random.random_range(PASSAGE_BLOCKS.0..=PASSAGE_BLOCKS.1))
        .collect();
    let topics = Sizes::new(TOPICS, TOPICS_SKEW);
    let mut start_ms = 0.0;
    for request in 0..REQUESTS {
        start_ms += START_MS * exponential(random);
        let topic = topics.draw(random);
        let mut ranked: Vec<_> = (0..OF_TOPIC)
            .map(|rank| (rank as f64 + random.random_range(0.0..NOISE), rank))
            .collect();
        ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut blocks = Vec::new();
        let mut prefix = 0;
        extend(&mut blocks, &mut prefix, 0, SYSTEM_BLOCKS);
        let mut cuts = vec![SYSTEM_BLOCKS * BLOCK];
        for (_, rank) in ranked.into_iter().take(TAKEN) {
            let passage = topic * OF_TOPIC + rank;
            extend(
                &mut blocks,
                &mut prefix,
                passage as u64 + 1,
                lengths[passage],
            );
            if apart {
                cuts.push(blocks.len() as u32 * BLOCK);
            }
        }
        let before = blocks.len() as u32 * BLOCK;
        let in_tokens = before + random.random_range(QUESTION_TOKENS.0..=QUESTION_TOKENS.1);
        let own = in_tokens.div_ceil(BLOCK) - before / BLOCK;
        extend(&mut blocks, &mut prefix, request << 32 | 1 << 31, own);
        drafts.push(Draft {
            row: Row {
                t_ms: start_ms as u64,
                in_tokens,
                out_tokens: random.random_range(ANSWER_TOKENS.0..=ANSWER_TOKENS.1),
                blocks,
                session: Some(request),
                gap_ms: Some(0),
            },
            cuts,
        });
    }
}

/// Appends a text's blocks: their ids tell what is before them, too, as prefixes do.
fn extend(blocks: &mut Vec<u64>, prefix: &mut u64, text: u64, count: u32) {
    for at in 0..count {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&text.to_le_bytes());
        bytes[8..].copy_from_slice(&u64::from(at).to_le_bytes());
        *prefix = xxh3_64_with_seed(&bytes, *prefix) >> 8;
        blocks.push(*prefix);
    }
}
