//! Load of workers as decisions count it.

use grapevine_gossip::load::{Common, LoadCell, Past};
use grapevine_placement::Load;
use grapevine_placement::load::{Picture, Seen};

use crate::upstream::Worker;

/// Which load a decision is made by.
#[derive(Clone, Copy)]
pub(super) enum LoadAt<'a> {
    /// None, as in a quiet cluster.
    Nothing,
    /// What counts now.
    Now,
    /// What counted at a moment of late; this replica's own that nobody else knew as it is now.
    Then(&'a Past),
}

impl LoadAt<'_> {
    /// That of now, or none.
    pub(super) fn now(with_load: bool) -> Self {
        match with_load {
            true => Self::Now,
            false => Self::Nothing,
        }
    }

    /// Load of a worker as a picture shows it. `cell` is the worker's: found beside it, so that nothing else of the worker
    /// is read where a decision is made now.
    pub(super) fn seen(self, picture: Picture, worker: &Worker, cell: &LoadCell) -> Seen {
        let counts = |load: grapevine_gossip::load::Load| Load {
            requests: load.requests.into(),
            prefill_tokens: load.prefill_tokens as f64,
            context_tokens: load.context_tokens as f64,
        };
        let past = match self {
            Self::Then(past) => past.of(&worker.id),
            Self::Nothing | Self::Now => None,
        };
        let Common { known, others } = past.unwrap_or_else(|| cell.common());
        let reported = others.reported_requests;
        let others = Load {
            requests: others.requests,
            prefill_tokens: others.prefill_tokens,
            context_tokens: others.context_tokens,
        };
        // Alone a replica goes by all that is its own; otherwise by its requests, which are beside what all know.
        let own = match picture.is_alone() {
            true => cell.own(),
            false => cell.own_requests(),
        };
        picture.see(counts(own), counts(known), others, reported)
    }
}
