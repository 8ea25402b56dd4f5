//! `GET /cluster`.

use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use grapevine_gossip::PeerLink;
use grapevine_gossip::identity::Term;
use grapevine_gossip::twin::Twin;
use grapevine_gossip::view::{ReplicaInfo, View};
use serde::Serialize;

use super::rings::RegistryView;
use crate::admin::Admin;
use crate::admin::about::ModelView;
use crate::admin::links::Unheard;
use crate::cluster::{Absent, Liveness};
use crate::discovery::LostSource;
use crate::page::history::Spread;
use crate::page::history::minute::Minute;
use crate::readiness::Lack;
use crate::reload::RefusedReading;
use crate::shown::words::days_until;

/// `GET /cluster`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct ClusterView {
    replica: String,
    ready: bool,
    /// What keeps it from being ready.
    missing: Vec<&'static str>,
    digest: String,
    settings: String,
    /// Live replicas with the same ring digest and settings as this one, itself included.
    agreeing: usize,
    live: usize,
    /// Share of the latest sampled requests on which a peer would have chosen the same worker.
    agreement: Option<f64>,
    agreement_samples: usize,
    registry: RegistryView,
    /// How it goes at this replica; null for its first seconds.
    minute: Option<MinuteView>,
    replicas: Vec<ReplicaView>,
    /// Live replicas that do not hear another one, the first 64 of such pairs.
    unheard: Vec<Unheard>,
    /// Replicas that died within the last hour without a word, and that nobody knows any more.
    lost: Vec<LostView>,
    /// Seeds at which this replica is not let in, while no other one lives for it ([`untold`]).
    silent_seeds: Vec<SilentSeed>,
    /// Sources of workers that this replica sees nothing of.
    lost_sources: Vec<LostSource>,
    /// Replica ids under which two processes run.
    twins: Vec<TwinView>,
    /// The latest reading of its configuration, where that was refused and the former one stays.
    refused_config: Option<RefusedView>,
    /// The same of the file of clients' keys.
    refused_keys: Option<RefusedView>,
    /// Settings that its file says otherwise than what runs, until a restart.
    needs_restart: Vec<String>,
    /// Its changed files that it cannot use, so that the former ones stay: `keys`, or as the metric of TLS names them.
    refused_files: Vec<&'static str>,
    /// Request bodies that it sends to no worker, since workers ended with them.
    quarantined: usize,
    /// Its tasks that a panic ended, by name.
    lost_tasks: Vec<&'static str>,
    /// Null: its data port speaks plain HTTP.
    data_certificate: Option<DataCertificateView>,
    /// When a decode worker computes a whole request: `transfer.decode_alone`.
    decode_alone: &'static str,
    /// The `[[model]]` sections of this replica: what may be asked for, whether a worker serves it or not.
    models: Vec<ModelView>,
}

/// The last minute, or what there was of it.
#[derive(Debug, Serialize)]
struct MinuteView {
    requests_per_s: f64,
    /// Requests that ended.
    requests: u64,
    /// Of these, and of those that had no endpoint yet, answered with "not now": 503 and the like, or 429 because a limit
    /// of this replica was reached. What a tenant has used up is not among them.
    refused: u64,
    /// Requests that ended by a fault of a worker or of this replica.
    failed: u64,
    /// Median time to the first token of a stream, evenly spread in its step of `first_token_seconds`; null where there
    /// was none.
    first_token_p50_ms: Option<f64>,
    /// The 99th percentile of the same.
    first_token_p99_ms: Option<f64>,
    /// At workers now, from all replicas.
    in_flight: f64,
    /// At this replica now.
    waiting: f64,
    /// Share of prompt tokens from caches of workers that tell of them, 0 to 1; null where there were none.
    hit_rate: Option<f64>,
}

impl From<Minute> for MinuteView {
    fn from(minute: Minute) -> Self {
        let ms =
            |of: fn(Spread) -> f32| minute.first_token.map(|spread| f64::from(of(spread)) * 1e3);
        Self {
            requests_per_s: minute.ended as f64 / f64::from(minute.over_s),
            requests: minute.ended,
            refused: minute.refused,
            failed: minute.failed,
            first_token_p50_ms: ms(|spread| spread.p50),
            first_token_p99_ms: ms(|spread| spread.p99),
            in_flight: minute.in_flight.into(),
            waiting: minute.waiting.into(),
            hit_rate: minute.hit_rate,
        }
    }
}

#[derive(Debug, Serialize)]
struct RefusedView {
    /// Seconds since then.
    for_s: u64,
    /// The mistakes, one a line.
    why: String,
}

#[derive(Debug, Serialize)]
struct LostView {
    id: String,
    /// Seconds since it died.
    for_s: u64,
}

#[derive(Debug, Serialize)]
struct SilentSeed {
    /// As it is configured.
    seed: String,
    /// Seconds since it was heard, or was asked for the first time.
    for_s: u64,
    /// What it, or the way to it, says against a connection; null where nothing answers at all.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct TwinView {
    id: String,
    /// Gossip address of the process that counts.
    kept: String,
    /// Gossip address of the other one, which is not ready until one of the two ends.
    cut_off: String,
}

#[derive(Debug, Serialize)]
struct ReplicaView {
    id: String,
    live: bool,
    ready: bool,
    /// Told to end: it finishes what it has.
    leaving: bool,
    /// Why it troubles nobody that it is not alive: `joining` or `replaced`.
    absent: Option<&'static str>,
    generation: u64,
    /// None where it has no certificates, and does not gossip.
    gossip: Option<String>,
    data: String,
    admin: String,
    version: String,
    ring: String,
    settings: String,
    registry: String,
    /// Seconds for which it was seen as alive, ready and leaving as it is now; null before that is known.
    for_s: Option<u64>,
    /// Milliseconds since its latest report of load; null of this replica, and of one that was silent for a minute.
    heard_ms: Option<u64>,
    /// Milliseconds of a round trip on the connection from here; null while there is none.
    round_trip_ms: Option<f64>,
    /// Whole days that its certificate still holds, below 0 after its end; null where none was shown.
    certificate_days: Option<i64>,
}

/// The certificate of the data port.
#[derive(Debug, Serialize)]
struct DataCertificateView {
    /// Whole days that it still holds, below 0 after its end.
    days: i64,
    /// Seconds until it begins; 0: it has begun.
    begins_in_s: u64,
}

impl From<Term> for DataCertificateView {
    fn from(term: Term) -> Self {
        let left = term.from.duration_since(SystemTime::now());
        Self {
            days: days_until(term.until, SystemTime::now()),
            begins_in_s: left.map_or(0, |left| left.as_secs().max(1)),
        }
    }
}

impl From<&RefusedReading> for RefusedView {
    fn from(refused: &RefusedReading) -> Self {
        Self {
            for_s: refused.at.elapsed().as_secs(),
            why: refused.why.clone(),
        }
    }
}

impl From<Twin> for TwinView {
    fn from(twin: Twin) -> Self {
        Self {
            id: twin.replica.to_string(),
            kept: twin.kept.to_string(),
            cut_off: twin.cut_off.to_string(),
        }
    }
}

impl ReplicaView {
    fn of(replica: &ReplicaInfo, liveness: &Liveness, view: &View, link: PeerLink) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            for_s: liveness.lasts(replica).map(|lasts| lasts.as_secs()),
            absent: liveness.absent(replica, view).map(Absent::as_str),
            heard_ms: link.heard.map(ms),
            round_trip_ms: link.round_trip.map(|time| time.as_secs_f64() * 1e3),
            certificate_days: link
                .certificate_ends
                .map(|ends| days_until(ends, SystemTime::now())),
            id: replica.id.to_string(),
            live: replica.live,
            ready: replica.ready,
            leaving: replica.leaving,
            generation: replica.generation,
            gossip: (replica.gossip_addr.port() != 0).then(|| replica.gossip_addr.to_string()),
            data: replica.http.clone(),
            admin: replica.admin.clone(),
            version: replica.version.clone(),
            ring: replica.ring.clone(),
            settings: replica.settings.clone(),
            registry: replica.registry.clone(),
        }
    }
}

/// Of silent seeds those that say more than the list of the other replicas, of which each is alive or not. Seeds are
/// mostly of them: of dead ones nobody answers, and a seed that answers and refuses shows that they are not dead.
fn untold(
    others: impl Iterator<Item = bool>,
    silent: impl Iterator<Item = SilentSeed>,
) -> Vec<SilentSeed> {
    let lives: Vec<bool> = others.collect();
    let is_untold = |seed: &SilentSeed| match lives.is_empty() {
        true => true,
        false => !lives.contains(&true) && seed.why.is_some(),
    };
    silent.filter(is_untold).collect()
}

impl Admin {
    pub(in crate::admin) fn describe_cluster(&self) -> ClusterView {
        let view = self.agent.view();
        let digest = self.cluster.fleet().digest().to_string();
        let settings = self.settings.now();
        let live: Vec<_> = view.replicas().iter().filter(|r| r.live).collect();
        let agreeing = live
            .iter()
            .filter(|r| r.ring == digest && r.settings == *settings)
            .count();
        let compared = self.cluster.samples().agreement();
        let missing: Vec<_> = self.readiness.missing().map(Lack::as_str).collect();
        let told = |reading: &ArcSwapOption<RefusedReading>| {
            let refused = reading.load();
            refused.as_deref().map(RefusedView::from)
        };
        ClusterView {
            replica: self.replica.clone(),
            ready: missing.is_empty(),
            missing,
            digest,
            settings: settings.to_string(),
            agreeing,
            live: live.len(),
            agreement: compared.map(|(ratio, _)| ratio),
            agreement_samples: compared.map_or(0, |(_, count)| count),
            registry: self.registry(),
            minute: self
                .recorder
                .show(|history, _| history.minute().map(MinuteView::from)),
            replicas: self.describe_replicas(&view),
            unheard: self.describe_unheard(&view),
            lost: self.describe_lost(),
            silent_seeds: self.describe_silent_seeds(&view),
            lost_sources: self.board.lost(),
            twins: self.agent.twins().into_iter().map(TwinView::from).collect(),
            needs_restart: self.readings.waiting.load().to_vec(),
            refused_config: told(&self.readings.refused),
            refused_keys: told(&self.readings.refused_keys),
            refused_files: self.refused_files(),
            quarantined: self.quarantine.count(),
            lost_tasks: self.lost_tasks.names(),
            data_certificate: self
                .metrics
                .tls
                .term("listener")
                .map(DataCertificateView::from),
            decode_alone: self.transfer.now().decode_alone.as_str(),
            models: self.configured.now().models.clone(),
        }
    }

    fn refused_files(&self) -> Vec<&'static str> {
        let is_refused = self.metrics.tenants.is_file_refused();
        let keys = is_refused.then_some("keys");
        keys.into_iter().chain(self.metrics.tls.refused()).collect()
    }

    fn describe_lost(&self) -> Vec<LostView> {
        let lost = self.cluster.liveness().lost().into_iter();
        let lost = lost.map(|(id, dead_for)| LostView {
            id: id.to_string(),
            for_s: dead_for.as_secs(),
        });
        lost.collect()
    }

    fn describe_silent_seeds(&self, view: &View) -> Vec<SilentSeed> {
        let own = self.agent.replica();
        let others = view.replicas().iter().filter(|replica| replica.id != *own);
        let silent = self.agent.silent_seeds().into_iter();
        let silent = silent.map(|silent| SilentSeed {
            seed: silent.seed,
            for_s: silent.lasts.as_secs(),
            why: silent.why,
        });
        untold(others.map(|replica| replica.live), silent)
    }

    fn describe_replicas(&self, view: &View) -> Vec<ReplicaView> {
        let links = self.agent.links();
        let replicas = view.replicas().iter().map(|replica| {
            let mut link = links.get(&replica.id).copied().unwrap_or_default();
            if replica.id == *self.agent.replica() {
                link.certificate_ends = self.agent.certificate_ends();
            }
            ReplicaView::of(replica, self.cluster.liveness(), view, link)
        });
        replicas.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_that_refuses_is_told_beside_dead_replicas_and_a_silent_one_is_not() {
        let seeds = || {
            [None, Some("it refuses our certificate")].map(|why| SilentSeed {
                seed: why.unwrap_or("silent").to_owned(),
                for_s: 1,
                why: why.map(str::to_owned),
            })
        };
        let told = |others: &[bool]| untold(others.iter().copied(), seeds().into_iter());
        assert_eq!(told(&[]).len(), 2, "it knows of nobody else");
        let [refuses] = &told(&[false, false])[..] else {
            panic!("not one");
        };
        assert!(refuses.why.is_some());
        assert!(told(&[false, true]).is_empty(), "it is with another one");
    }
}
