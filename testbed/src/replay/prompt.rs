//! Makes text from block ids, so that equal prefixes of ids are equal prefixes of bytes.
//!
//! Pure. Every id has its own fixed text, 4 characters a token. In a chat, the system prompt (the blocks that
//! most rows share) is the system message; user and assistant messages follow in turn, and [`Messages`] sets
//! where they end.
//!
//! If the next turn holds the answer, the request carries that answer in vLLM's field for extensions
//! (`vllm_xargs`). A fake worker answers with it, and so caches the text of the next turn, as a real worker
//! does that receives its own answer again. The alternative, to put the real answer into the next prompt,
//! would make prompts depend on which worker answered when, and prefixes that two sessions of the trace share
//! would differ. A real worker ignores the field.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::trace::{Row, Trace};
use super::turns::Turns;
use grapevine_bench::client::Ask;
use grapevine_bench::load::{Endpoint, words};

/// Characters of a token.
const TOKEN_CHARS: f64 = 4.0;
/// Characters that a fake worker counts as a token.
const ANSWER_TOKEN_CHARS: usize = 4;
/// Tokens of a chat message, before scaling.
const MESSAGE_TOKENS: u32 = 512;

/// Where the messages of a chat end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Messages {
    /// Each 512 tokens: the messages of an earlier turn are a prefix of a later one's.
    #[default]
    Equal,
    /// At the end of each prompt and each answer of a session, as in `replay --virtual`. Only then does a
    /// chat's next turn hold the former answer.
    Sessions,
}

/// How rows become requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Chat or completions.
    pub endpoint: Endpoint,
    /// Where messages end, for a chat.
    pub messages: Messages,
    /// Factor on prompt lengths, above 0.
    pub tokens_scale: f64,
    /// Factor on answer lengths, above 0; every answer has at least one token.
    pub answers_scale: f64,
    /// Model; `None` leaves the field out.
    pub model: Option<String>,
    /// Ask the router which worker answered.
    pub explain: bool,
}

/// The requests of a trace.
#[derive(Debug)]
pub struct Asks {
    trace: Arc<Trace>,
    shape: Shape,
    turns: Turns,
    /// Tokens at which messages end, of each row; empty if the position alone says that.
    ends: Vec<Vec<u32>>,
}

impl Asks {
    /// Finds which rows continue which.
    pub fn new(trace: Arc<Trace>, shape: Shape) -> Self {
        let turns = Turns::of(&trace.rows, trace.block_tokens);
        let ends = if shape.messages == Messages::Sessions {
            turns.message_ends(&trace.rows, trace.system_tokens())
        } else {
            Vec::new()
        };
        Self {
            trace,
            shape,
            turns,
            ends,
        }
    }

    /// The request of a row, by its place in the trace.
    pub fn ask(&self, row: usize) -> Ask {
        let (shape, of) = (&self.shape, &self.trace.rows[row]);
        let answer_tokens = (f64::from(of.out_tokens) * shape.answers_scale)
            .round()
            .max(1.0) as u32;
        let answer = self.answer(row, answer_tokens);
        let (path, mut body) = match shape.endpoint {
            Endpoint::Chat => (
                "/v1/chat/completions",
                json!({ "messages": self.chat(row) }),
            ),
            Endpoint::Completions => {
                let prompt = self.text(of, 0..self.chars(of));
                let mut body = json!({ "prompt": prompt });
                if answer.is_some() {
                    // A prompt that a router continues must state where its answer begins.
                    body["vllm_xargs"] = json!({ "answer_at": self.chars(of) });
                }
                ("/v1/completions", body)
            }
        };
        if let Some(answer) = answer {
            body["vllm_xargs"]["answer"] = answer.into();
        }
        body["max_tokens"] = answer_tokens.into();
        body["ignore_eos"] = true.into();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        if let Some(model) = &shape.model {
            body["model"] = Value::from(model.as_str());
        }
        Ask {
            path,
            body: Bytes::from(body.to_string()),
            stream: true,
            explain: shape.explain,
        }
    }

    /// The answer to a row as the next turn holds it; at most so many tokens.
    fn answer(&self, row: usize, tokens: u32) -> Option<String> {
        if self.shape.endpoint == Endpoint::Chat && self.ends.is_empty() {
            return None;
        }
        let next = &self.trace.rows[self.turns.follower(row)?];
        let of = &self.trace.rows[row];
        let from = self.chars(of);
        let end = self.chars_at(of.in_tokens.saturating_add(of.out_tokens));
        let longest = from + tokens as usize * ANSWER_TOKEN_CHARS;
        Some(self.text(next, from..end.min(longest).min(self.chars(next))))
    }

    fn chat(&self, row: usize) -> Vec<Value> {
        let of = &self.trace.rows[row];
        let (block, end) = (self.block_chars(), self.chars(of));
        let ends: Vec<usize> = match self.ends.get(row) {
            Some(ends) => {
                let chars = ends.iter().map(|&tokens| self.chars_at(tokens).min(end));
                chars.chain([end]).collect()
            }
            None => {
                let system = (self.trace.system_blocks * block).min(end);
                let step = (MESSAGE_TOKENS / self.trace.block_tokens).max(1) as usize * block;
                [system]
                    .into_iter()
                    .chain((system + step..end).step_by(step))
                    .chain((end > system).then_some(end))
                    .collect()
            }
        };
        let turns = ["user", "assistant"].into_iter().cycle();
        let mut messages = Vec::with_capacity(ends.len());
        let mut start = 0;
        for (end, role) in ends.into_iter().zip(["system"].into_iter().chain(turns)) {
            if end > start || role != "system" {
                messages.push(json!({"role": role, "content": self.text(of, start..end)}));
                start = end;
            }
        }
        messages
    }

    fn block_chars(&self) -> usize {
        let tokens = f64::from(self.trace.block_tokens);
        ((tokens * TOKEN_CHARS * self.shape.tokens_scale).round() as usize).max(1)
    }

    /// The character at which a token begins in the text of a prompt.
    fn chars_at(&self, token: u32) -> usize {
        let (token, tokens) = (token as usize, self.trace.block_tokens as usize);
        token / tokens * self.block_chars() + token % tokens * self.block_chars() / tokens
    }

    /// Length of a row's text: its last block is cut to the row's length.
    fn chars(&self, row: &Row) -> usize {
        let (block, before_last) = (self.block_chars(), row.blocks.len().saturating_sub(1));
        let all = self.chars_at(row.in_tokens);
        if row.blocks.is_empty() {
            0
        } else {
            all.clamp(before_last * block + 1, before_last * block + block)
        }
    }

    /// A part of a row's text, in characters.
    fn text(&self, row: &Row, chars: Range<usize>) -> String {
        let block = self.block_chars();
        let mut text = String::with_capacity(chars.len());
        for at in chars.start / block..chars.end.div_ceil(block) {
            let start = at * block;
            let from = chars.start.max(start) - start;
            let end = chars.end.min(start + block) - start;
            text.push_str(&self.block_text(row.blocks[at])[from..end]);
        }
        text
    }

    fn block_text(&self, id: u64) -> String {
        let block = self.block_chars();
        let mut text = String::with_capacity(block);
        for (id, tokens) in self.turns.pieces(id) {
            let whole = words(&mut StdRng::seed_from_u64(id), block);
            text.push_str(&whole[self.chars_at(tokens.start)..self.chars_at(tokens.end)]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(endpoint: Endpoint, tokens_scale: f64) -> Shape {
        Shape {
            endpoint,
            messages: Messages::Equal,
            tokens_scale,
            answers_scale: 0.1,
            model: None,
            explain: false,
        }
    }

    fn trace(rows: Vec<Row>) -> Trace {
        Trace {
            block_tokens: 512,
            system_blocks: 1,
            rows,
        }
    }

    fn row(blocks: &[u64], in_tokens: u32) -> Row {
        Row {
            t_ms: 0,
            in_tokens,
            out_tokens: 3,
            blocks: blocks.to_vec(),
            session: None,
            gap_ms: None,
        }
    }

    /// The body of the last row's request.
    fn body(shape: Shape, rows: Vec<Row>) -> Value {
        let last = rows.len() - 1;
        body_of(&Asks::new(Arc::new(trace(rows)), shape), last)
    }

    fn body_of(asks: &Asks, row: usize) -> Value {
        serde_json::from_slice(&asks.ask(row).body).expect("JSON")
    }

    fn contents(body: &Value) -> Vec<String> {
        let messages = body["messages"].as_array().cloned().expect("array");
        let content = |m: &Value| m["content"].as_str().expect("text").to_owned();
        messages.iter().map(content).collect()
    }

    #[test]
    fn an_answer_has_at_least_one_token_and_a_prompt_its_length() {
        let row = row(&[0, 1, 2], 1_100);
        let whole = body(shape(Endpoint::Completions, 1.0), vec![row.clone()]);
        assert_eq!(whole["prompt"].as_str().map(str::len), Some(4_400));
        assert_eq!(whole["max_tokens"], 1);
        assert!(whole.get("vllm_xargs").is_none(), "nobody goes on from it");
        let short = body(shape(Endpoint::Completions, 0.25), vec![row]);
        assert_eq!(short["prompt"].as_str().map(str::len), Some(1_100));
    }

    #[test]
    fn chat_has_one_system_message_and_then_takes_turns() {
        let row = row(&[0, 1, 2, 3], 2_000);
        let body = body(shape(Endpoint::Chat, 1.0), vec![row]);
        let roles: Vec<&str> = body["messages"]
            .as_array()
            .expect("array")
            .iter()
            .filter_map(|m| m["role"].as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
    }

    /// Two turns: a prompt of two blocks and a part, an answer of 700 tokens, and more.
    fn turns() -> Vec<Row> {
        let (mut first, mut second) = (row(&[0, 1, 2], 1_200), row(&[0, 1, 3, 4, 5], 2_500));
        (first.session, second.session) = (Some(1), Some(1));
        first.out_tokens = 700;
        vec![first, second]
    }

    #[test]
    fn a_chat_can_go_on_from_its_former_prompt_and_answer() {
        let shape = Shape {
            messages: Messages::Sessions,
            answers_scale: 1.0,
            ..shape(Endpoint::Chat, 1.0)
        };
        let asks = Asks::new(Arc::new(trace(turns())), shape.clone());
        let (first, second) = (body_of(&asks, 0), body_of(&asks, 1));
        let (before, now) = (contents(&first), contents(&second));
        assert_eq!((before.len(), now.len()), (2, 4));
        assert_eq!(before, now[..2], "a part of a block is its beginning");
        assert_eq!(first["vllm_xargs"]["answer"], now[2].as_str());
        assert_eq!(now[2].len(), 700 * 4);
        assert!(second.get("vllm_xargs").is_none());
        let equal = Shape {
            messages: Messages::Equal,
            ..shape
        };
        let first = body_of(&Asks::new(Arc::new(trace(turns())), equal), 0);
        assert!(
            first.get("vllm_xargs").is_none(),
            "its answer is no message of the next turn"
        );
    }

    #[test]
    fn a_text_goes_on_from_its_former_prompt_and_answer() {
        for (answers_scale, chars) in [(1.0, 2_800), (0.1, 280), (10.0, 2_800)] {
            let shape = Shape {
                answers_scale,
                ..shape(Endpoint::Completions, 1.0)
            };
            let asks = Asks::new(Arc::new(trace(turns())), shape);
            let (first, second) = (body_of(&asks, 0), body_of(&asks, 1));
            let before = first["prompt"].as_str().expect("text");
            let answer = first["vllm_xargs"]["answer"].as_str().expect("text");
            assert_eq!(answer.len(), chars);
            assert_eq!(first["vllm_xargs"]["answer_at"], before.len());
            let now = second["prompt"].as_str().expect("text");
            assert!(now.starts_with(&format!("{before}{answer}")));
        }
    }

    proptest! {
        /// Rows that share their first n blocks have the same first n blocks of text, and differ
        /// right after.
        #[test]
        fn equal_ids_are_equal_text(shared in 1..6usize, own in 1..4usize, scale in prop::sample::select(vec![0.1, 0.25, 1.0])) {
            let ids = |tag: u64| -> Vec<u64> {
                (0..shared as u64).chain((0..own as u64).map(|i| tag * 100 + i)).collect()
            };
            let tokens = 512 * (shared + own) as u32;
            let shape = shape(Endpoint::Completions, scale);
            let text = |tag| {
                let body = body(shape.clone(), vec![row(&ids(tag), tokens)]);
                body["prompt"].as_str().expect("text").to_owned()
            };
            let (a, b) = (text(1), text(2));
            let common = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
            let expected = (512.0 * 4.0 * scale).round() as usize * shared;
            prop_assert!((expected..expected + 30).contains(&common), "{common} of {expected}");
        }
    }
}
