//! Which fault each alarm is for, and what else fires under it. The table is compared with `rules.yml`.

use std::collections::BTreeSet;

use super::MONITORING;

/// Something that goes wrong in a real cluster.
pub(super) struct Fault {
    pub(super) what: &'static str,
    /// Alarms that it is for: all of them fire.
    pub(super) alarms: &'static [&'static str],
    /// Alarms that may fire as well, as its consequences.
    pub(super) beside: &'static [&'static str],
}

impl Fault {
    const fn new(
        what: &'static str,
        alarms: &'static [&'static str],
        beside: &'static [&'static str],
    ) -> Self {
        Self {
            what,
            alarms,
            beside,
        }
    }
}

// Operators, workers and replicas: `quiet`.
pub(super) const WEB_PAGE: Fault =
    Fault::new("a web page asks the admin port", &["AdminRefused"], &[]);
pub(super) const BROKEN_CONFIGURATION: Fault = Fault::new(
    "a configuration that cannot be read",
    &["ReloadFailed"],
    &[],
);
pub(super) const BROKEN_SOURCE: Fault = Fault::new(
    "a file of workers that cannot be read",
    &["SourceUnseen"],
    &[],
);
/// Requests are answered by the one that is left, or fail while it is found out.
pub(super) const WORKERS_END: Fault = Fault::new(
    "three of four workers end",
    &["WorkerDown", "WorkersBad"],
    &["ErrorsMany"],
);
pub(super) const ALL_WORKERS_END: Fault = Fault::new("all workers end", &["NotReady"], &[]);
pub(super) const REPLICAS_DIE: Fault = Fault::new(
    "two of three replicas are killed",
    &["ReplicaMissing", "Isolated"],
    &[],
);
pub(super) const ALL_DIE: Fault = Fault::new("the last replica is killed", &["NoReplica"], &[]);

// Requests: `requests`.
/// A worker whose streams break off again and again is ejected.
pub(super) const STREAMS_BREAK: Fault = Fault::new(
    "workers break streams off",
    &["ErrorsMany"],
    &["WorkerDown", "WorkersBad"],
);
pub(super) const BUG_OF_REQUEST: Fault = Fault::new("a request hits a bug", &["Defect"], &[]);
/// For a fifth of a second it is not ready, and the others have not heard from it; on a busy machine for longer.
pub(super) const BUG_OF_GOSSIP: Fault = Fault::new(
    "the gossip task hits a bug",
    &["GossipRestarted", "Defect"],
    &["NotReady", "ReplicaMissing", "RingsDiffer", "LinkBroken"],
);
pub(super) const DEADLY_REQUEST: Fault = Fault::new(
    "a request ends its workers",
    &["QueryOfDeath"],
    &["WorkerDown", "WorkersBad"],
);
pub(super) const STUCK_THREAD: Fault = Fault::new(
    "a thread that serves clients stands still",
    &["LaneStalled"],
    &[],
);
pub(super) const FROZEN_ENGINE: Fault = Fault::new(
    "an engine freezes; its health check passes",
    &["WorkerStalled"],
    &["WorkerDown", "WorkersBad"],
);

// Replicas: `members`.
pub(super) const OLD_CERTIFICATES: Fault = Fault::new(
    "certificates and their authority end soon",
    &["CertificateEnds", "AuthorityEnds", "ListenerTlsEnds"],
    &[],
);
pub(super) const OTHER_SETTINGS: Fault = Fault::new(
    "a replica with other settings joins",
    &["SettingsDiffer"],
    &[],
);
/// The earlier of the two takes no traffic.
pub(super) const TWINS: Fault = Fault::new(
    "a copy of a replica is started",
    &["ReplicaIdTwice"],
    &[
        "NotReady",
        "ReplicaMissing",
        "Isolated",
        "LinkBroken",
        "RingsDiffer",
    ],
);

/// Until liveness is settled anew each of the two may be taken for dead by the other.
pub(super) const BROKEN_LINK: Fault = Fault::new(
    "two of three replicas do not hear each other",
    &["LinkBroken"],
    &["ReplicaMissing", "RingsDiffer"],
);
/// Checks of workers that want a new connection may fail for it.
pub(super) const FEW_FILES: Fault = Fault::new(
    "a replica may hardly open a file more",
    &["DescriptorsScarce"],
    &["WorkerDown", "WorkersBad", "NotReady", "ConnectionsShort"],
);

// Sources of workers: `sources`.
pub(super) const ONE_FILE_DIFFERS: Fault = Fault::new(
    "a worker leaves the file of one replica",
    &["SourceContested"],
    &[],
);
pub(super) const ALL_FILES_LOSE: Fault = Fault::new(
    "all workers leave the files of all replicas, and are held",
    &["SourceEmptied"],
    &[],
);
pub(super) const NO_RENEWALS: Fault =
    Fault::new("a worker's registration is killed", &["LeasesExpire"], &[]);

const ALL: [&Fault; 21] = [
    &WEB_PAGE,
    &BROKEN_CONFIGURATION,
    &BROKEN_SOURCE,
    &WORKERS_END,
    &ALL_WORKERS_END,
    &REPLICAS_DIE,
    &ALL_DIE,
    &STREAMS_BREAK,
    &BUG_OF_REQUEST,
    &BUG_OF_GOSSIP,
    &DEADLY_REQUEST,
    &FROZEN_ENGINE,
    &STUCK_THREAD,
    &OLD_CERTIFICATES,
    &OTHER_SETTINGS,
    &TWINS,
    &BROKEN_LINK,
    &FEW_FILES,
    &ONE_FILE_DIFFERS,
    &ALL_FILES_LOSE,
    &NO_RENEWALS,
];

/// What a busy machine does to a quiet cluster. `StarvedProcessor` is never unexpected here, so no test is for it.
pub(super) const OF_BUSY_MACHINES: [&str; 3] =
    ["StarvedProcessor", "Disagreement", "DisagreementCosts"];

/// Alarms that no fault here provokes, with the reason; the unit tests of rules try them with made-up series.
const NOT_PROVOKED: [(&str, &str); 14] = [
    (
        "StreamsCut",
        "the replica ends right after it counted them; a scrape in between is luck",
    ),
    (
        "RegistriesDiffer",
        "live replicas reconcile within a second; a lasting difference needs a bug",
    ),
    (
        "RingsDiffer",
        "rings of equal settings follow the registry; a lasting difference needs a bug",
    ),
    ("StarvedProcessor", "busy machines fire it in any test"),
    ("Disagreement", "busy machines fire it in any test"),
    ("DisagreementCosts", "busy machines fire it in any test"),
    (
        "LaterRelease",
        "no fault is written yet: needs a peer of a later release",
    ),
    (
        "PeersRefused",
        "no fault is written yet: needs a hostile peer",
    ),
    (
        "ClockDrift",
        "no fault is written yet: needs a peer with a wrong clock",
    ),
    (
        "Overload",
        "no fault is written yet: needs a queue that is full",
    ),
    (
        "ConnectionsShort",
        "no fault is written yet: needs more busy connections than there is room for",
    ),
    (
        "ModelsLeftAlone",
        "no fault is written yet: needs workers that refuse with `Retry-After`",
    ),
    (
        "TransfersFail",
        "no fault is written yet: needs prefill and decode workers",
    ),
    (
        "LogsDropped",
        "no fault is written yet: needs a log that nobody reads",
    ),
];

#[test]
fn each_alarm_has_its_fault_or_a_reason() {
    let rules = std::fs::read_to_string(format!("{MONITORING}/rules.yml")).expect("the rules");
    let alarms = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alarms: BTreeSet<&str> = alarms.collect();
    let provoked: BTreeSet<&str> = ALL.iter().flat_map(|fault| fault.alarms).copied().collect();
    let others: BTreeSet<&str> = NOT_PROVOKED.iter().map(|(alarm, _)| *alarm).collect();
    let both: Vec<_> = provoked.intersection(&others).collect();
    assert!(both.is_empty(), "provoked, and said not to be: {both:?}");
    let listed: BTreeSet<&str> = provoked.union(&others).copied().collect();
    assert_eq!(listed, alarms);
    for fault in ALL {
        let known = fault.beside.iter().all(|name| alarms.contains(name));
        assert!(known, "{}: {:?}", fault.what, fault.beside);
    }
}
