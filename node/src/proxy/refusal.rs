//! What a client gets when no answer can be shown: the worker's own error where there is one, else ours.
//!
//! | nothing to show because | client gets |
//! |---|---|
//! | a worker's status or error event | the last worker's own status and body |
//! | no worker may be asked, none could be reached or took it, or no other took the request of a bad one | 503 `no_worker_available` |
//! | this replica has no socket for a connection to a worker | 503 `overloaded` |
//! | connections that ended, answers that are not HTTP, ranks that engines do not have | 502 `upstream_failed` |
//! | the workers that were asked do not serve the model any more | 404 `model_not_found` |
//! | no first token, or no sign of life, in time | 504 `upstream_timeout` |
//! | the whole request's time is over | 504 `upstream_timeout` |
//! | workers ended while they had the request, now or a while ago | 422 `query_of_death` |
//!
//! Behind a head that went out ahead of the answer (`timeouts.stream_comment`) the same words are the stream's last event.
//!
//! Where the reason is that there is no room (a limit of this replica, every worker at its own, a worker's 503), the
//! status is `admission.no_room_status`.
//!
//! 429 and 503 carry `Retry-After`: what the workers that the request may have ask for, the shortest of them. Where none
//! of these is usable, the time until the first of them may be asked, as open breakers and they themselves say. Else 1 s.

use std::time::Duration;

use bytes::Bytes;
use grapevine_placement::NoWorker;
use grapevine_transfer::BadAnswer;
use http::{HeaderValue, Response, StatusCode, header, response};
use hyper::ext::ReasonPhrase;

use super::outcome::Outcome;
use super::own_words::{condemned, no_holder, no_worker, out_of_time, quarantined};
use super::pauses::Reach;
use super::record::{Midway, Record};
use super::response::ResponseBody;
use super::retry::Exhausted;
use crate::api::ApiError;
use crate::api::error::{Dialect, ErrorKind, retry_after};
use crate::config::NoRoomStatus;
use crate::upstream::failure::{Failure, head_of_refused};

/// No answer that may be shown.
#[derive(Debug)]
pub(super) struct Refusal {
    word: Word,
    /// When the client may try again, as far as workers said.
    again: Option<Duration>,
    /// Nothing is wrong but that there is no room.
    no_room: bool,
    /// The limit for whole requests is the reason.
    is_out_of_time: bool,
}

#[derive(Debug)]
enum Word {
    /// The router's own, and its status.
    Own(ApiError, StatusCode),
    /// The last worker's, passed on.
    Worker(Box<response::Parts>, Bytes),
}

impl Word {
    fn own(error: ApiError) -> Self {
        let status = error.kind.status();
        Self::Own(error, status)
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self {
            no_room: error.kind == ErrorKind::Overloaded,
            word: Word::own(error),
            again: None,
            is_out_of_time: false,
        }
    }
}

impl Refusal {
    /// The limit for the whole request is reached.
    pub(super) fn out_of_time() -> Self {
        Self {
            is_out_of_time: true,
            ..Self::from(out_of_time())
        }
    }

    /// A worker's answer that is an error, and of which nothing was shown.
    pub(super) fn of_answer(parts: response::Parts, bytes: Bytes) -> Self {
        Self {
            word: Word::Worker(Box::new(parts), bytes),
            again: None,
            no_room: false,
            is_out_of_time: false,
        }
    }

    /// What the client gets when all attempts on these workers are over.
    pub(super) fn of(exhausted: Exhausted, reach: Reach) -> Self {
        let no_room = match &exhausted {
            Exhausted::Unplaced(nobody) => *nobody == NoWorker::Full,
            Exhausted::TurnedAway(error) => error.kind == ErrorKind::Overloaded,
            Exhausted::Failed(failure) => {
                failure.is_back_pressure() || matches!(failure, Failure::NoSocket(_))
            }
            Exhausted::Condemned | Exhausted::Quarantined(_) => false,
        };
        let is_out_of_time = matches!(&exhausted, Exhausted::Failed(Failure::OutOfTime));
        let word = match exhausted {
            Exhausted::Unplaced(nobody) if reach.is_held() => Word::own(no_holder(nobody)),
            Exhausted::Unplaced(nobody) => Word::own(no_worker(nobody, reach.model())),
            Exhausted::TurnedAway(error) => Word::own(error),
            Exhausted::Failed(failure) => word_of(failure),
            Exhausted::Condemned => Word::own(condemned()),
            Exhausted::Quarantined(left) => Word::own(quarantined(left)),
        };
        Self {
            word,
            again: reach.shortest_pause().or_else(|| reach.shortest_rest()),
            no_room,
            is_out_of_time,
        }
    }

    /// Says it with this status, if it is one of 503 that means "no room".
    fn say_no_room(&mut self, status: StatusCode) {
        let said = match &mut self.word {
            Word::Own(_, said) => said,
            Word::Worker(parts, _) => &mut parts.status,
        };
        if !self.no_room || *said != StatusCode::SERVICE_UNAVAILABLE || *said == status {
            return;
        }
        *said = status;
        if let Word::Worker(parts, _) = &mut self.word {
            // The worker's words for its own status.
            parts.extensions.remove::<ReasonPhrase>();
        }
    }

    /// Ends the request with it; `no_room`: the status of an answer that means this.
    pub(super) fn response(
        mut self,
        mut record: Box<Record>,
        no_room: NoRoomStatus,
    ) -> Response<ResponseBody> {
        self.say_no_room(no_room.status());
        if record.is_head_out() {
            return self.last_event(record);
        }
        let mut response = match self.word {
            Word::Own(error, status) => {
                record.own_error_as(&error, status);
                own(&error, status, record.dialect)
            }
            Word::Worker(mut parts, bytes) => {
                // What is passed on may be shorter than what the worker promised.
                parts.headers.remove(header::CONTENT_LENGTH);
                record.status = Some(parts.status);
                record.bytes_out += bytes.len() as u64;
                record.finish(Outcome::Error);
                Response::from_parts(*parts, bytes.into())
            }
        };
        say_when(&mut response, self.again);
        response
    }
}

impl Refusal {
    /// The same behind a head that is out: one event, in the shape of the stream that its client waits for.
    fn last_event(self, mut record: Box<Record>) -> Response<ResponseBody> {
        let form = record.event_form();
        let (error, status, event) = match self.word {
            Word::Own(error, status) => {
                let event = form.event_of(&error);
                (Some(error), status, event)
            }
            Word::Worker(parts, bytes) => match form.event_of_body(&bytes) {
                Some(event) => (None, parts.status, event),
                None => {
                    let message =
                        format!("the last worker that was tried answered {}", parts.status);
                    let error = ApiError::new(ErrorKind::UpstreamFailed, message);
                    let event = form.event_of(&error);
                    (Some(error), parts.status, event)
                }
            },
        };
        let why = Midway {
            error: error.as_ref(),
            status,
            is_out_of_time: self.is_out_of_time,
        };
        record.refused_midway(&why, &event);
        Response::new(ResponseBody::of_request(event, record))
    }
}

/// The router's own word under a status.
fn own(error: &ApiError, status: StatusCode, dialect: Dialect) -> Response<ResponseBody> {
    error.response_as(status, dialect).map(ResponseBody::from)
}

/// The table above, as far as an attempt failed.
fn word_of(failure: Failure) -> Word {
    let own = |kind, message| Word::own(ApiError::new(kind, message));
    match failure {
        Failure::Status(parts, bytes) => Word::Worker(parts, bytes),
        Failure::Refused(status, bytes) => Word::Worker(Box::new(head_of_refused(status)), bytes),
        Failure::Connect(_) => own(ErrorKind::NoWorker, "no worker could be reached; try again"),
        Failure::Declined(_) => own(
            ErrorKind::NoWorker,
            "every worker that was tried declined the request; try again",
        ),
        Failure::NoSocket(_) => own(
            ErrorKind::Overloaded,
            "this replica has no room for another connection to a worker; try again",
        ),
        Failure::Closed(_) => own(
            ErrorKind::UpstreamFailed,
            "every worker that was tried broke off before it answered",
        ),
        Failure::Malformed(cause) => {
            let message = match cause.downcast_ref::<BadAnswer>() {
                Some(bad) => format!(
                    "the prefill workers that were tried do not say where the KV of the prompt is: {bad}"
                ),
                None => "what the last worker that was tried sent is no valid answer".to_owned(),
            };
            Word::own(ApiError::new(ErrorKind::UpstreamFailed, message))
        }
        Failure::Late => own(
            ErrorKind::UpstreamTimeout,
            "no worker produced a first token in time",
        ),
        Failure::NoSuchRank => own(
            ErrorKind::UpstreamFailed,
            "the engines that were tried have no such data-parallel rank: their workers' addresses name another",
        ),
        Failure::NoSuchModel => Word::own(ApiError {
            param: Some("model"),
            ..ApiError::new(
                ErrorKind::ModelNotFound,
                "the workers that were asked do not serve this model any more; GET /v1/models lists what is served",
            )
        }),
        Failure::KeyRefused => own(
            ErrorKind::UpstreamFailed,
            "the workers that were tried refuse the key of this replica, or want one: look at its workers.api_key",
        ),
        Failure::WorkerBad => own(
            ErrorKind::NoWorker,
            "its worker stopped answering, and no other one could take the request; try again",
        ),
        Failure::OutOfTime => Word::own(out_of_time()),
    }
}

/// `Retry-After`, where the status calls for one.
fn say_when(response: &mut Response<ResponseBody>, again: Option<Duration>) {
    let Some(default) = retry_after(response.status()) else {
        return;
    };
    let after = again.unwrap_or(default);
    // Whole seconds, rounded up: a client that comes too early only gets the same again.
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    let value = HeaderValue::from(seconds.max(1));
    response.headers_mut().insert(header::RETRY_AFTER, value);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use grapevine_gossip::worker::Role;
    use grapevine_placement::ClusterSettings;
    use tokio::time::Instant;

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::cluster::pool_for_tests;
    use crate::config::KvEventsConfig;
    use crate::proxy::own_words::shutting_down;
    use crate::upstream::failure::tests::{all, status};

    /// A pool of workers with these names, all of which a request may have.
    fn pool(ids: &[&str]) -> Reach {
        let pool = pool_for_tests(&ClusterSettings::default(), ids);
        Reach::from(&Arc::new(pool))
    }

    /// Status, own code if it is the router's own word, and `Retry-After`, as the client gets them.
    fn shown(refusal: Refusal) -> (StatusCode, Option<String>, Option<u64>) {
        let (mut response, code) = match refusal.word {
            Word::Own(error, status) => {
                let json: serde_json::Value = serde_json::from_slice(&error.body()).expect("JSON");
                for field in ["message", "type", "param", "code"] {
                    assert!(json["error"].get(field).is_some(), "{field} of {json}");
                }
                let code = json["error"]["code"].as_str().map(str::to_owned);
                (own(&error, status, Dialect::OpenAi), code)
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
        let pool = pool(&["a", "b"]);
        let expected: [(&str, u16, Option<&str>); 17] = [
            ("connect", 503, Some("no_worker_available")),
            ("connect_timeout", 503, Some("no_worker_available")),
            ("declined", 503, Some("no_worker_available")),
            ("no_socket", 503, Some("overloaded")),
            ("closed", 502, Some("upstream_failed")),
            ("malformed", 502, Some("upstream_failed")),
            ("first_token_timeout", 504, Some("upstream_timeout")),
            ("no_such_rank", 502, Some("upstream_failed")),
            ("no_such_model", 404, Some("model_not_found")),
            ("key_refused", 502, Some("upstream_failed")),
            ("worker_bad", 503, Some("no_worker_available")),
            ("out_of_time", 504, Some("upstream_timeout")),
            ("back_pressure", 503, None),
            ("leaving", 500, None),
            ("engine_dead", 500, None),
            ("status", 500, None),
            ("error_event", 500, None),
        ];
        for failure in all() {
            let label = failure.as_str();
            let is_429 = failure.status() == Some(StatusCode::TOO_MANY_REQUESTS);
            let row = expected.iter().find(|(name, ..)| *name == label);
            let (_, expected, code) = row.unwrap_or_else(|| panic!("{label} is not in the table"));
            // A worker that says so in an answer of its own is passed on.
            let is_answer = matches!(failure, Failure::Status(..) | Failure::Refused(..));
            let code = &code.filter(|_| !is_answer);
            let expected = if is_429 { 429 } else { *expected };
            let (status, own, after) = shown(Refusal::of(Exhausted::Failed(failure), pool.clone()));
            assert_eq!(
                (status.as_u16(), own.as_deref()),
                (expected, *code),
                "{label}"
            );
            assert_eq!(after, matches!(expected, 429 | 503).then_some(1), "{label}");
        }
        let marked = Exhausted::Quarantined(Duration::from_secs(60));
        for deadly in [Exhausted::Condemned, marked] {
            let (status, own, after) = shown(Refusal::of(deadly, pool.clone()));
            assert_eq!(
                (status.as_u16(), own.as_deref(), after),
                (422, Some("query_of_death"), None)
            );
        }
        for nobody in [NoWorker::Empty, NoWorker::Full, NoWorker::Unhealthy] {
            let (status, own, after) =
                shown(Refusal::of(Exhausted::Unplaced(nobody), pool.clone()));
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(
                (own.as_deref(), after),
                (Some("no_worker_available"), Some(1))
            );
        }
    }

    #[tokio::test]
    async fn who_gets_no_worker_is_told_of_which_model() {
        let refusal = Refusal::of(Exhausted::Unplaced(NoWorker::Draining), pool(&["a"]));
        let Word::Own(error, _) = refusal.word else {
            panic!("a word of a worker");
        };
        let message = error.message.to_string();
        assert!(message.contains("the model `m`"), "{message}");
        assert!(message.contains("every worker is draining"), "{message}");

        let held = Refusal::of(
            Exhausted::Unplaced(NoWorker::Draining),
            pool(&["a"]).of_holder(),
        );
        let Word::Own(error, _) = held.word else {
            panic!("a word of a worker");
        };
        let message = error.message.to_string();
        assert!(
            message.contains("the worker that holds the response"),
            "{message}"
        );
        assert!(message.contains("it is draining"), "{message}");
    }

    #[tokio::test]
    async fn no_room_has_the_status_that_was_chosen_and_nothing_else_has() {
        let pool = pool(&["a"]);
        let overloaded = || ApiError::new(ErrorKind::Overloaded, "full");
        let of = |exhausted| Refusal::of(exhausted, pool.clone());
        let no_worker = |why| of(Exhausted::Unplaced(why));
        let table: [(&dyn Fn() -> Refusal, bool); 7] = [
            (&|| Refusal::from(overloaded()), true),
            (&|| of(Exhausted::TurnedAway(overloaded())), true),
            (&|| no_worker(NoWorker::Full), true),
            (&|| of(Exhausted::Failed(status(503, ""))), true),
            (&|| no_worker(NoWorker::Empty), false),
            (&|| no_worker(NoWorker::Unhealthy), false),
            (&|| Refusal::from(shutting_down()), false),
        ];
        for (refusal, no_room) in table {
            for chosen in [
                NoRoomStatus::ServiceUnavailable,
                NoRoomStatus::TooManyRequests,
            ] {
                let mut refusal = refusal();
                refusal.say_no_room(chosen.status());
                let expected = match no_room {
                    true => chosen.status(),
                    false => StatusCode::SERVICE_UNAVAILABLE,
                };
                let (status, _, after) = shown(refusal);
                assert_eq!((status, after), (expected, Some(1)));
            }
        }
        // Its reason is that of the status which it said.
        for (chosen, said) in [(429, None), (503, Some("Unavailable"))] {
            let mut failure = status(503, "");
            if let Failure::Status(parts, _) = &mut failure {
                parts
                    .extensions
                    .insert(ReasonPhrase::from_static(b"Unavailable"));
            }
            let mut refusal = of(Exhausted::Failed(failure));
            refusal.say_no_room(StatusCode::from_u16(chosen).expect("a status"));
            let Word::Worker(parts, _) = &refusal.word else {
                panic!("a word of this replica");
            };
            let reason = parts.extensions.get::<ReasonPhrase>();
            assert_eq!(reason.map(ReasonPhrase::as_bytes), said.map(str::as_bytes));
        }
        // A worker's own 429 asks the client to slow down; it stays.
        let mut refusal = of(Exhausted::Failed(status(429, "")));
        refusal.say_no_room(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(shown(refusal).0, StatusCode::TOO_MANY_REQUESTS);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_told_the_shortest_pause_of_the_workers() {
        let pool = pool(&["a", "b", "c"]);
        let after = || {
            shown(Refusal::of(
                Exhausted::Failed(status(503, "")),
                pool.clone(),
            ))
            .2
        };
        let pause = |index: usize, seconds: f64| {
            let until = Instant::now() + Duration::from_secs_f64(seconds);
            pool.members()[index]
                .worker
                .glance
                .paused_until
                .extend(until);
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
        pool.members()[1].worker.unreachable();
        assert_eq!(after(), Some(24), "23.5 s, rounded up");
    }

    /// A broken connection makes a worker unreachable until a probe passes; what it asks for meanwhile counts.
    #[tokio::test(start_paused = true)]
    async fn a_pause_counts_also_where_no_worker_is_usable() {
        let pool = pool(&["a", "b"]);
        let after = || {
            let failed = Exhausted::Failed(status(429, ""));
            shown(Refusal::of(failed, pool.clone())).2
        };
        let (a, b) = (&pool.members()[0].worker, &pool.members()[1].worker);
        a.unreachable();
        b.unreachable();
        assert_eq!(after(), Some(1), "nobody asks for anything");
        let until = |seconds| Instant::now() + Duration::from_secs(seconds);
        a.glance.paused_until.extend(until(7));
        assert_eq!(after(), Some(7));
        a.health.eject();
        assert_eq!(after(), Some(7), "its breaker holds nothing back");
        b.glance.paused_until.extend(until(5));
        assert_eq!(after(), Some(5));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(after(), Some(1), "7 s are over in a second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_one_worker_is_told_the_time_of_that_one() {
        let pool = Arc::new(pool_for_tests(
            &ClusterSettings::default(),
            &["a", "b", "c"],
        ));
        let after = |but: &[usize]| {
            let reach = Reach::new(Arc::clone(&pool), but.to_vec());
            let full = Exhausted::Unplaced(NoWorker::Full);
            shown(Refusal::of(full, reach)).2
        };
        let until = Instant::now() + Duration::from_secs(60);
        pool.members()[1].worker.glance.paused_until.extend(until);
        assert_eq!(after(&[]), Some(1), "others ask for nothing");
        assert_eq!(after(&[2, 0]), Some(60), "it is the only one");
        pool.members()[0].worker.health.eject();
        assert_eq!(after(&[1]), Some(1), "one is well");
        let rest = pool.members()[0].worker.health.shut_for().as_secs_f64();
        assert_eq!(after(&[1, 2]), Some(rest.ceil() as u64));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_a_pair_is_told_the_time_of_the_half_that_is_missing() {
        let member = |id, role| worker_with(id, "m", |raw| raw.role = role);
        let workers = [
            member("d0", Role::Decode),
            member("p0", Role::Prefill),
            member("p1", Role::Prefill),
        ];
        let settings = ClusterSettings::default();
        let house = Alone::of(settings, "r1", workers, &KvEventsConfig::default(), 3);
        let pool = house.cluster.fleet().pool("m").expect("it is served");
        let halves = Arc::clone(pool.halves().expect("both are there"));
        let after = |reach: Reach| {
            let unhealthy = Exhausted::Unplaced(NoWorker::Unhealthy);
            shown(Refusal::of(unhealthy, reach)).2
        };
        let for_pair = || Reach::from(&pool).but_prefill(Vec::new());
        let prefill = |index: usize| &halves.prefill.members()[index].worker.health;
        let rest = |index| {
            let left = prefill(index).shut_for().as_secs_f64();
            Some(left.ceil() as u64)
        };
        prefill(0).eject();
        assert_eq!(after(for_pair()), Some(1), "the other one is well");
        assert_eq!(after(for_pair().but_prefill(vec![1])), rest(0));
        prefill(1).eject();
        assert_eq!(after(for_pair()), rest(0).min(rest(1)));
        assert_eq!(
            after(Reach::from(&pool)),
            Some(1),
            "no prompt is computed elsewhere"
        );
    }

    #[tokio::test]
    async fn requests_that_may_have_the_same_workers_wait_in_one_queue() {
        let pool = Arc::new(pool_for_tests(
            &ClusterSettings::default(),
            &["a", "b", "c"],
        ));
        let but = |but: &[usize]| Reach::new(Arc::clone(&pool), but.to_vec());
        assert_eq!(but(&[]).queue(), pool.label(), "that of the model");
        assert_eq!(
            Reach::from(&pool).undivided().queue(),
            pool.label(),
            "no pairs"
        );
        let queues = [
            but(&[]),
            but(&[0]),
            but(&[1, 2]),
            but(&[]).but_prefill(vec![0]),
            but(&[0]).but_prefill(vec![0]),
        ];
        let queues: std::collections::BTreeSet<_> = queues.iter().map(Reach::queue).collect();
        assert_eq!(queues.len(), 5, "{queues:?}");
        assert_eq!(but(&[2, 1, 2]).queue(), but(&[1, 2]).queue());
        let prefill = |tried: &[usize]| but(&[]).but_prefill(tried.to_vec()).queue();
        assert_eq!(prefill(&[2, 1]), prefill(&[1, 2]));
    }
}
