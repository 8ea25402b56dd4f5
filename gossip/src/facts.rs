//! What each replica reports of itself: facts of a few bytes, by name, and one replica as its facts and its liveness show it.
//! `membership/` is how they travel.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::replica::ReplicaId;

/// Names of the membership facts. ASCII: chitchat panics on a key that begins with a longer character.
pub(crate) mod fact {
    pub(crate) const HTTP: &str = "http";
    pub(crate) const ADMIN: &str = "admin";
    pub(crate) const VERSION: &str = "version";
    pub(crate) const SETTINGS: &str = "settings";
    pub(crate) const READY: &str = "ready";
    pub(crate) const LEAVING: &str = "leaving";
    pub(crate) const REGISTRY: &str = "registry";
    pub(crate) const RING: &str = "ring";
    /// Ids under which the sender saw two processes; see [`crate::twin`].
    pub(crate) const TWINS: &str = "twins";
    /// All of them. A fact without a value is as one that is not there.
    pub(crate) const ALL: [&str; 9] = [
        HTTP, ADMIN, VERSION, SETTINGS, READY, LEAVING, REGISTRY, RING, TWINS,
    ];
}

/// What a replica reports about itself, by name.
pub(crate) type FactMap = BTreeMap<&'static str, String>;

/// One replica as chitchat sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenReplica {
    pub(crate) id: ReplicaId,
    pub(crate) generation: u64,
    pub(crate) address: SocketAddr,
    pub(crate) live: bool,
    pub(crate) facts: BTreeMap<String, String>,
}

impl SeenReplica {
    /// The value under this name; empty if there is none.
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }
}
