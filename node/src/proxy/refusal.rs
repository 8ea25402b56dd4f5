//! What a client sees when no answer can be shown: the worker's own word where there is one, else ours.
//!
//! | nothing to show because | client gets |
//! |---|---|
//! | a worker's status or error event | the last worker's own status and body |
//! | no worker may be asked, or none could be reached | 503 `no_worker_available` |
//! | connections that ended, answers that are not HTTP | 502 `upstream_failed` |
//! | no first token in time | 504 `upstream_timeout` |
//! | the whole request's time is over | 504 `upstream_timeout` |
//!
//! 429 and 503 carry `Retry-After`: what the workers ask for, the shortest of them, else 1 s.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header, response};

use super::failure::Failure;
use super::record::{Outcome, Record};
use super::relay::ResponseBody;
use super::retry::Lost;
use crate::api::ApiError;
use crate::api::error::{ErrorKind, retry_after};
use crate::cluster::Pool;

/// No answer that may be shown.
#[derive(Debug)]
pub(super) struct Refusal {
    word: Word,
    /// When the client may try again, as far as workers said.
    again: Option<Duration>,
}

#[derive(Debug)]
enum Word {
    /// The router's own.
    Own(ApiError),
    /// The last worker's, passed on.
    Worker(Box<response::Parts>, Bytes),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self {
            word: Word::Own(error),
            again: None,
        }
    }
}

impl Refusal {
    /// What the client gets when all attempts on this pool are over.
    pub(super) fn of(lost: Lost, pool: &Pool) -> Self {
        let word = match lost {
            Lost::Unplaced(nobody) => {
                Word::Own(ApiError::new(ErrorKind::NoWorker, nobody.to_string()))
            }
            Lost::Turned(error) => Word::Own(error),
            Lost::Failed(failure) => word_of(failure),
        };
        Self {
            word,
            again: shortest_pause(pool),
        }
    }

    /// Ends the request with it.
    pub(super) fn response(self, mut record: Record) -> Response<ResponseBody> {
        let mut response = match self.word {
            Word::Own(error) => {
                record.own_error(&error);
                error.response().map(ResponseBody::from)
            }
            Word::Worker(mut parts, bytes) => {
                // What is passed on may be shorter than what the worker promised.
                parts.headers.remove(header::CONTENT_LENGTH);
                record.status = Some(parts.status);
                record.finish(Outcome::Error);
                Response::from_parts(*parts, bytes.into())
            }
        };
        say_when(&mut response, self.again);
        response
    }
}

/// The table above, as far as an attempt failed.
fn word_of(failure: Failure) -> Word {
    let own = |kind, message| Word::Own(ApiError::new(kind, message));
    match failure {
        Failure::Status(parts, bytes) => Word::Worker(parts, bytes),
        Failure::Refused(status, bytes) => {
            let mut parts = Response::new(()).into_parts().0;
            parts.status = status;
            let json = HeaderValue::from_static("application/json");
            parts.headers.insert(header::CONTENT_TYPE, json);
            Word::Worker(Box::new(parts), bytes)
        }
        Failure::Connect(_) => own(ErrorKind::NoWorker, "no worker could be reached; try again"),
        Failure::Closed(_) => own(
            ErrorKind::UpstreamFailed,
            "every worker that was tried broke off before it answered",
        ),
        Failure::Malformed(_) => own(
            ErrorKind::UpstreamFailed,
            "the last worker that was tried did not answer in HTTP",
        ),
        Failure::Late => own(
            ErrorKind::UpstreamTimeout,
            "no worker produced a first token in time",
        ),
        Failure::OutOfTime => Word::Own(out_of_time()),
    }
}

/// The limit for the whole request is reached.
pub(super) fn out_of_time() -> ApiError {
    ApiError::new(
        ErrorKind::UpstreamTimeout,
        "the time limit for the whole request was reached before an answer began",
    )
}

/// This replica ends before the request does.
pub(super) fn shutting_down() -> ApiError {
    ApiError::new(
        ErrorKind::ShuttingDown,
        "this replica is stopping; send the request again",
    )
}

/// `Retry-After`, where the status calls for one.
fn say_when(response: &mut Response<ResponseBody>, again: Option<Duration>) {
    let Some(default) = retry_after(response.status()) else {
        return;
    };
    let after = again.unwrap_or(default);
    // Whole seconds, rounded up: a client that comes too early only hears the same again.
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    let value = HeaderValue::from(seconds.max(1));
    response.headers_mut().insert(header::RETRY_AFTER, value);
}

/// The shortest time that a usable worker wants to be left alone; `None` as soon as one asks for nothing.
pub(super) fn shortest_pause(pool: &Pool) -> Option<Duration> {
    let usable = pool
        .slots()
        .iter()
        .filter(|slot| !slot.draining && slot.worker.health.is_usable());
    usable
        .map(|slot| slot.worker.pause().unwrap_or_default())
        .min()
        .filter(|pause| !pause.is_zero())
}

#[cfg(test)]
mod tests {
    use grapevine_placement::{ClusterSettings, NoWorker};
    use http::StatusCode;
    use tokio::time::Instant;

    use super::*;
    use crate::cluster::pool_for_tests;
    use crate::proxy::failure::tests::{all, status};

    /// Status, own code if it is the router's own word, and `Retry-After`, as the client gets them.
    fn shown(refusal: Refusal) -> (StatusCode, Option<String>, Option<u64>) {
        let (mut response, code) = match refusal.word {
            Word::Own(error) => {
                let response = error.response();
                let json: serde_json::Value =
                    serde_json::from_slice(response.body()).expect("JSON");
                for field in ["message", "type", "param", "code"] {
                    assert!(json["error"].get(field).is_some(), "{field} of {json}");
                }
                let code = json["error"]["code"].as_str().map(str::to_owned);
                (response.map(ResponseBody::from), code)
            }
            Word::Worker(parts, bytes) => (Response::from_parts(*parts, bytes.into()), None),
        };
        say_when(&mut response, refusal.again);
        let after = response.headers().get(header::RETRY_AFTER);
        let after = after.map(|value| value.to_str().expect("ASCII").parse().expect("a number"));
        (response.status(), code, after)
    }

    #[tokio::test]
    async fn every_failure_has_one_face() {
        let pool = pool_for_tests(&ClusterSettings::default(), &["a", "b"]);
        let expected: [(&str, u16, Option<&str>); 10] = [
            ("connect", 503, Some("no_worker_available")),
            ("connect_timeout", 503, Some("no_worker_available")),
            ("closed", 502, Some("upstream_failed")),
            ("malformed", 502, Some("upstream_failed")),
            ("first_token_timeout", 504, Some("upstream_timeout")),
            ("out_of_time", 504, Some("upstream_timeout")),
            ("back_pressure", 503, None),
            ("leaving", 500, None),
            ("status", 500, None),
            ("error_event", 500, None),
        ];
        for failure in all() {
            let label = failure.as_str();
            let is_429 = failure.status() == Some(StatusCode::TOO_MANY_REQUESTS);
            let row = expected.iter().find(|(name, ..)| *name == label);
            let (_, expected, code) = row.unwrap_or_else(|| panic!("{label} is not in the table"));
            let expected = if is_429 { 429 } else { *expected };
            let (status, own, after) = shown(Refusal::of(Lost::Failed(failure), &pool));
            assert_eq!(
                (status.as_u16(), own.as_deref()),
                (expected, *code),
                "{label}"
            );
            assert_eq!(after, matches!(expected, 429 | 503).then_some(1), "{label}");
        }
        for nobody in [NoWorker::Empty, NoWorker::Full, NoWorker::Unhealthy] {
            let (status, own, after) = shown(Refusal::of(Lost::Unplaced(nobody), &pool));
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(
                (own.as_deref(), after),
                (Some("no_worker_available"), Some(1))
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_told_the_shortest_pause_of_the_workers() {
        let pool = pool_for_tests(&ClusterSettings::default(), &["a", "b", "c"]);
        let after = || shown(Refusal::of(Lost::Failed(status(503, "")), &pool)).2;
        let pause = |index: usize, seconds: f64| {
            let until = Instant::now() + Duration::from_secs_f64(seconds);
            pool.slots()[index].worker.paused_until.extend(until);
        };
        pause(0, 30.5);
        pause(1, 6.2);
        assert_eq!(after(), Some(1), "the third asks for nothing");
        pause(2, 200.0);
        assert_eq!(after(), Some(7));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(after(), Some(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(after(), Some(1), "the second may be asked again");
        pool.slots()[1].worker.unreachable();
        assert_eq!(after(), Some(24), "23.5 s, rounded up");
    }
}
