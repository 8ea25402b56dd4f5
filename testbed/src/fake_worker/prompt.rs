//! Text → tokens → chain of block hashes, and the answer text that belongs to a prompt.
//!
//! Pure. A token is four bytes of the rendered prompt, so the fake needs no tokenizer and a reader can do the
//! arithmetic. Chat messages are rendered with role marks in order, so the prompt of a next turn starts with
//! the bytes of this turn's prompt and answer, as with real chat templates. Equal prompts get equal answers
//! on every worker, and a prompt that ends in a part of its answer is answered with the rest of it: each
//! token follows from all bytes before it alone. A request can carry the text of its answer; then the answer
//! begins with that text.

use std::sync::Arc;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a token.
pub(super) const TOKEN_BYTES: usize = 4;

/// How the rendered text of a chat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    /// With the beginning of an assistant's message (`add_generation_prompt`).
    NewMessage,
    /// Inside the last message (`continue_final_message`).
    OpenMessage,
    /// Behind the last message.
    Plain,
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt(Vec<u8>);

impl Prompt {
    pub(super) fn text(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// Token ids as `/v1/completions` accepts them.
    pub(super) fn token_ids(ids: &[u32]) -> Self {
        Self(ids.iter().flat_map(|id| id.to_le_bytes()).collect())
    }

    /// Chat messages (checked to be objects by the caller) and tools, as a chat template would.
    pub(super) fn chat(messages: &[Value], tools: Option<&Value>, close: Close) -> Self {
        let mut text = String::new();
        if let Some(tools) = tools.filter(|tools| !tools.is_null()) {
            text.push_str(&format!("<|tools|>\n{tools}\n"));
        }
        for message in messages {
            let role = message["role"].as_str().unwrap_or("user");
            text.push_str(&format!("<|{role}|>\n"));
            match &message["content"] {
                Value::String(content) => text.push_str(content),
                Value::Array(parts) => parts.iter().for_each(|part| match part["text"].as_str() {
                    Some(content) => text.push_str(content),
                    None => text.push_str(&part.to_string()),
                }),
                _ => {}
            }
            if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
                text.push_str(&calls.to_string());
            }
            text.push('\n');
        }
        match close {
            Close::NewMessage => text.push_str("<|assistant|>\n"),
            Close::OpenMessage => drop(text.pop()),
            Close::Plain => {}
        }
        Self(text.into_bytes())
    }

    /// Length in tokens, at least 1.
    pub(super) fn tokens(&self) -> u32 {
        let tokens = self.0.len().div_ceil(TOKEN_BYTES).max(1);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Token ids for `/tokenize`: the four bytes of each token, as a number below 2^31.
    pub(super) fn ids(&self) -> Vec<u32> {
        let id = |bytes: &[u8]| {
            let mut word = [0; TOKEN_BYTES];
            word[..bytes.len()].copy_from_slice(bytes);
            u32::from_le_bytes(word) & 0x7fff_ffff
        };
        self.0.chunks(TOKEN_BYTES).map(id).collect()
    }

    /// Hash of the whole text; `salt` as in [`Prompt::chain`].
    pub(super) fn content(&self, salt: &str) -> u64 {
        xxh3_64_with_seed(&self.0, xxh3_64_with_seed(salt.as_bytes(), 0))
    }

    /// The beginning of this prompt's answer number `choice`.
    pub(super) fn answer(&self, choice: u32) -> Answer {
        let mut answer = Answer {
            read: FNV_BASIS ^ u64::from(choice),
            given: Arc::default(),
            used: 0,
        };
        answer.read(&self.0);
        answer
    }

    /// Chain hashes of the whole blocks of this prompt and `answer_tokens` of its answer.
    ///
    /// `salt` names what must not share a cache: model or adapter, and the request's cache salt.
    pub(super) fn chain(
        &self,
        salt: &str,
        answer: Answer,
        answer_tokens: u32,
        block_tokens: u32,
    ) -> Vec<u64> {
        let mut bytes = self.0.clone();
        bytes.extend_from_slice(answer.text(answer_tokens).as_bytes());
        let mut parent = xxh3_64_with_seed(salt.as_bytes(), 0);
        bytes
            .chunks_exact(block_tokens as usize * TOKEN_BYTES)
            .map(|block| {
                parent = xxh3_64_with_seed(block, parent);
                parent
            })
            .collect()
    }

    /// Numbers in -1..1 that depend on the whole text, for `/v1/embeddings`.
    pub(super) fn embedding(&self, dimensions: u32) -> Vec<f32> {
        let number = |index| {
            let hash = xxh3_64_with_seed(&self.0, u64::from(index));
            (hash >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        };
        (0..dimensions).map(number).collect()
    }
}

// FNV-1a, 64 bits: byte by byte, so that the border between prompt and answer does not matter.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The text that a prompt is answered with, token by token.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    /// Hash of the prompt and of the tokens so far.
    read: u64,
    /// The text that it begins with, ASCII.
    given: Arc<str>,
    /// Bytes of `given` that were used.
    used: usize,
}

impl Answer {
    /// The same answer, but beginning with the whole tokens of `text`, which is ASCII.
    pub(super) fn beginning_with(self, text: &str) -> Self {
        Self {
            given: text.into(),
            used: 0,
            ..self
        }
    }

    /// What an engine says that has the keys and values of another prompt.
    pub(super) fn garbled(self) -> Self {
        Self {
            read: !self.read,
            given: Arc::default(),
            used: 0,
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.read = (self.read ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
        }
    }

    /// The next token: four given characters, or else a space and three letters.
    pub(super) fn next_token(&mut self) -> String {
        let given = self.given.get(self.used..self.used + TOKEN_BYTES);
        if let Some(text) = given.map(str::to_owned) {
            self.used += TOKEN_BYTES;
            self.read(text.as_bytes());
            return text;
        }
        // FNV's low bits are poor; this hash mixes all bits.
        let mut hash = xxh3_64_with_seed(&self.read.to_le_bytes(), 0);
        let mut text = String::with_capacity(TOKEN_BYTES);
        text.push(' ');
        for _ in 1..TOKEN_BYTES {
            text.push(char::from(b'a' + (hash % 26) as u8));
            hash /= 26;
        }
        self.read(text.as_bytes());
        text
    }

    /// The next `tokens` tokens as one text.
    pub(super) fn text(mut self, tokens: u32) -> String {
        (0..tokens).map(|_| self.next_token()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(messages: Value) -> Prompt {
        Prompt::chat(messages.as_array().expect("array"), None, Close::NewMessage)
    }

    #[test]
    fn next_turn_extends_prompt_and_answer() {
        let first = chat(
            json!([{"role":"system","content":"Be terse."},{"role":"user","content":"What is a list?"}]),
        );
        let said = first.answer(0).text(40);
        let second = chat(
            json!([{"role":"system","content":"Be terse."},{"role":"user","content":"What is a list?"},
            {"role":"assistant","content":said},{"role":"user","content":"And a map?"}]),
        );
        let old = first.chain("m", first.answer(0), 40, 16);
        let new = second.chain("m", second.answer(0), 0, 16);
        assert!(old.len() >= 3);
        assert_eq!(new[..old.len()], old);
    }

    #[test]
    fn text_parts_render_like_plain_text() {
        let plain = chat(json!([{"role":"user","content":"hello"}]));
        let parts = chat(
            json!([{"role":"user","content":[{"type":"text","text":"hel"},{"type":"text","text":"lo"}]}]),
        );
        assert_eq!(plain, parts);
    }

    #[test]
    fn a_change_reaches_all_later_blocks_and_no_earlier_one() {
        let text = "x".repeat(640);
        let mut other = text.clone();
        other.replace_range(200..201, "y");
        let chain = |text: &str, salt: &str| {
            let prompt = Prompt::text(text);
            prompt.chain(salt, prompt.answer(0), 0, 16)
        };
        let (a, b) = (chain(&text, "m"), chain(&other, "m"));
        assert_eq!((a.len(), &a[..3]), (10, &b[..3]));
        assert!(a[3..].iter().zip(&b[3..]).all(|(a, b)| a != b));
        assert!(
            chain(&text, "other model")
                .iter()
                .all(|hash| !a.contains(hash))
        );
    }

    #[test]
    fn tokens_are_four_bytes() {
        for (text, tokens) in [("", 1), ("a", 1), ("abcd", 1), ("abcde", 2)] {
            assert_eq!(Prompt::text(text).tokens(), tokens, "{text:?}");
        }
        assert_eq!(Prompt::token_ids(&[5, 6, 7]).tokens(), 3);
        assert_eq!(Prompt::token_ids(&[5, 6, 7]).ids(), [5, 6, 7]);
        let answer = Prompt::text("q").answer(0);
        assert_eq!(answer.clone().text(9).len(), 36);
        assert_ne!(answer.text(9), Prompt::text("q").answer(1).text(9));
    }

    #[test]
    fn an_answer_can_be_given_and_goes_on_by_itself() {
        let prompt = Prompt::text("What is a list?");
        let given = prompt.answer(0).beginning_with("One after another.");
        let text = given.clone().text(6);
        assert_eq!(&text[..16], "One after anothe", "whole tokens alone");
        let rest = Prompt::text("What is a list?One after anothe").answer(0);
        assert_eq!(&text[16..], rest.text(2));
        let old = prompt.chain("m", given, 4, 2);
        let new = Prompt::text("What is a list?One after another. And a map?");
        assert_eq!(new.chain("m", new.answer(0), 0, 2)[..old.len()], old);
        assert_eq!(old.len(), 3);
    }

    #[test]
    fn a_prompt_with_a_part_of_its_answer_is_answered_with_the_rest() {
        let whole = Prompt::text("What is a list?").answer(0).text(20);
        for tokens in [0, 1, 7, 20] {
            let (part, rest) = whole.split_at(tokens * TOKEN_BYTES);
            let next = Prompt::text(&format!("What is a list?{part}")).answer(0);
            assert_eq!(next.text(20 - tokens as u32), rest);
        }
        let asked = json!([{"role":"user","content":"And a map?"}]);
        let whole = chat(asked.clone()).answer(0).text(20);
        let (part, rest) = whole.split_at(5 * TOKEN_BYTES);
        let mut messages = asked.as_array().expect("array").clone();
        messages.push(json!({"role":"assistant","content":part}));
        let next = Prompt::chat(&messages, None, Close::OpenMessage).answer(0);
        assert_eq!(next.text(15), rest);
        let closed = Prompt::chat(&messages, None, Close::NewMessage).answer(0);
        assert_ne!(closed.text(15), rest);
        let plain = Prompt::chat(&messages, None, Close::Plain).answer(0);
        assert_ne!(plain.text(15), rest);
    }
}
