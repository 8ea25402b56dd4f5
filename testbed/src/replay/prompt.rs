//! From block ids to text, so that equal prefixes of ids are equal prefixes of bytes.
//!
//! Pure. Every id has its own fixed text, 4 characters a token. As chat, the system prompt (the
//! blocks that most rows share) is the system message; where further messages end, user and
//! assistant in turn, [`Messages`] says.

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::trace::{Row, Trace};
use crate::client::Ask;
use crate::load::{Endpoint, words};

/// Characters of a token.
const TOKEN_CHARS: f64 = 4.0;
/// Tokens of a chat message, before scaling.
const MESSAGE_TOKENS: u32 = 512;

/// Where the messages of a chat end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Messages {
    /// Each 512 tokens: the messages of an earlier turn are a prefix of a later one's.
    #[default]
    Equal,
    /// Where the rows of a session part, as `replay --virtual` has it.
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

impl Shape {
    /// The request of a row. `ends`: blocks at which its messages end ([`Trace::message_ends`]), if that
    /// does not depend on the position alone.
    pub fn ask(&self, trace: &Trace, row: &Row, ends: Option<&[usize]>) -> Ask {
        let (path, mut body) = match self.endpoint {
            Endpoint::Chat => (
                "/v1/chat/completions",
                json!({ "messages": self.chat(trace, row, ends) }),
            ),
            Endpoint::Completions => (
                "/v1/completions",
                json!({ "prompt": self.text(trace, row, 0..row.blocks.len()) }),
            ),
        };
        let answer = (f64::from(row.out_tokens) * self.answers_scale)
            .round()
            .max(1.0);
        body["max_tokens"] = Value::from(answer as u32);
        body["ignore_eos"] = true.into();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        if let Some(model) = &self.model {
            body["model"] = Value::from(model.as_str());
        }
        Ask {
            path,
            body: Bytes::from(body.to_string()),
            stream: true,
            explain: self.explain,
        }
    }

    fn chat(&self, trace: &Trace, row: &Row, ends: Option<&[usize]>) -> Vec<Value> {
        let count = row.blocks.len();
        let system = trace.system_blocks.min(count);
        let step = (MESSAGE_TOKENS / trace.block_tokens).max(1) as usize;
        let ends: Vec<usize> = match ends {
            Some(ends) => ends.iter().copied().chain([count]).collect(),
            None => [system]
                .into_iter()
                .chain((system + step..count).step_by(step))
                .chain((count > system).then_some(count))
                .collect(),
        };
        let turns = ["user", "assistant"].into_iter().cycle();
        let mut messages = Vec::with_capacity(ends.len());
        let mut start = 0;
        for (end, role) in ends.into_iter().zip(["system"].into_iter().chain(turns)) {
            if end > start || role != "system" {
                messages.push(json!({"role": role, "content": self.text(trace, row, start..end)}));
                start = end;
            }
        }
        messages
    }

    /// The text of some of a row's blocks; the row's last block is cut to the row's length.
    fn text(&self, trace: &Trace, row: &Row, blocks: std::ops::Range<usize>) -> String {
        let scaled =
            |tokens: u32| (f64::from(tokens) * TOKEN_CHARS * self.tokens_scale).round() as usize;
        let block_chars = scaled(trace.block_tokens).max(1);
        let mut text = String::with_capacity(blocks.len() * block_chars);
        for at in blocks {
            let whole = block_text(row.blocks[at], block_chars);
            let left = scaled(row.in_tokens).saturating_sub(at * block_chars);
            let keep = if at + 1 == row.blocks.len() {
                left.clamp(1, block_chars)
            } else {
                block_chars
            };
            text.push_str(&whole[..keep]);
        }
        text
    }
}

fn block_text(id: u64, chars: usize) -> String {
    words(&mut StdRng::seed_from_u64(id), chars)
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

    fn body(ask: &Ask) -> Value {
        serde_json::from_slice(&ask.body).expect("JSON")
    }

    #[test]
    fn an_answer_has_at_least_one_token_and_a_prompt_its_length() {
        let row = row(&[0, 1, 2], 1_100);
        let ask = shape(Endpoint::Completions, 1.0).ask(&trace(vec![]), &row, None);
        assert_eq!(body(&ask)["prompt"].as_str().map(str::len), Some(4_400));
        assert_eq!(body(&ask)["max_tokens"], 1);
        let ask = shape(Endpoint::Completions, 0.25).ask(&trace(vec![]), &row, None);
        assert_eq!(body(&ask)["prompt"].as_str().map(str::len), Some(1_100));
    }

    #[test]
    fn chat_has_one_system_message_and_then_takes_turns() {
        let ask = shape(Endpoint::Chat, 1.0).ask(&trace(vec![]), &row(&[0, 1, 2, 3], 2_000), None);
        let body = body(&ask);
        let roles: Vec<&str> = body["messages"]
            .as_array()
            .expect("array")
            .iter()
            .filter_map(|m| m["role"].as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
    }

    #[test]
    fn messages_can_end_where_sessions_part() {
        let mut first = row(&[0, 1, 2], 1_536);
        first.session = Some(1);
        let mut second = row(&[0, 1, 2, 3, 4], 2_560);
        second.session = Some(1);
        let trace = trace(vec![first, second]);
        let ends = trace.message_ends();
        assert_eq!(ends, [vec![1], vec![1, 3]]);
        let contents = |at: usize| -> Vec<String> {
            let ask = shape(Endpoint::Chat, 1.0).ask(&trace, &trace.rows[at], Some(&ends[at]));
            let messages = body(&ask)["messages"].as_array().cloned().expect("array");
            let content = |m: &Value| m["content"].as_str().expect("text").to_owned();
            messages.iter().map(content).collect()
        };
        let (first, second) = (contents(0), contents(1));
        assert_eq!((first.len(), second.len()), (2, 3));
        assert_eq!(first, second[..2]);
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
                let ask = shape.ask(&trace(vec![]), &row(&ids(tag), tokens), None);
                body(&ask)["prompt"].as_str().expect("text").to_owned()
            };
            let (a, b) = (text(1), text(2));
            let common = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
            let expected = (512.0 * 4.0 * scale).round() as usize * shared;
            prop_assert!((expected..expected + 30).contains(&common), "{common} of {expected}");
        }
    }
}
