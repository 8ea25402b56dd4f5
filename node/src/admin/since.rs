//! What a change made of a worker, for whoever made it.

use std::collections::BTreeMap;
use std::ops::Not;
use std::sync::Arc;

use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Source, WorkerId};
use serde::Serialize;

use super::Admin;
use crate::shown::difference;

/// What a change made of a worker.
#[derive(Debug, Default, Serialize)]
pub(super) struct Since {
    /// What is otherwise now of a worker that was known, such as `role: prefill -> any`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) changes: Vec<String>,
    /// It was known, and all of it is as it was.
    #[serde(skip_serializing_if = "Not::not")]
    pub(super) unchanged: bool,
}

/// What was known before a change.
pub(super) struct Before {
    view: Arc<View>,
    sources: BTreeMap<WorkerId, Vec<Source>>,
}

impl Admin {
    /// What is known of these workers, to be compared with later.
    pub(super) fn as_it_is<'a>(&self, ids: impl IntoIterator<Item = &'a WorkerId>) -> Before {
        let of = |id: &WorkerId| (id.clone(), self.agent.sources_of(id));
        Before {
            view: self.agent.view(),
            sources: ids.into_iter().map(of).collect(),
        }
    }

    /// What of a worker is otherwise now.
    pub(super) fn since(&self, before: &Before, id: &WorkerId) -> Since {
        let now = self.agent.view();
        let Some((was, is)) = before.view.worker(id).zip(now.worker(id)) else {
            return Since::default();
        };
        let sources = before.sources.get(id);
        let described_by =
            sources.and_then(|sources| difference::of_sources(sources, &self.agent.sources_of(id)));
        let changes = difference::between(was, is).into_iter().chain(described_by);
        let changes: Vec<String> = changes.map(|change| change.to_string()).collect();
        Since {
            unchanged: was == is && changes.is_empty(),
            changes,
        }
    }
}
