//! How the rows of a trace continue one another: which answers a prompt holds, and where its messages end.
//!
//! Pure. A trace does not mark answers. A row *goes on from* an earlier one of its session when it begins with all of
//! that one's whole blocks and is long enough to hold the answer as well: what follows the former prompt in it is then
//! the answer. So the next turn names the blocks that an engine caches while it answers.

use std::collections::{HashMap, HashSet};

use super::trace::Row;

/// Earlier rows of a session that are searched. Turns follow each other, except for rare branches.
const LOOK_BACK: usize = 64;
/// Set in the ids of blocks that no prompt holds; those of traces are counted from 0.
const NEVER_ASKED: u64 = 1 << 63;

/// Text that a block takes from another id: that id, and the token of the block at which it ends.
type Piece = (u64, u32);

/// The relations of the rows of a trace; rows are named by their index.
#[derive(Debug)]
pub struct Turns {
    block_tokens: u32,
    /// The row that each goes on from.
    parents: Vec<Option<usize>>,
    /// The first row that goes on from each.
    followers: Vec<Option<usize>>,
    /// Blocks that begin with text of others, in order of their place.
    pieces: HashMap<u64, Vec<Piece>>,
}

impl Turns {
    /// Looks through rows with blocks of `block_tokens` tokens, at least 1.
    pub fn of(rows: &[Row], block_tokens: u32) -> Self {
        let parents = parents(rows, block_tokens);
        let mut followers = vec![None; rows.len()];
        for (index, parent) in parents.iter().enumerate() {
            if let Some(parent) = *parent {
                followers[parent] = followers[parent].or(Some(index));
            }
        }
        let mut turns = Self {
            block_tokens,
            parents,
            followers,
            pieces: HashMap::new(),
        };
        turns.take_partial_blocks_over(rows);
        turns
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The first row that goes on from this one.
    pub fn follower(&self, row: usize) -> Option<usize> {
        self.followers[row]
    }

    /// Ids of the whole blocks that the answer of a row fills: those of the row that goes on from it, or, where none
    /// does, ids that no prompt holds. An engine never computes the last token of an answer, so it does not count.
    pub fn answer_blocks(&self, rows: &[Row], row: usize) -> Vec<u64> {
        let of = &rows[row];
        let follower = self.followers[row].map(|follower| rows[follower].blocks.as_slice());
        let (first, end) = (
            of.in_tokens / self.block_tokens,
            of.in_tokens.saturating_add(of.out_tokens).saturating_sub(1) / self.block_tokens,
        );
        let id = |at: u32| {
            let asked = follower.and_then(|blocks| blocks.get(at as usize));
            asked.map_or(NEVER_ASKED | (row as u64) << 24 | u64::from(at), |&id| id)
        };
        (first..end).map(id).collect()
    }

    /// For each row the tokens at which messages end, ascending, except the last message. The first is the end of the
    /// system message, `system_tokens` long; then follow the ends of prompt and answer of each row that this one goes
    /// on from. In rows of a session that do not go on from another, a message ends where they differ from it.
    pub fn message_ends(&self, rows: &[Row], system_tokens: u32) -> Vec<Vec<u32>> {
        let mut last: HashMap<u64, usize> = HashMap::new();
        let mut all: Vec<Vec<u32>> = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter().enumerate() {
            let session = row.session.unwrap_or(u64::MAX - index as u64);
            let before = last.insert(session, index);
            let mut ends = vec![system_tokens.min(row.in_tokens)];
            if let Some(parent) = self.parents[index] {
                let of = &rows[parent];
                ends.clone_from(&all[parent]);
                ends.extend([of.in_tokens, of.in_tokens.saturating_add(of.out_tokens)]);
            } else if let Some(before) = before {
                let pairs = rows[before].blocks.iter().zip(&row.blocks);
                let same = pairs.take_while(|(a, b)| a == b).count() as u32;
                let parted = same.saturating_mul(self.block_tokens).min(row.in_tokens);
                ends.extend(all[before][1..].iter().filter(|&&end| end < parted));
                if parted > ends[0] {
                    ends.push(parted);
                }
            }
            all.push(ends);
        }
        all
    }

    /// The ids whose text forms a block, in order, each with the tokens of the block that it supplies.
    ///
    /// A prompt that ends within a block has its own id for that partial block. The next turn fills the block under
    /// another id. The text of the partial block is nevertheless the beginning of the full one.
    pub fn pieces(&self, id: u64) -> impl Iterator<Item = (u64, std::ops::Range<u32>)> {
        let taken = self.pieces.get(&id).map_or(&[][..], Vec::as_slice);
        let mut from = 0;
        taken
            .iter()
            .copied()
            .chain([(id, self.block_tokens)])
            .map(move |(id, end)| (id, std::mem::replace(&mut from, end)..end))
    }

    /// Finds the blocks that begin with the last, partial one of another prompt. Every id keeps the text that it had
    /// when it first came, so that equal ids stay equal text.
    fn take_partial_blocks_over(&mut self, rows: &[Row]) {
        let mut seen: HashSet<u64> = HashSet::new();
        for (row, parent) in rows.iter().zip(&self.parents) {
            if let Some(of) = parent.map(|parent| &rows[parent]) {
                let (at, tokens) = (
                    (of.in_tokens / self.block_tokens) as usize,
                    of.in_tokens % self.block_tokens,
                );
                if let (Some(&partial), Some(&id)) = (of.blocks.get(at), row.blocks.get(at))
                    && tokens > 0
                    && partial != id
                    && !seen.contains(&id)
                {
                    let pieces = self.pieces(partial).filter(|(_, part)| part.start < tokens);
                    let pieces = pieces
                        .map(|(id, part)| (id, part.end.min(tokens)))
                        .collect();
                    self.pieces.insert(id, pieces);
                }
            }
            seen.extend(&row.blocks);
        }
    }
}

/// For each row the latest one of its session that it goes on from.
fn parents(rows: &[Row], block_tokens: u32) -> Vec<Option<usize>> {
    let mut sessions: HashMap<u64, Vec<usize>> = HashMap::new();
    let parent = |(index, row): (usize, &Row)| {
        let before = sessions.entry(row.session?).or_default();
        let latest = before.iter().rev().take(LOOK_BACK);
        let parent = latest
            .copied()
            .find(|&before| goes_on(row, &rows[before], block_tokens));
        before.push(index);
        parent
    };
    rows.iter().enumerate().map(parent).collect()
}

fn goes_on(row: &Row, before: &Row, block_tokens: u32) -> bool {
    let whole = (before.in_tokens / block_tokens) as usize;
    // An id also stands for all blocks before it.
    let begins = whole == 0
        || before
            .blocks
            .get(whole - 1)
            .is_some_and(|id| row.blocks.get(whole - 1) == Some(id));
    begins && row.in_tokens >= before.in_tokens.saturating_add(before.out_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(session: u64, blocks: &[u64], in_tokens: u32, out_tokens: u32) -> Row {
        Row {
            t_ms: 0,
            in_tokens,
            out_tokens,
            blocks: blocks.to_vec(),
            session: Some(session),
            gap_ms: Some(0),
        }
    }

    /// Blocks of 16: two turns of one session, then a row that shares a prefix but does not go on from them,
    /// then a branch of the first.
    fn rows() -> Vec<Row> {
        vec![
            row(0, &[0, 1, 2], 40, 30),
            row(1, &[0, 1, 2], 40, 8),
            row(0, &[0, 1, 3, 4, 5], 75, 40),
            row(1, &[0, 6, 7], 48, 17),
            row(0, &[0, 1, 8, 9, 10], 80, 1),
        ]
    }

    #[test]
    fn a_row_goes_on_from_the_latest_prompt_and_answer_that_it_holds() {
        let turns = Turns::of(&rows(), 16);
        assert_eq!(turns.parents, [None, None, Some(0), None, Some(0)]);
        assert_eq!(turns.followers, [Some(2), None, None, None, None]);
        let mut long = rows();
        long[0].out_tokens = 36;
        let turns = Turns::of(&long, 16);
        assert_eq!(
            (turns.parents[2], turns.parents[4]),
            (None, Some(0)),
            "75 tokens do not hold 40 and an answer of 36"
        );
    }

    #[test]
    fn answers_fill_the_blocks_that_the_next_turn_brings() {
        let rows = rows();
        let turns = Turns::of(&rows, 16);
        // Of 70 tokens the last is not computed: blocks 2 and 3 are whole.
        assert_eq!(turns.answer_blocks(&rows, 0), [3, 4]);
        // 47 of 48 tokens: none.
        assert!(turns.answer_blocks(&rows, 1).is_empty());
        let mut own = turns.answer_blocks(&rows, 2);
        own.extend(turns.answer_blocks(&rows, 3));
        assert_eq!(own.len(), 4, "blocks 4 to 6, and block 3 of the other row");
        let asked: HashSet<u64> = rows.iter().flat_map(|row| row.blocks.clone()).collect();
        assert!(own.iter().all(|id| !asked.contains(id)), "{own:?}");
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), 4);
    }

    #[test]
    fn messages_end_with_prompts_and_answers_and_where_sessions_part() {
        let rows = rows();
        let ends = Turns::of(&rows, 16).message_ends(&rows, 16);
        assert_eq!(
            ends,
            [
                vec![16],
                vec![16],
                vec![16, 40, 70],
                vec![16],
                vec![16, 40, 70]
            ]
        );
    }

    #[test]
    fn a_partial_block_is_the_beginning_of_what_it_becomes() {
        let rows = vec![
            row(0, &[0, 1], 20, 2),
            row(0, &[0, 2], 26, 1),
            row(0, &[0, 3, 4], 40, 1),
            // This id is already known: it keeps its text.
            row(1, &[0, 5], 30, 1),
            row(1, &[0, 3, 6], 44, 1),
        ];
        let turns = Turns::of(&rows, 16);
        let pieces = |id| turns.pieces(id).collect::<Vec<_>>();
        assert_eq!(pieces(1), [(1, 0..16)]);
        assert_eq!(pieces(2), [(1, 0..4), (2, 4..16)]);
        assert_eq!(pieces(3), [(1, 0..4), (2, 4..10), (3, 10..16)]);
        assert_eq!(pieces(4), [(4, 0..16)]);
    }
}
