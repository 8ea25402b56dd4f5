//! Everything that gossip counts. Names and help live here only; parts receive clones of the handles.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Handles of all gossip metrics; clones count into the same numbers.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(crate) frames: Family<Traffic, Counter>,
    pub(crate) bytes: Family<Traffic, Counter>,
    pub(crate) drops: Family<Why, Counter>,
    pub(crate) refusals: Family<Why, Counter>,
    pub(crate) trimmed: Counter,
    pub(crate) handshakes: Family<Why, Counter>,
    pub(crate) peers_live: Gauge,
    pub(crate) peers_linked: Gauge,
    pub(crate) isolated: Gauge,
    pub(crate) twins: Gauge,
    pub(crate) registry_entries: Gauge,
    pub(crate) registry_tombstones: Gauge,
    pub(crate) registry_digest: Gauge,
    pub(crate) registry_differing: Gauge,
    pub(crate) registry_unread: Gauge,
    pub(crate) views: Counter,
    pub(crate) syncs: Family<Why, Counter>,
    pub(crate) load_frames: Family<Why, Counter>,
    pub(crate) load_cut: Gauge,
    pub(crate) evidence_records: Family<Fate, Counter>,
    pub(crate) evidence_batches: Family<Fate, Counter>,
    pub(crate) evidence_throttled: Counter,
    pub(crate) bulletin_parts: Family<Fate, Counter>,
    pub(crate) bulletin_cut: Family<Part, Counter>,
    pub(crate) bulletins: Gauge,
    pub(crate) dry_runs: Family<DryRuns, Counter>,
    pub(crate) rounds: Counter,
    pub(crate) restarts: Counter,
    pub(crate) clock_drift: Gauge,
    pub(crate) certificate_expiry: Gauge,
    pub(crate) authority_expiry: Gauge,
    pub(crate) replaced: Family<Why, Counter>,
}

/// Labels of traffic: both from fixed sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Traffic {
    pub(crate) direction: &'static str,
    pub(crate) plane: &'static str,
}

/// A label from a fixed set of reasons or outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Why {
    pub(crate) reason: &'static str,
}

/// What became of evidence, from a fixed set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Fate {
    pub(crate) fate: &'static str,
}

/// A part of a bulletin, from a fixed set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Part {
    pub(crate) part: &'static str,
}

/// What became of dry runs: asked by this replica, or answered by it. Both labels from fixed sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DryRuns {
    pub(crate) side: &'static str,
    pub(crate) outcome: &'static str,
}

impl Metrics {
    /// Registers every handle under `gossip_...` in `registry` and returns them for an agent.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for reason in ["renewed", "revoked", "foreign"] {
            drop(metrics.replaced.get_or_create(&Why { reason }));
        }
        let all = metrics.clone();
        let registry = registry.sub_registry_with_prefix("gossip");
        registry.register(
            "frames",
            "Messages between replicas, by direction and plane",
            all.frames,
        );
        registry.register(
            "bytes",
            "Payload bytes between replicas, by direction and plane",
            all.bytes,
        );
        registry.register("dropped", "Messages given up, by reason", all.drops);
        registry.register(
            "refused",
            "Messages that the gossip firewall refused, by reason",
            all.refusals,
        );
        registry.register(
            "trimmed",
            "Entries about replicas not met, left out of gossip messages",
            all.trimmed,
        );
        registry.register(
            "handshakes",
            "Ended handshakes with other replicas, by outcome",
            all.handshakes,
        );
        registry.register(
            "peers_live",
            "Other replicas that this one holds for alive",
            all.peers_live,
        );
        registry.register(
            "peers_linked",
            "Other replicas with an open connection from here",
            all.peers_linked,
        );
        registry.register(
            "isolated",
            "1 while no other replica is alive to this one",
            all.isolated,
        );
        registry.register(
            "twins",
            "Replica ids under which two processes run, as this replica or a live peer sees it",
            all.twins,
        );
        registry.register(
            "registry_entries",
            "Entries of the worker registry, removals included",
            all.registry_entries,
        );
        registry.register(
            "registry_tombstones",
            "Remembered removals in the worker registry",
            all.registry_tombstones,
        );
        registry.register(
            "registry_digest",
            "crc32 of the worker registry; equal on replicas that agree",
            all.registry_digest,
        );
        registry.register(
            "registry_differing",
            "Live replicas that say that their registry is another than this one's",
            all.registry_differing,
        );
        registry.register(
            "registry_unread",
            "Entries that only a later release can read, carried for it",
            all.registry_unread,
        );
        registry.register(
            "views",
            "Views made of the registry and the replicas; what changes together is in one",
            all.views,
        );
        registry.register(
            "syncs",
            "Registry exchanges with a peer, by outcome",
            all.syncs,
        );
        registry.register(
            "load_frames",
            "Received load frames, by outcome",
            all.load_frames,
        );
        registry.register(
            "load_cut",
            "Other replicas that say more load than they are believed",
            all.load_cut,
        );
        registry.register(
            "evidence_records",
            "Records of evidence, by what became of them",
            all.evidence_records,
        );
        registry.register(
            "evidence_batches",
            "Batches of evidence, by what became of them",
            all.evidence_batches,
        );
        registry.register(
            "evidence_throttled",
            "Times that evidence waited because a peer's bytes a second were spent",
            all.evidence_throttled,
        );
        registry.register(
            "bulletin_parts",
            "Parts of bulletins received, by what became of them",
            all.bulletin_parts,
        );
        registry.register(
            "bulletin_cut",
            "Entries of this replica's bulletins that were left out because they do not fit, by part",
            all.bulletin_cut,
        );
        registry.register(
            "bulletins",
            "Other replicas whose bulletin counts now",
            all.bulletins,
        );
        registry.register(
            "dry_runs",
            "Questions what another replica would decide, by side and outcome",
            all.dry_runs,
        );
        registry.register(
            "turns",
            "Turns of the gossip task; stands still when the task does",
            all.rounds,
        );
        registry.register(
            "restarts",
            "Starts of the gossip task under a new generation",
            all.restarts,
        );
        registry.register(
            "clock_drift_seconds",
            "Greatest lead of a registry stamp over this clock above one minute",
            all.clock_drift,
        );
        registry.register(
            "certificate_expiry_seconds",
            "Unix time at which this replica's certificate expires",
            all.certificate_expiry,
        );
        registry.register(
            "authority_expiry_seconds",
            "Unix time at which the authority of this replica's certificate expires",
            all.authority_expiry,
        );
        registry.register(
            "connections_replaced",
            "Connections ended because certificates, authorities or revocations changed, by reason",
            all.replaced,
        );
        metrics
    }

    pub(crate) fn received(&self, plane: &'static str, bytes: usize) {
        self.count("in", plane, bytes);
    }

    pub(crate) fn sent(&self, plane: &'static str, bytes: usize) {
        self.count("out", plane, bytes);
    }

    pub(crate) fn dropped(&self, reason: &'static str) {
        self.drops.get_or_create(&Why { reason }).inc();
    }

    pub(crate) fn evidence(&self, fate: &'static str, records: usize) {
        self.evidence_records
            .get_or_create(&Fate { fate })
            .inc_by(records as u64);
    }

    pub(crate) fn evidence_batches(&self, fate: &'static str, batches: u64) {
        self.evidence_batches
            .get_or_create(&Fate { fate })
            .inc_by(batches);
    }

    pub(crate) fn bulletin_cut(&self, part: &'static str, entries: usize) {
        self.bulletin_cut
            .get_or_create(&Part { part })
            .inc_by(entries as u64);
    }

    pub(crate) fn expires(&self, at: SystemTime) {
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.certificate_expiry.set(seconds as i64);
    }

    pub(crate) fn authority_expires(&self, at: SystemTime) {
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.authority_expiry.set(seconds as i64);
    }

    fn count(&self, direction: &'static str, plane: &'static str, bytes: usize) {
        let traffic = Traffic { direction, plane };
        self.frames.get_or_create(&traffic).inc();
        self.bytes.get_or_create(&traffic).inc_by(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_exported() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.received("load", 100);
        metrics.dropped("queue_full");
        metrics.peers_live.set(2);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        for line in [
            "gossip_frames_total{direction=\"in\",plane=\"load\"} 1",
            "gossip_bytes_total{direction=\"in\",plane=\"load\"} 100",
            "gossip_dropped_total{reason=\"queue_full\"} 1",
            "gossip_peers_live 2",
        ] {
            assert!(text.contains(line), "{line} not in {text}");
        }
    }
}
