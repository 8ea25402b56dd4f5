//! Which replicas are there, and what each reports of itself: facts of a few bytes. `chitchat/` is how they travel.

mod chitchat;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::replica::ReplicaId;

pub(crate) use chitchat::{MESSAGE_BYTES_MAX, Membership, Pace, Word, next_generation};

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
}

/// What a replica reports about itself, by name.
pub(crate) type FactMap = BTreeMap<&'static str, String>;

/// One replica as chitchat sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) id: ReplicaId,
    pub(crate) generation: u64,
    pub(crate) address: SocketAddr,
    pub(crate) live: bool,
    pub(crate) facts: BTreeMap<String, String>,
}

impl Sighting {
    /// The value under this name; empty if there is none.
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }
}
