//! The agent's shared state, and what peers do to it.
//!
//! Changes become views at the pace of `publish.rs`.
//!
//! One mutex around the registry, the load plane and the sightings; it is held for computations only,
//! never across an await. Readers take the view and the load board, which need no lock.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::bulletin::BulletinDesk;
use super::dry_run::DryRunDesk;
use super::evidence::EvidenceDesk;
use super::exchange;
use super::publish::Pace;
use super::pushes::Pushes;
use super::twins::TwinDesk;
use super::unlike::Unlike;
use crate::config::{EvidenceConfig, is_fact};
use crate::error::ChangeError;
use crate::firewall::{Member, Reason};
use crate::frame::Header;
use crate::load::{Applied, LoadBoard, LoadFrame, LoadPlane};
use crate::membership::{FactMap, Membership, Sighting, fact};
use crate::metrics::{Metrics, Why};
use crate::registry::{Contact, Entry, Registry, RegistryError, Warmups};
use crate::replica::ReplicaId;
use crate::transport::{Planes, Transport, system_ms};
use crate::view::{ReplicaInfo, View};
use crate::wire::Message;
use crate::worker::{WorkerId, WorkerSpec};

/// Everything that the parts of the agent share.
pub(super) struct Core {
    pub(super) replica: ReplicaId,
    pub(super) board: Arc<LoadBoard>,
    pub(super) evidence: EvidenceDesk,
    pub(super) bulletins: BulletinDesk,
    pub(super) dry_runs: DryRunDesk,
    pub(super) twins: TwinDesk,
    pub(super) metrics: Metrics,
    /// `None` in a cluster of one.
    pub(super) net: Option<Net>,
    pub(super) view: watch::Sender<Arc<View>>,
    pub(super) ready: watch::Sender<bool>,
    /// Whether a peer's registry was taken, or there is none to take.
    pub(super) synced: watch::Sender<bool>,
    /// Whether a task watches the ends of warm-ups: a cluster of one starts it late.
    pub(super) keeps_time: AtomicBool,
    /// Number of the latest change that is in the view.
    pub(super) published: watch::Sender<u64>,
    /// Wakes the task that publishes what had to wait.
    pub(super) due: Notify,
    /// Own changes on their way to peers.
    pub(super) pushes: Pushes,
    pub(super) started: Instant,
    state: Mutex<State>,
}

/// The way to the other replicas.
pub(super) struct Net {
    pub(super) transport: Transport,
    pub(super) membership: Membership,
    /// Whether there is anybody to ask for the cluster.
    pub(super) has_seeds: bool,
}

/// What the mutex protects.
pub(super) struct State {
    pub(super) registry: Registry,
    pub(super) plane: LoadPlane,
    pub(super) contact: Contact,
    /// Replicas other than this one, each in the generation that it proved.
    pub(super) others: Vec<Sighting>,
    /// When warm-ups end.
    pub(super) warmups: Warmups,
    /// Peers with an exchange under way.
    pub(super) exchanging: HashSet<ReplicaId>,
    /// Exchanges after which the registries still differed.
    pub(super) unlike: Unlike,
    pub(super) generation: u64,
    /// When changes become a view.
    pub(super) pace: Pace,
    address: SocketAddr,
    facts: FactMap,
}

impl Core {
    #[allow(clippy::too_many_arguments, reason = "one constructor, two callers")]
    pub(super) fn new(
        replica: ReplicaId,
        address: SocketAddr,
        generation: u64,
        facts: FactMap,
        damping: fn(Duration) -> f64,
        load_batch: Duration,
        evidence: &EvidenceConfig,
        metrics: Metrics,
        net: Option<Net>,
    ) -> Self {
        let board = Arc::<LoadBoard>::default();
        let is_solo = net.is_none();
        let now = Instant::now();
        let mut state = State {
            registry: Registry::new(replica.clone()),
            plane: LoadPlane::new(board.clone(), damping, load_batch),
            contact: Contact::default(),
            others: Vec::new(),
            warmups: Warmups::default(),
            exchanging: HashSet::new(),
            unlike: Unlike::default(),
            generation,
            pace: Pace::default(),
            address,
            facts,
        };
        let view = state.view(&replica, wall_clock(net.as_ref()));
        Self {
            replica,
            board,
            evidence: EvidenceDesk::new(evidence),
            bulletins: BulletinDesk::default(),
            dry_runs: DryRunDesk::default(),
            twins: TwinDesk::default(),
            metrics,
            net,
            view: watch::Sender::new(Arc::new(view)),
            ready: watch::Sender::new(is_solo),
            synced: watch::Sender::new(is_solo),
            keeps_time: AtomicBool::new(false),
            published: watch::Sender::new(0),
            due: Notify::new(),
            pushes: Pushes::default(),
            started: now,
            state: Mutex::new(state),
        }
    }

    /// This replica's wall clock, Unix milliseconds.
    pub(super) fn unix_ms(&self) -> u64 {
        wall_clock(self.net.as_ref())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change under this lock is one call into a pure part, whole or not made.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn configure(
        &self,
        workers: impl IntoIterator<Item = (WorkerId, WorkerSpec)>,
    ) -> Result<(), ChangeError> {
        let mut state = self.state();
        let mut is_changed = false;
        let configured = workers.into_iter().try_for_each(|(id, spec)| {
            is_changed |= state.registry.configure(id, spec)?.is_some();
            Ok(())
        });
        if is_changed {
            self.publish(&mut state);
        }
        configured
    }

    /// Takes a value for one of our own facts and tells it to the others.
    pub(super) fn tell(&self, name: &'static str, value: &str) {
        if !is_fact(value) {
            tracing::error!(
                name,
                "a membership fact must be short printable ASCII; not told"
            );
            return;
        }
        let mut state = self.state();
        if state.facts.insert(name, value.to_owned()).as_deref() != Some(value) {
            // Whoever says that it leaves cannot wait for the next view.
            if let Some(net) = &self.net {
                net.membership.tell(name, value);
            }
            self.refresh(&mut state);
        }
    }

    /// Something changed: it becomes a view at once, or together with what changes in the next moment.
    ///
    /// Returns the number of the change; see [`Core::published`].
    pub(super) fn refresh(&self, state: &mut State) -> u64 {
        // A cluster of one has no task that would publish later.
        if state.pace.changed(Instant::now().into_std()) || self.net.is_none() {
            self.publish(state);
        } else {
            self.due.notify_one();
        }
        state.pace.latest()
    }

    /// Publishes the view of a changed state, and its digest to the others.
    pub(super) fn publish(&self, state: &mut State) {
        self.publish_with(state, |_| {});
    }

    /// [`Core::publish`], with something done to the planes once they know the workers of the view, and before anybody
    /// sees it.
    pub(super) fn publish_with(&self, state: &mut State, planes: impl FnOnce(&mut State)) {
        let began = Instant::now().into_std();
        let digest = state.registry.digest();
        state.facts.insert(fact::REGISTRY, digest.to_string());
        if let Some(net) = &self.net {
            for (name, value) in &state.facts {
                net.membership.tell(name, value);
            }
        }
        let view = state.view(&self.replica, self.unix_ms());
        state.plane.follow(&view);
        let outdated = self.evidence.follow(&view);
        self.metrics.evidence("stale", outdated);
        self.bulletins.follow(&view);
        planes(state);
        self.view.send_replace(Arc::new(view));

        let (mut removed, mut unread) = (0, 0);
        for entry in state.registry.entries() {
            removed += i64::from(entry.is_removed());
            unread += i64::from(!entry.is_read());
        }
        self.metrics.registry_entries.set(i64::from(digest.count));
        self.metrics.registry_tombstones.set(removed);
        self.metrics.registry_digest.set(i64::from(digest.crc));
        self.metrics.registry_unread.set(unread);
        self.metrics.views.inc();
        let published = state.pace.published(began, Instant::now().into_std());
        self.published.send_replace(published);
    }

    /// Merges entries of a peer, and publishes what they change. False if nothing of them may be used.
    pub(super) fn merge(&self, state: &mut State, from: &ReplicaId, entries: Vec<Entry>) -> bool {
        let changed = self.take_in(state, from, entries);
        if changed.is_some_and(|changed| changed > 0) {
            self.refresh(state);
        }
        changed.is_some()
    }

    /// Merges entries of a peer without a view of them. How many changed something; `None` if nothing of them may be
    /// used.
    pub(super) fn take_in(
        &self,
        state: &mut State,
        from: &ReplicaId,
        entries: Vec<Entry>,
    ) -> Option<usize> {
        match state.registry.merge(entries, self.unix_ms()) {
            Ok(merged) => {
                if let Some(lead) = merged.drift {
                    self.metrics.clock_drift.set(lead.as_secs() as i64);
                    tracing::warn!(replica = %from, ?lead, "a registry entry is stamped in the future; check the clocks");
                }
                if merged.refused > 0 {
                    tracing::error!(replica = %from, entries = merged.refused, "the registry is full; entries were left out");
                }
                Some(merged.changed)
            }
            Err(error @ RegistryError::Quarantine { lead, .. }) => {
                self.metrics.clock_drift.set(lead.as_secs() as i64);
                tracing::error!(replica = %from, "refused registry entries: {error}");
                if let Some(net) = &self.net {
                    net.transport.strike(from, Reason::Implausible);
                }
                None
            }
            Err(error) => {
                tracing::error!(replica = %from, "refused registry entries: {error}");
                None
            }
        }
    }
}

/// A cluster of one has no network, and the operating system's clock.
fn wall_clock(net: Option<&Net>) -> u64 {
    net.map_or_else(system_ms, |net| net.transport.unix_ms())
}

impl State {
    fn view(&mut self, replica: &ReplicaId, unix_ms: u64) -> View {
        let own_fact = |name| self.facts.get(name).cloned().unwrap_or_default();
        let own = ReplicaInfo {
            id: replica.clone(),
            generation: self.generation,
            gossip_addr: self.address,
            http: own_fact(fact::HTTP),
            admin: own_fact(fact::ADMIN),
            version: own_fact(fact::VERSION),
            ready: own_fact(fact::READY) == "1",
            leaving: own_fact(fact::LEAVING) == "1",
            live: true,
            registry: self.registry.digest().to_string(),
            settings: own_fact(fact::SETTINGS),
            ring: own_fact(fact::RING),
        };
        let others = self.others.iter().map(|seen| {
            let told = |name: &str| seen.facts.get(name).cloned().unwrap_or_default();
            ReplicaInfo {
                id: seen.id.clone(),
                generation: seen.generation,
                gossip_addr: seen.address,
                http: told(fact::HTTP),
                admin: told(fact::ADMIN),
                version: told(fact::VERSION),
                ready: told(fact::READY) == "1",
                leaving: told(fact::LEAVING) == "1",
                live: seen.live,
                registry: told(fact::REGISTRY),
                settings: told(fact::SETTINGS),
                ring: told(fact::RING),
            }
        });
        let replicas = std::iter::once(own).chain(others).collect();
        let mut workers = self.registry.workers();
        let hybrid_ms = self.registry.hybrid_ms(unix_ms);
        let now = Instant::now().into_std();
        self.warmups.settle(&mut workers, hybrid_ms, now);
        View::of(workers, self.registry.digest(), replicas)
    }
}

impl Planes for Core {
    fn gossip(&self, from: SocketAddr, bytes: Vec<u8>) {
        if let Some(net) = &self.net {
            net.membership.deliver(from, bytes);
        }
    }

    fn load(&self, from: &ReplicaId, header: Header, frame: LoadFrame) -> bool {
        let now = Instant::now().into_std();
        let applied = self
            .state()
            .plane
            .apply(from, header.generation, header.seq, &frame, now);
        let reason = match applied {
            Applied::Fresh => "fresh",
            Applied::Stale => "stale",
            Applied::OtherRoster => "other_roster",
            Applied::Malformed => "malformed",
            Applied::TooManySenders => "too_many_senders",
        };
        self.metrics
            .load_frames
            .get_or_create(&Why { reason })
            .inc();
        applied != Applied::Malformed
    }

    fn evidence(&self, from: &ReplicaId, header: Header, message: Message, bytes: usize) {
        self.hear(from, header, message, bytes);
    }

    fn bulletin(&self, from: &ReplicaId, header: Header, message: Message) {
        self.take_bulletin(from, header, message);
    }

    fn request(&self, from: &ReplicaId, header: Header, message: Message) -> Vec<Message> {
        match &message {
            Message::EvidencePull(_)
            | Message::EvidenceSnapshotRequest
            | Message::EvidenceSizeRequest => self.evidence_answer(from, header, &message),
            Message::DryRunRequest(question) => self.dry_run(from, question),
            _ => exchange::answer(self, from, header, message),
        }
    }

    fn linked(&self, member: &Member) {
        if let Some(net) = &self.net {
            net.membership.greet(member.address);
        }
        self.bulletins.say_again();
    }

    fn left(&self, id: &ReplicaId) {
        let mut state = self.state();
        state.others.retain(|seen| seen.id != *id);
        self.refresh(&mut state);
        drop(state);
        self.unheard(id);
        self.bulletins.left(id);
    }

    fn outrun(&self, seen: u64) {
        if let Some(net) = &self.net {
            net.membership.outrun(seen);
        }
    }
}
