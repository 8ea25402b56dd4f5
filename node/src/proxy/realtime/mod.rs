//! WebSocket sessions: `GET /v1/realtime`, from the client's handshake to a tunnel.
//!
//! A session goes the way of every request (key, admission, question, placement, attempts on workers before anything
//! is shown), with two differences. Its question has no body: the model stands in the query, as in OpenAI's API, and
//! without a session header each session is placed by itself. And its answer is a 101, after which `tunnel` relays
//! bytes as they are. There is no tunnel without a worker's valid 101, and none for any other path.
//!
//! vLLM names the model in the session's first message, which it takes only after it has greeted the client: too late
//! to place by. So the query has to name it wherever more than one model is served; where the client may not have all
//! that its worker serves, or knows it by other names, `watch` reads these messages.
//!
//! A browser sends a WebSocket handshake from every page, without preflight, and lets the page read the answer. So
//! pages of other origins are refused here, as far as `[cors]` does not allow them.

mod frames;
mod kind;
pub(crate) mod tunnel;
pub(super) mod watch;

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::form_urlencoded;

use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::config::RealtimeConfig;
use crate::http::handshake;
use crate::live::Live;
use crate::metrics::refusals::RefusalMetrics;

/// The subprotocol that OpenAI's clients offer for these sessions, beside what tells who they are.
pub(super) const PROTOCOL: &str = "realtime";

/// All sessions of this replica.
#[derive(Debug)]
pub struct Sessions {
    config: Live<RealtimeConfig>,
    room: Arc<Semaphore>,
}

/// A client's handshake that may be passed on.
#[derive(Debug)]
pub(super) struct Opening {
    /// What the query asks for, if it names one.
    model: Option<String>,
    /// What makes its key: the client's random one.
    nonce: String,
    /// What a worker must answer to it.
    pub(super) accept: HeaderValue,
    /// Its place among the sessions.
    pub(super) place: OwnedSemaphorePermit,
}

/// What a session has from before its worker agrees to it.
#[derive(Debug)]
pub(super) struct Session {
    /// Its place among the sessions.
    pub(super) place: OwnedSemaphorePermit,
    /// What its client may say, where that is not everything.
    pub(super) scope: Option<watch::SessionScope>,
    /// Its client offers [`PROTOCOL`].
    pub(super) offers_protocol: bool,
}

impl Session {
    /// Names the subprotocol in a worker's answer that names none, if the client offers it: a browser closes a session
    /// whose answer agrees to nothing of what it offered, and engines do not look at that.
    pub(super) fn agrees(&self, answer: &mut HeaderMap) {
        if self.offers_protocol && !answer.contains_key(header::SEC_WEBSOCKET_PROTOCOL) {
            let protocol = HeaderValue::from_static(PROTOCOL);
            answer.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
    }
}

impl Sessions {
    /// None open yet.
    pub fn new(config: Live<RealtimeConfig>) -> Self {
        let room = Arc::new(Semaphore::new(config.look().sessions as usize));
        Self { config, room }
    }

    /// Looks at a handshake, before anything waits for it. `is_allowed`: whether pages of another
    /// origin may ask.
    /// Errors: 501 where sessions are off, 400 for what is no handshake, 403 for a page that may not ask, 503 with too
    /// many sessions.
    pub(super) fn opening(
        &self,
        head: &Parts,
        is_allowed: impl Fn(&HeaderValue) -> bool,
        refusals: &RefusalMetrics,
    ) -> Result<Opening, ApiError> {
        if !self.config.look().enabled {
            let message = "WebSocket sessions are off at this router (realtime.enabled)";
            return Err(ApiError::new(ErrorKind::NotImplemented, message));
        }
        let handshake = handshake::read(head)?;
        check_origin(head, is_allowed)?;
        let model = named_model(head.uri.query())?;
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            refusals.limit_reached("realtime_sessions");
            let message = "this replica has too many sessions; try again";
            return Err(ApiError::new(ErrorKind::Overloaded, message));
        };
        Ok(Opening {
            model,
            nonce: handshake.key,
            accept: handshake.accept,
            place,
        })
    }

    /// Its settings.
    pub(super) fn config(&self) -> Arc<RealtimeConfig> {
        self.config.now()
    }
}

impl Opening {
    /// The body of a request that would be placed as this session is. One that names no model is told no name, so neither
    /// is its client.
    pub(super) fn as_body(&self) -> Vec<u8> {
        let body = serde_json::json!({ "model": self.model, "prompt": self.nonce });
        body.to_string().into_bytes()
    }
}

/// Browsers name the page's origin, and no other client has to.
fn check_origin(head: &Parts, is_allowed: impl Fn(&HeaderValue) -> bool) -> Result<(), ApiError> {
    let Some(origin) = head.headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let host = head.headers.get(header::HOST).map(HeaderValue::as_bytes);
    let text = origin.to_str().unwrap_or_default();
    let is_own = text
        .split_once("://")
        .is_some_and(|(_, of)| host.is_some_and(|host| host.eq_ignore_ascii_case(of.as_bytes())));
    if is_own || is_allowed(origin) {
        return Ok(());
    }
    let message = "pages of this origin may not open sessions; see cors.allowed_origins";
    Err(ApiError::new(ErrorKind::PermissionDenied, message))
}

/// `model` in a query.
/// Errors: 400 if it is there twice: its worker may read the other one, which the client may not have.
fn named_model(query: Option<&str>) -> Result<Option<String>, ApiError> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut named = pairs.filter(|(name, _)| name == "model");
    let (model, other) = (named.next(), named.next());
    if other.is_some() {
        return Err(ApiError::invalid(
            "model",
            "the query names the model twice",
        ));
    }
    let model = model.map(|(_, model)| model.into_owned());
    Ok(model.filter(|model| !model.is_empty()))
}

/// The target of a session, with the model's own name where the client wrote an alias.
pub(super) fn target_with<'a>(target: &'a str, model: &str) -> Cow<'a, str> {
    let Some((path, query)) = target.split_once('?') else {
        return target.into();
    };
    let named = named_model(Some(query)).ok().flatten();
    if named.is_none_or(|named| named == model) {
        return target.into();
    }
    let is_model = |pair: &str| {
        let named = form_urlencoded::parse(pair.as_bytes()).next();
        named.is_some_and(|(name, _)| name == "model")
    };
    let mut renamed = form_urlencoded::Serializer::new(String::new());
    let renamed = renamed.append_pair("model", model).finish();
    let pairs = query.split('&').map(|pair| match is_model(pair) {
        true => renamed.as_str(),
        false => pair,
    });
    let query: Vec<&str> = pairs.collect();
    format!("{path}?{}", query.join("&")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_and_renamed_in_queries() {
        for (query, expected) in [
            (None, None),
            (Some("model=org%2Fm&x=1"), Some("org/m")),
            (Some("model="), None),
            (Some("models=a"), None),
        ] {
            let named = named_model(query).expect("once at most");
            assert_eq!(named.as_deref(), expected, "{query:?}");
        }
        for twice in ["model=a&model=b", "model=a&x=1&model=a", "model=&m%6fdel=a"] {
            assert!(named_model(Some(twice)).is_err(), "{twice}");
        }
        for (target, expected) in [
            ("/v1/realtime", "/v1/realtime"),
            (
                "/v1/realtime?model=org%2Fm&x=%20",
                "/v1/realtime?model=org%2Fm&x=%20",
            ),
            (
                "/v1/realtime?x=1&model=alias",
                "/v1/realtime?x=1&model=org%2Fm",
            ),
            (
                "/v1/realtime?e&x=%20+y&m%6Fdel=alias&&z=%2f",
                "/v1/realtime?e&x=%20+y&model=org%2Fm&&z=%2f",
            ),
        ] {
            assert_eq!(target_with(target, "org/m"), expected);
        }
    }
}
