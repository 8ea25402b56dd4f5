//! The replica's agent: one handle for everything that is replicated.
//!
//! A cluster of one has the same agent without a network: the same calls, nothing sent.
//!
//! - `mod.rs`: the public handle.
//! - `start.rs`: how its parts are put together.
//! - `bootstrap.rs`: what a starting replica takes from its peers.
//! - `asked.rs`: whom a starting replica asks for the registry.
//! - `pushes.rs`: own changes of the registry, pushed together where they come together.
//! - `declare.rs`: what sources declare of workers.
//! - `links.rs`: what there is with each other replica, for people.

#[cfg(test)]
mod ask_tests;
mod asked;
mod bootstrap;
mod declare;
mod links;
mod pushes;
mod start;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::{CONFIRM_WITHIN, LEAVE_WITHIN, WRITES_AFTER};
use crate::driver::{Driver, Hosted};
use crate::dry_run::{ASK_WITHIN, AskError, DryRun, DryRunAnswer};
use crate::evidence::{Evidence, EvidenceEvent, HeatReport, Record, Retraction};
use crate::facts::fact;
use crate::hlc::Stamp;
use crate::identity::{Identity, IdentityError};
use crate::load::LoadBoard;
use crate::metrics::DryRuns;
use crate::peer_state::{PeerState, PeerStates};
use crate::plane::{Context, Plane, RequestError};
use crate::planes::{
    DryRunHandler, DryRunPlane, EvidencePlane, EvidenceSource, LoadMessages, PeerStatePlane,
    PendingHandle, RegistryPlane, Shown, TwinPlane, decision,
};
use crate::registry::{ChangeError, Entry, Registry, RegistryError, TakenOut};
use crate::replica::ReplicaId;
use crate::twin::Twin;
use crate::view::View;
use crate::wire::{Extra, Message};
use crate::worker::{Labels, Source, WorkerId, WorkerSpec};

pub use declare::Declared;
pub use links::PeerLink;
use pushes::Pushes;
pub use start::ExtraPlane;

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Peers that confirmed it within a second; anti-entropy reaches the others.
    pub confirmed_by: usize,
    /// False: only this replica has it, and its end would lose it.
    pub replicated: bool,
    /// False: all of it was so before, and nothing was sent to anybody.
    pub written: bool,
}

/// What a worker reported of itself.
#[derive(Debug, Clone)]
pub enum WorkerReport {
    /// Facts that fill gaps of what the sources declare, such as its models.
    Facts(Box<WorkerSpec>),
    /// When its process started, in seconds since 1970.
    Started(u64),
    /// Labels to lay over those that are known of it (see [`Registry::label`]).
    Labels(Labels),
}

/// The running gossip of one replica.
///
/// Dropping it stops nothing; [`Agent::shutdown`] does.
#[derive(Clone)]
pub struct Agent(Arc<Parts>);

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Agent").field(&self.0.replica).finish()
    }
}

struct Parts {
    replica: ReplicaId,
    driver: Driver,
    registry: Arc<Hosted<RegistryPlane>>,
    load: Arc<Hosted<LoadMessages>>,
    evidence: Arc<Hosted<EvidencePlane>>,
    peer_state: Arc<Hosted<PeerStatePlane>>,
    dry_runs: Arc<Hosted<DryRunPlane>>,
    twins: Arc<Hosted<TwinPlane>>,
    /// Own load counters, and the sums of the others'.
    board: Arc<LoadBoard>,
    /// Evidence and heat that wait to be sent.
    pending: PendingHandle,
    /// What the other replicas published.
    shown: Shown,
    /// Own changes on their way to peers.
    pushes: Arc<Pushes>,
    /// Whether a task calls the registry by the clock: a cluster of one starts it with its first change.
    keeps_time: AtomicBool,
    stop: CancellationToken,
}

impl Agent {
    /// The bound UDP address; `None` for a cluster of one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.driver.net()?.transport.local_addr()
    }

    /// This replica's id.
    pub fn replica(&self) -> &ReplicaId {
        &self.0.replica
    }

    /// What this replica knows now. Never waits.
    pub fn view(&self) -> Arc<View> {
        self.0.driver.view().borrow().clone()
    }

    /// Each new view; the current one is there at once.
    pub fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.0.driver.view().subscribe()
    }

    /// Whether the view may be used for routing: a peer's registry was taken (or none was met for
    /// 2 s), and the gossip task runs.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.0.driver.ready().subscribe()
    }

    /// Replica ids under which two processes run, as this replica or a live peer sees it, sorted.
    pub fn twins(&self) -> Vec<Twin> {
        self.0.twins.lock().list()
    }

    /// Where the process is that the cluster keeps instead of this one, under the same id: until one of the two ends
    /// this one should take no requests.
    pub fn kept_instead(&self) -> Option<SocketAddr> {
        self.0.twins.lock().kept_instead()
    }

    /// Requests in flight at a worker from each live replica, as it reports; `None` of one that sent nothing for 2 s.
    pub fn in_flight_at(&self, worker: &WorkerId) -> BTreeMap<ReplicaId, Option<u32>> {
        let own = self.0.board.cell(worker).own().requests;
        let view = self.view();
        let live = view.replicas().iter().filter(|replica| replica.live);
        let now = Instant::now().into_std();
        let reported = self.0.load.lock().plane.requests_at(worker, now);
        let count = |id: &ReplicaId| {
            if *id == self.0.replica {
                Some(own)
            } else {
                reported.get(id).copied()
            }
        };
        live.map(|replica| (replica.id.clone(), count(&replica.id)))
            .collect()
    }

    /// The one that took a worker out of the set, although the configuration may name it; `None` if it is in the set, or
    /// nobody did.
    pub fn taken_out(&self, worker: &WorkerId) -> Option<TakenOut> {
        self.0.registry.lock().registry().taken_out(worker)
    }

    /// Load counters: own ones are written by the data path, others' sums are written here.
    pub fn load(&self) -> &Arc<LoadBoard> {
        &self.0.board
    }

    /// What counts by now is taken over. Call it before a decision that is to be the one of all replicas: timers end late,
    /// each replica's by another time. Nearly always one atomic load; it never waits.
    pub fn settle_load(&self, now: Instant) {
        let now = now.into_std();
        // Whoever has the plane is about to do the same.
        if self.0.board.is_due(now)
            && let Some(mut load) = self.0.load.try_lock()
        {
            load.plane.settle(now);
        }
    }

    /// Adds a worker of the configuration file, under stamp 0: any explicit change wins over it.
    /// Errors: [`ChangeError`] if the registry is full.
    pub fn configure(&self, id: WorkerId, spec: WorkerSpec) -> Result<(), ChangeError> {
        self.configure_all([(id, spec)])
    }

    /// [`Agent::configure`] of many, with one new view.
    /// Errors: [`ChangeError`] if the registry is full; those before it are configured.
    pub fn configure_all(
        &self,
        workers: impl IntoIterator<Item = (WorkerId, WorkerSpec)>,
    ) -> Result<(), ChangeError> {
        let configured = self.with(&self.0.registry, |plane, cx| plane.configure(workers, cx));
        Ok(configured?)
    }

    /// What `source` declares of each worker, by id, removed ones included. Costs one pass over the registry.
    pub fn entries_of(&self, source: &Source) -> Vec<Entry> {
        let registry = self.0.registry.lock();
        registry.registry().of_source(source).cloned().collect()
    }

    /// What `source` declares of one worker.
    pub fn entry_of(&self, worker: &WorkerId, source: &Source) -> Option<Entry> {
        let registry = self.0.registry.lock();
        registry.registry().entry(worker, source).cloned()
    }

    /// The sources that declare a worker, by precedence.
    pub fn sources_of(&self, worker: &WorkerId) -> Vec<Source> {
        let registry = self.0.registry.lock();
        registry.registry().sources_of(worker)
    }

    /// Declares a warm-up over: `stamp` is that of the view's [`Warming`](crate::registry::Warming).
    ///
    /// `None`, and nothing is changed, if the worker was removed, drained, described anew or taken for
    /// active since. If that has not been received yet, it wins when it is.
    /// Errors: none of its own. Waits as [`Agent::put_worker`].
    pub async fn finish_warming(
        &self,
        id: &WorkerId,
        stamp: Stamp,
    ) -> Result<Option<Ack>, ChangeError> {
        let mut is_ended = false;
        let ack = self.change(|registry, _| {
            let ended = registry.finish_warming(id, stamp);
            is_ended = ended.is_some();
            Ok(ended.into_iter().collect())
        });
        let ack = ack.await?;
        Ok(is_ended.then_some(ack))
    }

    /// Records that the worker's process started at `epoch`, in seconds since 1970. Any replica that
    /// notices may do so: the highest counts, the same or a lower one changes nothing. Rings do not
    /// change; evidence of former epochs is dropped everywhere.
    /// Errors: [`ChangeError`] if there is no such worker, if `epoch` is more than a day ahead of this replica's clock,
    /// or if the registry is full. Waits as [`Agent::put_worker`].
    pub async fn restarted(&self, id: &WorkerId, epoch: u64) -> Result<Ack, ChangeError> {
        self.change(|registry, now| Ok(registry.restarted(id, epoch, now)?.into_iter().collect()))
            .await
    }

    /// The time by which warm-ups end, Unix milliseconds: this replica's clock, or the latest stamp
    /// that it received if that is ahead.
    pub fn hybrid_ms(&self) -> u64 {
        let unix_ms = self.0.driver.unix_ms();
        self.0.registry.lock().registry().hybrid_ms(unix_ms)
    }

    /// Takes back what `source` declared of a worker; a removal by the administrator masks every source.
    /// Errors: [`ChangeError`] if there is no such worker. Waits as [`Agent::put_worker`].
    pub async fn remove_worker(&self, id: &WorkerId, source: Source) -> Result<Ack, ChangeError> {
        self.change(|registry, now| registry.remove(id, source, now))
            .await
    }

    /// [`Agent::remove_worker`] of many, as one change, confirmed together. One that is not there is passed over.
    /// Errors: none of its own. Waits as [`Agent::put_worker`].
    pub async fn remove_workers(
        &self,
        ids: Vec<WorkerId>,
        source: Source,
    ) -> Result<Ack, ChangeError> {
        let write = |registry: &mut Registry, now| {
            let removed = ids.iter();
            let removed = removed.flat_map(|id| registry.remove(id, source.clone(), now));
            Ok(removed.flatten().collect())
        };
        self.change(write).await
    }

    /// Adds facts that were asked from a worker (its models); they fill gaps of what the sources declare.
    /// Errors: [`ChangeError`] if there is no such worker. Waits as [`Agent::put_worker`].
    pub async fn learn(&self, id: WorkerId, facts: WorkerSpec) -> Result<Ack, ChangeError> {
        let write = |registry: &mut Registry, now| {
            Ok(registry.learn(id, facts, now)?.into_iter().collect())
        };
        self.change(write).await
    }

    /// What many workers reported of themselves, as one change; see [`Agent::learn`] and [`Agent::restarted`].
    ///
    /// Returns what could not be taken over, and why. Waits as [`Agent::put_worker`].
    pub async fn learn_all(
        &self,
        reports: Vec<(WorkerId, WorkerReport)>,
    ) -> Vec<(WorkerId, ChangeError)> {
        self.take_over(reports).await.1
    }

    /// How far the change went, and what was refused of it.
    async fn take_over(
        &self,
        reports: Vec<(WorkerId, WorkerReport)>,
    ) -> (Result<Ack, ChangeError>, Vec<(WorkerId, ChangeError)>) {
        let mut refused = Vec::new();
        let write = |registry: &mut Registry, now| {
            let mut written = Vec::new();
            for (id, report) in reports {
                let entry = match report {
                    WorkerReport::Facts(facts) => registry.learn(id.clone(), *facts, now),
                    WorkerReport::Started(epoch) => registry.restarted(&id, epoch, now),
                    WorkerReport::Labels(labels) => registry.label(&id, &labels, now),
                };
                match entry {
                    Ok(entry) => written.extend(entry),
                    Err(error) => refused.push((id, error.into())),
                }
            }
            Ok(written)
        };
        // The write above refuses single reports, never all.
        let ack = self.change(write).await;
        (ack, refused)
    }

    /// Adds labels to a worker, and replaces those of the same names.
    /// Errors: [`ChangeError`] if there is no such worker, or if it would have too many. Waits as
    /// [`Agent::put_worker`].
    pub async fn label_worker(&self, id: &WorkerId, labels: Labels) -> Result<Ack, ChangeError> {
        let report = (id.clone(), WorkerReport::Labels(labels));
        let (ack, mut refused) = self.take_over(vec![report]).await;
        refused.pop().map_or(ack, |(_, error)| Err(error))
    }

    /// Drains a worker in the name of an administrator, beside what its sources declare: it gets nothing new, and leaves
    /// when they let go of it.
    /// Errors: [`ChangeError`] if there is no such worker, or if the registry is full. Waits as [`Agent::put_worker`].
    pub async fn drain_worker(&self, id: &WorkerId) -> Result<Ack, ChangeError> {
        self.change(|registry, now| Ok(vec![registry.drain(id, now)?]))
            .await
    }

    /// Takes a drain back, and ends a warm-up: the worker is used as its sources declare.
    /// Errors: [`ChangeError`] if there is no such worker. Waits as [`Agent::put_worker`].
    pub async fn activate_worker(&self, id: &WorkerId) -> Result<Ack, ChangeError> {
        self.change(|registry, now| registry.activate(id, now))
            .await
    }

    /// Sends the others the fingerprint of its settings that must be equal on all replicas (see
    /// [`Facts`](crate::config::Facts)).
    pub fn set_settings(&self, fingerprint: &str) {
        self.set_fact(fact::SETTINGS, fingerprint);
    }

    /// Sends the others whether this replica takes requests.
    pub fn set_ready(&self, ready: bool) {
        self.set_fact(fact::READY, if ready { "1" } else { "0" });
    }

    /// Announces to the others, at once and not with the next round, that this replica takes no new requests and will end
    /// when those that it has have ended. It cannot be taken back.
    pub fn set_leaving(&self) {
        self.set_fact(fact::LEAVING, "1");
        self.set_fact(fact::READY, "0");
        let Some(net) = self.0.driver.net() else {
            return;
        };
        for link in net.transport.open_links() {
            net.membership.greet(link.address);
        }
    }

    /// Makes the gossip task panic, for tests of what happens then.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn trip(&self) {
        if let Some(net) = self.0.driver.net() {
            net.membership.trip();
        }
    }

    /// Sends the others the digest of this replica's ring: printable ASCII, at most 256 bytes. [`Agent::view`] has it,
    /// too; [`Agent::watch`] does not wake for it.
    pub fn set_ring(&self, digest: &str) {
        self.with(&self.0.registry, |plane, cx| plane.set_ring(digest, cx));
    }

    /// Sends every other replica that a worker holds, or soon will hold, some prefixes.
    ///
    /// Never waits: it is queued for the next batch ([`EvidenceConfig::batch`]). If the queue is full the oldest
    /// record gives way; if the worker left or restarted meanwhile it is not sent. Both are counted.
    pub fn send_evidence(&self, evidence: Evidence) {
        self.send_record(Record::Evidence(evidence));
    }

    /// Sends every other replica that a worker does not hold some prefixes. As
    /// [`Agent::send_evidence`].
    pub fn send_retraction(&self, retraction: Retraction) {
        self.send_record(Record::Retraction(retraction));
    }

    /// Sends every other replica how often this one saw which prefix; it replaces the report before.
    /// Never waits; repeated every few seconds, so that a lost report is healed.
    pub fn send_heat(&self, report: HeatReport) {
        self.0.pending.heat(report);
    }

    /// What the other replicas send: at most 4,096 records wait; what comes then is dropped, counted,
    /// and made known as [`EvidenceEvent::Lost`].
    ///
    /// One listener: it gets what was received since the start, and a later call ends its channel.
    pub fn evidence(&self) -> mpsc::Receiver<EvidenceEvent> {
        self.0.evidence.lock().listen()
    }

    /// Sets where evidence for starting replicas comes from: called once for each of them, from a
    /// task that must not be blocked for long. Each worker's records in order of their age: of what exceeds some 3.5 MiB
    /// every worker has an equal share, and its oldest records are left out.
    pub fn serve_evidence(&self, source: EvidenceSource) {
        self.0.evidence.lock().serve(source);
    }

    /// Publishes what this replica found out about workers and has in hand for tenants; it replaces the
    /// peer state before.
    ///
    /// Never waits: what changed is sent to every connected peer at once, but not more often than
    /// every 50 ms, and all of it is renewed each second. What does not fit is left out, and counted
    /// in `gossip_peer_state_cut_total`. A cluster of one publishes to nobody.
    pub fn publish_state(&self, state: PeerState) {
        if self.0.driver.net().is_some() {
            self.with(&self.0.peer_state, |plane, cx| plane.publish(state, cx));
        }
    }

    /// The newest peer state of each other replica; of one that leaves it is gone at once, of one that
    /// is silent after some 3 s. Takes no lock.
    pub fn peer_states(&self) -> Arc<PeerStates> {
        self.0.shown.states()
    }

    /// Wakes whenever [`Agent::peer_states`] has changed.
    pub fn watch_peer_states(&self) -> watch::Receiver<()> {
        self.0.shown.watch()
    }

    /// Asks one peer what it would decide about a request. Waits at most a second; dropping the call
    /// gives the question up. At most 50 questions a second and 4 at once to one peer.
    /// Errors: [`AskError`]; each outcome is counted in `gossip_dry_runs_total`.
    pub async fn ask(&self, peer: &ReplicaId, question: DryRun) -> Result<DryRunAnswer, AskError> {
        let result = self.try_ask(peer, question).await;
        let outcome = match &result {
            Ok(_) => "answered",
            Err(error) => error.label(),
        };
        let labels = DryRuns {
            side: "asked",
            outcome,
        };
        let counted = &self.0.driver.metrics().dry_runs;
        counted.get_or_create(&labels).inc();
        result
    }

    /// Asks one peer a question of a plane of the caller, and waits for its whole answer; a peer that does not know the kind
    /// gives an empty one. Waits at most five seconds; at most 256 frames.
    /// Errors: the peer is not connected, does not answer in time, or breaks off.
    pub async fn request(
        &self,
        peer: &ReplicaId,
        question: Extra,
    ) -> Result<Vec<Extra>, RequestError> {
        let question = Message::Extra(question);
        let answer = self.0.driver.request(peer, &question).await?;
        let frames = answer.into_iter().map(|received| received.message);
        Ok(frames
            .filter_map(|message| match message {
                Some(Message::Extra(frame)) => Some(frame),
                _ => None,
            })
            .collect())
    }

    /// Sets what answers the questions of peers. Called from a task that must not be blocked for
    /// long, at most 100 times a second for each peer. A later call replaces the handler.
    pub fn answer_dry_runs(&self, handler: DryRunHandler) {
        self.0.dry_runs.lock().serve(handler);
    }

    /// Peers that are connected from here, in no order, as soon as they are: what they report of themselves may come later.
    pub fn connected_peers(&self) -> Vec<ReplicaId> {
        let net = self.0.driver.net();
        net.map_or_else(Vec::new, |net| net.transport.linked())
    }

    /// Peers that can be asked: other replicas that are connected from here, alive to this one, and ready as they
    /// report. Sorted by id.
    pub fn ready_peers(&self) -> Vec<ReplicaId> {
        let Some(net) = self.0.driver.net() else {
            return Vec::new();
        };
        let linked = net.transport.linked();
        let view = self.view();
        let ready = view.replicas().iter();
        let ready = ready.filter(|seen| seen.live && seen.ready);
        let ids = ready.map(|seen| &seen.id);
        ids.filter(|id| **id != self.0.replica && linked.contains(id))
            .cloned()
            .collect()
    }

    /// Takes another certificate, other roots or other revocations of this replica into use; false if
    /// they are those in use. Call it from within the runtime; it never waits.
    ///
    /// New connections use it at once. A revoked replica is cut off at once, and leaves the view. Open
    /// connections are replaced one after the other, each without a gap; those that rest on a root
    /// that is trusted no more are cut off some seconds later.
    /// Errors: [`IdentityError::Unproven`] if it is of another replica or cluster, or this is a cluster of one; nothing
    /// has changed.
    pub fn replace_identity(&self, identity: Identity) -> Result<bool, IdentityError> {
        let Some(net) = self.0.driver.net() else {
            return Err(IdentityError::Unproven {
                replica: self.0.replica.to_string(),
                cluster: identity.cluster().to_string(),
                problem: "this replica runs without certificates".to_owned(),
            });
        };
        net.transport
            .replace_identity(&self.0.driver.receiver(), identity)
    }

    /// Announces that this replica leaves, closes all connections and ends all tasks. Bounded by
    /// about 1 s. The last view stays readable.
    pub async fn shutdown(&self) {
        self.0.driver.ready().send_replace(false);
        self.0.stop.cancel();
        if let Some(net) = self.0.driver.net() {
            net.transport.close(LEAVE_WITHIN).await;
        }
    }

    /// Calls a plane that the agent was started with, and carries out what it asks for.
    pub fn with<P: Plane + ?Sized, T>(
        &self,
        plane: &Hosted<P>,
        call: impl FnOnce(&mut P, &mut Context) -> T,
    ) -> T {
        self.0.driver.with(plane, call)
    }

    fn set_fact(&self, name: &'static str, value: &str) {
        self.with(&self.0.registry, |plane, cx| {
            plane.set_fact(name, value, cx)
        });
    }

    fn send_record(&self, record: Record) {
        self.0.pending.record(record, self.0.driver.net().is_none());
    }

    /// A replica alone has no rounds, in which warm-ups would end and removals be forgotten.
    fn keep_time_alone(&self) {
        if self.0.driver.net().is_none() && !self.0.keeps_time.swap(true, Ordering::Relaxed) {
            let (registry, stop) = (self.0.registry.clone(), self.0.stop.clone());
            self.0.driver.run_alone(registry, stop);
        }
    }

    /// Writes to the registry, and waits until a peer has it.
    async fn change(
        &self,
        write: impl FnOnce(&mut Registry, u64) -> Result<Vec<Entry>, RegistryError>,
    ) -> Result<Ack, ChangeError> {
        self.keep_time_alone();
        let driver = &self.0.driver;
        // Before the first exchange our clock may lie behind the stamps that the change must beat.
        let mut synced = driver.synced().subscribe();
        let deadline = driver.started() + WRITES_AFTER;
        let _ = timeout_at(deadline, synced.wait_for(|synced| *synced)).await;
        let (written, change) = self.with(&self.0.registry, |plane, cx| plane.write(write, cx))?;
        let is_written = !written.is_empty();
        let confirmed_by = match is_written {
            true => pushes::push(driver, &self.0.pushes, written).await,
            false => 0,
        };
        // A caller that gets its answer finds the change in the view. Only the end of this replica can prevent that.
        let mut published = driver.published();
        let shown = published.wait_for(|latest| *latest >= change);
        let _ = timeout(CONFIRM_WITHIN, shown).await;
        Ok(Ack {
            confirmed_by,
            replicated: confirmed_by > 0,
            written: is_written,
        })
    }

    async fn try_ask(&self, peer: &ReplicaId, question: DryRun) -> Result<DryRunAnswer, AskError> {
        if !question.is_valid() {
            return Err(AskError::Malformed);
        }
        let net = self.0.driver.net().ok_or(AskError::NotLinked)?;
        if !net.transport.linked().contains(peer) {
            return Err(AskError::NotLinked);
        }
        let may = |plane: &mut DryRunPlane, cx: &mut Context| plane.may_ask(peer, cx.now);
        let _open = self.with(&self.0.dry_runs, may)?;
        let question = Message::DryRunRequest(Arc::new(question));
        let answer = timeout(ASK_WITHIN, self.0.driver.request(peer, &question)).await;
        decision(answer.unwrap_or(Err(RequestError::Slow)))
    }
}
