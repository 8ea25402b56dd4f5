//! Traces with prefix identity: one request a line, gzip JSONL (`traces/README.md`).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::Context;
use flate2::read::GzDecoder;
use serde::Deserialize;

/// Rows that a trace may have.
const ROWS_MAX: usize = 1_000_000;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Row {
    /// Arrival in ms from the start; for closed-loop rows the start of their session.
    pub t_ms: u64,
    /// Prompt length.
    pub in_tokens: u32,
    /// Answer length.
    pub out_tokens: u32,
    /// One id per block of the prompt; equal ids are equal prefixes.
    pub blocks: Vec<u64>,
    /// Conversation.
    #[serde(default)]
    pub session: Option<u64>,
    /// Closed loop: sent this long after the end of the session's previous row.
    #[serde(default)]
    pub gap_ms: Option<u64>,
}

/// Rows in order of arrival.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Tokens that one block id stands for.
    pub block_tokens: u32,
    /// Leading blocks that more than half of all rows share: the system prompt.
    pub system_blocks: usize,
    /// The requests.
    pub rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Meta {
    block_tokens: u32,
}

impl Trace {
    /// The slice of a real trace that comes with the testbed.
    pub fn embedded() -> anyhow::Result<Self> {
        let rows = include_bytes!("../../traces/mooncake_conv.jsonl.gz");
        let meta = include_bytes!("../../traces/mooncake_conv.meta.json");
        let meta: Meta = serde_json::from_slice(meta).context("embedded meta")?;
        Self::read(&rows[..], meta.block_tokens).context("embedded trace")
    }

    /// `NAME.jsonl.gz` with `NAME.meta.json` beside it.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.to_str().context("path is not UTF-8")?;
        let stem = name
            .strip_suffix(".jsonl.gz")
            .with_context(|| format!("{name} does not end with .jsonl.gz"))?;
        let meta = format!("{stem}.meta.json");
        let meta = File::open(&meta).with_context(|| format!("cannot open {meta}"))?;
        let meta: Meta = serde_json::from_reader(meta).context("meta file")?;
        let rows = File::open(path).with_context(|| format!("cannot open {name}"))?;
        Self::read(rows, meta.block_tokens).with_context(|| name.to_owned())
    }

    /// Gzip JSONL from anywhere.
    pub fn read(gzip: impl Read, block_tokens: u32) -> anyhow::Result<Self> {
        anyhow::ensure!(block_tokens > 0, "block_tokens is 0");
        let mut rows = Vec::new();
        for (number, line) in BufReader::new(GzDecoder::new(gzip)).lines().enumerate() {
            anyhow::ensure!(number < ROWS_MAX, "more than {ROWS_MAX} rows");
            let line = line.context("not gzip text")?;
            let row = serde_json::from_str(&line);
            rows.push(row.with_context(|| format!("line {}", number + 1))?);
        }
        anyhow::ensure!(!rows.is_empty(), "no rows");
        Ok(Self {
            block_tokens,
            system_blocks: system_blocks(&rows),
            rows,
        })
    }

    /// Length of the system prompt in tokens.
    pub fn system_tokens(&self) -> u32 {
        u32::try_from(self.system_blocks)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.block_tokens)
    }

    /// Keeps the first `count` rows.
    pub fn truncate(&mut self, count: usize) {
        self.rows.truncate(count);
    }
}

/// Length of the prefix that more than half of the rows have.
fn system_blocks(rows: &[Row]) -> usize {
    let mut candidates: Vec<&Row> = rows.iter().collect();
    let mut at = 0;
    loop {
        // Majority vote (Boyer and Moore), then counted.
        let mut vote = (None, 0u32);
        for row in &candidates {
            let id = row.blocks.get(at);
            vote = match vote {
                (_, 0) => (id, 1),
                (leader, n) if leader == id => (leader, n + 1),
                (leader, n) => (leader, n - 1),
            };
        }
        let Some(leader) = vote.0 else {
            return at;
        };
        candidates.retain(|row| row.blocks.get(at) == Some(leader));
        if candidates.len() * 2 <= rows.len() {
            return at;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).expect("memory");
        encoder.finish().expect("memory")
    }

    #[test]
    fn the_embedded_trace() {
        let trace = Trace::embedded().expect("valid");
        assert_eq!(
            (trace.rows.len(), trace.block_tokens, trace.system_blocks),
            (1_500, 512, 1)
        );
        assert!(trace.rows.is_sorted_by_key(|row| row.t_ms));
        for row in &trace.rows {
            assert_eq!(row.blocks.len(), row.in_tokens.div_ceil(512) as usize);
        }
    }

    #[test]
    fn system_prompt_is_what_most_rows_share() {
        let row = |blocks: &[u64]| Row {
            t_ms: 0,
            in_tokens: 1,
            out_tokens: 1,
            blocks: blocks.to_vec(),
            session: None,
            gap_ms: None,
        };
        for (rows, expected) in [
            (vec![row(&[1, 2, 3]), row(&[1, 2, 4]), row(&[1, 2])], 2),
            (vec![row(&[1]), row(&[2])], 0),
            (vec![row(&[1, 2]), row(&[1, 3]), row(&[9])], 1),
            (vec![row(&[])], 0),
        ] {
            assert_eq!(system_blocks(&rows), expected, "{rows:?}");
        }
    }

    #[test]
    fn bad_input_names_its_line() {
        let good = r#"{"t_ms":1,"in_tokens":1,"out_tokens":1,"blocks":[0],"gap_ms":5,"turn":3}"#;
        let trace = Trace::read(&gzip(good)[..], 16).expect("valid");
        assert_eq!(trace.rows[0].gap_ms, Some(5));
        let bad = Trace::read(&gzip(&format!("{good}\nnonsense\n"))[..], 16);
        assert!(format!("{:#}", bad.expect_err("refused")).contains("line 2"));
        assert!(Trace::read(&b"not gzip"[..], 16).is_err());
        assert!(Trace::read(&gzip("")[..], 16).is_err());
        assert!(Trace::load(Path::new("/nonexistent.jsonl.gz")).is_err());
    }
}
