//! Requests of one's own: a file with one JSON body a line.

use std::io::{BufRead, BufReader};
use std::path::Path;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::client::Ask;

/// Bytes of all bodies together; they are held in memory.
const BYTES_MAX: usize = 1 << 30;
/// Bodies of one file.
const BODIES_MAX: usize = 1_000_000;

/// What all bodies of a file get.
#[derive(Debug, Clone, Default)]
pub struct Form {
    /// Ask for event streams, or for plain replies.
    pub stream: bool,
    /// In place of the model that a body names.
    pub model: Option<String>,
    /// In place of the answer length that a body asks for, in tokens.
    pub max_tokens: Option<u32>,
}

/// Bodies, at least one.
#[derive(Debug)]
pub struct Recorded {
    bodies: Vec<(&'static str, Bytes)>,
    stream: bool,
}

/// Why a file of bodies cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    File(String, std::io::Error),
    /// A line is not a body.
    #[error("line {0} of {1}: {2}")]
    Line(usize, String, String),
    /// There is none, or too much.
    #[error("{0}: {1}")]
    Size(String, &'static str),
}

impl Recorded {
    /// Reads a file: each line is the JSON body of a chat (with `messages`) or a completion (with `prompt`); empty
    /// lines are skipped. Blocks while it reads, at most 1,000,000 bodies of 1 GiB together.
    /// Errors: the file or a line of it cannot be used.
    pub fn read(path: &Path, form: &Form) -> Result<Self, RecordedError> {
        let name = path.display().to_string();
        let file = std::fs::File::open(path);
        let file = file.map_err(|error| RecordedError::File(name.clone(), error))?;
        Self::from(BufReader::new(file), &name, form)
    }

    fn from(lines: impl BufRead, name: &str, form: &Form) -> Result<Self, RecordedError> {
        // One more than may be: a longer file is seen to be longer.
        let lines = lines.take(BYTES_MAX as u64 + 1).lines();
        let (mut bodies, mut bytes) = (Vec::new(), 0);
        for (at, line) in lines.enumerate() {
            let line = line.map_err(|error| RecordedError::File(name.to_owned(), error))?;
            bytes += line.len() + 1;
            if bytes > BYTES_MAX || bodies.len() == BODIES_MAX {
                let much = "more than 1,000,000 bodies or 1 GiB";
                return Err(RecordedError::Size(name.to_owned(), much));
            }
            if !line.trim().is_empty() {
                let body = form.of(&line);
                bodies.push(body.map_err(|why| RecordedError::Line(at + 1, name.to_owned(), why))?);
            }
        }
        if bodies.is_empty() {
            return Err(RecordedError::Size(name.to_owned(), "no body is in it"));
        }
        let stream = form.stream;
        Ok(Self { bodies, stream })
    }

    pub(super) fn ask(&self, number: u64) -> Ask {
        let at = number % self.bodies.len() as u64;
        let (path, body) = &self.bodies[usize::try_from(at).expect("below a length")];
        Ask {
            path,
            body: body.clone(),
            stream: self.stream,
            explain: false,
        }
    }
}

impl Form {
    /// Path and body of a line.
    fn of(&self, line: &str) -> Result<(&'static str, Bytes), String> {
        let body: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
        let mut body = body;
        let path = match (body.contains_key("messages"), body.contains_key("prompt")) {
            (true, false) => "/v1/chat/completions",
            (false, true) => "/v1/completions",
            _ => {
                return Err(
                    "neither a chat with `messages` nor a completion with `prompt`".to_owned(),
                );
            }
        };
        let mut put = |key: &str, value: Value| body.insert(key.to_owned(), value);
        put("stream", self.stream.into());
        if self.stream {
            put("stream_options", json!({"include_usage": true}));
        }
        if let Some(model) = &self.model {
            put("model", model.as_str().into());
        }
        if let Some(tokens) = self.max_tokens {
            limit_answer(&mut body, tokens);
        }
        if !self.stream {
            body.remove("stream_options");
        }
        Ok((path, Value::Object(body).to_string().into()))
    }
}

/// Puts the answer length where the body has one: engines go by `max_completion_tokens` where there are both names, and
/// some refuse the older name.
fn limit_answer(body: &mut Map<String, Value>, tokens: u32) {
    let is_named_anew = body.contains_key("max_completion_tokens");
    if is_named_anew {
        body.insert("max_completion_tokens".to_owned(), tokens.into());
    }
    if !is_named_anew || body.contains_key("max_tokens") {
        body.insert("max_tokens".to_owned(), tokens.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, form: &Form) -> Result<Recorded, String> {
        Recorded::from(text.as_bytes(), "f", form).map_err(|error| error.to_string())
    }

    #[test]
    fn bodies_are_sent_in_turn_with_what_the_run_says() {
        let text = "{\"messages\":[],\"model\":\"a\",\"top_p\":0.5}\n\n{\"prompt\":\"p\",\"max_tokens\":9}\n";
        let form = Form {
            stream: true,
            model: Some("m".into()),
            max_tokens: None,
        };
        let recorded = read(text, &form).expect("two bodies");
        let sent = |number| {
            let ask = recorded.ask(number);
            (
                ask.path,
                serde_json::from_slice::<Value>(&ask.body).expect("JSON"),
            )
        };
        assert_eq!(sent(0).0, "/v1/chat/completions");
        assert_eq!(
            (&sent(0).1["model"], &sent(0).1["top_p"]),
            (&json!("m"), &json!(0.5))
        );
        assert_eq!(
            (sent(1).0, &sent(1).1["max_tokens"]),
            ("/v1/completions", &json!(9))
        );
        assert_eq!(sent(1).1["stream_options"], json!({"include_usage": true}));
        assert_eq!(sent(2), sent(0));
    }

    #[test]
    fn an_answer_length_replaces_that_of_a_body_by_whichever_name() {
        let form = Form {
            max_tokens: Some(2),
            ..Form::default()
        };
        for (asked, sent) in [
            (json!({}), json!({"max_tokens": 2})),
            (json!({"max_tokens": 9}), json!({"max_tokens": 2})),
            (
                json!({"max_completion_tokens": 9}),
                json!({"max_completion_tokens": 2}),
            ),
            (
                json!({"max_completion_tokens": null, "max_tokens": 9}),
                json!({"max_completion_tokens": 2, "max_tokens": 2}),
            ),
        ] {
            let (mut body, mut expected) = (asked, sent);
            body["messages"] = json!([]);
            (expected["messages"], expected["stream"]) = (json!([]), json!(false));
            let recorded = read(&body.to_string(), &form).expect("a chat");
            let found: Value = serde_json::from_slice(&recorded.ask(0).body).expect("JSON");
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn a_line_that_is_no_body_is_named() {
        for (text, expected) in [
            (
                "{\"prompt\":\"p\"}\n[1]\n",
                "line 2 of f: not a JSON object",
            ),
            ("{\"input\":\"p\"}\n", "line 1 of f: neither a chat"),
            ("\n", "f: no body is in it"),
        ] {
            let refused = read(text, &Form::default()).expect_err(text);
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
