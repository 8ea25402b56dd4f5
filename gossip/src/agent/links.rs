//! What this replica has with each other one: a connection, its certificate, and how long ago it was heard.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::Agent;
use crate::plane::Context;
use crate::planes::LoadMessages;
use crate::replica::ReplicaId;
use crate::transport::{PathReport, SilentSeed};

/// What this replica has with another one. Nothing of it where there is neither a connection nor a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLink {
    /// A round trip on the connection from here; none while there is no connection.
    pub round_trip: Option<Duration>,
    /// End of the certificate that it showed.
    pub certificate_ends: Option<SystemTime>,
    /// Since its latest report of load, which every replica sends several times a second. None of one that was silent
    /// for long.
    pub heard: Option<Duration>,
    /// What the path carries; none while there is no connection.
    pub path: Option<PathReport>,
}

impl Agent {
    /// What there is with each other replica, by its id.
    pub fn links(&self) -> BTreeMap<ReplicaId, PeerLink> {
        let mut links: BTreeMap<ReplicaId, PeerLink> = BTreeMap::new();
        let Some(net) = self.0.driver.net() else {
            return links;
        };
        for seen in net.transport.seen_links() {
            let link = links.entry(seen.peer).or_default();
            link.round_trip = Some(seen.path.round_trip);
            link.certificate_ends = seen.certificate_ends;
            link.path = Some(seen.path);
        }
        for (id, ago) in self.heard() {
            links.entry(id).or_default().heard = Some(ago);
        }
        links
    }

    /// How long ago each other replica's latest report of load came; one that was silent for long is not among them.
    pub fn heard(&self) -> Vec<(ReplicaId, Duration)> {
        let heard = |messages: &mut LoadMessages, cx: &mut Context| {
            let heard = messages.plane.heard(cx.now);
            heard.map(|(id, ago)| (id.clone(), ago)).collect()
        };
        self.with(&self.0.load, heard)
    }

    /// Seeds at none of whose addresses a replica lets this one in.
    pub fn silent_seeds(&self) -> Vec<SilentSeed> {
        let net = self.0.driver.net();
        net.map_or_else(Vec::new, |net| net.transport.silent_seeds())
    }

    /// Whether no peer is connected, and a seed answers with whom no certificates fit: there is a cluster, and this replica is
    /// not of it.
    pub fn is_shut_out(&self) -> bool {
        let net = self.0.driver.net();
        net.is_some_and(|net| net.transport.is_shut_out())
    }

    /// Whether there are others, and none of them lives for this replica: it knows of dead ones, its seeds let it in
    /// nowhere, or another process is kept under its id. What is written here reaches nobody then.
    pub fn is_cut_off(&self) -> bool {
        let view = self.view();
        let own = &self.0.replica;
        let others: Vec<_> = view
            .replicas()
            .iter()
            .filter(|one| one.id != *own)
            .collect();
        let is_missed = || !others.is_empty() || !self.silent_seeds().is_empty();
        let lives = others.iter().any(|other| other.live);
        self.kept_instead().is_some() || (!lives && is_missed())
    }

    /// End of this replica's certificate; none in a cluster of one.
    pub fn certificate_ends(&self) -> Option<SystemTime> {
        let net = self.0.driver.net()?;
        Some(net.transport.certificate_ends())
    }
}
