//! Prompts made from a seed: groups that share a prefix, and a part of each request's own; or conversations, each
//! turn of which sends all that was said before it.
//!
//! Pure: request number n of a seed is always the same bytes. So what the assistant said before is made from the seed,
//! too, and not what the endpoint answered: two endpoints that are compared get the same requests.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::client::Ask;

/// Bytes of an English token, roughly.
const BYTES_OF_TOKEN: usize = 4;

/// Which API is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Endpoint {
    /// `/v1/chat/completions`: the shared part is the system message
    Chat,
    /// `/v1/completions`
    Completions,
}

/// What requests look like.
#[derive(Debug, Clone)]
pub struct Prompts {
    /// Seed of all texts.
    pub seed: u64,
    /// Prompts of one group share their first `shared_bytes`; at least 1 group.
    pub groups: u64,
    /// Bytes that a group shares.
    pub shared_bytes: usize,
    /// Bytes of each request's own, after the shared ones; of each turn in a conversation.
    pub own_bytes: usize,
    /// Requests of one conversation, at least 1; 1 means that no request goes on from another.
    pub turns: u64,
    /// Answer length in tokens.
    pub max_tokens: u32,
    /// Ask for an event stream.
    pub stream: bool,
    /// Which API.
    pub endpoint: Endpoint,
    /// Model; `None` leaves the field out.
    pub model: Option<String>,
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            seed: 1,
            groups: 10,
            shared_bytes: 2_000,
            own_bytes: 500,
            turns: 1,
            max_tokens: 16,
            stream: true,
            endpoint: Endpoint::Chat,
            model: None,
        }
    }
}

impl Prompts {
    /// Request number `number`. Groups are drawn uniformly at random, one for each conversation.
    pub fn ask(&self, number: u64) -> Ask {
        let turns = self.turns.max(1);
        let (conversation, turn) = (number / turns, number % turns);
        let mut random = self.random(0, conversation);
        let group = random.random_range(0..self.groups.max(1));
        let shared = words(&mut self.random(1, group), self.shared_bytes);
        let (path, mut body) = match self.endpoint {
            Endpoint::Chat => {
                let mut messages = Vec::new();
                if !shared.is_empty() {
                    messages.push(json!({"role": "system", "content": shared}));
                }
                for before in 0..=turn {
                    let asked = words(&mut random, self.own_bytes);
                    messages.push(json!({"role": "user", "content": asked}));
                    if before < turn {
                        let answered = self.answer(&mut random);
                        messages.push(json!({"role": "assistant", "content": answered}));
                    }
                }
                ("/v1/chat/completions", json!({ "messages": messages }))
            }
            Endpoint::Completions => {
                let mut prompt = shared;
                for before in 0..=turn {
                    prompt += &words(&mut random, self.own_bytes);
                    if before < turn {
                        prompt += &self.answer(&mut random);
                    }
                }
                ("/v1/completions", json!({ "prompt": prompt }))
            }
        };
        body["max_tokens"] = self.max_tokens.into();
        body["stream"] = self.stream.into();
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if let Some(model) = &self.model {
            body["model"] = Value::from(model.as_str());
        }
        Ask {
            path,
            body: body.to_string().into(),
            stream: self.stream,
            explain: false,
        }
    }

    /// What was answered to an earlier turn: about as long as an answer may be.
    fn answer(&self, random: &mut StdRng) -> String {
        words(random, BYTES_OF_TOKEN * self.max_tokens as usize)
    }

    fn random(&self, purpose: u64, number: u64) -> StdRng {
        let mut seed = [0; 32];
        for (at, part) in [self.seed, purpose, number].into_iter().enumerate() {
            seed[8 * at..8 * (at + 1)].copy_from_slice(&part.to_le_bytes());
        }
        StdRng::from_seed(seed)
    }
}

/// Lower-case words of 2 to 9 letters, `bytes` bytes in all.
#[must_use]
pub fn words(random: &mut StdRng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        let mut bits: u64 = random.random();
        for _ in 0..2 + bits % 8 {
            bits = bits.rotate_right(5);
            text.push(char::from(b'a' + (bits % 26) as u8));
        }
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_the_same_request_and_groups_share_a_prefix() {
        let prompts = Prompts {
            groups: 3,
            endpoint: Endpoint::Completions,
            ..Prompts::default()
        };
        assert_eq!(prompts.ask(7).body, prompts.ask(7).body);
        let prompt = |number| {
            let body: Value = serde_json::from_slice(&prompts.ask(number).body).expect("JSON");
            body["prompt"].as_str().expect("text").to_owned()
        };
        let all: Vec<String> = (0..50).map(prompt).collect();
        let shared: std::collections::BTreeSet<&str> = all.iter().map(|p| &p[..2_000]).collect();
        let whole: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!((shared.len(), whole.len()), (3, 50));
        assert!(all.iter().all(|p| p.len() == 2_500));
    }

    #[test]
    fn a_turn_sends_all_that_was_said_before_it() {
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let prompts = Prompts {
                turns: 3,
                endpoint,
                ..Prompts::default()
            };
            let text = |number| {
                let body: Value = serde_json::from_slice(&prompts.ask(number).body).expect("JSON");
                match endpoint {
                    Endpoint::Completions => body["prompt"].as_str().expect("text").to_owned(),
                    Endpoint::Chat => {
                        let messages = body["messages"].as_array().expect("a list").iter();
                        let texts =
                            messages.map(|message| message["content"].as_str().expect("text"));
                        texts.collect()
                    }
                }
            };
            assert!(text(1).starts_with(&text(0)) && text(2).starts_with(&text(1)));
            assert_eq!(text(2).len(), 2_000 + 3 * 500 + 2 * 64);
            assert!(!text(3).starts_with(&text(0)), "another conversation");
        }
    }

    #[test]
    fn chat_and_plain_forms() {
        let prompts = Prompts {
            stream: false,
            model: Some("m".into()),
            ..Prompts::default()
        };
        let ask = prompts.ask(0);
        let body: Value = serde_json::from_slice(&ask.body).expect("JSON");
        assert_eq!(
            (ask.path, &body["model"], ask.stream),
            ("/v1/chat/completions", &json!("m"), false)
        );
        assert_eq!(
            body["messages"][0]["content"].as_str().map(str::len),
            Some(2_000)
        );
        assert_eq!(body.get("stream_options"), None);
    }
}
