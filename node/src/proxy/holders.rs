//! Which worker holds a response: what `/v1/responses/{id}` and `previous_response_id` are about lies in the memory of
//! the one that made it.
//!
//! A replica remembers where the responses went that it relayed. What it does not know (another replica relayed it,
//! or it was long ago) it finds by asking the workers, some at a time; the first that has it is
//! remembered. So every replica reaches every response, also after a restart, and nothing has to be sent to the
//! others: most workers keep no responses (vLLM does on request only), most responses are never asked for again, and
//! a note for each would crowd out what replicas send each other about caches.
//!
//! Whose a response is stands in its id ([`owned_id`](super::owned_id)), where a key had it made and nobody chose another
//! one: for keys of others it is not there. Of other ids the tenant stands beside the worker, and a replica that did not
//! relay it knows none, and goes by the worker alone. An answer with an id that is known to be another tenant's changes
//! nothing here.

use std::collections::HashMap;
use std::io::ErrorKind as ErrorOf;
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::worker::WorkerId;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::caller::Caller;
use super::metrics::DetourMetrics;
use crate::api::ApiError;
use crate::api::endpoint::is_id;
use crate::api::error::ErrorKind;
use crate::cluster::{Cluster, Pool};
use crate::config::TimeoutConfig;
use crate::http::worker_body::WorkerBody;
use crate::live::Live;
use crate::upstream::Worker;
use crate::upstream::attempt;
use crate::upstream::failure::Failure;
use crate::upstream::outgoing::Outgoing;

/// Workers that are asked for one response at a time.
const ASKED_AT_ONCE: usize = 16;
/// Searches at a time: each may ask every worker, and a client that makes up ids is to keep no more of them busy.
const SEARCHES_MAX: usize = 32;
/// Where an answer says its id, if it says one.
const ID_WITHIN_BYTES: usize = 4 * 1024;

/// Where responses went that were asked for here, the latest of them.
#[derive(Debug)]
pub(super) struct Holders {
    max: usize,
    known: Mutex<Known>,
    searches: Semaphore,
}

/// Two halves: when the young one is full, it becomes the old one, whose notes are forgotten.
#[derive(Debug, Default)]
struct Known {
    young: HashMap<Box<str>, Note>,
    old: HashMap<Box<str>, Note>,
}

/// What is known of one response.
#[derive(Debug, Clone)]
struct Note {
    worker: WorkerId,
    /// The number of its tenant, if a key had it made, here.
    tenant: Option<u64>,
}

impl Holders {
    /// Remembers about `max`, and never more.
    pub(super) fn new(max: u32) -> Self {
        Self {
            max: max as usize,
            known: Mutex::default(),
            searches: Semaphore::new(SEARCHES_MAX),
        }
    }

    /// A turn to ask the workers; none if there was none within this time.
    async fn turn(&self, within: Duration) -> Option<SemaphorePermit<'_>> {
        let turn = timeout(within, self.searches.acquire()).await.ok()?;
        Some(turn.expect("it is never closed"))
    }

    fn of(&self, id: &str) -> Option<Note> {
        let known = self.known.lock();
        known.young.get(id).or_else(|| known.old.get(id)).cloned()
    }

    /// `tenant`: its owner, if known now; an owner that was known before stays.
    fn remember(&self, id: &str, worker: &WorkerId, tenant: Option<u64>) {
        if self.max < 2 {
            return;
        }
        let mut known = self.known.lock();
        let before = known.young.get(id).or_else(|| known.old.get(id));
        let owner = before.and_then(|note| note.tenant);
        if owner.is_some() && tenant.is_some() && owner != tenant {
            return;
        }
        if known.young.len() >= self.max / 2 {
            known.old = std::mem::take(&mut known.young);
        }
        let note = Note {
            worker: worker.clone(),
            tenant: owner.or(tenant),
        };
        known.young.insert(id.into(), note);
    }

    /// Looks at the beginning of an answer to `POST /v1/responses`; `tenant`: the number of the key's, if there is one.
    pub(super) fn answered(&self, beginning: &[u8], worker: &WorkerId, tenant: Option<u64>) {
        if let Some(id) = id_in(beginning) {
            self.remember(id, worker, tenant);
        }
    }
}

/// The id of a response: that of its JSON, or of the `response` in its first event. Other ids, within what a client
/// wrote and the answer repeats, stand deeper.
fn id_in(beginning: &[u8]) -> Option<&str> {
    let near = &beginning[..beginning.len().min(ID_WITHIN_BYTES)];
    let mut at = memchr::memchr(b'{', near)?;
    let (mut depth, mut in_response) = (0_u32, false);
    // The last string at this depth, until it is known to be a value.
    let mut name: &[u8] = b"";
    while let Some(byte) = near.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                if depth == 1 {
                    in_response = *byte == b'{' && name == b"response";
                }
                depth += 1;
                name = b"";
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1).filter(|depth| *depth > 0)?;
                name = b"";
            }
            b',' => name = b"",
            b'"' => {
                let text = string_at(&near[at..])?;
                at += text.len() + 1;
                let is_its = depth == 1 || (depth == 2 && in_response);
                if is_its && name == b"id" {
                    return std::str::from_utf8(text).ok().filter(|id| is_id(id));
                }
                name = text;
            }
            _ => {}
        }
    }
    None
}

/// A JSON string behind its first quote, as it is written; none without its end.
fn string_at(text: &[u8]) -> Option<&[u8]> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', &text[from..])?;
        if text[at] == b'"' {
            return Some(&text[..at]);
        }
        from = at + 2;
        text.get(from..)?;
    }
}

/// A response that is looked for, and the client that asks for it.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) id: &'a str,
    /// Where it may be: the model's workers, or those of each target of an alias.
    pub(super) pools: &'a [Arc<Pool>],
    pub(super) caller: Caller<'a>,
    /// As workers get them.
    pub(super) headers: &'a HeaderMap,
}

/// Finds the worker that holds a response.
#[derive(Debug)]
pub(super) struct Finder {
    pub(super) holders: Holders,
    pub(super) cluster: Arc<Cluster>,
    pub(super) metrics: DetourMetrics,
    /// Longest wait for a connection to a worker, longest search.
    pub(super) timeouts: Live<TimeoutConfig>,
}

impl Finder {
    /// The worker that holds a response.
    /// Errors: 404 when it is another tenant's, or no worker has it that the caller may ask, 503 when one of them could
    /// not be asked.
    pub(super) async fn holder_of(&self, wanted: Wanted<'_>) -> Result<WorkerId, ApiError> {
        let members = wanted.pools.iter().flat_map(|pool| pool.answering());
        let members = members.map(|member| &member.worker);
        let aliases = &self.cluster.settings().models;
        let may_ask = |worker: &&Arc<Worker>| {
            let models = worker.models.load();
            let mut models = models.iter();
            models.any(|model| wanted.caller.reaches(model, aliases))
                || wanted.caller.may_ask_for(None).is_ok()
        };
        let note = self.holders.of(wanted.id);
        let owner = note.as_ref().and_then(|note| note.tenant);
        if !wanted.caller.may_have(wanted.id) || !wanted.caller.is_of(owner) {
            self.metrics.searched("foreign");
            return Err(nowhere(&wanted));
        }
        // Whatever is thought of their health: a worker without one may hold it all the same.
        let mut among: Vec<Arc<Worker>> = members.filter(may_ask).map(Arc::clone).collect();
        if wanted.pools.len() > 1 {
            among.sort_by(|one, other| one.id.cmp(&other.id));
            among.dedup_by(|one, other| one.id == other.id);
        }
        // A process that is gone holds nothing: the others are asked, as by a replica that remembers nothing.
        let is_it = |worker: &Arc<Worker>, id: &WorkerId| worker.id == *id && !worker.refuses();
        let is_there = |known: &WorkerId| among.iter().any(|worker| is_it(worker, known));
        let known = note.map(|note| note.worker).filter(is_there);
        let only = among.first().filter(|_| among.len() == 1);
        let (result, found) = if let Some(known) = known {
            ("remembered", Ok(known))
        } else if let Some(only) = only {
            // Whatever is to be said about it, this one says it.
            ("only", Ok(only.id.clone()))
        } else if among.is_empty() {
            ("unsure", Err(unsure()))
        } else {
            self.search(&wanted, among).await
        };
        self.metrics.searched(result);
        found
    }

    async fn search(
        &self,
        wanted: &Wanted<'_>,
        among: Vec<Arc<Worker>>,
    ) -> (&'static str, Result<WorkerId, ApiError>) {
        let timeouts = self.timeouts.now();
        let within = timeouts.response_search;
        let Some(_turn) = self.holders.turn(within).await else {
            return ("unsure", Err(crowded()));
        };
        let mut headers = wanted.headers.clone();
        headers.remove(header::CONTENT_TYPE);
        let target = format!("/v1/responses/{}", wanted.id);
        let question = Arc::new(Outgoing {
            method: Method::GET,
            target: Uri::try_from(target).expect("ids are plain"),
            headers,
            body: WorkerBody::unchanged(bytes::Bytes::new()),
            stream: false,
            repeatable: true,
            keeps_key: false,
            one_value: false,
            upgrade: None,
        });
        let connect = timeouts.connect;
        let mut workers = among.into_iter();
        let mut asked = JoinSet::new();
        let mut is_sure = true;
        loop {
            let room = ASKED_AT_ONCE - asked.len();
            for worker in workers.by_ref().take(room) {
                asked.spawn(ask(worker, Arc::clone(&question), connect, within));
            }
            match asked.join_next().await {
                Some(Ok((worker, Has::Yes))) => {
                    // The client may not be the one that it belongs to.
                    self.holders.remember(wanted.id, &worker, None);
                    return ("found", Ok(worker));
                }
                Some(Ok((_, Has::No))) => {}
                Some(Ok((_, Has::Unsure)) | Err(_)) => is_sure = false,
                None if is_sure => return ("nowhere", Err(nowhere(wanted))),
                None => return ("unsure", Err(unsure())),
            }
        }
    }
}

/// Whether a worker has a response.
#[derive(Debug, Clone, Copy)]
enum Has {
    Yes,
    No,
    /// It did not say.
    Unsure,
}

async fn ask(
    worker: Arc<Worker>,
    question: Arc<Outgoing>,
    connect: Duration,
    within: Duration,
) -> (WorkerId, Has) {
    let status = timeout(within, attempt::status_of(&worker, &question, connect)).await;
    let has = match status {
        Ok(Ok(status)) if status.is_success() => Has::Yes,
        // Not there, or nothing of the kind is kept there.
        Ok(Ok(
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::BAD_REQUEST,
        )) => Has::No,
        // A process that is gone holds nothing.
        Ok(Err(Failure::Connect(error))) if error.kind() == ErrorOf::ConnectionRefused => Has::No,
        _ => Has::Unsure,
    };
    (worker.id.clone(), has)
}

/// The same for a response that is not there and for one that is another tenant's.
fn nowhere(wanted: &Wanted<'_>) -> ApiError {
    let id = wanted.id;
    let message = match wanted.pools.first().map_or("", |pool| pool.model()) {
        "" => format!("no worker holds the response `{id}`"),
        model => format!(
            "no worker of the model `{model}` holds the response `{id}`; one that another model made is continued with \
             that model alone"
        ),
    };
    ApiError::new(ErrorKind::NotFound, message)
}

fn unsure() -> ApiError {
    let message = "a worker that may hold the response could not be asked; try again";
    ApiError::new(ErrorKind::NoWorker, message)
}

fn crowded() -> ApiError {
    let message = "too many responses are being looked for at this replica; try again";
    ApiError::new(ErrorKind::Overloaded, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_id_near_its_beginning() {
        for (beginning, expected) in [
            (
                r#"{"id":"resp_1","output":[{"id":"msg_1"}]}"#,
                Some("resp_1"),
            ),
            (
                "event: response.created\ndata: {\"response\":{\"id\":\"resp_a-b\",\"object\":",
                Some("resp_a-b"),
            ),
            (
                r#"{"metadata":{"id":"resp_2"},"tools":[{"id":"resp_3"}],"id": "of-the-client"}"#,
                Some("of-the-client"),
            ),
            (
                r#"data: {"type":"id","response" : {"metadata":{"response":{"id":"x"}},"id":"resp_1","#,
                Some("resp_1"),
            ),
            (
                r#"{"a":"\"id\":\"resp_2\"\\","ids":["id",{"id":"resp_3"}],"id":"resp_1"}"#,
                Some("resp_1"),
            ),
            (
                r#"{"item":{"id":"msg_1"},"text":"\"id\":\"resp_2\""}"#,
                None,
            ),
            (r#"{"response":[{"id":"resp_1"}]}"#, None),
            (r#"{"object":"x"} {"id":"resp_1"}"#, None),
            (r#"{"id":7,"x":"resp_1"}"#, None),
            (r#"{"id":"a\"#, None),
            (r#"{"id":"resp_1/../2"}"#, None),
            (r#"{"id":"resp_1"#, None),
            ("", None),
        ] {
            assert_eq!(id_in(beginning.as_bytes()), expected, "{beginning}");
        }
        let late = format!("{}{}", " ".repeat(ID_WITHIN_BYTES), r#"{"id":"resp_1"}"#);
        assert_eq!(id_in(late.as_bytes()), None);
    }

    #[test]
    fn the_latest_are_remembered_and_never_more_than_may_be() {
        let worker: WorkerId = "w".parse().expect("an id");
        for max in [0, 1, 2, 10] {
            let holders = Holders::new(max);
            for number in 0..100 {
                holders.remember(&format!("resp_{number}"), &worker, None);
                let known = holders.known.lock();
                assert!(known.young.len() + known.old.len() <= max as usize, "{max}");
            }
            assert_eq!(holders.of("resp_99").is_some(), max > 1, "{max}");
            assert!(holders.of("resp_0").is_none());
        }
        let holders = Holders::new(10);
        (0..7).for_each(|number| holders.remember(&format!("resp_{number}"), &worker, None));
        assert!((2..7).all(|number| holders.of(&format!("resp_{number}")).is_some()));
    }

    #[test]
    fn whose_it_is_stays_known_when_it_is_found_elsewhere() {
        let [one, other]: [WorkerId; 2] = ["a", "b"].map(|id| id.parse().expect("an id"));
        let holders = Holders::new(10);
        holders.answered(br#"{"id":"resp_1"}"#, &one, Some(7));
        holders.remember("resp_1", &other, None);
        let note = holders.of("resp_1").expect("known");
        assert_eq!((note.worker, note.tenant), (other, Some(7)));
    }

    #[test]
    fn nobody_takes_over_the_id_of_another_tenant() {
        let [one, other]: [WorkerId; 2] = ["a", "b"].map(|id| id.parse().expect("an id"));
        let holders = Holders::new(4);
        let of = |id: &str| holders.of(id).map(|note| (note.worker, note.tenant));
        holders.answered(br#"{"id":"chosen.by"}"#, &one, Some(7));
        assert_eq!(of("chosen.by"), None, "no id that can be asked for");
        holders.answered(br#"{"id":"chosen"}"#, &one, Some(7));
        holders.answered(br#"{"id":"chosen"}"#, &other, Some(8));
        assert_eq!(of("chosen"), Some((one.clone(), Some(7))));
        // Also when it is among the old ones.
        holders.remember("resp_1", &one, None);
        holders.remember("resp_2", &one, None);
        holders.answered(br#"{"id":"chosen"}"#, &other, Some(8));
        assert_eq!(of("chosen"), Some((one, Some(7))));
        holders.answered(br#"{"id":"chosen"}"#, &other, Some(7));
        assert_eq!(of("chosen"), Some((other, Some(7))));
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_search_at_a_time_and_the_next_waits_its_limit() {
        let (holders, limit) = (Holders::new(10), Duration::from_secs(5));
        let mut turns = Vec::new();
        for _ in 0..SEARCHES_MAX {
            turns.push(holders.turn(limit).await.expect("free"));
        }
        let begun = tokio::time::Instant::now();
        assert!(holders.turn(limit).await.is_none());
        assert_eq!(begun.elapsed(), limit);
        turns.pop();
        assert!(holders.turn(limit).await.is_some());
    }
}
