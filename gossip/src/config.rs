//! What a replica needs to gossip, and the timings that all replicas share.
//!
//! The timings are constants on purpose: they were measured together (`docs/gossip-protocol.md`, "Timings"), and a
//! cluster whose replicas disagree about them declares healthy members dead.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::StartError;

/// Where this replica listens, which replicas it asks first, and what it reports to the others about itself.
#[derive(Debug, Clone)]
pub struct GossipConfig {
    /// UDP address to bind; port 0 takes a free one. Default of the command line: `127.0.0.1:30002`.
    pub bind: SocketAddr,
    /// `HOST:PORT` under which other replicas reach this one; a name is resolved once, at start.
    ///
    /// `None`: the bound address. Needed when `bind` is a wildcard such as `0.0.0.0`. Port 0 stands
    /// for the bound port.
    pub advertise: Option<String>,
    /// `HOST:PORT` of replicas to ask first, in any order; names are resolved again every few seconds.
    ///
    /// Dead ones and this replica's own address are harmless. Empty: wait for others to dial.
    pub seeds: Vec<String>,
    /// How long changed load counts are gathered before they are sent.
    ///
    /// 20 to 50 ms; default 20 ms. Higher: fewer datagrams, older counts, and with older counts the
    /// replicas agree less often on the worker for a prefix under load.
    pub load_batch: Duration,
    /// Limits of the evidence plane.
    pub evidence: EvidenceConfig,
    /// What is reported to the others about this replica.
    pub facts: Facts,
}

/// What the evidence plane may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvidenceConfig {
    /// How long evidence is gathered before it is sent.
    ///
    /// 10 to 500 ms; default 20 ms. Higher: fewer frames; other replicas learn later where a prefix
    /// went, and send its next turn elsewhere.
    pub batch: Duration,
    /// Bytes a second of evidence to one peer, repairs included, with bursts of one second.
    ///
    /// 64 KiB to 16 MiB; default 256 KiB, some 1,500 records of 16 links. Equal on all replicas: what
    /// one sends beyond four times its peers' value is dropped there. Lower: what is sent faster waits,
    /// and at last leaves the log unsent.
    pub peer_bytes_per_s: u32,
    /// Bytes of batches that are kept for peers that are slow or missed some.
    ///
    /// 64 KiB to 64 MiB; default 1 MiB, and 2,048 batches at most. Higher: longer interruptions are
    /// repaired without a loss, for as much memory once, not for each peer.
    pub log_bytes: usize,
    /// Silence after which a replica is `Gone` and its heat counts no more.
    ///
    /// 2 to 30 s; default 5 s, as long as a connection without a packet lives. Lower: a lost second of
    /// marks drops heat for nothing. Higher: the heat of a dead replica counts for longer.
    pub silent_after: Duration,
}

impl Default for EvidenceConfig {
    fn default() -> Self {
        Self {
            batch: Duration::from_millis(20),
            peer_bytes_per_s: 256 << 10,
            log_bytes: 1 << 20,
            silent_after: Duration::from_secs(5),
        }
    }
}

impl EvidenceConfig {
    /// Bytes a second from one peer, its questions included: four times what one with these settings sends.
    pub(crate) fn allowed_per_s(&self) -> u32 {
        4 * self.peer_bytes_per_s
    }

    /// What may come late and all at once.
    pub(crate) fn allowed_burst(&self) -> u32 {
        8 * self.allowed_per_s()
    }

    /// What a pull costs the asking replica of its allowance: an honest one pulls four times a second.
    pub(crate) fn pull_cost(&self) -> usize {
        self.peer_bytes_per_s as usize / 4
    }

    /// What a snapshot costs it, or to be told how long one would be: it takes one.
    pub(crate) fn snapshot_cost(&self) -> usize {
        4 * self.peer_bytes_per_s as usize
    }

    fn check(&self) -> Result<(), StartError> {
        let wrong = |field, problem: String| Err(StartError::Config { field, problem });
        if !EVIDENCE_BATCH.contains(&self.batch) {
            let problem = format!("must be within {EVIDENCE_BATCH:?}, not {:?}", self.batch);
            return wrong("evidence-batch", problem);
        }
        if !EVIDENCE_BYTES_PER_S.contains(&self.peer_bytes_per_s) {
            let problem = format!(
                "must be within {EVIDENCE_BYTES_PER_S:?}, not {}",
                self.peer_bytes_per_s
            );
            return wrong("evidence-bytes-per-s", problem);
        }
        if !EVIDENCE_LOG_BYTES.contains(&self.log_bytes) {
            let problem = format!(
                "must be within {EVIDENCE_LOG_BYTES:?}, not {}",
                self.log_bytes
            );
            return wrong("evidence-log-bytes", problem);
        }
        if !EVIDENCE_SILENT_AFTER.contains(&self.silent_after) {
            let problem = format!(
                "must be within {EVIDENCE_SILENT_AFTER:?}, not {:?}",
                self.silent_after
            );
            return wrong("evidence-silent-after", problem);
        }
        Ok(())
    }
}

/// What one replica reports to the others about itself: printable ASCII, at most [`FACT_BYTES_MAX`] each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// `HOST:PORT` of the data listener.
    pub http: String,
    /// `HOST:PORT` of the admin listener.
    pub admin: String,
    /// Release of this binary.
    pub version: String,
    /// Fingerprint of the settings that must agree cluster-wide.
    pub settings: String,
}

impl GossipConfig {
    /// A replica on `bind` with default timings, no seeds and the given facts.
    pub fn new(bind: SocketAddr, facts: Facts) -> Self {
        Self {
            bind,
            advertise: None,
            seeds: Vec::new(),
            load_batch: LOAD_BATCH,
            evidence: EvidenceConfig::default(),
            facts,
        }
    }

    /// Checks what can be checked without the network.
    /// Errors: [`StartError::Config`] names the field and what to write instead.
    pub fn check(&self) -> Result<(), StartError> {
        let wrong = |field, problem: String| Err(StartError::Config { field, problem });
        if self.advertise.is_none() && self.bind.ip().is_unspecified() {
            return wrong(
                "gossip-advertise",
                format!(
                    "needed because the replica listens on {}; write the HOST:PORT that the others dial",
                    self.bind
                ),
            );
        }
        if !(LOAD_BATCH_MIN..=LOAD_BATCH_MAX).contains(&self.load_batch) {
            return wrong(
                "load-batch",
                format!(
                    "must be between {LOAD_BATCH_MIN:?} and {LOAD_BATCH_MAX:?}, not {:?}",
                    self.load_batch
                ),
            );
        }
        self.evidence.check()?;
        if self.seeds.len() > SEEDS_MAX {
            return wrong(
                "seed",
                format!("at most {SEEDS_MAX} seeds, not {}", self.seeds.len()),
            );
        }
        for address in self.seeds.iter().chain(&self.advertise) {
            if !is_host_port(address) {
                return wrong(
                    "seed",
                    format!("`{address}` is not HOST:PORT, for example router-1:30002"),
                );
            }
        }
        // It also travels in HELLO, which is stricter.
        let version = &self.facts.version;
        if version.len() > HELLO_TEXT_BYTES_MAX
            || !version.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return wrong(
                "facts",
                format!(
                    "version `{}` is not visible ASCII of at most {HELLO_TEXT_BYTES_MAX} bytes",
                    version.escape_debug()
                ),
            );
        }
        for fact in [
            &self.facts.http,
            &self.facts.admin,
            &self.facts.version,
            &self.facts.settings,
        ] {
            if !is_fact(fact) {
                return wrong(
                    "facts",
                    format!(
                        "`{}` is not printable ASCII of at most {FACT_BYTES_MAX} bytes",
                        fact.escape_debug()
                    ),
                );
            }
        }
        Ok(())
    }
}

/// True for what may be sent to other replicas as a membership fact.
pub(crate) fn is_fact(value: &str) -> bool {
    value.len() <= FACT_BYTES_MAX && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn is_host_port(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Longest membership fact, in bytes. Facts are repeated to every replica, so they stay tiny.
pub const FACT_BYTES_MAX: usize = 256;
/// Greatest length in bytes of the texts with which a connection begins, as [`Hello`](crate::wire::Hello).
pub const HELLO_TEXT_BYTES_MAX: usize = 64;
/// Most seeds that are accepted.
pub const SEEDS_MAX: usize = 64;
/// Default of [`GossipConfig::load_batch`].
pub const LOAD_BATCH: Duration = Duration::from_millis(20);
const LOAD_BATCH_MIN: Duration = Duration::from_millis(20);
const LOAD_BATCH_MAX: Duration = Duration::from_millis(50);

const EVIDENCE_BATCH: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(500);
const EVIDENCE_BYTES_PER_S: RangeInclusive<u32> = (64 << 10)..=(16 << 20);
const EVIDENCE_LOG_BYTES: RangeInclusive<usize> = (64 << 10)..=(64 << 20);
const EVIDENCE_SILENT_AFTER: RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(30);

/// One gossip round; also how often registry digests are compared with the live peers'.
pub(crate) const ROUND: Duration = Duration::from_millis(200);
/// A registry exchange with a random live peer, whatever the digests are.
pub(crate) const SYNC_EVERY: Duration = Duration::from_secs(5);
/// How long a change waits for the first peer to confirm it.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// A replica that met none but such as start as well is one of a new cluster after this long: what is there already has
/// answered by then, or was named by those that it answered.
pub(crate) const TOGETHER_AFTER: Duration = Duration::from_secs(1);
/// A replica that met no peer for this long is ready alone, unless it has seeds and knows no worker.
pub(crate) const ALONE_AFTER: Duration = Duration::from_secs(2);
/// So long it waits for that until each of its seeds was asked once, where some have many addresses that do not answer.
pub(crate) const SEEDS_WITHIN: Duration = Duration::from_secs(5);
/// A replica to which no peer gives its registry for this long is ready with what it has.
pub(crate) const SNAPSHOT_WITHIN: Duration = Duration::from_secs(10);
/// How long connected peers are given to be heard before a replica that has the registry is ready.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// Writes wait for the first exchange with a peer, but not for longer than this.
pub(crate) const WRITES_AFTER: Duration = Duration::from_secs(3);
/// How long leaving waits until the peers know of it.
pub(crate) const LEAVE_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> GossipConfig {
        GossipConfig::new(([127, 0, 0, 1], 0).into(), Facts::default())
    }

    fn refused(change: impl FnOnce(&mut GossipConfig), field: &str) {
        let mut config = config();
        change(&mut config);
        let error = config.check().expect_err(field).to_string();
        assert!(error.contains(field), "{error}");
    }

    #[test]
    fn every_limit_names_its_field() {
        assert!(config().check().is_ok());
        refused(|c| c.bind = ([0, 0, 0, 0], 0).into(), "gossip-advertise");
        refused(|c| c.load_batch = Duration::from_millis(5), "load-batch");
        refused(|c| c.load_batch = Duration::from_millis(500), "load-batch");
        refused(|c| c.evidence.batch = Duration::ZERO, "evidence-batch");
        refused(|c| c.evidence.peer_bytes_per_s = 1, "evidence-bytes-per-s");
        refused(|c| c.evidence.log_bytes = usize::MAX, "evidence-log-bytes");
        let minute = Duration::from_secs(60);
        refused(
            |c| c.evidence.silent_after = minute,
            "evidence-silent-after",
        );
        refused(|c| c.seeds = vec!["router-1".into()], "seed");
        refused(|c| c.seeds = vec![":30002".into()], "seed");
        refused(|c| c.seeds = vec!["a:1".into(); SEEDS_MAX + 1], "seed");
        refused(|c| c.facts.version = "µ".into(), "facts");
        refused(|c| c.facts.version = "1.0 beta".into(), "facts");
        refused(|c| c.facts.http = "a".repeat(FACT_BYTES_MAX + 1), "facts");
    }

    #[test]
    fn a_wildcard_with_an_advertised_address_is_fine() {
        let mut config = config();
        config.bind = ([0, 0, 0, 0], 30002).into();
        config.advertise = Some("router-1:30002".into());
        config.seeds = vec!["router-2:30002".into(), "[::1]:30002".into()];
        assert!(config.check().is_ok());
    }
}
