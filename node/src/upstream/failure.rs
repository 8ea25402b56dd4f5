//! Why an attempt gave nothing that may be shown, and everything that follows from its kind.
//!
//! | failure | counts against the worker | budget of a retry | label |
//! |---|---|---|---|
//! | [`Connect`](Failure::Connect) | yes, and nothing is sent there until a probe passes | none | `connect`, `connect_timeout` |
//! | [`Declined`](Failure::Declined) | no | none | `declined` |
//! | [`NoSocket`](Failure::NoSocket) | no | none, and never retried but for want of a port | `no_socket` |
//! | [`Closed`](Failure::Closed) | as `Connect` | none | `closed` |
//! | [`Malformed`](Failure::Malformed) | yes | a token | `malformed` |
//! | [`Late`](Failure::Late) | yes | a token | `first_token_timeout` |
//! | [`NoSuchRank`](Failure::NoSuchRank) | yes | a token | `no_such_rank` |
//! | [`NoSuchModel`](Failure::NoSuchModel) | no, the registry is behind | none | `no_such_model` |
//! | [`KeyRefused`](Failure::KeyRefused) | no, the key may be wrong at this replica alone | none | `key_refused` |
//! | [`WorkerBad`](Failure::WorkerBad) | no, the verdict is there | none | `worker_bad` |
//! | [`OutOfTime`](Failure::OutOfTime) | no | never retried | `out_of_time` |
//! | [`Status`](Failure::Status), [`Refused`](Failure::Refused): 429, 503 | no | a token | `back_pressure` |
//! | the same: the 503 of a vLLM that takes nothing for now | no | none | `declined` |
//! | the same: the 500 of a vLLM that is stopping | yes | none | `leaving` |
//! | the same: that of a vLLM whose engine is dead | yes | none | `engine_dead` |
//! | the same: any other | yes | a token | `status`, `error_event` |
//!
//! A 429 to a client's own key is none of these: it is an answer, since it speaks of that client alone (`judge`).
//!
//! Answers to requests for which no engine computes ([`InFlight`](super::InFlight)) do not count against the worker.
//!
//! A stream that is refused for what its request asks ([`is_about_request`]) is no failed attempt: the client gets that
//! as a plain answer. What it gets of all others is in `refusal`.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use grapevine_placement::AttemptOutcome;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Deserialize;

use super::connection::{Broken, SendError};
use super::socket_error::is_own_lack;

/// What vLLM answers, as a 500, between the signal to stop and its end, while its `/health` is 200 (measured).
const LEAVING: &[u8] = b"cannot schedule new futures after shutdown";
/// What vLLM answers, as a 503 or an error event and without a `Retry-After`, to all requests while it takes none, with
/// its `/health` 200: paused by its operator, a rank that is about to end, one whose number of ranks changes.
const DECLINING: [&[u8]; 3] = [
    b"Generation is paused. Please retry after it resumes.",
    b"This data-parallel rank has been retired and is awaiting shutdown.",
    b"The model is currently scaling. Please try again later.",
];
/// How long such workers are left alone: a pause for new weights is over in less, and to ask again costs nobody anything.
const DECLINING_PAUSE: Duration = Duration::from_secs(1);
/// How long workers are left alone that end, or decline requests without a word; they are asked again then, so that a
/// mistake heals.
const LEAVING_PAUSE: Duration = Duration::from_secs(5);

/// The result of an attempt that gave an answer, as a metric label.
pub const ANSWERED: &str = "answered";
/// The result of an attempt whose end nobody waits for, as a metric label.
pub const GIVEN_UP: &str = "given_up";
/// All results of attempts, as metric labels.
pub const ATTEMPT_RESULTS: [&str; 19] = [
    ANSWERED,
    GIVEN_UP,
    "connect",
    "connect_timeout",
    "declined",
    "no_socket",
    "closed",
    "malformed",
    "first_token_timeout",
    "no_such_rank",
    "no_such_model",
    "key_refused",
    "worker_bad",
    "out_of_time",
    "back_pressure",
    "leaving",
    "engine_dead",
    "status",
    "error_event",
];

type Cause = Box<dyn Error + Send + Sync>;

/// Why an attempt gave nothing that may be shown, as long as another worker might.
#[derive(Debug)]
pub enum Failure {
    /// No connection, or one that ended before anything of the request was written.
    Connect(io::Error),
    /// It had a connection, and the worker took nothing of it: it sheds load, or is about to end.
    Declined(Cause),
    /// This replica has no socket for it; its worker was not asked.
    NoSocket(io::Error),
    /// The connection ended before there was anything to show.
    Closed(Cause),
    /// What came is not an HTTP response, or one that no client may be shown.
    Malformed(Cause),
    /// No first token, or no sign of life, in time.
    Late,
    /// The engine has no such data-parallel rank: its worker is described wrongly.
    NoSuchRank,
    /// A 404 for its model, which the registry says it serves: another engine may have started at its address.
    NoSuchModel,
    /// A 401, though no client's key was sent there: it is this replica's key that is wrong or missing.
    KeyRefused,
    /// Its worker was found to be bad while it had shown nothing of the answer.
    WorkerBad,
    /// The whole request's time is over.
    OutOfTime,
    /// A status that calls for another worker, with its whole answer.
    Status(Box<Parts>, Bytes),
    /// A 200 whose first event is an error; the status that it names, and its JSON.
    Refused(StatusCode, Bytes),
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Unsent(error) if error.is_declined() => Self::Declined(error.into()),
            SendError::Unsent(error) => Self::Connect(io::Error::other(error)),
            SendError::Unanswered(error) => Self::Closed(error.into()),
            SendError::Malformed(error) => Self::of_broken(error),
            error @ (SendError::HeadTooLong | SendError::LengthInDoubt) => {
                Self::Malformed(error.into())
            }
        }
    }
}

impl Failure {
    /// No connection came about: for want of something of this replica's own, or of the worker's.
    pub fn of_connect(error: io::Error) -> Self {
        match is_own_lack(&error) {
            true => Self::NoSocket(error),
            false => Self::Connect(error),
        }
    }

    /// A response that began and went wrong: did its connection end, or is it none that HTTP knows?
    pub fn of_broken(broken: Broken) -> Self {
        if broken.is_cut() {
            Self::Closed(broken.into())
        } else {
            Self::Malformed(broken.into())
        }
    }

    /// The worker is full, not sick (its queue limit, or a rate limit).
    pub fn is_back_pressure(&self) -> bool {
        matches!(
            self.status(),
            Some(StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
        )
    }

    /// The worker takes no request for now.
    pub fn is_declined(&self) -> bool {
        match self {
            Self::Declined(_) => true,
            Self::Status(_, body) | Self::Refused(_, body) => {
                self.status() == Some(StatusCode::SERVICE_UNAVAILABLE) && says_any(body, &DECLINING)
            }
            _ => false,
        }
    }

    /// The worker is stopping and accepts no more requests.
    pub fn is_leaving(&self) -> bool {
        match self {
            Self::Status(parts, body) => {
                parts.status == StatusCode::INTERNAL_SERVER_ERROR
                    && memchr::memmem::find(body, LEAVING).is_some()
            }
            _ => false,
        }
    }

    /// The worker's engine is dead: it no longer computes any request.
    pub fn is_engine_dead(&self) -> bool {
        match self {
            Self::Status(parts, body) if parts.status == StatusCode::INTERNAL_SERVER_ERROR => {
                says_engine_dead(parts.status, body)
            }
            // Earlier releases of vLLM call whatever ends a stream a 400.
            Self::Refused(status, body) => says_engine_dead(*status, body),
            _ => false,
        }
    }

    /// The worker answered with this.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status(parts, _) => Some(parts.status),
            Self::Refused(status, _) => Some(*status),
            _ => None,
        }
    }

    /// The worker said that it does not take the request.
    pub fn is_refusal(&self) -> bool {
        self.status().is_some() || matches!(self, Self::NoSuchModel | Self::KeyRefused)
    }

    /// The connection failed before there was anything to show: the process behind it is gone.
    pub fn is_broken_connection(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Closed(_))
    }

    /// Nothing of the request reached the worker.
    pub fn is_unsent(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::Declined(_) | Self::NoSocket(_)
        )
    }

    /// The connection was refused at once.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.kind() != io::ErrorKind::TimedOut)
    }

    /// The worker computes nothing of the request: to ask another one makes no more work than there was.
    pub fn is_free(&self) -> bool {
        self.is_broken_connection()
            || self.is_leaving()
            || self.is_engine_dead()
            || self.is_declined()
            || matches!(self, Self::WorkerBad | Self::NoSuchModel | Self::KeyRefused)
    }

    /// How long the worker asks to be left alone.
    pub fn pause(&self) -> Option<Duration> {
        let asked = match self {
            Self::Status(parts, _) if self.is_back_pressure() => {
                retry_after(&parts.headers, SystemTime::now())
            }
            _ => None,
        };
        let usual = match self {
            Self::Status(..) | Self::Refused(..) if self.is_declined() => Some(DECLINING_PAUSE),
            Self::Declined(_) => Some(LEAVING_PAUSE),
            _ => (self.is_leaving() || self.is_engine_dead()).then_some(LEAVING_PAUSE),
        };
        asked.or(usual)
    }

    /// What the failure says about the worker.
    pub fn verdict(&self) -> AttemptOutcome {
        if self.is_back_pressure()
            || matches!(
                self,
                Self::OutOfTime
                    | Self::WorkerBad
                    | Self::NoSuchModel
                    | Self::KeyRefused
                    | Self::Declined(_)
                    | Self::NoSocket(_)
            )
        {
            AttemptOutcome::Neutral
        } else {
            AttemptOutcome::Failure
        }
    }

    /// Stable metric label, one of [`ATTEMPT_RESULTS`].
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connect(error) if error.kind() == io::ErrorKind::TimedOut => "connect_timeout",
            Self::Connect(_) => "connect",
            Self::Declined(_) => "declined",
            Self::NoSocket(_) => "no_socket",
            Self::Closed(_) => "closed",
            Self::Malformed(_) => "malformed",
            Self::Late => "first_token_timeout",
            Self::NoSuchRank => "no_such_rank",
            Self::NoSuchModel => "no_such_model",
            Self::KeyRefused => "key_refused",
            Self::WorkerBad => "worker_bad",
            Self::OutOfTime => "out_of_time",
            Self::Status(..) | Self::Refused(..) if self.is_declined() => "declined",
            Self::Status(..) | Self::Refused(..) if self.is_back_pressure() => "back_pressure",
            Self::Status(..) if self.is_leaving() => "leaving",
            Self::Status(..) | Self::Refused(..) if self.is_engine_dead() => "engine_dead",
            Self::Status(..) => "status",
            Self::Refused(..) => "error_event",
        }
    }
}

/// Whether an error event speaks of what the request asks, so that any other worker would say the same.
pub fn is_about_request(status: StatusCode, json: &[u8]) -> bool {
    status.is_client_error() && !is_retryable(status) && !says_engine_dead(status, json)
}

/// What vLLM answers, as a 500 or an error event, from its engine's end to its own, which takes it half a minute
/// (measured).
///
/// Other errors may repeat what a client wrote, so each stands where a client's words cannot.
fn is_of_dead_engine(status: StatusCode, message: &str) -> bool {
    message.starts_with("EngineCore encountered an issue")
        // Since 0.33, and about nothing else. OpenAI's own 500 begins alike.
        || message == "The server had an error while processing your request."
        // Its front end in Rust.
        || status.is_server_error() && message.ends_with("engine core reported fatal failure")
}

/// Whether an error, a body or an event's JSON, says that the engine computes nothing any more.
pub fn says_engine_dead(status: StatusCode, json: &[u8]) -> bool {
    // Some streams have no object around it.
    let bare = || serde_json::from_slice::<SaidError<'_>>(json).ok();
    let error = said(json).or_else(bare);
    error.is_some_and(|error| is_of_dead_engine(status, &error.message))
}

/// The same of a piece of a stream, whose events hold generated text, too.
pub fn has_event_of_dead_engine(piece: &[u8]) -> bool {
    let mut events = piece
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"));
    events.any(|json| says_engine_dead(StatusCode::INTERNAL_SERVER_ERROR, json))
}

fn says_any(text: &[u8], words: &[&[u8]]) -> bool {
    let says = |word: &&[u8]| memchr::memmem::find(text, word).is_some();
    words.iter().any(says)
}

/// Whether an error says that the engine has no such data-parallel rank. The header that names it is this replica's, which
/// has it from the worker's description, so it is no mistake of the client's. Other errors may repeat what a client wrote:
/// the message is this one from its beginning on.
pub fn says_no_such_rank(json: &[u8], rank: u32) -> bool {
    let begins = format!("data_parallel_rank {rank} is out of range");
    said(json).is_some_and(|error| error.message.starts_with(&begins))
}

/// Whether the body of a 404 says that it is the model that is not there, and no response or path. vLLM names the field of
/// the request (`api_server.py`), which is not the client's to choose.
pub fn says_no_such_model(json: &[u8]) -> bool {
    said(json).is_some_and(|error| error.param.as_deref() == Some("model"))
}

/// What is read of an error in OpenAI's form.
#[derive(Deserialize)]
struct SaidError<'a> {
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    #[serde(borrow, default)]
    param: Option<Cow<'a, str>>,
}

fn said(json: &[u8]) -> Option<SaidError<'_>> {
    #[derive(Deserialize)]
    struct Said<'a> {
        #[serde(borrow)]
        error: SaidError<'a>,
    }
    let said = serde_json::from_slice::<Said<'_>>(json);
    said.ok().map(|said| said.error)
}

/// The head of the plain answer that says what an error event said.
pub fn head_of_refused(status: StatusCode) -> Parts {
    let mut parts = Response::new(()).into_parts().0;
    parts.status = status;
    let json = HeaderValue::from_static("application/json");
    parts.headers.insert(header::CONTENT_TYPE, json);
    parts
}

/// Statuses that another worker may answer better. vllm-router retries on the same, but for 508: a replica that asked
/// us says so where it is our worker.
pub fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504 | 508)
}

/// `Retry-After` in seconds or as a date (RFC 9110, section 10.2.3); one that cannot be read is none.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value)
            .ok()?
            .duration_since(now)
            .ok(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::upstream::hosts::NoAddress;

    fn code(code: u16) -> StatusCode {
        StatusCode::from_u16(code).expect("a status")
    }

    /// A worker's answer with this status and body.
    pub(crate) fn status(status: u16, body: &'static str) -> Failure {
        let mut parts = Response::new(()).into_parts().0;
        parts.status = code(status);
        Failure::Status(Box::new(parts), Bytes::from_static(body.as_bytes()))
    }

    /// What vLLM's releases say of an engine that is dead, in bodies and in events.
    pub(crate) const DEAD: [&str; 5] = [
        r#"{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":400}}"#,
        r#"{"error":{"message":"The server had an error while processing your request.","type":"InternalServerError","param":null,"code":500}}"#,
        r#"{"error": {"message": "The server had an error while processing your request.", "type": "InternalServerError", "param": null, "code": 500}}"#,
        r#"{"type":"error","error":{"type":"api_error","message":"The server had an error while processing your request."}}"#,
        r#"{"error":{"message":"failed to submit: engine core reported fatal failure","type":"server_error"}}"#,
    ];

    const PAUSED: &str = r#"{"error":{"message":"Generation is paused. Please retry after it resumes.","type":"ServiceUnavailableError","param":null,"code":503}}"#;

    /// One of each kind.
    pub(crate) fn all() -> Vec<Failure> {
        vec![
            Failure::Connect(io::ErrorKind::ConnectionRefused.into()),
            Failure::Connect(io::ErrorKind::TimedOut.into()),
            Failure::Declined("refused stream".into()),
            Failure::NoSocket(io::ErrorKind::AddrNotAvailable.into()),
            Failure::Closed("reset".into()),
            Failure::Malformed("garbage".into()),
            Failure::Late,
            Failure::NoSuchRank,
            Failure::NoSuchModel,
            Failure::KeyRefused,
            Failure::WorkerBad,
            Failure::OutOfTime,
            status(429, ""),
            status(500, "sick"),
            status(
                500,
                r#"{"error":{"message":"cannot schedule new futures after shutdown"}}"#,
            ),
            status(500, DEAD[0]),
            status(503, ""),
            status(503, PAUSED),
            Failure::Refused(code(503), Bytes::new()),
            Failure::Refused(code(500), Bytes::new()),
        ]
    }

    #[test]
    fn every_label_is_a_label_of_the_metric() {
        let mut seen: Vec<_> = all().iter().map(Failure::as_str).collect();
        seen.extend([ANSWERED, GIVEN_UP]);
        seen.sort_unstable();
        seen.dedup();
        let mut labels = ATTEMPT_RESULTS;
        labels.sort_unstable();
        assert_eq!(seen, labels);
    }

    #[test]
    fn the_table_above_holds() {
        let of = |failure: &Failure| {
            (
                failure.verdict() == AttemptOutcome::Failure,
                failure.is_free(),
            )
        };
        let expected = [
            ("connect", (true, true)),
            ("connect_timeout", (true, true)),
            ("declined", (false, true)),
            ("no_socket", (false, false)),
            ("closed", (true, true)),
            ("malformed", (true, false)),
            ("first_token_timeout", (true, false)),
            ("no_such_rank", (true, false)),
            ("no_such_model", (false, true)),
            ("key_refused", (false, true)),
            ("worker_bad", (false, true)),
            ("out_of_time", (false, false)),
            ("back_pressure", (false, false)),
            ("leaving", (true, true)),
            ("engine_dead", (true, true)),
            ("status", (true, false)),
            ("error_event", (true, false)),
        ];
        for failure in all() {
            let label = failure.as_str();
            let row = expected.iter().find(|(name, _)| *name == label);
            assert_eq!(row.map(|(_, row)| *row), Some(of(&failure)), "{label}");
        }
    }

    #[test]
    fn what_this_replica_lacks_is_no_fault_of_a_worker() {
        let of =
            |code: Errno| Failure::of_connect(io::Error::from_raw_os_error(code.raw_os_error()));
        for own in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::ADDRNOTAVAIL,
            Errno::NOBUFS,
            Errno::NOMEM,
        ] {
            let failure = of(own);
            assert_eq!(failure.as_str(), "no_socket", "{own}");
            let system = io::Error::from_raw_os_error(own.raw_os_error());
            let unresolved = Failure::of_connect(NoAddress::Unknown(system).into());
            assert_eq!(unresolved.as_str(), "no_socket", "{own}");
            assert!(
                !failure.is_refused() && !failure.is_broken_connection(),
                "{own}"
            );
        }
        let unknown = NoAddress::Unknown(io::Error::other("no such name"));
        assert_eq!(Failure::of_connect(unknown.into()).as_str(), "connect");
        for of_worker in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::CONNRESET] {
            assert_eq!(of(of_worker).as_str(), "connect", "{of_worker}");
        }
    }

    #[test]
    fn only_the_engines_own_word_is_about_a_rank() {
        let error =
            |message: &str| serde_json::json!({ "error": { "message": message, "code": 400 } });
        let says = |message: &str| says_no_such_rank(error(message).to_string().as_bytes(), 1);
        assert!(says("data_parallel_rank 1 is out of range [0, 1)."));
        assert!(!says("data_parallel_rank 2 is out of range [0, 1)."));
        assert!(!says(
            "1 validation error: input 'data_parallel_rank 1 is out of range'"
        ));
        assert!(!says_no_such_rank(
            b"data_parallel_rank 1 is out of range",
            1
        ));
    }

    #[test]
    fn a_worker_names_what_is_not_there() {
        let vllm = br#"{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
        assert!(says_no_such_model(vllm));
        for other in [
            r#"{"error":{"message":"No response `model`.","type":"NotFoundError","param":"response_id","code":404}}"#,
            r#"{"error":{"message":"param: model","param":null}}"#,
            r#"{"error":{"message":"Not Found","param":["model"]}}"#,
            r#"{"detail":"Not Found"}"#,
            "model",
        ] {
            assert!(!says_no_such_model(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn only_a_clients_own_mistake_is_its_own() {
        let refused = |status, json: &str| is_about_request(code(status), json.as_bytes());
        assert!(refused(400, "{\"error\":{}}") && refused(404, "") && refused(422, ""));
        for status in [408, 429, 500, 503] {
            assert!(!refused(status, ""), "{status}");
        }
        // But for its front end in Rust, which knows a status for it.
        for dead in &DEAD[..4] {
            assert!(!refused(400, dead), "whatever it is called");
        }
    }

    #[test]
    fn an_engine_is_dead_by_its_own_word_alone() {
        for dead in DEAD {
            assert!(status(500, dead).is_engine_dead(), "{dead}");
            let event = Failure::Refused(code(500), Bytes::from_static(dead.as_bytes()));
            assert!(event.is_engine_dead(), "{dead}");
        }
        for other in [
            r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#,
            r#"{"error":{"message":"The server had an error while processing your request. Sorry about that!","type":"server_error"}}"#,
            r#"{"choices":[{"text":"\"message\": \"The server had an error while processing your request.\""}]}"#,
            r#"{"choices":[{"text":"The server had an error while processing your request."}]}"#,
        ] {
            let error = StatusCode::INTERNAL_SERVER_ERROR;
            assert!(!says_engine_dead(error, other.as_bytes()), "{other}");
        }
        // What a client wrote, in an error about it.
        for quoted in [
            r#"{"error":{"message":"Unsupported type \"EngineCore encountered an issue\"","code":400}}"#,
            r#"{"error":{"message":"Unsupported type: engine core reported fatal failure","code":400}}"#,
        ] {
            let about = Failure::Refused(code(400), Bytes::from_static(quoted.as_bytes()));
            assert!(!about.is_engine_dead(), "{quoted}");
            assert!(is_about_request(code(400), quoted.as_bytes()), "{quoted}");
        }
        let text = r#"data: {"choices":[{"text":"EngineCore encountered an issue"}]}"#;
        let ends = format!("{text}\n\ndata: {}\n\n", DEAD[2]);
        assert!(!has_event_of_dead_engine(text.as_bytes()));
        assert!(has_event_of_dead_engine(ends.as_bytes()));
    }

    #[test]
    fn a_worker_that_takes_nothing_is_left_alone_without_blame() {
        let retired =
            r#"{"error":"This data-parallel rank has been retired and is awaiting shutdown."}"#;
        let event = Failure::Refused(code(503), Bytes::from_static(PAUSED.as_bytes()));
        for failure in [status(503, PAUSED), status(503, retired), event] {
            assert_eq!(failure.pause(), Some(DECLINING_PAUSE), "{failure:?}");
            assert!(failure.is_free(), "{failure:?}");
            assert_eq!(failure.verdict(), AttemptOutcome::Neutral, "{failure:?}");
        }
        assert!(!status(500, PAUSED).is_declined());
    }

    #[test]
    fn statuses_for_another_worker() {
        for status in [408_u16, 429, 500, 502, 503, 504, 508] {
            assert!(is_retryable(code(status)));
        }
        for status in [200_u16, 400, 401, 404, 422, 501] {
            assert!(!is_retryable(code(status)));
        }
    }

    #[test]
    fn workers_say_how_long_to_leave_them_alone() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let table = [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("99999999999999999999999", None),
        ];
        for (value, seconds) in table {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(value));
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(retry_after(&headers, now), expected, "{value}");
        }
        let with_header = |code, body| {
            let mut failure = status(code, body);
            if let Failure::Status(parts, _) = &mut failure {
                let seven = HeaderValue::from_static("7");
                parts.headers.insert(header::RETRY_AFTER, seven);
            }
            failure.pause().map(|pause| pause.as_secs())
        };
        assert_eq!(with_header(503, ""), Some(7));
        assert_eq!(with_header(429, ""), Some(7));
        assert_eq!(with_header(503, PAUSED), Some(7));
        assert_eq!(with_header(500, ""), None);
        assert_eq!(status(503, "").pause(), None);
        let leaving = std::str::from_utf8(LEAVING).expect("text");
        assert_eq!(with_header(500, leaving), Some(LEAVING_PAUSE.as_secs()));
    }
}
