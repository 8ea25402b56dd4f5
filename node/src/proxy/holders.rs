//! Which worker holds a response: what `/v1/responses/{id}` and `previous_response_id` are about lies in the memory of
//! the one that made it.
//!
//! A replica remembers where the responses went that it relayed. What it does not know (another replica relayed it,
//! or it was long ago) it finds by asking the workers, some at a time; the first that has it is
//! remembered. So every replica reaches every response, also after a restart, and nothing has to be told to the
//! others: most workers keep no responses (vLLM does on request only), most responses are never asked for again, and
//! a note for each would crowd out what replicas tell each other about caches.
//!
//! Beside the worker stands the tenant whose key had the response made: for keys of others it is not there. A replica
//! that did not relay it knows no tenant, and goes by the worker alone.

use std::collections::HashMap;
use std::io::ErrorKind as ErrorOf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use grapevine_gossip::worker::WorkerId;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use memchr::memmem;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Proxy;
use super::attempt::{self, Outgoing};
use super::caller::Caller;
use super::failure::Failure;
use super::worker_body::WorkerBody;
use crate::api::ApiError;
use crate::api::endpoint::is_id;
use crate::api::error::ErrorKind;
use crate::cluster::Pool;
use crate::metrics::ResultLabels;
use crate::upstream::Worker;

/// Workers that are asked for one response at a time.
const ASKED_AT_ONCE: usize = 16;
/// Where an answer says its id, if it says one.
const ID_WITHIN_BYTES: usize = 4 * 1024;

/// Where responses went that were asked for here, the latest of them.
#[derive(Debug)]
pub(super) struct Holders {
    max: usize,
    known: Mutex<Known>,
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
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no holder of this lock panics")
    }

    fn of(&self, id: &str) -> Option<Note> {
        let known = self.known();
        known.young.get(id).or_else(|| known.old.get(id)).cloned()
    }

    /// `tenant`: whose it is, if that is known now; what was known before stays.
    fn remember(&self, id: &str, worker: &WorkerId, tenant: Option<u64>) {
        let tenant = tenant.or_else(|| self.of(id)?.tenant);
        let worker = worker.clone();
        let mut known = self.known();
        if known.young.len() >= self.max / 2 {
            known.old = std::mem::take(&mut known.young);
        }
        if self.max > 1 {
            known.young.insert(id.into(), Note { worker, tenant });
        }
    }

    /// Looks at the beginning of an answer to `POST /v1/responses`; `tenant`: the number of the key's, if there is one.
    pub(super) fn answered(&self, beginning: &[u8], worker: &WorkerId, tenant: Option<u64>) {
        if let Some(id) = id_in(beginning) {
            self.remember(id, worker, tenant);
        }
    }
}

/// The id of a response: the first that its JSON, or that of its first event, names.
fn id_in(beginning: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"\"id\":\"resp_";
    let near = &beginning[..beginning.len().min(ID_WITHIN_BYTES)];
    let start = memmem::find(near, NAME)? + NAME.len() - b"resp_".len();
    let length = memchr::memchr(b'"', &near[start..])?;
    let id = std::str::from_utf8(&near[start..start + length]).ok()?;
    is_id(id).then_some(id)
}

/// What is asked for a response, and for whom.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) id: &'a str,
    pub(super) pool: &'a Pool,
    pub(super) caller: Caller<'a>,
    /// As workers get them.
    pub(super) headers: &'a HeaderMap,
}

impl Proxy {
    /// The worker that holds a response.
    ///
    /// # Errors
    /// 404 when it is another tenant's, or no worker has it that the caller may ask, 503 when one of them could not be asked.
    pub(super) async fn holder_of(&self, wanted: Wanted<'_>) -> Result<WorkerId, ApiError> {
        let slots = wanted.pool.slots().iter().map(|slot| &slot.worker);
        let may_ask = |worker: &&Arc<Worker>| {
            let models = worker.models.load();
            let mut models = models.iter();
            models.any(|model| wanted.caller.may_ask_for(Some(model.as_str())).is_ok())
                || wanted.caller.may_ask_for(None).is_ok()
        };
        let note = self.holders.of(wanted.id);
        let owner = note.as_ref().and_then(|note| note.tenant);
        if !wanted.caller.is_of(owner) {
            self.count_search("foreign");
            return Err(nowhere(wanted.id));
        }
        // Whatever is thought of their health: a worker without one may hold it all the same.
        let among: Vec<Arc<Worker>> = slots.filter(may_ask).map(Arc::clone).collect();
        let is_there = |known: &WorkerId| among.iter().any(|worker| worker.id == *known);
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
        self.count_search(result);
        found
    }

    fn count_search(&self, result: &'static str) {
        let labels = ResultLabels { result };
        let searches = &self.parts.metrics.response_searches;
        searches.get_or_create(&labels).inc();
    }

    async fn search(
        &self,
        wanted: &Wanted<'_>,
        among: Vec<Arc<Worker>>,
    ) -> (&'static str, Result<WorkerId, ApiError>) {
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
            upgrade: None,
        });
        let (connect, within) = (
            self.parts.timeouts.connect,
            self.parts.timeouts.response_search,
        );
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
                    // Whoever asks may not be whose it is.
                    self.holders.remember(wanted.id, &worker, None);
                    return ("found", Ok(worker));
                }
                Some(Ok((_, Has::No))) => {}
                Some(Ok((_, Has::Unsure)) | Err(_)) => is_sure = false,
                None if is_sure => return ("nowhere", Err(nowhere(wanted.id))),
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

fn nowhere(id: &str) -> ApiError {
    ApiError::new(
        ErrorKind::NotFound,
        format!("no worker holds the response `{id}`"),
    )
}

fn unsure() -> ApiError {
    let message = "a worker that may hold the response could not be asked; try again";
    ApiError::new(ErrorKind::NoWorker, message)
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
            (r#"{"id":"msg_1","text":"\"id\":\"resp_2\""}"#, None),
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
                let known = holders.known();
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
}
