//! The replica's agent: one handle for everything that is replicated.
//!
//! A cluster of one has the same agent without a network: the same calls, nothing sent.
//!
//! - `mod.rs`: the public handle.
//! - `core.rs`: the shared state, and what arrives from peers.
//! - `rounds.rs`: what happens by the clock: rounds of membership, load frames, ends of warm-ups.
//! - `publish.rs`: when changes become a view.
//! - `exchange.rs`: anti-entropy, the first snapshot.
//! - `pushes.rs`: own changes, pushed together where they come together.
//! - `settling.rs`: when registries that differ are compared.
//! - `unlike.rs`: with whom anti-entropy was in vain.
//! - `evidence.rs`: evidence and heat, told and heard.
//! - `bulletin.rs`: this replica's bulletin posted, those of the others kept.
//! - `newcomer.rs`: the evidence that a starting replica takes.
//! - `twins.rs`: two processes under one id, said to the operator and to the peers.
//! - `dry_run.rs`: what a peer would decide, and what we would.

#[cfg(test)]
mod ask_tests;
mod bulletin;
mod core;
mod dry_run;
mod evidence;
mod exchange;
mod newcomer;
mod publish;
mod pushes;
mod rounds;
mod settling;
#[cfg(test)]
mod tests;
mod twins;
mod unlike;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bulletin::{Bulletin, Posted};
use crate::config::{EvidenceConfig, Facts, GossipConfig, LEAVE_WITHIN, LOAD_BATCH};
use crate::dry_run::{AskError, DryRun, DryRunAnswer};
use crate::error::{ChangeError, StartError};
use crate::evidence::{Evidence, Heard, HeatReport, Record, Retraction};
use crate::hlc::Stamp;
use crate::identity::{self, Identity, IdentityError};
use crate::load::LoadBoard;
use crate::membership::{FactMap, Membership, fact, next_generation};
use crate::metrics::Metrics;
use crate::registry::TakenOut;
use crate::replica::ReplicaId;
use crate::transport::{Network, Planes, SystemNetwork, Transport, system_ms};
use crate::twin::Twin;
use crate::view::View;
use crate::worker::{Source, WorkerId, WorkerSpec};

use self::core::{Core, Net};
pub use self::dry_run::DryRunHandler;
pub use self::evidence::EvidenceSource;

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Peers that confirmed it within a second; anti-entropy reaches the others.
    pub confirmed_by: usize,
    /// False: only this replica has it, and its end would lose it.
    pub replicated: bool,
}

/// What a worker said of itself.
#[derive(Debug, Clone)]
pub enum Said {
    /// Facts that fill gaps of what the sources say, such as its models.
    Facts(Box<WorkerSpec>),
    /// When its process started, in seconds since 1970.
    Started(u64),
}

/// The running gossip of one replica.
///
/// Dropping it stops nothing; [`Agent::shutdown`] does.
#[derive(Clone)]
pub struct Agent {
    core: Arc<Core>,
    stop: CancellationToken,
}

impl Agent {
    /// Binds the socket and starts gossiping; returns at once, before any peer was met.
    ///
    /// `damping` gives the weight, 0 to 1, of other replicas' load counts of a given age.
    ///
    /// # Errors
    /// [`StartError`]: a setting out of range, or an address that cannot be bound or resolved.
    pub async fn start(
        config: GossipConfig,
        identity: Identity,
        damping: fn(Duration) -> f64,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        Self::start_on(Arc::new(SystemNetwork), config, identity, damping, metrics).await
    }

    /// [`Agent::start`] with another network and wall clock than the operating system's, for simulations.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub async fn start_on(
        network: Arc<dyn Network>,
        config: GossipConfig,
        identity: Identity,
        damping: fn(Duration) -> f64,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        config.check()?;
        metrics.expires(identity.expires());
        let generation = next_generation(0, network.unix_ms());
        let replica = identity.replica().clone();
        let cluster = identity.cluster().clone();
        let transport =
            Transport::open(&config, identity, network, generation, metrics.clone()).await?;
        let stop = CancellationToken::new();
        let facts = fact_map(&config.facts);
        let membership = Membership::start(
            &cluster,
            &replica,
            generation,
            facts.clone(),
            &transport,
            &metrics,
            &stop,
        );
        let address = transport.address();
        let net = Net {
            transport: transport.clone(),
            membership,
            has_seeds: !config.seeds.is_empty(),
        };
        let core = Arc::new(Core::new(
            replica,
            address,
            generation,
            facts,
            damping,
            config.load_batch,
            &config.evidence,
            metrics,
            Some(net),
        ));
        let planes: Arc<dyn Planes> = core.clone();
        transport.start(&config.seeds, &planes);
        transport.spawn(publish::late(core.clone()));
        transport.spawn(rounds::membership(core.clone()));
        transport.spawn(rounds::load(core.clone()));
        transport.spawn(evidence::rounds(core.clone(), config.evidence.batch));
        transport.spawn(bulletin::rounds(core.clone()));
        core.keeps_time.store(true, Ordering::Relaxed);
        transport.spawn(rounds::warm_ups(core.clone()));
        Ok(Self { core, stop })
    }

    /// A cluster of one: ready at once, no socket, no certificate.
    ///
    /// # Errors
    /// [`StartError::Identity`] if a name is not a DNS label: it must be usable when peers come.
    pub fn solo(
        cluster: &str,
        replica: &str,
        facts: &Facts,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        identity::check_label("cluster id", cluster)?;
        let replica = identity::replica_id(replica)?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let damping = |_| 1.0;
        let core = Core::new(
            replica,
            nowhere,
            next_generation(0, system_ms()),
            fact_map(facts),
            damping,
            LOAD_BATCH,
            &EvidenceConfig::default(),
            metrics,
            None,
        );
        Ok(Self {
            core: Arc::new(core),
            stop: CancellationToken::new(),
        })
    }

    /// The bound UDP address; `None` for a cluster of one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.net.as_ref()?.transport.local_addr()
    }

    /// This replica's id.
    pub fn replica(&self) -> &ReplicaId {
        &self.core.replica
    }

    /// What this replica knows now. Never waits.
    pub fn view(&self) -> Arc<View> {
        self.core.view.borrow().clone()
    }

    /// Each new view; the current one is there at once.
    pub fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.core.view.subscribe()
    }

    /// Whether the view may be used for routing: a peer's registry was taken (or none was met for
    /// 2 s), and the gossip task runs.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.core.ready.subscribe()
    }

    /// Replica ids under which two processes run, as this replica or a live peer sees it, sorted.
    pub fn twins(&self) -> Vec<Twin> {
        self.core.twins.list()
    }

    /// Where the process is that the cluster keeps instead of this one, under the same id: until one of the two ends
    /// this one should take no requests.
    pub fn kept_instead(&self) -> Option<SocketAddr> {
        self.core.twins.kept_instead()
    }

    /// Requests in flight at a worker from each live replica, as it says; `None` of one that was not heard for 2 s.
    pub fn in_flight_at(&self, worker: &WorkerId) -> BTreeMap<ReplicaId, Option<u32>> {
        let own = self.core.board.cell(worker).own().requests;
        let view = self.view();
        let live = view.replicas().iter().filter(|replica| replica.live);
        let now = tokio::time::Instant::now().into_std();
        let told = self.core.state().plane.requests_at(worker, now);
        let count = |id: &ReplicaId| {
            if *id == self.core.replica {
                Some(own)
            } else {
                told.get(id).copied()
            }
        };
        live.map(|replica| (replica.id.clone(), count(&replica.id)))
            .collect()
    }

    /// Who took a worker out of the set that the configuration may name; `None` if it is in the set, or nobody did.
    pub fn taken_out(&self, worker: &WorkerId) -> Option<TakenOut> {
        self.core.state().registry.taken_out(worker)
    }

    /// Load counters: own ones are written by the data path, others' sums are written here.
    pub fn load(&self) -> &Arc<LoadBoard> {
        &self.core.board
    }

    /// Adds a worker of the configuration file, under stamp 0: anything said explicitly wins over it.
    ///
    /// # Errors
    /// [`ChangeError`] if the registry is full.
    pub fn configure(&self, id: WorkerId, spec: WorkerSpec) -> Result<(), ChangeError> {
        self.core.configure([(id, spec)])
    }

    /// [`Agent::configure`] of many, with one new view.
    ///
    /// # Errors
    /// [`ChangeError`] if the registry is full; those before it are configured.
    pub fn configure_all(
        &self,
        workers: impl IntoIterator<Item = (WorkerId, WorkerSpec)>,
    ) -> Result<(), ChangeError> {
        self.core.configure(workers)
    }

    /// Adds or changes a worker in the name of `source`.
    ///
    /// In state `Warming` this replica is the one that warms it: until [`Agent::finish_warming`], or
    /// the given time ([`Agent::hybrid_ms`] plus at most 10 minutes) at which every replica takes it
    /// for active by itself. An epoch that is known stays if the given one is lower.
    ///
    /// Waits for the first exchange with a peer (at most until 3 s after the start), then for the
    /// first peer's confirmation (at most 1 s).
    ///
    /// # Errors
    /// [`ChangeError`] if the registry is full.
    pub async fn put_worker(
        &self,
        id: WorkerId,
        source: Source,
        spec: WorkerSpec,
    ) -> Result<Ack, ChangeError> {
        self.put_workers(source, vec![(id, spec)]).await
    }

    /// [`Agent::put_worker`] of many, as one change: all or none, confirmed together.
    ///
    /// # Errors
    /// [`ChangeError`] if the registry has no room for all of them.
    pub async fn put_workers(
        &self,
        source: Source,
        workers: Vec<(WorkerId, WorkerSpec)>,
    ) -> Result<Ack, ChangeError> {
        let write =
            |registry: &mut crate::registry::Registry, now| registry.put_all(&source, workers, now);
        if self.core.net.is_none() && !self.core.keeps_time.swap(true, Ordering::Relaxed) {
            let (core, stop) = (self.core.clone(), self.stop.clone());
            let ends = async move { stop.run_until_cancelled(rounds::warm_ups(core)).await };
            TaskTracker::new().spawn(ends);
        }
        exchange::change(&self.core, write).await
    }

    /// Declares a warm-up over: `stamp` is that of the view's [`Warming`](crate::registry::Warming).
    ///
    /// `None`, and nothing is changed, if the worker was removed, drained, described anew or taken for
    /// active since; if that is only not heard of yet, it wins when it is.
    ///
    /// # Errors
    /// None of its own. Waits as [`Agent::put_worker`].
    pub async fn finish_warming(
        &self,
        id: &WorkerId,
        stamp: Stamp,
    ) -> Result<Option<Ack>, ChangeError> {
        let mut is_ended = false;
        let ack = exchange::change(&self.core, |registry, _| {
            let ended = registry.finish_warming(id, stamp);
            is_ended = ended.is_some();
            Ok(ended.into_iter().collect())
        });
        let ack = ack.await?;
        Ok(is_ended.then_some(ack))
    }

    /// Says that the worker's process started at `epoch`, in seconds since 1970. Any replica that
    /// notices may say so: the highest counts, the same or a lower one changes nothing. Rings do not
    /// change; evidence of former epochs is dropped everywhere.
    ///
    /// # Errors
    /// [`ChangeError`] if there is no such worker, if `epoch` is more than a day ahead of this
    /// replica's clock, or if the registry is full. Waits as [`Agent::put_worker`].
    pub async fn restarted(&self, id: &WorkerId, epoch: u64) -> Result<Ack, ChangeError> {
        exchange::change(&self.core, |registry, now| {
            Ok(registry.restarted(id, epoch, now)?.into_iter().collect())
        })
        .await
    }

    /// The time by which warm-ups end, Unix milliseconds: this replica's clock, or the latest stamp
    /// that it heard if that is ahead.
    pub fn hybrid_ms(&self) -> u64 {
        self.core.state().registry.hybrid_ms(self.core.unix_ms())
    }

    /// Takes back what `source` said of a worker; a removal by the administrator masks every source.
    ///
    /// # Errors
    /// [`ChangeError`] if there is no such worker. Waits as [`Agent::put_worker`].
    pub async fn remove_worker(&self, id: &WorkerId, source: Source) -> Result<Ack, ChangeError> {
        exchange::change(&self.core, |registry, now| registry.remove(id, source, now)).await
    }

    /// [`Agent::remove_worker`] of many, as one change, confirmed together. One that is not there is passed over.
    ///
    /// # Errors
    /// None of its own. Waits as [`Agent::put_worker`].
    pub async fn remove_workers(
        &self,
        ids: Vec<WorkerId>,
        source: Source,
    ) -> Result<Ack, ChangeError> {
        let write = |registry: &mut crate::registry::Registry, now| {
            let removed = ids.iter();
            let removed = removed.flat_map(|id| registry.remove(id, source.clone(), now));
            Ok(removed.flatten().collect())
        };
        exchange::change(&self.core, write).await
    }

    /// Adds facts that were asked from a worker (its models); they fill gaps of what the sources say.
    ///
    /// # Errors
    /// [`ChangeError`] if there is no such worker. Waits as [`Agent::put_worker`].
    pub async fn learn(&self, id: WorkerId, facts: WorkerSpec) -> Result<Ack, ChangeError> {
        let write = |registry: &mut crate::registry::Registry, now| {
            Ok(registry.learn(id, facts, now)?.into_iter().collect())
        };
        exchange::change(&self.core, write).await
    }

    /// What many workers said of themselves, as one change; see [`Agent::learn`] and [`Agent::restarted`].
    ///
    /// Returns what could not be taken over, and why. Waits as [`Agent::put_worker`].
    pub async fn learn_all(&self, said: Vec<(WorkerId, Said)>) -> Vec<(WorkerId, ChangeError)> {
        let mut refused = Vec::new();
        let write = |registry: &mut crate::registry::Registry, now| {
            let mut written = Vec::new();
            for (id, said) in said {
                let entry = match said {
                    Said::Facts(facts) => registry.learn(id.clone(), *facts, now),
                    Said::Started(epoch) => registry.restarted(&id, epoch, now),
                };
                match entry {
                    Ok(entry) => written.extend(entry),
                    Err(error) => refused.push((id, error.into())),
                }
            }
            Ok(written)
        };
        // The write above refuses single words, never all.
        let _ = exchange::change(&self.core, write).await;
        refused
    }

    /// Tells the others whether this replica takes requests.
    pub fn set_ready(&self, ready: bool) {
        self.core.tell(fact::READY, if ready { "1" } else { "0" });
    }

    /// Tells the others, at once and not with the next round, that this replica takes no new requests and will end
    /// when those that it has have ended. It cannot be taken back.
    pub fn set_leaving(&self) {
        self.core.tell(fact::LEAVING, "1");
        self.core.tell(fact::READY, "0");
        let Some(net) = &self.core.net else {
            return;
        };
        for peer in net.transport.linked() {
            if let Some(address) = net.transport.address_of(&peer) {
                net.membership.greet(address);
            }
        }
    }

    /// Makes the gossip task panic, for tests of what happens then.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn trip(&self) {
        if let Some(net) = &self.core.net {
            net.membership.trip();
        }
    }

    /// Tells the others the digest of this replica's ring: printable ASCII, at most 256 bytes.
    pub fn set_ring(&self, digest: &str) {
        self.core.tell(fact::RING, digest);
    }

    /// Tells every other replica that a worker holds, or soon will hold, some prefixes.
    ///
    /// Never waits: it is queued for the next batch ([`EvidenceConfig::batch`]). If the queue is full the oldest
    /// record gives way; if the worker left or restarted meanwhile it is not sent. Both are counted.
    pub fn tell_evidence(&self, evidence: Evidence) {
        self.core.tell_record(Record::Evidence(evidence));
    }

    /// Tells every other replica that a worker does not hold some prefixes. As
    /// [`Agent::tell_evidence`].
    pub fn tell_retraction(&self, retraction: Retraction) {
        self.core.tell_record(Record::Retraction(retraction));
    }

    /// Tells every other replica how often this one saw which prefix; it replaces the report before.
    /// Never waits; repeated every few seconds, so that a lost report is healed.
    pub fn tell_heat(&self, report: HeatReport) {
        self.core.tell_heat(report);
    }

    /// What the other replicas tell: at most 4,096 records wait; what comes then is dropped, counted,
    /// and made known as [`Heard::Lost`].
    ///
    /// One listener: it gets what was heard since the start, and a later call ends its channel.
    pub fn evidence(&self) -> mpsc::Receiver<Heard> {
        self.core.evidence.listen()
    }

    /// Says where evidence for starting replicas comes from: called once for each of them, from a
    /// task that must not be blocked for long. The most valuable first: what exceeds some 3.7 MiB is left out.
    pub fn serve_evidence(&self, source: EvidenceSource) {
        self.core.evidence.serve(source);
    }

    /// Posts what this replica found out about workers and has in hand for tenants; it replaces the
    /// bulletin before.
    ///
    /// Never waits: what changed is sent to every connected peer at once, but not more often than
    /// every 50 ms, and all of it is renewed each second. What does not fit is left out, and counted
    /// in `gossip_bulletin_cut_total`. A cluster of one posts to nobody.
    pub fn post(&self, bulletin: Bulletin) {
        self.core.post(bulletin);
    }

    /// The newest bulletin of each other replica; of one that leaves it is gone at once, of one that
    /// is silent after some 3 s. Takes no lock.
    pub fn posted(&self) -> Arc<Posted> {
        self.core.bulletins.posted()
    }

    /// Wakes whenever [`Agent::posted`] has changed.
    pub fn watch_posted(&self) -> watch::Receiver<()> {
        self.core.bulletins.watch()
    }

    /// Asks one peer what it would decide about a request. Waits at most a second; dropping the call
    /// gives the question up. At most 50 questions a second and 4 at once to one peer.
    ///
    /// # Errors
    /// [`AskError`]; each outcome is counted in `gossip_dry_runs_total`.
    pub async fn ask(&self, peer: &ReplicaId, question: DryRun) -> Result<DryRunAnswer, AskError> {
        self.core.ask(peer, question).await
    }

    /// Says what answers the questions of peers. Called from a task that must not be blocked for
    /// long, at most 100 times a second for each peer. A later call replaces the handler.
    pub fn answer_dry_runs(&self, handler: DryRunHandler) {
        self.core.dry_runs.serve(handler);
    }

    /// Whom to ask: other replicas that are connected from here, alive to this one, and ready as they
    /// say. Sorted by id.
    pub fn ready_peers(&self) -> Vec<ReplicaId> {
        self.core.ready_peers()
    }

    /// Takes another certificate, other roots or other revocations of this replica into use; false if
    /// they are those in use. Call it from within the runtime; it never waits.
    ///
    /// New connections follow at once. Who is revoked is cut off at once, and leaves the view. Open
    /// connections are replaced one after the other, each without a gap; those that rest on a root
    /// that is trusted no more are cut off some seconds later.
    ///
    /// # Errors
    /// [`IdentityError::Unproven`] if it is of another replica or cluster, or this is a cluster of
    /// one; nothing has changed.
    pub fn replace_identity(&self, identity: Identity) -> Result<bool, IdentityError> {
        let Some(net) = &self.core.net else {
            return Err(IdentityError::Unproven {
                replica: self.core.replica.to_string(),
                cluster: identity.cluster().to_string(),
                problem: "this replica runs without certificates".to_owned(),
            });
        };
        let planes: Arc<dyn Planes> = self.core.clone();
        net.transport.replace_identity(&planes, identity)
    }

    /// Announces that this replica leaves, closes all connections and ends all tasks. Bounded by
    /// about 1 s. The last view stays readable.
    pub async fn shutdown(&self) {
        self.core.ready.send_replace(false);
        self.stop.cancel();
        if let Some(net) = &self.core.net {
            net.transport.close(LEAVE_WITHIN).await;
        }
    }
}

fn fact_map(facts: &Facts) -> FactMap {
    FactMap::from([
        (fact::HTTP, facts.http.clone()),
        (fact::ADMIN, facts.admin.clone()),
        (fact::VERSION, facts.version.clone()),
        (fact::SETTINGS, facts.settings.clone()),
        (fact::READY, "0".to_owned()),
    ])
}
