//! Errors that clients see, in the shape that their client reads, and the one place that gives each its status.
//!
//! Shape: `{"error":{"message","type","param","code"}}`, as OpenAI's API reference and vLLM 0.32 answer; below
//! `/v1/messages` that of Anthropic's API, `{"type":"error","error":{"type","message"}}`.
//! `429` and `503` always carry `Retry-After`.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde::Serialize;
use serde_json::Value;

/// Declares [`ErrorKind`], a row for each: `Kind: STATUS, "OpenAI's type", "code"`.
macro_rules! kinds {
    ($($(#[$about:meta])* $Kind:ident: $STATUS:ident, $type:literal, $code:literal;)*) => {
        /// What went wrong, as one label of a metric and one status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $($(#[$about])* $Kind,)*
        }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: [Self; [$($code),*].len()] = [$(Self::$Kind),*];

            /// HTTP status of this error.
            pub fn status(self) -> StatusCode {
                match self {
                    $(Self::$Kind => StatusCode::$STATUS,)*
                }
            }

            /// OpenAI's `type` field.
            fn openai_type(self) -> &'static str {
                match self {
                    $(Self::$Kind => $type,)*
                }
            }

            /// Stable machine-readable `code`, also the metric label.
            pub fn code(self) -> &'static str {
                match self {
                    $(Self::$Kind => $code,)*
                }
            }
        }
    };
}

kinds! {
    /// The body or a parameter cannot be understood.
    InvalidRequest: BAD_REQUEST, "invalid_request_error", "invalid_request";
    /// The token is missing or wrong.
    Unauthorized: UNAUTHORIZED, "invalid_request_error", "unauthorized";
    /// A client's key is missing, unknown or has ended.
    InvalidApiKey: UNAUTHORIZED, "invalid_request_error", "invalid_api_key";
    /// The key may not do this.
    PermissionDenied: FORBIDDEN, "invalid_request_error", "permission_denied";
    /// A limit of the key or its tenant is reached.
    RateLimited: TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded";
    /// No worker in the cluster serves the model.
    ModelNotFound: NOT_FOUND, "invalid_request_error", "model_not_found";
    /// The path exists for another method only.
    MethodNotAllowed: METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed";
    /// The path is not served.
    NotFound: NOT_FOUND, "invalid_request_error", "not_found";
    /// What is asked for is switched off here.
    NotImplemented: NOT_IMPLEMENTED, "invalid_request_error", "not_implemented";
    /// A WebSocket of another version than the one that is known here.
    UpgradeRequired: UPGRADE_REQUIRED, "invalid_request_error", "upgrade_required";
    /// The client's body stalled.
    RequestTimeout: REQUEST_TIMEOUT, "invalid_request_error", "request_timeout";
    /// The body is above the limit.
    TooLarge: PAYLOAD_TOO_LARGE, "invalid_request_error", "request_too_large";
    /// The body is compressed.
    UnsupportedEncoding: UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", "unsupported_content_encoding";
    /// The request line is above the limit.
    TargetTooLong: URI_TOO_LONG, "invalid_request_error", "target_too_long";
    /// The head is above the limits.
    HeadTooLarge: REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error", "head_too_large";
    /// A limit of this replica is reached.
    Overloaded: SERVICE_UNAVAILABLE, "overloaded_error", "overloaded";
    /// No usable worker for the model right now.
    NoWorker: SERVICE_UNAVAILABLE, "overloaded_error", "no_worker_available";
    /// Every attempt failed before a byte reached the client.
    UpstreamFailed: BAD_GATEWAY, "server_error", "upstream_failed";
    /// The worker's answer broke off after bytes had reached the client.
    UpstreamBroke: BAD_GATEWAY, "server_error", "upstream_broke";
    /// Workers ended while they had such a request.
    QueryOfDeath: UNPROCESSABLE_ENTITY, "invalid_request_error", "query_of_death";
    /// No attempt produced a first token in time.
    UpstreamTimeout: GATEWAY_TIMEOUT, "server_error", "upstream_timeout";
    /// The replica is shutting down.
    ShuttingDown: SERVICE_UNAVAILABLE, "overloaded_error", "shutting_down";
    /// This replica has sent the request to a worker itself.
    Loop: LOOP_DETECTED, "server_error", "loop_detected";
    /// A defect of the router.
    Internal: INTERNAL_SERVER_ERROR, "server_error", "internal_error";
}

/// The API whose errors a client reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's.
    #[default]
    OpenAi,
    /// Anthropic's: its clients know an error by the name of its type.
    Anthropic,
}

impl Dialect {
    /// That of a path, whether it is served or not.
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some("") => Self::Anthropic,
            Some(below) if below.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

/// Anthropic's `type` field, which follows the status.
fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// The status that such a type stands for, as of an error event, which has no other; OpenAI's name for a mistake of the client
/// is one of them.
pub fn status_of_type(kind: &str) -> Option<StatusCode> {
    Some(match kind {
        "invalid_request_error" => StatusCode::BAD_REQUEST,
        "authentication_error" => StatusCode::UNAUTHORIZED,
        "permission_error" => StatusCode::FORBIDDEN,
        "not_found_error" => StatusCode::NOT_FOUND,
        "request_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "rate_limit_error" => StatusCode::TOO_MANY_REQUESTS,
        "overloaded_error" => StatusCode::SERVICE_UNAVAILABLE,
        "timeout_error" => StatusCode::GATEWAY_TIMEOUT,
        _ => return None,
    })
}

/// An error on its way to a client. Nothing in it may hold prompt text, keys or credentials.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// Decides status, type and code.
    pub kind: ErrorKind,
    /// For people: what happened and what to do.
    pub message: Cow<'static, str>,
    /// The offending parameter of the request, when there is one.
    pub param: Option<&'static str>,
    /// Methods that the path has, of a 405.
    pub allow: Option<Box<str>>,
    /// The model that was asked for in vain, cut short; for the log.
    pub model: Option<Box<str>>,
}

impl ApiError {
    /// An error without a parameter.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            allow: None,
            model: None,
        }
    }

    /// A target above `limits.header_bytes`, or longer than [`http::Uri`] can be.
    pub fn target_too_long() -> Self {
        let message =
            "the request line is longer than limits.header_bytes, or its target than 65,534 bytes";
        Self::new(ErrorKind::TargetTooLong, message)
    }

    /// A head above `limits.header_bytes` or `limits.headers`.
    pub fn head_too_large() -> Self {
        let message =
            "the head is larger than limits.header_bytes or has more lines than limits.headers";
        Self::new(ErrorKind::HeadTooLarge, message)
    }

    /// A 405 that says which methods the path has.
    pub fn method_not_allowed(asked: &Method, allowed: &[&Method]) -> Self {
        let allowed: Vec<&str> = allowed.iter().map(|method| method.as_str()).collect();
        let allowed = allowed.join(", ");
        let message = match allowed.as_str() {
            "" => format!("{asked} is not served"),
            _ => format!("this path takes {allowed}"),
        };
        Self {
            allow: Some(allowed.into()),
            ..Self::new(ErrorKind::MethodNotAllowed, message)
        }
    }

    /// A 400 that names the parameter at fault.
    pub fn invalid(param: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            param: Some(param),
            ..Self::new(ErrorKind::InvalidRequest, message)
        }
    }

    /// The same about one part of what was sent, which the message names.
    #[must_use]
    pub fn within(mut self, part: &str) -> Self {
        self.message = format!("{part}: {}", self.message).into();
        self
    }

    /// The JSON body under a status, which is this error's own but for lack of room.
    pub fn body_as(&self, status: StatusCode, dialect: Dialect) -> Bytes {
        match dialect {
            Dialect::OpenAi => self.body(),
            Dialect::Anthropic => self.anthropic_body(status),
        }
    }

    fn anthropic_body(&self, status: StatusCode) -> Bytes {
        #[derive(Serialize)]
        struct Outer<'a> {
            r#type: &'a str,
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            r#type: &'a str,
            message: &'a str,
        }
        let outer = Outer {
            r#type: "error",
            error: Inner {
                r#type: anthropic_type(status),
                message: &self.message,
            },
        };
        serde_json::to_vec(&outer)
            .expect("strings always serialise")
            .into()
    }

    /// The JSON body in OpenAI's shape.
    pub fn body(&self) -> Bytes {
        #[derive(Serialize)]
        struct Outer<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            message: &'a str,
            r#type: &'a str,
            param: Option<&'a str>,
            code: &'a str,
        }
        let outer = Outer {
            error: Inner {
                message: &self.message,
                r#type: self.kind.openai_type(),
                param: self.param,
                code: self.kind.code(),
            },
        };
        serde_json::to_vec(&outer)
            .expect("strings always serialise")
            .into()
    }

    /// The event that ends a stream whose head has already gone out: no `[DONE]` follows it.
    /// `mid_event`: the stream broke within an event, which has to be ended first. `named`: its events have names, and
    /// its clients look for one, and for the same word in the data.
    pub fn sse_event(&self, mid_event: bool, named: bool, dialect: Dialect) -> Bytes {
        let body = self.body_as(self.kind.status(), dialect);
        event_with(&body, mid_event, named, dialect)
    }

    /// The response, complete with `Retry-After` where the status calls for one.
    pub fn response(&self) -> Response<Bytes> {
        self.response_as(self.kind.status(), Dialect::OpenAi)
    }

    /// The same under another status, and in the shape that the client reads.
    pub fn response_as(&self, status: StatusCode, dialect: Dialect) -> Response<Bytes> {
        let mut response = Response::new(self.body_as(status, dialect));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(after) = retry_after(status) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 15.5.2: a 401 says how to do better.
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = &self.allow {
            // RFC 9110, section 15.5.6: a 405 lists what the path has, which may be nothing.
            let allow = HeaderValue::from_str(allow).expect("names of methods");
            headers.insert(header::ALLOW, allow);
        }
        if self.kind == ErrorKind::UnsupportedEncoding {
            // RFC 9110, section 12.5.3: says what would have been taken.
            let identity = HeaderValue::from_static("identity");
            headers.insert(header::ACCEPT_ENCODING, identity);
        }
        if self.kind == ErrorKind::UpgradeRequired {
            // RFC 9110, section 15.5.22, and RFC 6455, section 4.4: names the protocol, and its version.
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            let version = HeaderValue::from_static("13");
            headers.insert(header::SEC_WEBSOCKET_VERSION, version);
        }
        response
    }
}

/// The same event with a worker's own words, the JSON of its refusal; none where a client of this dialect would not know an
/// error by it.
pub fn sse_event_of(body: &[u8], named: bool, dialect: Dialect) -> Option<Bytes> {
    let object: serde_json::Map<String, Value> = serde_json::from_slice(body).ok()?;
    // Of streams whose events have names an error may be an event of its own form, or of another API's.
    let is_event = object.get("type").is_some_and(|kind| kind == "error");
    if is_event && (named || dialect == Dialect::Anthropic) {
        // In one line: of JSON only what is between its values can have others.
        let line = |byte: &u8| match byte {
            b'\n' | b'\r' => b' ',
            byte => *byte,
        };
        let line: Vec<u8> = body.trim_ascii().iter().map(line).collect();
        return Some(event_with(&line, false, true, Dialect::Anthropic));
    }
    let error = object.get("error").filter(|error| error.is_object())?;
    if dialect == Dialect::Anthropic {
        return None;
    }
    // Readers know the event by what it begins with, and not all bodies do.
    let line = serde_json::to_vec(&serde_json::json!({ "error": error })).ok()?;
    Some(event_with(&line, false, named, dialect))
}

/// `body`: a JSON object in one line, of OpenAI's dialect one that begins with the field `error`.
fn event_with(body: &[u8], mid_event: bool, named: bool, dialect: Dialect) -> Bytes {
    let mut event = Vec::with_capacity(body.len() + 48);
    if mid_event {
        event.extend_from_slice(b"\n\n");
    }
    match (dialect, named) {
        (Dialect::Anthropic, _) => {
            event.extend_from_slice(b"event: error\ndata: ");
            event.extend_from_slice(body);
        }
        (Dialect::OpenAi, true) => {
            event.extend_from_slice(b"event: error\ndata: {\"type\":\"error\",");
            event.extend_from_slice(&body[1..]);
        }
        (Dialect::OpenAi, false) => {
            event.extend_from_slice(b"data: ");
            event.extend_from_slice(body);
        }
    }
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// How long a client should wait before it tries again, for statuses that mean "later".
pub fn retry_after(status: StatusCode) -> Option<Duration> {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    )
    .then_some(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_errors_lists_every_error() {
        let page = include_str!("../../../docs/request-path.md");
        let (_, section) = page.split_once("## Errors").expect("it has errors");
        let rows = section.lines().filter(|line| line.contains("_error` |"));
        let cells = rows.map(|row| row.split(" | ").take(3).collect::<Vec<_>>());
        let mut listed: Vec<String> = cells.map(|cells| cells.join(" | ")).collect();
        let row = |kind: ErrorKind| {
            let (status, code) = (kind.status().as_u16(), kind.code());
            format!("| {status} | `{}` | `{code}`", kind.openai_type())
        };
        let mut expected = ErrorKind::ALL.map(row);
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn every_error_has_openai_shape_and_later_means_retry_after() {
        for kind in ErrorKind::ALL {
            let response = ApiError::new(kind, "what to do").response();
            let json: Value = serde_json::from_slice(response.body()).expect("body is JSON");
            for field in ["message", "type", "param", "code"] {
                assert!(json["error"].get(field).is_some(), "{kind:?} lacks {field}");
            }
            let later = matches!(response.status().as_u16(), 429 | 503);
            assert_eq!(
                later,
                response.headers().contains_key("retry-after"),
                "{kind:?}"
            );
            let unknown = response.status() == StatusCode::UNAUTHORIZED;
            let asks = response.headers().contains_key("www-authenticate");
            assert_eq!(unknown, asks, "{kind:?}");
        }
    }

    #[test]
    fn stream_event_is_one_data_line_and_no_done() {
        let event = ApiError::new(ErrorKind::UpstreamBroke, "line\nbreak").sse_event(
            false,
            false,
            Dialect::OpenAi,
        );
        let text = std::str::from_utf8(&event).expect("UTF-8");
        assert!(text.starts_with("data: {\"error\":") && text.ends_with("\n\n"));
        assert_eq!(text.trim_end().lines().count(), 1);
        assert!(!text.contains("[DONE]"));
        let broke = ApiError::new(ErrorKind::UpstreamBroke, "broke");
        let named = broke.sse_event(true, true, Dialect::OpenAi);
        let text = std::str::from_utf8(&named).expect("UTF-8");
        let data = text
            .strip_prefix("\n\nevent: error\ndata: ")
            .expect("a name");
        let json: Value = serde_json::from_str(data.trim_end()).expect("JSON");
        assert_eq!(json["type"], "error");
        assert_eq!(json["error"]["code"], "upstream_broke");
        let event = broke.sse_event(false, true, Dialect::Anthropic);
        let expected = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broke\"}}\n\n";
        assert_eq!(event, expected);
    }

    #[test]
    fn a_workers_refusal_is_an_event_where_its_client_knows_it_for_an_error() {
        let openai = (false, Dialect::OpenAi);
        let named = (true, Dialect::OpenAi);
        let anthropic = (false, Dialect::Anthropic);
        let of_anthropic =
            r#"{"type":"error","error":{"type":"overloaded_error","message":"full"}}"#;
        for (body, (names, dialect), expected) in [
            (
                "{\"error\":\n {\"code\":503}}\n",
                openai,
                Some("data: {\"error\":{\"code\":503}}\n\n"),
            ),
            (
                "{\"type\":\"error\",\n \"code\":503}",
                named,
                Some("event: error\ndata: {\"type\":\"error\",  \"code\":503}\n\n"),
            ),
            (
                r#"{"object":"error","error":{"code":503}}"#,
                openai,
                Some("data: {\"error\":{\"code\":503}}\n\n"),
            ),
            (
                r#"{"error":{"code":503}}"#,
                named,
                Some("event: error\ndata: {\"type\":\"error\",\"error\":{\"code\":503}}\n\n"),
            ),
            (
                of_anthropic,
                anthropic,
                Some(&*format!("event: error\ndata: {of_anthropic}\n\n")),
            ),
            (r#"{"error":{"code":503}}"#, anthropic, None),
            (r#"{"object":"error","message":"full"}"#, openai, None),
            (r#"{"error":"full"}"#, openai, None),
            ("Bad Gateway", openai, None),
            ("", openai, None),
        ] {
            let event = sse_event_of(body.as_bytes(), names, dialect);
            assert_eq!(event.as_deref(), expected.map(str::as_bytes), "{body}");
        }
    }

    #[test]
    fn anthropics_clients_get_anthropics_types() {
        for (path, expected) in [
            ("/v1/messages", Dialect::Anthropic),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/v1/messagesx", Dialect::OpenAi),
            ("/v1/chat/completions", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of(path), expected, "{path}");
        }
        for (kind, name) in [
            (ErrorKind::InvalidRequest, "invalid_request_error"),
            (ErrorKind::InvalidApiKey, "authentication_error"),
            (ErrorKind::PermissionDenied, "permission_error"),
            (ErrorKind::ModelNotFound, "not_found_error"),
            (ErrorKind::MethodNotAllowed, "invalid_request_error"),
            (ErrorKind::TooLarge, "request_too_large"),
            (ErrorKind::QueryOfDeath, "invalid_request_error"),
            (ErrorKind::RateLimited, "rate_limit_error"),
            (ErrorKind::Internal, "api_error"),
            (ErrorKind::UpstreamFailed, "api_error"),
            (ErrorKind::NoWorker, "overloaded_error"),
            (ErrorKind::UpstreamTimeout, "timeout_error"),
        ] {
            let error = ApiError::new(kind, "what to do");
            let response = error.response_as(kind.status(), Dialect::Anthropic);
            let json: Value = serde_json::from_slice(response.body()).expect("body is JSON");
            let expected = serde_json::json!({
                "type": "error", "error": { "type": name, "message": "what to do" },
            });
            assert_eq!(json, expected, "{kind:?}");
            assert_eq!(response.headers().len(), error.response().headers().len());
        }
        // The status that was chosen for lack of room decides.
        let full = ApiError::new(ErrorKind::Overloaded, "full");
        let body = full.body_as(StatusCode::TOO_MANY_REQUESTS, Dialect::Anthropic);
        assert!(String::from_utf8_lossy(&body).contains("rate_limit_error"));
    }
}
