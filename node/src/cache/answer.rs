//! An answer as it is kept: head, and body in the pieces in which it came.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use crate::media_type::{EVENT_STREAM, JSON, is_of_type};

/// Room for what an answer needs besides its bytes: table entries, allocations. Rounded up.
const ENTRY_BYTES: usize = 512;
/// And a header besides its text.
const HEADER_BYTES: usize = 64;

/// Said of one answer at one time, or made anew for each.
const NOT_KEPT: [HeaderName; 6] = [
    header::DATE,
    header::AGE,
    header::CONTENT_LENGTH,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("endpoint-load-metrics"),
];
/// Beginnings of names of headers that say what is left to the client of one request, and when it may come again.
const NOT_KEPT_BEGINNINGS: [&str; 3] = ["x-ratelimit-", "ratelimit", "retry-after"];

/// The head of an answer that may be kept.
#[derive(Debug)]
pub(super) struct Keepable {
    headers: HeaderMap,
    /// To what age its worker lets it be given; none where the worker says nothing of that.
    fresh_for: Option<Duration>,
    /// Its age when it came.
    age: Duration,
}

/// A whole answer, ready to be given again.
#[derive(Debug)]
pub struct Answer {
    head: Keepable,
    body: Bytes,
    /// Where each piece of the body ends.
    ends: Box<[u32]>,
    kept: Instant,
    /// The tenant that it was given to; empty without tenants.
    pub(super) tenant: Box<[u8]>,
    /// By which its tenant's share knows it.
    pub(super) number: u64,
}

/// Of an answer that may be kept; none when it may not.
///
/// A status other than 200, a cookie, an encoding or another reason to vary make an answer one client's own. One that a
/// worker would have asked for anew each time, or that is too old when it comes, is given once; so is what no engine says,
/// such as a page of whatever stands before a worker.
pub(super) fn keepable(head: &response::Parts) -> Option<Keepable> {
    let headers = &head.headers;
    let words = |name: HeaderName| {
        let values = headers.get_all(name).iter();
        let words = values.flat_map(|value| value.to_str().unwrap_or("?").split(','));
        words.map(|part| part.trim().to_ascii_lowercase())
    };
    // Whether the body reads as it is does not depend on `Accept-Encoding`; `Origin` is part of the key.
    let varies = |part: &str| !matches!(part, "origin" | "accept-encoding" | "");
    // With a list of fields, `no-cache` and `private` may be taken as without one (RFC 9111, section 5.2.2).
    let once = |part: &str| {
        let name = part.split_once('=').map_or(part, |(name, _)| name);
        matches!(name.trim_end(), "no-store" | "no-cache" | "private" | "?")
    };
    let is_of_engine = [JSON, EVENT_STREAM]
        .iter()
        .any(|kind| is_of_type(headers, kind));
    let fresh_for = fresh_for(words(header::CACHE_CONTROL)).or_else(|| fresh_until(headers));
    let age = headers.get(header::AGE).and_then(|age| age.to_str().ok());
    let age = Duration::from_secs(age.map_or(0, seconds));
    if head.status != StatusCode::OK
        || !is_of_engine
        || headers.contains_key(header::SET_COOKIE)
        || headers.contains_key(header::CONTENT_ENCODING)
        || words(header::VARY).any(|part| varies(&part))
        || words(header::CACHE_CONTROL).any(|part| once(&part))
        || fresh_for.is_some_and(|most| most <= age)
    {
        return None;
    }
    let is_kept = |name: &HeaderName| {
        let mut beginnings = NOT_KEPT_BEGINNINGS.iter();
        !NOT_KEPT.contains(name) && !beginnings.any(|with| name.as_str().starts_with(with))
    };
    let kept = headers.iter().filter(|(name, _)| is_kept(name));
    let headers = kept.map(|(name, value)| (name.clone(), value.clone()));
    let headers = headers.collect();
    Some(Keepable {
        headers,
        fresh_for,
        age,
    })
}

/// To what age an answer with these directives may be given (RFC 9111, section 4.2.1). `s-maxage`, which is for caches that
/// several clients share, goes before `max-age`.
fn fresh_for(directives: impl Iterator<Item = String>) -> Option<Duration> {
    let (mut shared, mut any) = (None, None);
    for directive in directives {
        let (name, value) = directive.split_once('=').unwrap_or((&directive, ""));
        let said = match name.trim_end() {
            "s-maxage" => &mut shared,
            "max-age" => &mut any,
            _ => continue,
        };
        *said = Some(said.unwrap_or(u64::MAX).min(seconds(value)));
    }
    shared.or(any).map(Duration::from_secs)
}

/// The same of an answer that says until when (RFC 9111, section 5.3); a date that cannot be read is over.
fn fresh_until(headers: &HeaderMap) -> Option<Duration> {
    let date = |name: HeaderName| {
        let text = headers.get(name)?.to_str().ok()?;
        httpdate::parse_http_date(text).ok()
    };
    headers.get(header::EXPIRES)?;
    let made = date(header::DATE).unwrap_or_else(SystemTime::now);
    let until = date(header::EXPIRES).and_then(|end| end.duration_since(made).ok());
    Some(until.unwrap_or_default())
}

/// What cannot be read is none.
fn seconds(value: &str) -> u64 {
    value.trim().trim_matches('"').parse().unwrap_or(0)
}

impl Answer {
    /// `ends`: where each piece of the body ends.
    ///
    /// None for a body that cannot be a whole, good answer (see [`is_whole`]).
    pub(super) fn new(
        head: Keepable,
        body: Vec<u8>,
        ends: &[usize],
        tenant: Box<[u8]>,
    ) -> Option<Self> {
        let ends = ends.iter().map(|end| u32::try_from(*end).ok());
        let answer = Self {
            head,
            // Without the room that was left to grow: that would be kept, and not counted.
            body: body.into_boxed_slice().into(),
            ends: ends.collect::<Option<_>>()?,
            kept: Instant::now(),
            tenant,
            number: 0,
        };
        is_whole(&answer.body, answer.is_stream()).then_some(answer)
    }

    /// The head, but for what is said anew of each answer.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The body's piece number `index`, as the worker sent it.
    pub fn piece(&self, index: usize) -> Option<Bytes> {
        let end = *self.ends.get(index)? as usize;
        let start = index
            .checked_sub(1)
            .map_or(0, |before| self.ends[before] as usize);
        Some(self.body.slice(start..end))
    }

    /// The whole body.
    pub fn body(&self) -> Bytes {
        self.body.clone()
    }

    /// It was a stream of events, and is given again as one.
    pub fn is_stream(&self) -> bool {
        is_of_type(self.headers(), EVENT_STREAM)
    }

    /// Time since its worker made it (RFC 9111, section 4.2.3).
    pub fn age(&self) -> Duration {
        self.head.age.saturating_add(self.kept.elapsed())
    }

    /// Its worker says nothing against giving it now.
    pub(super) fn is_fresh(&self) -> bool {
        let is_fresh = |fresh_for| self.age() < fresh_for;
        self.head.fresh_for.is_none_or(is_fresh)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn weight(&self) -> u32 {
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            name.as_str().len() + value.len() + HEADER_BYTES
        };
        let headers: usize = self.headers().iter().map(text).sum();
        let all = self.body.len() + self.ends.len() * 4 + headers + self.tenant.len() + ENTRY_BYTES;
        u32::try_from(all).unwrap_or(u32::MAX)
    }
}

/// Not an answer that a worker gave up: vLLM ends one with `finish_reason` `abort` or `error` when its engine
/// stops, and a stream is whole only with its end mark. Nor one that is no JSON, or an error in a 200.
fn is_whole(body: &[u8], is_stream: bool) -> bool {
    const GIVEN_UP: [&[u8]; 4] = [
        b"\"finish_reason\":\"abort\"",
        b"\"finish_reason\": \"abort\"",
        b"\"finish_reason\":\"error\"",
        b"\"finish_reason\": \"error\"",
    ];
    let is_said = match is_stream {
        false => is_good(body),
        true => {
            let lines = body.split(|byte| *byte == b'\n');
            let mut data = lines.filter_map(|line| line.strip_prefix(b"data:"));
            let ended = body.trim_ascii_end().ends_with(b"[DONE]");
            ended && data.all(|data| data.trim_ascii() == b"[DONE]" || is_good(data))
        }
    };
    let is_given_up = |mark: &&[u8]| memchr::memmem::find(body, mark).is_some();
    is_said && !GIVEN_UP.iter().any(is_given_up)
}

/// JSON, and no object that tells of an error.
fn is_good(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Said {
        error: Option<IgnoredAny>,
    }
    match json.trim_ascii_start().first() {
        Some(b'{') => {
            let said = serde_json::from_slice::<Said>(json);
            said.is_ok_and(|said| said.error.is_none())
        }
        // Rerank of other engines.
        _ => serde_json::from_slice::<IgnoredAny>(json).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn head(status: u16, headers: &[(&'static str, &'static str)]) -> response::Parts {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).expect("a head").into_parts().0
    }

    #[test]
    fn one_clients_own_answers_are_not_kept() {
        let json = ("content-type", "application/json; charset=utf-8");
        let past = "Sun, 06 Nov 1994 08:49:37 GMT";
        let later = "Sun, 06 Nov 1994 08:49:57 GMT";
        for (status, headers, kept) in [
            (200, &[][..], true),
            (
                200,
                &[
                    ("vary", "Origin, accept-encoding"),
                    ("cache-control", "max-age=5"),
                ],
                true,
            ),
            (201, &[], false),
            (404, &[], false),
            (500, &[], false),
            (200, &[("set-cookie", "a=1")], false),
            (200, &[("content-encoding", "gzip")], false),
            (200, &[("vary", "*")], false),
            (200, &[("vary", "origin"), ("vary", "authorization")], false),
            (200, &[("cache-control", "max-age=5, no-store")], false),
            (200, &[("cache-control", "Private")], false),
            (200, &[("cache-control", "No-Cache")], false),
            (
                200,
                &[("cache-control", "no-cache=\"x-model-version\"")],
                false,
            ),
            (200, &[("cache-control", "max-age=0")], false),
            (200, &[("cache-control", "max-age=soon")], false),
            (
                200,
                &[("cache-control", "max-age=60"), ("age", "60")],
                false,
            ),
            (200, &[("expires", past)], false),
            (200, &[("expires", "0")], false),
            (200, &[("expires", later), ("date", past)], true),
            (
                200,
                &[("expires", past), ("cache-control", "max-age=5")],
                true,
            ),
        ] {
            let headers = [&[json], headers].concat();
            let found = keepable(&head(status, &headers)).is_some();
            assert_eq!(found, kept, "{status} {headers:?}");
        }
        for (kind, kept) in [
            ("text/event-stream", true),
            ("text/html", false),
            ("application/octet-stream", false),
        ] {
            let found = keepable(&head(200, &[("content-type", kind)])).is_some();
            assert_eq!(found, kept, "{kind}");
        }
        assert!(keepable(&head(200, &[])).is_none());
    }

    #[test]
    fn a_worker_says_how_long_its_answer_may_be_given() {
        for (headers, seconds, age) in [
            (&[][..], None, 0),
            (&[("cache-control", "public")], None, 0),
            (&[("cache-control", "Max-Age = \"5\"")], Some(5), 0),
            (&[("cache-control", "max-age=5, s-maxage=60")], Some(60), 0),
            (
                &[
                    ("cache-control", "max-age=5"),
                    ("cache-control", "max-age=7"),
                ],
                Some(5),
                0,
            ),
            (
                &[("cache-control", "max-age=60"), ("age", "20")],
                Some(60),
                20,
            ),
            (&[("age", "20")], None, 20),
            (
                &[
                    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                    ("expires", "Sun, 06 Nov 1994 08:49:57 GMT"),
                ],
                Some(20),
                0,
            ),
        ] {
            let headers = [&[("content-type", "application/json")], headers].concat();
            let kept = keepable(&head(200, &headers)).expect("keepable");
            let found = kept.fresh_for.map(|time| time.as_secs());
            assert_eq!((found, kept.age.as_secs()), (seconds, age), "{headers:?}");
        }
    }

    #[test]
    fn what_is_said_of_one_answer_is_not_kept() {
        let parts = head(
            200,
            &[
                ("content-type", "application/json"),
                ("content-length", "2"),
                ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
                ("x-request-id", "r"),
                ("x-ratelimit-remaining-tokens", "9"),
                ("ratelimit-policy", "9"),
                ("retry-after-ms", "5"),
                ("openai-processing-ms", "12"),
                (
                    "endpoint-load-metrics",
                    "TEXT named_metrics.kv_cache_usage_perc=0.5",
                ),
                ("x-model-version", "7"),
                ("link", "</a>"),
                ("link", "</b>"),
            ],
        );
        let headers = keepable(&parts).expect("keepable").headers;
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "link", "x-model-version"]);
        assert_eq!(headers.get_all("link").iter().count(), 2);
    }

    #[test]
    fn pieces_come_back_as_they_were() {
        let stream = keepable(&head(
            200,
            &[("content-type", "text/event-stream; charset=utf-8")],
        ));
        let pieces =
            ["data: {}\n\n", "data: {}\n\ndata:", " [DONE]\n\n"].map(Bytes::from_static_str);
        let mut ends = Vec::new();
        for piece in &pieces {
            ends.push(ends.last().unwrap_or(&0) + piece.len());
        }
        let stream = stream.expect("keepable");
        let answer = Answer::new(stream, pieces.concat(), &ends, Box::default()).expect("whole");
        assert!(answer.is_stream());
        let back: Vec<Bytes> = (0..).map_while(|index| answer.piece(index)).collect();
        assert_eq!(back, pieces);
        assert_eq!(answer.body().len(), pieces.concat().len());
        assert!(answer.weight() as usize > answer.body().len());
    }

    trait FromStaticStr {
        fn from_static_str(text: &'static str) -> Self;
    }

    impl FromStaticStr for Bytes {
        fn from_static_str(text: &'static str) -> Self {
            Self::from_static(text.as_bytes())
        }
    }

    #[test]
    fn parts_of_answers_are_not_whole() {
        let reason = |reason: &str| format!(r#"{{"choices":[{{"finish_reason":"{reason}"}}]}}"#);
        for (body, is_stream, whole) in [
            (reason("stop"), false, true),
            (reason("length"), false, true),
            (reason("abort"), false, false),
            (reason("error"), false, false),
            (
                r#"{"text":"\"finish_reason\":\"abort\""}"#.to_owned(),
                false,
                true,
            ),
            ("data: {}\n\ndata: [DONE]\n\n".to_owned(), true, true),
            ("data: {}\n\n".to_owned(), true, false),
            (
                format!("data: {}\n\ndata: [DONE]\n\n", reason("abort")),
                true,
                false,
            ),
            (String::new(), true, false),
            (String::new(), false, false),
            ("<html>".to_owned(), false, false),
            (r#"{"error":{"message":"no"}}"#.to_owned(), false, false),
            (r#"{"error":null,"data":[]}"#.to_owned(), false, true),
            (r#"[{"index":0,"score":1}]"#.to_owned(), false, true),
            ("data: {\n\ndata: [DONE]\n\n".to_owned(), true, false),
            (
                "event: error\r\ndata: {\"error\":{}}\r\n\r\ndata: [DONE]\r\n\r\n".to_owned(),
                true,
                false,
            ),
        ] {
            assert_eq!(is_whole(body.as_bytes(), is_stream), whole, "{body}");
        }
    }
}
