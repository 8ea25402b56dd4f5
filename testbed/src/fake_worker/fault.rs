//! Scripted faults of a worker, and the requests that get them.
//!
//! Pure. A [`Fault`] is a set of optional misbehaviours that combine; a [`Rule`] selects the requests that
//! get it, and how often. The same JSON works in `POST /_control/faults` and, as the value of the request
//! header `x-fault`, for one request (which then ignores the rules).

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Rules that may be set at once; adding beyond it is refused.
pub const RULES_MAX: usize = 1_000;

/// A place in a reply, counted in bytes or events already sent.
///
/// Written `head:N`, `body:N`, `event:N` or `done` in JSON. Body bytes are those of the payload;
/// chunk framing does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Point {
    /// After N bytes of the response head; 0 is before anything is sent.
    Head(u64),
    /// After N bytes of the body; 0 is right after the head.
    Body(u64),
    /// After N whole SSE events (`[DONE]` counts as one).
    Event(u32),
    /// Right before `data: [DONE]`.
    Done,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(bytes) => write!(f, "head:{bytes}"),
            Self::Body(bytes) => write!(f, "body:{bytes}"),
            Self::Event(count) => write!(f, "event:{count}"),
            Self::Done => f.write_str("done"),
        }
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not head:N, body:N, event:N or done");
        match text.split_once(':') {
            None if text == "done" => Ok(Self::Done),
            Some(("head", n)) => n.parse().map(Self::Head).map_err(|_| wrong()),
            Some(("body", n)) => n.parse().map(Self::Body).map_err(|_| wrong()),
            Some(("event", n)) => n.parse().map(Self::Event).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Point {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Point> for String {
    fn from(point: Point) -> Self {
        point.to_string()
    }
}

/// How a reply ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Nothing more is sent; the connection stays open until the client leaves.
    Stall,
    /// The connection is closed (FIN).
    Fin,
    /// The connection is reset (RST).
    Rst,
    /// Streams only: an error event, `[DONE]` and a clean end, as vLLM writes them when its engine has crashed.
    /// A point inside an event counts as the point before that event.
    Crash,
    /// Streams only: the body ends cleanly, without a last event. A point inside an event counts as the point
    /// before that event.
    End,
}

/// An early end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Where.
    pub at: Point,
    /// How.
    pub how: How,
}

/// Slow sending: at most `bytes` a write, `every_ms` before each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drip {
    /// Bytes a write; a large number makes it one event a write.
    pub bytes: NonZeroU32,
    /// Milliseconds before each write.
    pub every_ms: u64,
}

/// A reply that replaces the worker's own; nothing is computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canned {
    /// Status code, 100 to 999.
    pub status: u16,
    /// Headers besides `content-length`. Default: `content-type: application/json`.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Body. Default: vLLM's error shape for the status.
    #[serde(default)]
    pub body: Option<String>,
    /// The body is sent this many times over, for replies of megabytes.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Compress the body and send `content-encoding: gzip` (a bomb, with `repeat`).
    #[serde(default)]
    pub gzip: bool,
}

fn one() -> u32 {
    1
}

/// Ways to write SSE wrongly, or legally but unlike vLLM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadSse {
    /// The second event is this many bytes without a line end.
    NoNewline(u32),
    /// NUL bytes inside each event.
    Nul,
    /// Bytes that are not UTF-8 inside each event.
    BadUtf8,
    /// Lines end with CR LF (legal).
    Crlf,
    /// The answer text itself contains `data: [DONE]` (legal).
    DoneInContent,
    /// No `[DONE]`; the chunked body ends cleanly.
    NoDone,
    /// Events whose JSON is cut short.
    BrokenJson,
    /// `data:` without the space (legal).
    NoSpace,
    /// Each event is spread over chunks of this many bytes (legal; at least 1).
    SmallChunks(u32),
}

/// What goes wrong in a leg of a split pair, apart from what can go wrong with any request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvFault {
    /// Prefill answers without `kv_transfer_params`; its blocks stay.
    NoParams,
    /// Prefill answers with this in place of its `kv_transfer_params`.
    Params(serde_json::Value),
    /// Prefill computes the prompt, and the worker ends before it answers.
    ExitComputed,
    /// Prefill computes the prompt and never answers.
    HangComputed,
    /// Blocks expire after so many milliseconds.
    ExpireMs(u64),
    /// Decode: the transfer takes so many milliseconds longer.
    SlowMs(u64),
}

/// What goes wrong with one request. The default is nothing; fields combine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// Milliseconds between the request and the head of its reply.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// Number of `103 Early Hints` heads sent before the real one.
    #[serde(skip_serializing_if = "is_zero")]
    pub early_hints: u64,
    /// Bytes of extra headers in the head.
    #[serde(skip_serializing_if = "is_zero")]
    pub header_bytes: u64,
    /// Plain replies: `content-length` promises this many bytes more than come before the FIN.
    #[serde(skip_serializing_if = "is_zero")]
    pub short_by: u64,
    /// A reply that replaces the worker's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Canned>,
    /// Odd SSE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sse: Option<BadSse>,
    /// Slow sending of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drip: Option<Drip>,
    /// The whole worker ends like a crashed process: no connection gets another byte, and the port is closed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exit: bool,
    /// What goes wrong in a leg of a split pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvFault>,
    /// An early end. `head:0` with `stall` never answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Fault {
    /// A reply with this status and vLLM's error shape.
    pub fn status(status: u16) -> Self {
        let reply = Canned {
            status,
            headers: Vec::new(),
            body: None,
            repeat: 1,
            gzip: false,
        };
        Self {
            reply: Some(reply),
            ..Self::default()
        }
    }

    /// The head comes this much later.
    pub fn delay_ms(delay_ms: u64) -> Self {
        Self {
            delay_ms,
            ..Self::default()
        }
    }

    /// The reply ends at this point.
    pub fn stop(at: Point, how: How) -> Self {
        Self {
            stop: Some(Stop { at, how }),
            ..Self::default()
        }
    }

    /// The request is read and never answered.
    pub fn never_answer() -> Self {
        Self::stop(Point::Head(0), How::Stall)
    }

    /// Something goes wrong in a leg of a split pair.
    pub fn kv(kv: KvFault) -> Self {
        Self {
            kv: Some(kv),
            ..Self::default()
        }
    }

    /// SSE written wrongly.
    pub fn sse(variant: BadSse) -> Self {
        Self {
            sse: Some(variant),
            ..Self::default()
        }
    }
}

/// Selects the requests that get a rule; all conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// Exact path. Without one, a rule applies to every `POST` (so health probes use up no rule).
    pub path: Option<String>,
    /// A header with this name (any case) and exactly this value.
    pub header: Option<(String, String)>,
    /// The body contains this text.
    pub body_contains: Option<String>,
}

/// A fault and the requests that get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Conditions.
    #[serde(default)]
    pub when: When,
    /// Number of requests that get the rule; then it is removed. `None`: no limit.
    #[serde(default)]
    pub times: Option<NonZeroU32>,
    /// What goes wrong.
    pub fault: Fault,
}

impl Rule {
    /// `fault` for every request until removed.
    pub fn always(fault: Fault) -> Self {
        Self {
            when: When::default(),
            times: None,
            fault,
        }
    }

    /// `fault` for the next `times` requests; 0 counts as 1.
    pub fn next(times: u32, fault: Fault) -> Self {
        Self {
            times: NonZeroU32::new(times.max(1)),
            ..Self::always(fault)
        }
    }
}

/// The part of a request that rules look at.
pub(super) struct Seen<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(String, String)],
    pub(super) body: &'a [u8],
}

/// The rules in force, oldest first; the first match wins.
#[derive(Debug, Default)]
pub(super) struct Rules(VecDeque<Rule>);

impl Rules {
    /// Adds rules; `Err` and no change when that would be more than [`RULES_MAX`].
    pub(super) fn add(&mut self, rules: Vec<Rule>) -> Result<(), String> {
        if self.0.len() + rules.len() > RULES_MAX {
            return Err(format!("more than {RULES_MAX} rules"));
        }
        self.0.extend(rules);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn list(&self) -> Vec<Rule> {
        self.0.iter().cloned().collect()
    }

    /// The fault for a request; uses up one use of its rule.
    pub(super) fn take(&mut self, seen: &Seen<'_>) -> Option<Fault> {
        let at = self.0.iter().position(|rule| rule.when.matches(seen))?;
        let rule = &mut self.0[at];
        let fault = rule.fault.clone();
        match rule.times.map(|times| NonZeroU32::new(times.get() - 1)) {
            None => {}
            Some(Some(left)) => rule.times = Some(left),
            Some(None) => {
                self.0.remove(at);
            }
        }
        Some(fault)
    }
}

impl When {
    fn matches(&self, seen: &Seen<'_>) -> bool {
        let path = match &self.path {
            Some(path) => path == seen.path,
            None => seen.method == "POST",
        };
        let header = self.header.as_ref().is_none_or(|(name, value)| {
            let mut headers = seen.headers.iter();
            headers.any(|(n, v)| n.eq_ignore_ascii_case(name) && v == value)
        });
        let body = self
            .body_contains
            .as_ref()
            .is_none_or(|text| memchr::memmem::find(seen.body, text.as_bytes()).is_some());
        path && header && body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post<'a>(path: &'a str, body: &'a [u8], headers: &'a [(String, String)]) -> Seen<'a> {
        Seen {
            method: "POST",
            path,
            headers,
            body,
        }
    }

    #[test]
    fn json_forms() {
        let text = r#"{"when":{"body_contains":"x"},"times":2,
            "fault":{"delay_ms":5,"stop":{"at":"event:3","how":"rst"},"sse":{"no_newline":10}}}"#;
        let rule: Rule = serde_json::from_str(text).expect("valid");
        assert_eq!(
            rule.fault.stop,
            Some(Stop {
                at: Point::Event(3),
                how: How::Rst
            })
        );
        assert_eq!(rule.fault.sse, Some(BadSse::NoNewline(10)));
        for bad in [
            r#"{"fault":{"delay":5}}"#,
            r#"{"fault":{"stop":{"at":"chunk:3","how":"rst"}}}"#,
            r#"{"fault":{"drip":{"bytes":0,"every_ms":1}}}"#,
            r#"{"times":0,"fault":{}}"#,
        ] {
            assert!(serde_json::from_str::<Rule>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn points_round_trip() {
        for point in [
            Point::Head(0),
            Point::Body(77),
            Point::Event(2),
            Point::Done,
        ] {
            assert_eq!(point.to_string().parse(), Ok(point));
        }
    }

    #[test]
    fn a_counted_rule_is_used_up_and_the_next_takes_over() {
        let mut rules = Rules::default();
        rules
            .add(vec![
                Rule::next(2, Fault::status(500)),
                Rule::always(Fault::delay_ms(1)),
            ])
            .expect("room");
        let mut taken = || rules.take(&post("/v1/completions", b"", &[]));
        assert_eq!(taken(), Some(Fault::status(500)));
        assert_eq!(taken(), Some(Fault::status(500)));
        assert_eq!(taken(), Some(Fault::delay_ms(1)));
        assert_eq!(taken(), Some(Fault::delay_ms(1)));
    }

    #[test]
    fn conditions_select() {
        let marked = [("X-Mark".to_owned(), "1".to_owned())];
        let when = When {
            path: None,
            header: Some(("x-mark".into(), "1".into())),
            body_contains: Some("needle".into()),
        };
        assert!(when.matches(&post("/v1/chat/completions", b"a needle", &marked)));
        assert!(!when.matches(&post("/v1/chat/completions", b"a needle", &[])));
        assert!(!when.matches(&post("/v1/chat/completions", b"hay", &marked)));
        let probe = Seen {
            method: "GET",
            path: "/health",
            headers: &[],
            body: b"",
        };
        assert!(!When::default().matches(&probe));
        let health = When {
            path: Some("/health".into()),
            ..When::default()
        };
        assert!(health.matches(&probe));
    }

    #[test]
    fn the_number_of_rules_is_limited() {
        let mut rules = Rules::default();
        let many = vec![Rule::always(Fault::default()); RULES_MAX];
        rules.add(many).expect("exactly the limit");
        assert!(rules.add(vec![Rule::always(Fault::default())]).is_err());
    }
}
