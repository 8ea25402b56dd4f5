//! Workloads: requests with their keys, made once and replayed many times.
//!
//! Keys are made by the router's own code from text that stands for the block ids: four bytes a token, fixed for
//! each id, so equal prefixes of ids are equal prefixes of text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use grapevine_placement::{Key, KeyBuilder, KeySettings};

use super::copies;
use crate::replay::{Row, Trace, Turns};

/// Bytes of text for a token, as [`KeySettings`] takes them.
const TOKEN_BYTES: usize = 4;
/// Greatest number of requests in all copies of a trace: one takes a few kB.
const REQUESTS_MAX: u64 = 1_000_000;

/// How rows become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A system message, then user and assistant in turn.
    Chat,
    /// One text without structure, as `/v1/completions` sends it.
    Plain,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Prompt length in tokens.
    pub in_tokens: u32,
    /// Answer length in tokens, at least 1.
    pub out_tokens: u32,
    /// Ids of the prompt's blocks; equal ids, equal prefixes.
    pub blocks: Vec<u64>,
    /// Ids of the whole blocks that its answer fills, after the prompt's whole ones: the next turn contains
    /// them.
    pub answer: Vec<u64>,
    /// The key that the router makes from the text.
    pub key: Key,
    /// Time from the end of the previous answer in its chain until it is sent, in µs.
    pub gap_us: u64,
}

/// Requests that follow one another: a single one in an open loop, or those of a session.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Start at rate 1, in µs.
    pub start_us: u64,
    /// Indices of its requests.
    pub requests: Vec<usize>,
}

/// A load.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name in tables.
    pub name: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// All requests.
    pub requests: Vec<Request>,
    /// In order of their starts.
    pub chains: Vec<Chain>,
    /// The sessions of which it is several copies.
    sessions: Option<Sessions>,
}

/// A closed-loop trace, and the number of its copies in a load.
#[derive(Debug, Clone)]
struct Sessions {
    trace: Trace,
    copies: u64,
    form: Form,
}

/// A row and where its messages end.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) row: Row,
    /// Tokens at which a message ends, ascending; the first is the system message's end.
    pub(super) cuts: Vec<u32>,
}

impl Workload {
    /// The load that a trace recorded.
    pub fn of_trace(name: &str, trace: &Trace, form: Form) -> Self {
        let turns = Turns::of(&trace.rows, trace.block_tokens);
        let ends = turns.message_ends(&trace.rows, trace.system_tokens());
        Self::of_rows(name, &trace.rows, &ends, &turns, form)
    }

    /// The load of `count` copies, at least one, of the sessions of a closed-loop trace. For a higher rate
    /// [`Workload::at`] takes more copies.
    pub fn of_sessions(name: &str, trace: Trace, count: u64, form: Form) -> Self {
        Self {
            sessions: Some(Sessions {
                copies: count,
                form,
                trace: trace.clone(),
            }),
            ..Self::of_trace(name, &copies(&trace, count), form)
        }
    }

    pub(super) fn build(name: &str, block_tokens: u32, drafts: Vec<Draft>, form: Form) -> Self {
        let drafts = drafts.into_iter().map(|draft| (draft.row, draft.cuts));
        let (rows, cuts): (Vec<_>, Vec<_>) = drafts.unzip();
        let turns = Turns::of(&rows, block_tokens);
        Self::of_rows(name, &rows, &cuts, &turns, form)
    }

    fn of_rows(name: &str, rows: &[Row], cuts: &[Vec<u32>], turns: &Turns, form: Form) -> Self {
        let mut chains: Vec<Chain> = Vec::new();
        let mut sessions: HashMap<u64, usize> = HashMap::new();
        let mut requests = Vec::with_capacity(rows.len());
        for (index, (row, cuts)) in rows.iter().zip(cuts).enumerate() {
            let session = row.session.filter(|_| row.gap_ms.is_some());
            match session.and_then(|session| sessions.get(&session)) {
                Some(&at) => chains[at].requests.push(index),
                None => {
                    if let Some(session) = session {
                        sessions.insert(session, chains.len());
                    }
                    chains.push(Chain {
                        start_us: row.t_ms * 1_000,
                        requests: vec![index],
                    });
                }
            }
            requests.push(Request {
                key: key(row, cuts, turns, form),
                in_tokens: row.in_tokens.max(1),
                out_tokens: row.out_tokens.max(1),
                gap_us: row.gap_ms.unwrap_or(0) * 1_000,
                blocks: row.blocks.clone(),
                answer: turns.answer_blocks(rows, index),
            });
        }
        chains.sort_by_key(|chain| chain.start_us);
        Self {
            name: name.to_owned(),
            block_tokens: turns.block_tokens(),
            requests,
            chains,
            sessions: None,
        }
    }

    /// The load at `rate` (above 0) times its own rate, and the factor on its starts that gives this rate.
    ///
    /// Sessions that wait for their answers limit themselves: however close together they start, there are never more
    /// requests than sessions. So a higher rate of a closed-loop trace is more copies, whose starts lie over the
    /// trace's own length or up to twice that. `None` if that would be more than a million requests.
    pub fn at(&self, rate: f64) -> Option<(Cow<'_, Self>, f64)> {
        let Some(sessions) = &self.sessions else {
            return Some((Cow::Borrowed(self), rate));
        };
        let wanted = sessions.copies as f64 * rate;
        let count = (wanted.ceil() as u64).max(1);
        let factor = wanted / count as f64;
        if count == sessions.copies {
            return Some((Cow::Borrowed(self), factor));
        }
        let requests = count.saturating_mul(sessions.trace.rows.len() as u64);
        if count > sessions.copies && requests > REQUESTS_MAX {
            return None;
        }
        let more = copies(&sessions.trace, count);
        let more = Self::of_trace(&self.name, &more, sessions.form);
        Some((Cow::Owned(more), factor))
    }

    /// Requests a second at rate 1.
    pub fn rate(&self) -> f64 {
        let last = self.chains.last().map_or(0, |chain| chain.start_us);
        self.requests.len() as f64 / (last as f64 / 1e6).max(1.0)
    }
}

fn key(row: &Row, cuts: &[u32], turns: &Turns, form: Form) -> Key {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "model", b"");
    let end = row
        .in_tokens
        .min(row.blocks.len() as u32 * turns.block_tokens());
    match form {
        Form::Plain => builder.text(text(row, 0..end, turns)),
        Form::Chat => {
            let ends = cuts.iter().map(|&cut| cut.min(end)).chain([end]);
            let roles = ["system"]
                .into_iter()
                .chain(["user", "assistant"].into_iter().cycle());
            let mut from = 0;
            for (role, end) in roles.zip(ends) {
                if end > from || role != "system" {
                    builder.begin_message(role);
                    builder.text(text(row, from..end, turns));
                    builder.end_message();
                    from = end;
                }
            }
        }
    }
    builder.finish()
}

/// The text of some tokens of a prompt.
fn text(row: &Row, tokens: Range<u32>, turns: &Turns) -> Vec<u8> {
    let block = turns.block_tokens();
    let mut text = Vec::with_capacity(tokens.len() * TOKEN_BYTES);
    for at in tokens.start / block..tokens.end.div_ceil(block) {
        let start = at * block;
        let wanted = tokens.start.max(start) - start..tokens.end.min(start + block) - start;
        for (id, part) in turns.pieces(row.blocks[at as usize]) {
            let (from, to) = (part.start.max(wanted.start), part.end.min(wanted.end));
            if from < to {
                let bytes = |tokens: u32| tokens as usize * TOKEN_BYTES;
                push_text(&mut text, id, bytes(from)..bytes(to));
            }
        }
    }
    text
}

/// Appends a part of the text of an id (SplitMix64).
fn push_text(text: &mut Vec<u8>, id: u64, bytes: Range<usize>) {
    const WORD: usize = size_of::<u64>();
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let skipped = bytes.start / WORD;
    let begin = text.len();
    let end = begin + bytes.len() + bytes.start % WORD;
    let mut state =
        (id.wrapping_mul(GAMMA) ^ 0x5bf0_3635).wrapping_add(GAMMA.wrapping_mul(skipped as u64));
    while text.len() < end {
        state = state.wrapping_add(GAMMA);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        text.extend_from_slice(&(mixed ^ (mixed >> 27)).to_le_bytes());
    }
    text.truncate(end);
    text.drain(begin..begin + bytes.start % WORD);
}
