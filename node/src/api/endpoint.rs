//! Method and path → what the front does with a request: the one table of endpoints.
//!
//! A worker's port has more than inference: it sleeps, loads adapters, drops caches, runs methods by name. So a path
//! is served because it is in [`ROWS`], or because the operator opened it ([`OpenPath`](super::OpenPath)); everything
//! else is 404, and a method that a path does not have is 405 with `Allow`. Paths are compared as they were written:
//! no escape, dot segment or doubled slash makes one path of another.

use http::Method;

use super::error::{ApiError, ErrorKind};
use super::open::OpenPath;

/// Where a request on the data port belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's completions.
    Completions,
    /// Embeddings, as OpenAI and Cohere ask for them.
    Embeddings,
    /// OpenAI's responses: a new one.
    Responses,
    /// A response that some worker holds, by its id.
    Response,
    /// Anthropic's messages.
    Messages,
    /// How many tokens Anthropic's messages have.
    CountTokens,
    /// Which documents answer a query best.
    Rerank,
    /// How alike two texts are, or how likely the next tokens.
    Score,
    /// To which class a text belongs.
    Classify,
    /// Whatever a pooling model gives.
    Pooling,
    /// Text to tokens, and a template's text; the engine computes nothing.
    Tokenize,
    /// Tokens to text.
    Detokenize,
    /// Generation from a text or tokens, in the forms of vLLM and SGLang.
    Generate,
    /// Several chats in one request.
    ChatBatch,
    /// What SageMaker sends: in the form of any other endpoint.
    Invocations,
    /// Speech to text: uploads.
    Transcription,
    /// Text to speech.
    Speech,
    /// Pictures from a text.
    Images,
    /// Pictures from a picture: uploads.
    ImageEdits,
    /// Answers to set questions about a text, as OpenAI and vLLM ask for them.
    Decisions,
    /// vLLM's realtime API: a WebSocket session.
    Realtime,
    /// A path that the operator opened.
    Opened,
    /// `GET /v1/models`: the union over all workers.
    Models,
    /// `GET /v1/models/{id}`.
    Model,
    /// `GET /liveness`, `GET /health`, `/ping`: this process runs.
    Live,
    /// `GET /readiness`: this replica should get traffic.
    Ready,
}

/// What a request's body is, and so where its model stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A JSON object with a field `model`.
    Json,
    /// `multipart/form-data` with a part `model`.
    Multipart,
    /// Either, or nothing: what an opened path takes is not known.
    Any,
    /// There is none to speak of.
    Nothing,
}

/// Where the text is that a worker's cache may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextIn {
    /// `messages`, behind `tools` and `system`.
    Messages,
    /// `instructions`, then `input` or `state`: a text, a list of messages, or any JSON.
    Input,
    /// `prompt`, `input` or `text`, or what stands for them.
    Prompt,
    /// `query` or its like: what all pairs begin with.
    Query,
    /// Nowhere: equal bodies go to one worker, and leave nothing in its cache.
    Body,
    /// It is not known: the body stands for it.
    Unknown,
}

/// What is the same for all requests of an endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// Stable metric label.
    pub label: &'static str,
    /// What the body is.
    pub form: Form,
    /// Where the text for the prefix is.
    pub text: TextIn,
    /// A good answer proves that the engine computes.
    pub computes: bool,
    /// May a worker see it twice? Computing costs compute and no more; an opened path may store something.
    pub repeatable: bool,
}

const GET: &[Method] = &[Method::GET];
/// Answered here, so also without the body.
const READ: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];

/// A path of the data port; `{id}` stands for one segment, `{name}` for all that is left.
struct Row(&'static str, &'static [Method], Endpoint);

/// Every path that is served without being opened, the busiest first.
const ROWS: &[Row] = &[
    Row("/v1/chat/completions", POST, Endpoint::Chat),
    Row("/v1/completions", POST, Endpoint::Completions),
    Row("/v1/embeddings", POST, Endpoint::Embeddings),
    Row("/v1/responses", POST, Endpoint::Responses),
    Row("/v1/messages", POST, Endpoint::Messages),
    Row("/health", READ, Endpoint::Live),
    Row("/liveness", READ, Endpoint::Live),
    Row("/readiness", READ, Endpoint::Ready),
    // What SageMaker asks a container.
    Row(
        "/ping",
        &[Method::GET, Method::HEAD, Method::POST],
        Endpoint::Live,
    ),
    Row("/v1/models", READ, Endpoint::Models),
    Row("/v1/models/{name}", READ, Endpoint::Model),
    Row(
        "/v1/responses/{id}",
        &[Method::GET, Method::DELETE],
        Endpoint::Response,
    ),
    Row("/v1/responses/{id}/cancel", POST, Endpoint::Response),
    Row("/v1/responses/{id}/input_items", GET, Endpoint::Response),
    Row("/v1/messages/count_tokens", POST, Endpoint::CountTokens),
    Row("/v2/embed", POST, Endpoint::Embeddings),
    Row("/rerank", POST, Endpoint::Rerank),
    Row("/v1/rerank", POST, Endpoint::Rerank),
    Row("/v2/rerank", POST, Endpoint::Rerank),
    Row("/score", POST, Endpoint::Score),
    Row("/v1/score", POST, Endpoint::Score),
    Row("/generative_scoring", POST, Endpoint::Score),
    Row("/classify", POST, Endpoint::Classify),
    Row("/v1/classify", POST, Endpoint::Classify),
    Row("/pooling", POST, Endpoint::Pooling),
    Row("/tokenize", POST, Endpoint::Tokenize),
    Row("/v1/tokenize", POST, Endpoint::Tokenize),
    Row("/v1/chat/completions/render", POST, Endpoint::Tokenize),
    Row("/v1/completions/render", POST, Endpoint::Tokenize),
    Row("/v1/messages/render", POST, Endpoint::Tokenize),
    Row("/v1/responses/render", POST, Endpoint::Tokenize),
    Row("/detokenize", POST, Endpoint::Detokenize),
    Row("/v1/detokenize", POST, Endpoint::Detokenize),
    Row("/v1/chat/completions/derender", POST, Endpoint::Detokenize),
    Row("/v1/completions/derender", POST, Endpoint::Detokenize),
    Row("/generate", POST, Endpoint::Generate),
    Row("/inference/v1/generate", POST, Endpoint::Generate),
    Row("/v1/chat/completions/batch", POST, Endpoint::ChatBatch),
    Row("/invocations", POST, Endpoint::Invocations),
    Row("/v1/audio/transcriptions", POST, Endpoint::Transcription),
    Row("/v1/audio/translations", POST, Endpoint::Transcription),
    Row("/v1/audio/speech", POST, Endpoint::Speech),
    Row("/v1/realtime", GET, Endpoint::Realtime),
    Row("/v1/images/generations", POST, Endpoint::Images),
    Row("/v1/images/edits", POST, Endpoint::ImageEdits),
    Row("/v1/images/variations", POST, Endpoint::ImageEdits),
    Row("/v1/decisions", POST, Endpoint::Decisions),
    Row("/v1/systemone", POST, Endpoint::Decisions),
];

/// Longest id of a response, in bytes: what workers make, and a little more.
pub const ID_BYTES_MAX: usize = 128;
/// What stands in place of an id in paths of OpenAI's API and of vLLM's that are about no stored response.
const NO_IDS: [&str; 3] = ["input_tokens", "compact", "render"];

impl Row {
    fn is_at(&self, path: &str) -> bool {
        let Some((before, after)) = self.0.split_once('{') else {
            return self.0 == path;
        };
        let Some(rest) = path.strip_prefix(before) else {
            return false;
        };
        match after.strip_prefix("id}") {
            Some(behind) => rest
                .strip_suffix(behind)
                .is_some_and(|id| is_id(id) && !NO_IDS.contains(&id)),
            None => true,
        }
    }
}

/// Is it like the ids that workers give to responses?
pub fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
}

impl Endpoint {
    /// Every endpoint, for tests and for labels. A new one stands last: inputs that fuzzing keeps name them by their places.
    pub const ALL: [Self; 27] = [
        Self::Chat,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
        Self::Response,
        Self::Messages,
        Self::CountTokens,
        Self::Rerank,
        Self::Score,
        Self::Classify,
        Self::Pooling,
        Self::Tokenize,
        Self::Detokenize,
        Self::Generate,
        Self::ChatBatch,
        Self::Invocations,
        Self::Transcription,
        Self::Speech,
        Self::Images,
        Self::ImageEdits,
        Self::Realtime,
        Self::Opened,
        Self::Models,
        Self::Model,
        Self::Live,
        Self::Ready,
        Self::Decisions,
    ];

    /// Finds the endpoint among those that are served and those that were opened.
    /// Errors: 404 for a path that is neither, 405 with `Allow` for a method that the path does not have.
    pub fn of(method: &Method, path: &str, opened: &[OpenPath]) -> Result<Self, ApiError> {
        let mut allowed: Vec<&Method> = Vec::new();
        let served = ROWS.iter().find(|row| row.is_at(path));
        if let Some(Row(_, methods, endpoint)) = served {
            if methods.contains(method) {
                return Ok(*endpoint);
            }
            allowed.extend(methods.iter());
        }
        let opened = opened.iter().filter(|open| open.is_at(path));
        for open in opened {
            if open.method() == method {
                return Ok(Self::Opened);
            }
            allowed.push(open.method());
        }
        if allowed.is_empty() && *method != Method::CONNECT {
            return Err(ApiError::new(
                ErrorKind::NotFound,
                "this path is not served at the data port; the admin API has a port of its own (admin.port), and what workers \
                 serve besides may be opened by listen.open_paths",
            ));
        }
        Err(ApiError::method_not_allowed(method, &allowed))
    }

    /// The path by which this one is served, with names in place of what differs (`/v1/responses/{id}`); none for a path
    /// that was opened.
    pub fn route(path: &str) -> Option<&'static str> {
        let served = ROWS.iter().find(|row| row.is_at(path));
        served.map(|Row(route, ..)| *route)
    }

    /// What all its requests have in common.
    pub const fn traits(self) -> Traits {
        use Form::{Any, Json, Multipart, Nothing};
        use TextIn::{Body, Input, Messages, Prompt, Query, Unknown};
        match self {
            Self::Chat => computed("chat_completions", Json, Messages),
            Self::Completions => computed("completions", Json, Prompt),
            Self::Embeddings => computed("embeddings", Json, Prompt),
            // Repeatable: a client never learns the id of one that was begun elsewhere, so nothing asks for it.
            Self::Responses => computed("responses", Json, Input),
            Self::Response => said("responses_by_id", Nothing, true),
            Self::Messages => computed("messages", Json, Messages),
            Self::CountTokens => said("count_tokens", Json, true),
            Self::Rerank => computed("rerank", Json, Query),
            Self::Score => computed("score", Json, Query),
            Self::Classify => computed("classify", Json, Prompt),
            Self::Pooling => computed("pooling", Json, Prompt),
            Self::Tokenize => said("tokenize", Json, true),
            Self::Detokenize => said("detokenize", Json, true),
            Self::Generate => computed("generate", Json, Prompt),
            Self::ChatBatch => computed("chat_batch", Json, Prompt),
            Self::Invocations => computed("invocations", Json, Prompt),
            Self::Transcription => computed("transcription", Multipart, Body),
            Self::Speech => computed("speech", Json, Prompt),
            Self::Images => computed("images", Json, Prompt),
            Self::ImageEdits => computed("image_edits", Multipart, Body),
            Self::Decisions => computed("decisions", Json, Input),
            // The question is made of the query; the engine has said nothing before the session begins.
            Self::Realtime => said("realtime", Json, true),
            Self::Opened => Traits {
                text: Unknown,
                ..said("opened", Any, false)
            },
            Self::Models | Self::Model => said("models", Nothing, true),
            Self::Live | Self::Ready => said("health", Nothing, true),
        }
    }

    /// Whether its streams have a last event that every engine sends (`[DONE]`, `message_stop`, `response.completed`).
    pub const fn has_last_event(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Messages | Self::Responses
        )
    }

    /// Whether the ends of its requests show how its worker's engine is. What an HTTP server answers by itself does not; what
    /// is behind an opened path is not known, and a session's end is not that of its handshake.
    pub const fn is_judged(self) -> bool {
        self.traits().computes || matches!(self, Self::Opened | Self::Realtime)
    }

    /// Stable metric label.
    pub const fn as_str(self) -> &'static str {
        self.traits().label
    }
}

/// An engine computes the answer.
const fn computed(label: &'static str, form: Form, text: TextIn) -> Traits {
    Traits {
        label,
        form,
        text,
        computes: true,
        repeatable: true,
    }
}

/// No engine is needed for the answer, so it says nothing about one.
const fn said(label: &'static str, form: Form, repeatable: bool) -> Traits {
    Traits {
        label,
        form,
        text: TextIn::Body,
        computes: false,
        repeatable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: Method, path: &str) -> Result<Endpoint, ApiError> {
        let opened =
            ["GET /version", "POST /custom/*"].map(|text| OpenPath::new(text).expect(text));
        Endpoint::of(&method, path, &opened)
    }

    #[test]
    fn a_route_names_no_client() {
        for (path, route) in [
            (
                "/v1/responses/resp_1/cancel",
                Some("/v1/responses/{id}/cancel"),
            ),
            ("/tokenize", Some("/tokenize")),
            ("/custom/a", None),
        ] {
            assert_eq!(Endpoint::route(path), route, "{path}");
        }
    }

    #[test]
    fn paths_and_methods() {
        for (method, path, expected) in [
            (Method::POST, "/v1/chat/completions", Endpoint::Chat),
            (Method::POST, "/v1/completions", Endpoint::Completions),
            (Method::POST, "/tokenize", Endpoint::Tokenize),
            (Method::HEAD, "/health", Endpoint::Live),
            (Method::POST, "/ping", Endpoint::Live),
            (Method::GET, "/v1/models/a/b", Endpoint::Model),
            (Method::POST, "/v1/responses", Endpoint::Responses),
            (Method::GET, "/v1/responses/resp_1-a", Endpoint::Response),
            (Method::DELETE, "/v1/responses/resp_1", Endpoint::Response),
            (
                Method::POST,
                "/v1/responses/resp_1/cancel",
                Endpoint::Response,
            ),
            (Method::POST, "/v1/responses/render", Endpoint::Tokenize),
            (Method::GET, "/v1/responses/compacted", Endpoint::Response),
            (Method::POST, "/v1/decisions", Endpoint::Decisions),
            (Method::POST, "/v1/systemone", Endpoint::Decisions),
            (Method::GET, "/version", Endpoint::Opened),
            (Method::POST, "/custom/a/b", Endpoint::Opened),
        ] {
            let found = of(method.clone(), path).expect(path);
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn a_wrong_method_is_told_the_right_ones() {
        for (method, path, allow) in [
            (Method::GET, "/v1/chat/completions", "POST"),
            (Method::DELETE, "/v1/models/x", "GET, HEAD"),
            (Method::POST, "/v1/responses/resp_1", "GET, DELETE"),
            (Method::HEAD, "/v1/responses/resp_1", "GET, DELETE"),
            (Method::GET, "/v1/responses/render", "POST"),
            (Method::DELETE, "/version", "GET"),
            (Method::CONNECT, "/anything", ""),
        ] {
            let error = of(method.clone(), path).expect_err(path);
            assert_eq!(error.kind, ErrorKind::MethodNotAllowed, "{method} {path}");
            let response = error.response();
            assert_eq!(response.headers()["allow"], allow, "{method} {path}");
        }
    }

    #[test]
    fn what_is_not_served_is_not_found() {
        for path in [
            "/",
            "",
            "/v1",
            "/v1/",
            "/v1/chat/completions/",
            "/V1/chat/completions",
            "//v1/chat/completions",
            "/v1/./completions",
            "/v1/%63ompletions",
            "/v1/responses/",
            "/v1/responses/..",
            "/v1/responses/a/b",
            "/v1/responses/a%2fcancel",
            "/v1/responses/../../sleep",
            "/v1/responses/a/../cancel",
            "/v1/responses/input_tokens",
            "/v1/responses/compact",
            "/v1/responses/compact/cancel",
            "/custom",
            "/custom/../sleep",
            "/custom/%2e%2e/sleep",
            "/metrics",
            "/sleep",
            "/collective_rpc",
            "/v1/load_lora_adapter",
        ] {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                let error = of(method.clone(), path).expect_err(path);
                assert_eq!(error.kind, ErrorKind::NotFound, "{method} {path}");
            }
        }
    }

    #[test]
    fn every_path_is_there_once_and_every_endpoint_has_one() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(
                ROWS[..index].iter().all(|other| other.0 != row.0),
                "{}",
                row.0
            );
            assert!(!super::super::open::is_engine_control(row.0), "{}", row.0);
        }
        for endpoint in Endpoint::ALL {
            let has_path = ROWS.iter().any(|row| row.2 == endpoint);
            assert_eq!(has_path, endpoint != Endpoint::Opened, "{endpoint:?}");
        }
    }
}
