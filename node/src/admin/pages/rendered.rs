//! Parts of pages, made once for all who look at the same one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::admin::query::Query;
use crate::api::ApiError;
use crate::page::html::{Part, detail, parts_of};
use crate::page::model::{Hour, Overview};

/// So old may a page be that somebody else has asked for.
const FRESH: Duration = Duration::from_millis(900);
/// Longest id of which a page is made, in bytes.
const ID_BYTES_MAX: usize = 512;

/// Which page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum What {
    Overview,
    Worker(String),
    Replica(String),
}

/// Pages that were made within the last second: few, however many look.
#[derive(Debug, Default)]
pub(super) struct Rendered(Arc<Mutex<HashMap<What, (Instant, Made)>>>);

/// A page as it was made.
#[derive(Debug, Clone, Default)]
pub(super) struct Made {
    pub(super) parts: Arc<[Part]>,
    /// There is such a worker or replica.
    pub(super) is_known: bool,
}

impl What {
    /// `?of=worker&id=`, `?of=replica&id=`, or nothing.
    pub(super) fn of(query: &Query<'_>) -> Result<Self, ApiError> {
        let id = |id: Option<String>| {
            let id = id.filter(|id| id.len() <= ID_BYTES_MAX);
            id.ok_or_else(|| ApiError::invalid("id", "add &id=... to the URL"))
        };
        match query.value("of").as_deref() {
            None => Ok(Self::Overview),
            Some("worker") => Ok(Self::Worker(id(query.value("id"))?)),
            Some("replica") => Ok(Self::Replica(id(query.value("id"))?)),
            Some(_) => Err(ApiError::invalid("of", "of is worker or replica")),
        }
    }
}

impl Admin {
    /// The parts of a page, as they are now or were within the last second.
    pub(super) async fn parts_of(self: &Arc<Self>, what: &What) -> Made {
        // Held while one is made: who comes meanwhile wants the same, and one core is enough for pages.
        let mut rendered = Arc::clone(&self.pages.rendered.0).lock_owned().await;
        rendered.retain(|_, (at, _)| at.elapsed() < FRESH);
        if let Some((_, made)) = rendered.get(what) {
            return made.clone();
        }
        let (admin, what) = (Arc::clone(self), what.clone());
        // Held to the end by the thread that makes it: who gives up leaves no second one behind.
        let making = spawn_blocking(move || {
            let made = admin.make_parts(&what);
            rendered.insert(what, (Instant::now(), made.clone()));
            made
        });
        // One that could not be made is no page that is missing, and is tried again.
        making.await.unwrap_or_else(|_| Made {
            is_known: true,
            ..Made::default()
        })
    }

    fn make_parts(&self, what: &What) -> Made {
        // Those who write the history wait while it is looked at: no page is made meanwhile.
        let (parts, is_known) = match what {
            What::Overview => {
                let facts = self.facts();
                let hour = self.recorder.show(Hour::of_cluster);
                (parts_of(&Overview::of(&facts, hour)), true)
            }
            What::Worker(id) => {
                let found = self.worker_facts(id);
                let hour = self
                    .recorder
                    .show(|history, now| Hour::of_worker(history, id, now));
                (detail::worker(found.as_ref(), id, &hour), found.is_some())
            }
            What::Replica(id) => {
                let cluster = self.cluster_facts();
                let hour = self
                    .recorder
                    .show(|history, now| Hour::of_replica(history, id, now));
                let is_known = detail::replica_of(&cluster, id).is_some();
                (detail::replica(&cluster, id, &hour), is_known)
            }
        };
        Made {
            parts: parts.into(),
            is_known,
        }
    }
}
