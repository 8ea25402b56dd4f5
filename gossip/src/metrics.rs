//! Everything that gossip counts. Names and help live here only; parts receive clones of the handles.

use std::time::SystemTime;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::identity::unix_s;
use crate::peers::Reason;
use crate::wire::KINDS;

/// Declares [`Metrics`], a row for each: `field: Kind, "name", "help"`, and the series that are there from the start, since
/// `increase()` does not see one that begins with 1.
macro_rules! metrics {
    ($($field:ident: $T:ty, $name:literal, $help:literal $(, $Label:ident { $label:ident } in $all:expr)?;)*) => {
        /// Handles of all gossip metrics; clones count into the same numbers.
        #[derive(Debug, Clone, Default)]
        pub struct Metrics {
            $(#[doc = concat!($help, ".")] pub(crate) $field: $T,)*
        }

        impl Metrics {
            fn show(&self, registry: &mut Registry) {
                $(registry.register($name, $help, self.$field.clone());)*
                $($(for $label in $all {
                    drop(self.$field.get_or_create(&$Label { $label }));
                })?)*
            }
        }
    };
}

metrics! {
    frames: Family<Traffic, Counter>, "frames", "Messages between replicas, by direction and plane";
    bytes: Family<Traffic, Counter>, "bytes", "Payload bytes between replicas, by direction and plane";
    drops: Family<Why, Counter>, "dropped", "Messages dropped, by reason", Why { reason } in DROP_REASONS;
    refusals: Family<Why, Counter>, "refused", "Messages that the gossip firewall refused, by reason", Why { reason } in Reason::ALL.map(Reason::label);
    trimmed: Counter, "trimmed", "Entries about replicas not met, left out of gossip messages";
    handshakes: Family<Why, Counter>, "handshakes", "Ended handshakes with other replicas, by outcome", Why { reason } in HANDSHAKES;
    peers_live: Gauge, "peers_live", "Other replicas that this one sees as alive";
    peers_linked: Gauge, "peers_linked", "Other replicas with an open connection from here";
    isolated: Gauge, "isolated", "1 while no other replica is alive to this one";
    twins: Gauge, "twins", "Replica ids under which two processes run, as this replica or a live peer sees it";
    registry_entries: Gauge, "registry_entries", "Entries of the worker registry, removals included";
    registry_tombstones: Gauge, "registry_tombstones", "Remembered removals in the worker registry";
    registry_digest: Gauge, "registry_digest", "crc32 of the worker registry; equal on replicas that agree";
    registry_differing: Gauge, "registry_differing", "Live replicas that report another registry than this one's";
    registry_unread: Gauge, "registry_unread", "Entries that only a later release can read, carried for it";
    views: Counter, "views", "Views made of the registry and the replicas; what changes together is in one";
    syncs: Family<Why, Counter>, "syncs", "Registry exchanges with a peer, by outcome", Why { reason } in ["snapshot", "done", "failed"];
    load_frames: Family<Why, Counter>, "load_frames", "Received load frames, by outcome", Why { reason } in LOAD_FRAMES;
    load_cut: Gauge, "load_cut", "Other replicas that report more load than is believed";
    evidence_records: Family<Fate, Counter>, "evidence_records", "Records of evidence, by result", Fate { fate } in RECORD_FATES;
    evidence_batches: Family<Fate, Counter>, "evidence_batches", "Batches of evidence, by result", Fate { fate } in BATCH_FATES;
    evidence_throttled: Counter, "evidence_throttled", "Times that evidence waited because a peer's bytes a second were spent";
    peer_state_parts: Family<Fate, Counter>, "peer_state_parts", "Parts of peer states received, by result", Fate { fate } in PART_FATES;
    peer_state_cut: Family<Part, Counter>, "peer_state_cut", "Entries of this replica's peer state that were left out because they do not fit, by part";
    peer_states: Gauge, "peer_states", "Other replicas whose peer state counts now";
    dry_runs: Family<DryRuns, Counter>, "dry_runs", "Requests for another replica's decision, by side and outcome";
    rounds: Counter, "turns", "Turns of the gossip task; stands still when the task does";
    restarts: Counter, "restarts", "Starts of the gossip task under a new generation";
    clock_drift: Gauge, "clock_drift_seconds", "Lead over this clock of the last peer's clock within an hour that was more than a minute ahead";
    certificate_expiry: Gauge, "certificate_expiry_seconds", "Unix time at which this replica's certificate expires";
    authority_expiry: Gauge, "authority_expiry_seconds", "Unix time at which the authority of this replica's certificate expires";
    replaced: Family<Why, Counter>, "connections_replaced", "Connections ended because certificates, authorities or revocations changed, by reason", Why { reason } in ["renewed", "revoked", "foreign"];
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

/// A part of a peer state, from a fixed set.
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
        metrics.begin();
        metrics.show(registry.sub_registry_with_prefix("gossip"));
        metrics
    }

    /// Counters of two labels from the start.
    fn begin(&self) {
        for plane in KINDS.iter().map(|kind| kind.plane) {
            for direction in ["in", "out"] {
                let traffic = Traffic { direction, plane };
                drop(self.frames.get_or_create(&traffic));
                drop(self.bytes.get_or_create(&traffic));
            }
        }
        for (side, outcomes) in [("asked", &ASKED[..]), ("answered", &ANSWERED[..])] {
            for outcome in outcomes {
                drop(self.dry_runs.get_or_create(&DryRuns { side, outcome }));
            }
        }
    }

    pub(crate) fn received(&self, plane: &'static str, bytes: usize) {
        self.count("in", plane, bytes);
    }

    pub(crate) fn sent(&self, plane: &'static str, bytes: usize) {
        self.count("out", plane, bytes);
    }

    /// Counts a dropped message under one of [`DROP_REASONS`].
    pub(crate) fn dropped(&self, reason: &'static str) {
        debug_assert!(DROP_REASONS.contains(&reason), "{reason} is not listed");
        self.drops.get_or_create(&Why { reason }).inc();
    }

    pub(crate) fn evidence(&self, fate: &'static str, records: usize) {
        debug_assert!(RECORD_FATES.contains(&fate), "{fate} is not listed");
        self.evidence_records
            .get_or_create(&Fate { fate })
            .inc_by(records as u64);
    }

    pub(crate) fn evidence_batches(&self, fate: &'static str, batches: u64) {
        debug_assert!(BATCH_FATES.contains(&fate), "{fate} is not listed");
        self.evidence_batches
            .get_or_create(&Fate { fate })
            .inc_by(batches);
    }

    pub(crate) fn peer_state_cut(&self, part: &'static str, entries: usize) {
        self.peer_state_cut
            .get_or_create(&Part { part })
            .inc_by(entries as u64);
    }

    pub(crate) fn expires(&self, at: SystemTime) {
        self.certificate_expiry.set(unix_s(at) as i64);
    }

    pub(crate) fn authority_expires(&self, at: SystemTime) {
        self.authority_expiry.set(unix_s(at) as i64);
    }

    fn count(&self, direction: &'static str, plane: &'static str, bytes: usize) {
        let traffic = Traffic { direction, plane };
        self.frames.get_or_create(&traffic).inc();
        self.bytes.get_or_create(&traffic).inc_by(bytes as u64);
    }
}

/// How handshakes end: those of this replica first, then those of others with it.
pub(crate) const HANDSHAKES: [&str; 24] = [
    "dialled",
    "self",
    "silent",
    "not_grapevine",
    "foreign_certificate",
    "revoked_certificate",
    "expired_certificate",
    "own_certificate_refused",
    "other_cluster",
    "wrong_name",
    "duplicate_id",
    "outrun",
    "outruns",
    "not_admitted",
    "closed",
    "local",
    "accepted",
    "twin",
    "too_many",
    "retried",
    "crowded",
    "refused",
    "slow",
    "no_hello",
];
/// What becomes of a load frame.
const LOAD_FRAMES: [&str; 5] = [
    "fresh",
    "stale",
    "other_roster",
    "malformed",
    "too_many_senders",
];
/// What becomes of a record of evidence.
const RECORD_FATES: [&str; 10] = [
    "recorded",
    "queue_full",
    "malformed",
    "snapshot",
    "snapshot_cut",
    "listener_full",
    "received",
    "stale",
    "sent",
    "pulled",
];
/// What becomes of a batch of evidence.
const BATCH_FATES: [&str; 7] = [
    "received",
    "duplicate",
    "lost",
    "sent",
    "skipped",
    "overtaken",
    "pulled",
];
/// What becomes of a part of a peer state.
const PART_FATES: [&str; 5] = ["fresh", "stale", "gone", "flood", "too_many_senders"];
/// What comes of a dry run that was asked for.
const ASKED: [&str; 8] = [
    "answered",
    "malformed",
    "too_many",
    "not_linked",
    "too_old",
    "timed_out",
    "refused",
    "broken",
];
/// What comes of a dry run that a peer asks for.
const ANSWERED: [&str; 4] = ["decided", "too_many", "not_served", "declined"];
/// Why a message was dropped; `docs/metrics.md` explains each reason.
const DROP_REASONS: [&str; 21] = [
    "not_queued",
    "gossip_not_queued",
    "evidence_not_queued",
    "bulletin_not_queued",
    "load_not_sent",
    "link_lost",
    "stream_broken",
    "too_long",
    "gossip_inbox_full",
    "greetings_full",
    "unreadable",
    "unknown_kind",
    "other_version",
    "later_fields",
    "entry",
    "former_generation",
    "after_leave",
    "answer_withheld",
    "answer_too_long",
    "answer_flood",
    "evidence_flood",
];

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTED: &str = include_str!("../../docs/metrics.md");

    #[test]
    fn every_reason_for_a_drop_is_documented_and_no_other() {
        let (_, section) = DOCUMENTED
            .split_once("### Reasons of gossip_dropped_total")
            .expect("has its section");
        let mut listed: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(reason, _)| reason)
            .collect();
        let mut known = DROP_REASONS;
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }

    #[test]
    fn every_metric_is_documented() {
        let mut registry = Registry::default();
        Metrics::register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let helps = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut count = 0;
        for (name, kind) in helps.filter_map(|line| line.split_once(' ')) {
            let total = if kind == "counter" { "_total" } else { "" };
            let row = format!("| `{name}{total}` | {kind} |");
            assert!(DOCUMENTED.contains(&row), "{row} is missing");
            count += 1;
        }
        assert!(count > 10, "{count}");
    }

    #[test]
    fn what_is_counted_is_exported() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.received("load", 100);
        metrics.dropped("link_lost");
        metrics.peers_live.set(2);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        for line in [
            "gossip_frames_total{direction=\"in\",plane=\"load\"} 1",
            "gossip_bytes_total{direction=\"in\",plane=\"load\"} 100",
            "gossip_dropped_total{reason=\"link_lost\"} 1",
            "gossip_peers_live 2",
        ] {
            assert!(text.contains(line), "{line} not in {text}");
        }
    }
}
