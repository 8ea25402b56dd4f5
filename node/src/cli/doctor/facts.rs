//! What the checks look at. Plain data: `gather` collects it, tests write it.

use std::net::SocketAddr;

use serde_json::Value;

/// Everything that was looked at.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) config: Option<ConfigFacts>,
    pub(super) cluster: Option<ClusterFacts>,
}

/// A running cluster, as its replicas answer.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterFacts {
    /// `GET /cluster` of the replica that was asked first.
    pub(super) cluster: Value,
    /// All rows of its `GET /workers`.
    pub(super) workers: Vec<Value>,
    /// All rows of its `GET /discovery`.
    pub(super) sources: Vec<Value>,
    /// Replicas whose admin port answered, the one that was asked first before the others.
    pub(super) replicas: Vec<ReplicaFacts>,
    /// Live replicas whose admin port did not answer, and why.
    pub(super) not_asked: Vec<(String, String)>,
    /// Data ports that were tried from here.
    pub(super) data_ports: Vec<DataPort>,
    /// Where the workers' engines are.
    pub(super) engines: Vec<EngineFact>,
}

/// Metrics that the checks read, of all that a replica has.
pub(super) mod series {
    pub(in super::super) const TLS_BEGINS: &str = "grapevine_tls_certificate_begins_seconds";
    pub(in super::super) const TLS_EXPIRES: &str = "grapevine_tls_certificate_expires_seconds";
    pub(in super::super) const TLS_REFUSED: &str = "grapevine_tls_files_refused";
    pub(in super::super) const KEYS_REFUSED: &str = "grapevine_keys_file_refused";
    pub(in super::super) const LINES_DROPPED: &str = "grapevine_log_lines_dropped_total";
    pub(in super::super) const LIMITS_REACHED: &str = "grapevine_limits_reached_total";
    pub(in super::super) const ADMISSIONS: &str = "grapevine_admissions_total";
    /// All of these.
    pub(in super::super) const ALL: [&str; 7] = [
        TLS_BEGINS,
        TLS_EXPIRES,
        TLS_REFUSED,
        KEYS_REFUSED,
        LINES_DROPPED,
        LIMITS_REACHED,
        ADMISSIONS,
    ];
}

/// What one replica answers about itself.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplicaFacts {
    pub(super) id: String,
    /// `GET /cluster` of it.
    pub(super) cluster: Value,
    /// `GET /about`; null of an earlier release.
    pub(super) about: Value,
    /// Milliseconds by which its clock is ahead of this machine's.
    pub(super) ahead_ms: Option<i64>,
    /// Half of the round trip in which that was measured, in milliseconds.
    pub(super) unsure_ms: i64,
    /// Of its `GET /workers`, the rows of those in which it has found trouble by itself.
    pub(super) troubled: Vec<Value>,
    /// Values of single metrics that the checks read: name with labels, value.
    pub(super) metrics: Vec<(String, f64)>,
}

/// A data port, tried from here.
#[derive(Debug, Clone)]
pub(super) struct DataPort {
    pub(super) replica: String,
    pub(super) address: String,
    /// Why no connection came about; none: it did.
    pub(super) failed: Option<String>,
}

/// A configuration, and what this machine has for it.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfigFacts {
    /// The file.
    pub(super) path: String,
    /// The replica's name in it, `r1` where it has none.
    pub(super) replica: String,
    /// It says that name itself.
    pub(super) is_named: bool,
    /// Mistakes, each with its place.
    pub(super) mistakes: Vec<String>,
    /// What is no mistake and should be known.
    pub(super) notes: Vec<String>,
    pub(super) certificates: Vec<CertificateFact>,
    pub(super) ports: Vec<PortFact>,
    pub(super) seeds: Vec<SeedFact>,
    /// Gossip is set up: it has certificates.
    pub(super) gossips: bool,
    /// Settings of gossip may be there that could not be read.
    pub(super) gossip_unread: bool,
    pub(super) workers: Vec<WorkerFact>,
    /// Where their engines are.
    pub(super) engines: Vec<EngineFact>,
    /// Connections that the file allows, and how many fit into this shell's limit of open files.
    pub(super) connections: (u32, u32),
    /// The limit of open files here; none: not limited.
    pub(super) files_max: Option<u64>,
    /// Bytes of bodies that may be held at once, and the limit of memory here.
    pub(super) memory: (u64, Option<u64>),
    /// Threads that the file asks for, and processors here.
    pub(super) threads: (Option<u32>, usize),
    /// Bytes of the receive buffer of a new UDP socket here.
    pub(super) udp_buffer_bytes: Option<usize>,
    /// The admin port is open beyond loopback.
    pub(super) admin_beyond_loopback: bool,
    /// The data port is open beyond loopback without keys.
    pub(super) data_without_keys: bool,
    /// The settings that must agree, as `GET /about` has them.
    pub(super) settings: Value,
}

/// A certificate that the file names.
#[derive(Debug, Clone)]
pub(super) struct CertificateFact {
    /// The setting, such as `gossip.cert`.
    pub(super) setting: &'static str,
    pub(super) file: String,
    /// Whole days left, below 0 after its end.
    pub(super) days: i64,
    /// What makes a new one.
    pub(super) renewal: String,
}

/// A port that the file names.
#[derive(Debug, Clone)]
pub(super) struct PortFact {
    /// The setting, such as `listen.port`.
    pub(super) setting: &'static str,
    pub(super) address: String,
    pub(super) state: PortState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PortState {
    /// It could be bound.
    Free,
    /// The system's error when it was bound.
    Refused(String),
    /// Taken, by the replica of this configuration, which runs.
    Own,
    /// Taken, by somebody else.
    Taken,
}

/// A seed that the file names.
#[derive(Debug, Clone)]
pub(super) struct SeedFact {
    pub(super) seed: String,
    /// Its addresses, or why it has none.
    pub(super) addresses: Result<Vec<String>, String>,
    /// It is this replica's own address.
    pub(super) is_own: bool,
    /// Bytes of a packet that the route there carries, as this machine knows, and whether it is IPv6.
    pub(super) route_mtu: Option<(u32, bool)>,
}

/// A worker that the file names.
#[derive(Debug, Clone)]
pub(super) struct WorkerFact {
    pub(super) url: String,
    /// Why no connection came about; none: it did.
    pub(super) failed: Option<String>,
}

/// Where the engine of a worker is.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineFact {
    /// The worker's id, or its address in the file.
    pub(super) worker: String,
    /// What its name means here; empty where it means nothing.
    pub(super) addresses: Vec<SocketAddr>,
    /// In front of every request's path.
    pub(super) path: String,
    pub(super) rank: Option<u32>,
    /// When its process started, in seconds since 1970; 0: not known.
    pub(super) epoch: u64,
}
