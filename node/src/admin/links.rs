//! Which replica hears which, as every one of them tells: `GET /links`, and what of it is wrong.

use grapevine_gossip::view::{ReplicaInfo, View};
use serde::Serialize;

use super::Admin;
use crate::cluster::Hearing;

/// `GET /links`. No larger than the greatest cluster: 256 rows of 256.
#[derive(Debug, Serialize)]
pub(super) struct LinksView {
    replica: String,
    /// Live replicas, by id.
    links: Vec<LinkRow>,
}

#[derive(Debug, Serialize)]
struct LinkRow {
    replica: String,
    /// Every other live replica, by id; null where this one does not tell whom it hears: it is not heard here, or its
    /// release is too old.
    hears: Option<Vec<LinkView>>,
}

#[derive(Debug, Serialize)]
struct LinkView {
    replica: String,
    /// Milliseconds since its latest report of load, when that was told; null where it is not heard.
    ago_ms: Option<u64>,
}

/// A replica that does not hear another one, though both live.
#[derive(Debug, Serialize)]
pub(super) struct Unheard {
    /// Who does not hear.
    replica: String,
    /// Whom.
    other: String,
}

impl Admin {
    pub(super) fn describe_links(&self) -> LinksView {
        let view = self.agent.view();
        let hearing = self.hearing(&view);
        let live = || view.replicas().iter().filter(|replica| replica.live);
        let row = |of: &ReplicaInfo| {
            let others = live().filter(|other| other.id != of.id);
            let hears = others.map(|other| {
                let ago = hearing.hears(&of.id, &other.id)?;
                Some(LinkView {
                    replica: other.id.to_string(),
                    ago_ms: ago.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
                })
            });
            LinkRow {
                replica: of.id.to_string(),
                hears: hears.collect(),
            }
        };
        LinksView {
            replica: self.replica.clone(),
            links: live().map(row).collect(),
        }
    }

    /// Live replicas that this one does not hear.
    pub(super) fn count_unheard(&self) -> i64 {
        let view = self.agent.view();
        self.hearing(&view).unheard_here().count() as i64
    }

    pub(super) fn describe_unheard(&self, view: &View) -> Vec<Unheard> {
        let hearing = self.hearing(view);
        let pairs = hearing.unheard().map(|(of, other)| Unheard {
            replica: of.to_string(),
            other: other.to_string(),
        });
        pairs.collect()
    }

    fn hearing<'a>(&self, view: &'a View) -> Hearing<'a> {
        Hearing::now(&self.agent, self.cluster.liveness(), view)
    }
}
