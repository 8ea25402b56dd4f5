//! Which requests have one right answer, and what their clients want of the cache.
//!
//! Deterministic: embeddings, rerank and score always; chats and completions that are sampled greedily, with
//! one choice. Everything that reads or leaves state elsewhere is asked of a worker each time.

use std::time::Duration;

use grapevine_placement::named;
use grapevine_transfer::body::carries_transfer;
use http::{HeaderMap, header};
use serde::Deserialize;

named! {
    /// Why a request goes past the cache.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Bypass {
        /// The path is none whose answers are kept.
        Endpoint = "endpoint",
        /// The body is no JSON object that reads in one way only.
        Unreadable = "unreadable",
        /// It is longer than `cache.request_bytes`.
        TooLarge = "too_large",
        /// It names no model that the cluster serves by name.
        NoModel = "no_model",
        /// Its answer is drawn: neither `temperature` 0 nor `top_k` 1, or more than one choice.
        Sampled = "sampled",
        /// It names content that lies elsewhere and may change there.
        Elsewhere = "elsewhere",
        /// It asks the worker to keep or hand over state.
        Stateful = "stateful",
        /// `Cache-Control: no-cache` or `no-store`.
        Client = "client",
    }
}

/// Fields of a body that decide whether its answer is deterministic.
#[derive(Deserialize)]
struct Sampling {
    temperature: Option<f64>,
    top_k: Option<i64>,
    n: Option<u64>,
    best_of: Option<u64>,
    use_beam_search: Option<bool>,
    store: Option<bool>,
}

/// Is every right answer to this the same?
pub(super) fn check(path: &str, body: &[u8]) -> Result<(), Bypass> {
    let is_sampled = match path {
        "/v1/chat/completions" | "/v1/completions" => true,
        "/v1/embeddings" | "/v1/rerank" | "/v2/rerank" | "/rerank" | "/v1/score" | "/score" => {
            false
        }
        _ => return Err(Bypass::Endpoint),
    };
    let sampling: Sampling = serde_json::from_slice(body).map_err(|_| Bypass::Unreadable)?;
    if sampling.store == Some(true) {
        return Err(Bypass::Stateful);
    }
    let one = |count: Option<u64>| count.is_none_or(|count| count == 1);
    // Without a temperature the model's own default counts, which only the worker knows.
    let greedy = sampling.temperature == Some(0.0) || sampling.top_k == Some(1);
    let single = one(sampling.n) && one(sampling.best_of) && sampling.use_beam_search != Some(true);
    if is_sampled && !(greedy && single) {
        return Err(Bypass::Sampled);
    }
    if carries_transfer(body) {
        return Err(Bypass::Stateful);
    }
    Ok(())
}

/// What a client's `Cache-Control` asks for (RFC 9111, section 5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    /// A kept answer will do.
    pub(super) look: bool,
    /// The answer may be kept.
    pub(super) keep: bool,
    /// Greatest age of a kept answer.
    pub(super) age_max: Option<Duration>,
}

impl Wish {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut wish = Self {
            look: true,
            keep: true,
            age_max: None,
        };
        let values = headers.get_all(header::CACHE_CONTROL).iter();
        let directives = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        for directive in directives {
            let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
            match name.trim().to_ascii_lowercase().as_str() {
                "no-cache" => wish.look = false,
                "no-store" => (wish.look, wish.keep) = (false, false),
                // What cannot be read asks for the freshest.
                "max-age" => {
                    let seconds = value.trim().trim_matches('"').parse().unwrap_or(0);
                    wish.age_max = Some(Duration::from_secs(seconds));
                }
                _ => {}
            }
        }
        wish
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_right_answer_is_kept() {
        let chat = "/v1/chat/completions";
        for (path, body, expected) in [
            (chat, r#"{"temperature":0}"#, Ok(())),
            (chat, r#"{"temperature":0.0,"n":1,"best_of":null}"#, Ok(())),
            (
                "/v1/completions",
                r#"{"top_k":1,"temperature":0.7}"#,
                Ok(()),
            ),
            (
                chat,
                r#"{"temperature":0,"logprobs":true,"tools":[],"seed":7,"stream":true}"#,
                Ok(()),
            ),
            (
                chat,
                r#"{"temperature":0,"store":false,"kv_transfer_params":null}"#,
                Ok(()),
            ),
            (chat, "{}", Err(Bypass::Sampled)),
            (chat, r#"{"temperature":null}"#, Err(Bypass::Sampled)),
            (
                chat,
                r#"{"temperature":0.7,"seed":7}"#,
                Err(Bypass::Sampled),
            ),
            (chat, r#"{"temperature":0,"n":2}"#, Err(Bypass::Sampled)),
            (
                chat,
                r#"{"temperature":0,"best_of":2}"#,
                Err(Bypass::Sampled),
            ),
            (
                chat,
                r#"{"temperature":0,"use_beam_search":true}"#,
                Err(Bypass::Sampled),
            ),
            (
                chat,
                r#"{"temperature":0,"store":true}"#,
                Err(Bypass::Stateful),
            ),
            (
                chat,
                r#"{"temperature":0,"kv_transfer_params":{}}"#,
                Err(Bypass::Stateful),
            ),
            (
                chat,
                r#"{"temperature":0,"bootstrap_room":7}"#,
                Err(Bypass::Stateful),
            ),
            (
                chat,
                r#"{"temperature":0,"vllm_xargs":{"kv_transfer_params":{}}}"#,
                Err(Bypass::Stateful),
            ),
            (chat, r#"{"temperature":"0"}"#, Err(Bypass::Unreadable)),
            (
                chat,
                r#"{"temperature":0,"temperature":1}"#,
                Err(Bypass::Unreadable),
            ),
            (chat, "", Err(Bypass::Unreadable)),
            ("/v1/embeddings", "{}", Ok(())),
            ("/v2/rerank", r#"{"query":"q"}"#, Ok(())),
            ("/score", "{}", Ok(())),
            (
                "/v1/responses",
                r#"{"temperature":0}"#,
                Err(Bypass::Endpoint),
            ),
            ("/tokenize", "{}", Err(Bypass::Endpoint)),
        ] {
            assert_eq!(check(path, body.as_bytes()), expected, "{path} {body}");
        }
    }

    #[test]
    fn what_clients_want() {
        let wish = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CACHE_CONTROL, value.parse().expect("a value"));
            }
            let wish = Wish::of(&headers);
            (wish.look, wish.keep, wish.age_max.map(|age| age.as_secs()))
        };
        assert_eq!(wish(&[]), (true, true, None));
        assert_eq!(wish(&["no-cache"]), (false, true, None));
        assert_eq!(wish(&["max-age=5, No-Store"]), (false, false, Some(5)));
        assert_eq!(
            wish(&["no-transform", " max-age = 60 "]),
            (true, true, Some(60))
        );
        assert_eq!(wish(&["max-age=soon"]), (true, true, Some(0)));
    }
}
