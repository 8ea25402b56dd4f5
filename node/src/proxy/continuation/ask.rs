//! What a request asks for: may its answer be continued elsewhere, and by which request?
//!
//! A chat is continued by an assistant's message that the worker is asked to go on with
//! (`continue_final_message`), a completion by its prompt with the text behind it. What would make the text of the
//! second worker no continuation of the first one's is refused here, before anything is kept.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::reason::Reason;
use crate::api::Endpoint;
use crate::api::json::RawObject;

/// Tokens of a completion that names no limit (vLLM 0.32, OpenAI's default).
const COMPLETION_TOKENS: u64 = 16;

/// A request whose answer can be continued.
#[derive(Debug)]
pub struct Ask {
    body: Bytes,
    is_chat: bool,
    /// The client gave the beginning of the answer itself, as the last message.
    is_begun: bool,
    /// It wants an event with token counts behind the answer.
    wants_usage: bool,
}

impl Ask {
    /// Reads a body as a worker gets it. None for an endpoint without text to continue.
    /// Errors: why its answer cannot be continued.
    pub fn read(endpoint: Endpoint, body: Bytes) -> Option<Result<Self, Reason>> {
        let is_chat = match endpoint {
            Endpoint::Chat => true,
            Endpoint::Completions => false,
            _ => return None,
        };
        Some(Self::check(is_chat, body))
    }

    fn check(is_chat: bool, body: Bytes) -> Result<Self, Reason> {
        #[derive(Deserialize)]
        struct StreamOptions {
            #[serde(default)]
            include_usage: Option<bool>,
        }
        let object = RawObject::parse(&body).ok_or(Reason::Request)?;
        let against = object
            .members()
            .find_map(|(name, json)| against(name, json));
        if let Some(reason) = against {
            return Err(reason);
        }
        let is_begun = match object.get("continue_final_message") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(Reason::Request),
        };
        let adds_prompt = !matches!(object.get("add_generation_prompt"), Some("false"));
        // Neither: the model goes on in the prompt itself, where no message can be put.
        if is_chat && is_begun == adds_prompt {
            return Err(Reason::Prompt);
        }
        if is_chat && is_begun {
            begun_text(&object)?;
        }
        if !is_chat
            && !object
                .get("prompt")
                .is_some_and(|json| json.starts_with('"'))
        {
            return Err(Reason::Prompt);
        }
        let options = object.get("stream_options");
        let options = options.map(serde_json::from_str::<StreamOptions>);
        let options = options.transpose().map_err(|_| Reason::Request)?;
        let wants_usage = options.and_then(|options| options.include_usage) == Some(true);
        drop(object);
        Ok(Self {
            body,
            is_chat,
            is_begun,
            wants_usage,
        })
    }

    /// An event with token counts belongs to the answer.
    pub fn wants_usage(&self) -> bool {
        self.wants_usage
    }

    /// How much of the text that was said goes into the next prompt. Chat templates may trim a message, and
    /// tokens seldom begin behind a blank, so a chat's trailing blanks are left to be said again.
    pub fn carried<'a>(&self, said: &'a str) -> &'a str {
        if self.is_chat { said.trim_end() } else { said }
    }

    /// The body that asks for the rest, after `carried` was said in `tokens` tokens.
    /// Errors: no token is left to ask for, or the body does not hold what it should.
    pub fn rest(&self, carried: &str, tokens: u64) -> Result<Bytes, Reason> {
        let mut body = RawObject::parse(&self.body).ok_or(Reason::Request)?;
        if !carried.is_empty() {
            self.put(&mut body, carried)?;
        }
        let mut limited = false;
        for name in ["max_tokens", "max_completion_tokens"] {
            if let Some(limit) = number(&body, name)? {
                limited = true;
                set_rest(&mut body, name, limit, tokens)?;
            }
        }
        let unset = !body.members().any(|(name, _)| name == "max_tokens");
        if !self.is_chat && !limited && unset {
            set_rest(&mut body, "max_tokens", COMPLETION_TOKENS, tokens)?;
        }
        if let Some(least) = number(&body, "min_tokens")? {
            body.set("min_tokens", &least.saturating_sub(tokens));
        }
        Ok(body.to_vec().into())
    }

    fn put(&self, body: &mut RawObject<'_>, carried: &str) -> Result<(), Reason> {
        if !self.is_chat {
            let prompt: String = parsed(body.get("prompt"))?;
            body.set("prompt", &(prompt + carried));
            return Ok(());
        }
        let messages = body.get("messages").map(str::to_owned);
        let mut messages: Vec<&RawValue> = parsed(messages.as_deref())?;
        let last = if self.is_begun {
            let begun = begun_text(body)?;
            let last = messages.pop().ok_or(Reason::Request)?;
            let mut last = RawObject::parse(last.get().as_bytes()).ok_or(Reason::Request)?;
            last.set("content", &(begun + carried));
            last.to_vec()
        } else {
            let message = json!({ "role": "assistant", "content": carried });
            message.to_string().into_bytes()
        };
        let last: &RawValue = serde_json::from_slice(&last).map_err(|_| Reason::Request)?;
        messages.push(last);
        body.set("messages", &messages);
        body.set("continue_final_message", &true);
        body.set("add_generation_prompt", &false);
        Ok(())
    }
}

/// What a field says against a continuation, unless its value is the default.
fn against(name: &str, json: &str) -> Option<Reason> {
    let (reason, default) = match name {
        "tools" | "functions" | "function_call" => (Reason::Tools, "[]"),
        "tool_choice" => (Reason::Tools, "\"none\""),
        "logprobs" => (Reason::Logprobs, "false"),
        "top_logprobs" => (Reason::Logprobs, "0"),
        "prompt_logprobs" | "logprob_token_ids" => (Reason::Logprobs, "null"),
        "n" | "best_of" => (Reason::Choices, "1"),
        "use_beam_search" => (Reason::Choices, "false"),
        "response_format" => (Reason::Format, r#"{"type":"text"}"#),
        "structured_outputs" => (Reason::Format, "null"),
        name if name.starts_with("guided_") => (Reason::Format, "null"),
        "echo" => (Reason::Prompt, "false"),
        "suffix" => (Reason::Prompt, "\"\""),
        "truncate_prompt_tokens" | "prompt_embeds" => (Reason::Prompt, "null"),
        "return_token_ids" => (Reason::TokenIds, "false"),
        "include_stop_str_in_output" => (Reason::Stop, "false"),
        "modalities" => (Reason::Audio, r#"["text"]"#),
        "audio" => (Reason::Audio, "null"),
        "kv_transfer_params" | "ec_transfer_params" => (Reason::Transfer, "null"),
        _ => return None,
    };
    let without_blanks = || json.split_ascii_whitespace().collect::<String>();
    (json != "null" && json != default && without_blanks() != default).then_some(reason)
}

/// The text of the last message, which the client wants continued.
fn begun_text(body: &RawObject<'_>) -> Result<String, Reason> {
    #[derive(Deserialize)]
    struct LastMessage {
        role: String,
        content: String,
    }
    let messages: Vec<&RawValue> = parsed(body.get("messages"))?;
    let last = messages.last().ok_or(Reason::Request)?;
    let last: LastMessage = parsed(Some(last.get()))?;
    (last.role == "assistant")
        .then_some(last.content)
        .ok_or(Reason::Request)
}

fn parsed<'a, T: Deserialize<'a>>(json: Option<&'a str>) -> Result<T, Reason> {
    let parsed = json.map(serde_json::from_str::<T>);
    parsed.and_then(Result::ok).ok_or(Reason::Request)
}

fn number(body: &RawObject<'_>, name: &str) -> Result<Option<u64>, Reason> {
    let json = body.get(name);
    json.map(|json| json.parse().map_err(|_| Reason::Request))
        .transpose()
}

fn set_rest(
    body: &mut RawObject<'_>,
    name: &'static str,
    limit: u64,
    tokens: u64,
) -> Result<(), Reason> {
    let rest = limit.checked_sub(tokens).filter(|rest| *rest > 0);
    body.set(name, &rest.ok_or(Reason::Spent)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(endpoint: Endpoint, body: &str) -> Result<Ask, Reason> {
        let ask = Ask::read(endpoint, Bytes::copy_from_slice(body.as_bytes()));
        ask.expect("it has text")
    }

    fn rest(endpoint: Endpoint, body: &str, said: &str, tokens: u64) -> Value {
        let ask = read(endpoint, body).unwrap_or_else(|reason| panic!("{body}: {reason:?}"));
        let rest = ask.rest(ask.carried(said), tokens).expect("a rest");
        serde_json::from_slice(&rest).expect("JSON")
    }

    const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true"#;

    #[test]
    fn a_chat_is_continued_by_its_last_message() {
        let body = format!("{CHAT},\"seed\":7,\"max_tokens\":10,\"min_tokens\":3}}");
        let rest = rest(Endpoint::Chat, &body, " so \"far\"\n", 4);
        let expected = serde_json::json!({
            "model": "m", "stream": true, "seed": 7, "max_tokens": 6, "min_tokens": 0,
            "messages": [
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": " so \"far\"" },
            ],
            "continue_final_message": true, "add_generation_prompt": false,
        });
        assert_eq!(rest, expected);
    }

    #[test]
    fn a_message_that_the_client_began_is_extended() {
        let body = r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Well, ","name":"x"}],
            "continue_final_message":true,"add_generation_prompt":false}"#;
        let rest = rest(Endpoint::Chat, body, "it is", 2);
        let expected =
            serde_json::json!({ "role": "assistant", "content": "Well, it is", "name": "x" });
        assert_eq!(rest["messages"][1], expected);
        assert_eq!(rest["messages"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn a_completion_is_continued_by_its_prompt() {
        let with = |limit: &str| format!(r#"{{"model":"m","prompt":"one \u00e9"{limit}}}"#);
        let next = rest(
            Endpoint::Completions,
            &with(r#","max_tokens":9"#),
            " two ",
            2,
        );
        let expected = serde_json::json!({ "model": "m", "prompt": "one é two ", "max_tokens": 7 });
        assert_eq!(next, expected);
        let next = rest(Endpoint::Completions, &with(""), " two", 2);
        assert_eq!(next["max_tokens"], 14, "vLLM's default less what was said");
        let next = rest(
            Endpoint::Completions,
            &with(r#","max_tokens":null"#),
            " two",
            2,
        );
        assert!(next["max_tokens"].is_null(), "as long as the model can");
    }

    #[test]
    fn as_long_as_nothing_was_said_the_prompt_stays() {
        let body = format!("{CHAT},\"max_completion_tokens\":10}}");
        let rest = rest(Endpoint::Chat, &body, " \n", 1);
        assert_eq!(rest["messages"].as_array().map(Vec::len), Some(1));
        assert_eq!(rest["max_completion_tokens"], 9);
        assert!(rest.get("continue_final_message").is_none());
    }

    #[test]
    fn a_limit_that_is_reached_leaves_nothing_to_ask_for() {
        let ask = read(Endpoint::Chat, &format!("{CHAT},\"max_tokens\":4}}")).expect("continuable");
        assert!(ask.rest("four tokens", 3).is_ok());
        assert_eq!(ask.rest("four tokens", 4), Err(Reason::Spent));
    }

    #[test]
    fn what_cannot_be_continued() {
        let fields: &[(&str, Reason)] = &[
            (r#""tools":[{"type":"function"}]"#, Reason::Tools),
            (r#""functions":[{}]"#, Reason::Tools),
            (r#""tool_choice":"auto""#, Reason::Tools),
            (r#""logprobs":true"#, Reason::Logprobs),
            (r#""top_logprobs":2"#, Reason::Logprobs),
            (r#""prompt_logprobs":0"#, Reason::Logprobs),
            (r#""n":2"#, Reason::Choices),
            (r#""best_of":2"#, Reason::Choices),
            (r#""use_beam_search":true"#, Reason::Choices),
            (
                r#""response_format":{"type":"json_object"}"#,
                Reason::Format,
            ),
            (r#""guided_regex":"a*""#, Reason::Format),
            (r#""structured_outputs":{"regex":"a*"}"#, Reason::Format),
            (r#""echo":true"#, Reason::Prompt),
            (r#""suffix":"x""#, Reason::Prompt),
            (r#""truncate_prompt_tokens":5"#, Reason::Prompt),
            (r#""return_token_ids":true"#, Reason::TokenIds),
            (
                r#""stop":"x","include_stop_str_in_output":true"#,
                Reason::Stop,
            ),
            (r#""modalities":["text","audio"]"#, Reason::Audio),
            (r#""audio":{"voice":"x"}"#, Reason::Audio),
            (
                r#""kv_transfer_params":{"do_remote_prefill":true}"#,
                Reason::Transfer,
            ),
            (r#""add_generation_prompt":false"#, Reason::Prompt),
            (
                r#""continue_final_message":true,"add_generation_prompt":false"#,
                Reason::Request,
            ),
            (r#""model":"other""#, Reason::Request),
        ];
        for (field, expected) in fields {
            let reason = read(Endpoint::Chat, &format!("{CHAT},{field}}}"));
            assert_eq!(reason.err(), Some(*expected), "{field}");
        }
        for prompt in ["[1,2]", "[\"a\",\"b\"]", "null", "7"] {
            let reason = read(Endpoint::Completions, &format!(r#"{{"prompt":{prompt}}}"#));
            assert_eq!(reason.err(), Some(Reason::Prompt), "{prompt}");
        }
        let log = read(Endpoint::Completions, r#"{"prompt":"a","logprobs":0}"#);
        assert_eq!(log.err(), Some(Reason::Logprobs));
        assert!(Ask::read(Endpoint::Embeddings, Bytes::new()).is_none());
        assert!(Ask::read(Endpoint::Opened, Bytes::new()).is_none());
    }

    #[test]
    fn defaults_that_are_written_out_change_nothing() {
        let body = format!(
            r#"{CHAT},"tools":null,"tool_choice":"none","logprobs":false,"top_logprobs":0,"n":1,"echo":false,
            "response_format":{{ "type": "text" }},"stop":["x"],"return_token_ids":null,"modalities":["text"],
            "temperature":0.7,"seed":1,"continue_final_message":false,"add_generation_prompt":true,
            "stream_options":{{"include_usage":true}}}}"#
        );
        assert!(
            read(Endpoint::Chat, &body)
                .expect("continuable")
                .wants_usage()
        );
    }
}
