//! The registry between replicas: what peers push and ask is merged and answered, what a push missed is repaired by
//! exchanges, and every change becomes a view.
//!
//! Pure. Own changes and their confirmation: `agent/pushes.rs`; the first snapshot of a starting replica:
//! `agent/bootstrap.rs`; exchanges: `anti_entropy.rs`.

mod anti_entropy;
mod clocks;
mod exchanges;
mod futile_syncs;
mod pace;
mod settling;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clocks::Clocks;
use exchanges::{Exchanges, Step};
use pace::ViewPace;

use crate::config::is_fact;
use crate::facts::{FactMap, SeenReplica, fact};
use crate::load::LoadFrame;
use crate::metrics::{Metrics, Why};
use crate::peers::Reason;
use crate::plane::{Context, NewView, Origin, Plane, RequestError, Seen, Surroundings};
use crate::registry::{Contact, Entry, Merged, Registry, RegistryError, Reunion, Warmups};
use crate::replica::ReplicaId;
use crate::unseen::Unseen;
use crate::view::{ReplicaInfo, View};
use crate::wire::{Message, Received, Snapshot, chunks};
use crate::worker::{WorkerId, WorkerSpec};

/// This replica's whole load, for a peer that starts.
pub(crate) type LoadSource = Arc<dyn Fn() -> LoadFrame + Send + Sync>;

/// This replica's identity.
pub(crate) struct Own {
    pub(crate) replica: ReplicaId,
    pub(crate) generation: u64,
    /// Where it is dialled.
    pub(crate) address: SocketAddr,
    /// What it reports of itself.
    pub(crate) facts: FactMap,
}

/// The worker set, and the other replicas.
pub(crate) struct RegistryPlane {
    registry: Registry,
    contact: Contact,
    exchanges: Exchanges,
    metrics: Metrics,
    replica: ReplicaId,
    generation: u64,
    address: SocketAddr,
    facts: FactMap,
    /// Replicas other than this one, each in the generation that it proved.
    others: Vec<SeenReplica>,
    /// When warm-ups end.
    warmups: Warmups,
    /// When changes become a view.
    pace: ViewPace,
    /// When the view was begun that is being shown.
    began: Instant,
    load: LoadSource,
    /// A cluster of one: it has no rounds, and publishes at once.
    is_solo: bool,
    /// The look that was used last.
    seen: Option<Arc<Seen>>,
    second: Instant,
    unseen: Unseen,
    clocks: Clocks,
}

impl RegistryPlane {
    /// Without workers.
    pub(crate) fn new(
        own: Own,
        load: LoadSource,
        is_solo: bool,
        metrics: Metrics,
        now: Instant,
    ) -> Self {
        let Own {
            replica,
            generation,
            address,
            facts,
        } = own;
        Self {
            registry: Registry::new(replica.clone()),
            contact: Contact::default(),
            exchanges: Exchanges::new(now),
            metrics,
            replica,
            generation,
            address,
            facts,
            others: Vec::new(),
            warmups: Warmups::default(),
            pace: ViewPace::default(),
            began: now,
            load,
            is_solo,
            seen: None,
            second: now,
            unseen: Unseen::new(now),
            clocks: Clocks::default(),
        }
    }

    /// The worker set.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Workers of the configuration, with one new view. The cluster's description of one stays, where a peer gave it before
    /// the configuration was read.
    pub(crate) fn configure(
        &mut self,
        workers: impl IntoIterator<Item = (WorkerId, WorkerSpec)>,
        cx: &mut Context,
    ) -> Result<(), RegistryError> {
        let mut is_changed = false;
        let configure = match self.contact.has_met_nobody() {
            true => Registry::configure,
            false => Registry::configure_late,
        };
        let configured = workers.into_iter().try_for_each(|(id, spec)| {
            is_changed |= configure(&mut self.registry, id, spec)?.is_some();
            Ok(())
        });
        if is_changed {
            self.publish(cx);
        }
        configured
    }

    /// A change by this replica: what it wrote, and the number of the change that the view will have.
    /// Errors: the error of `write`; nothing has changed.
    pub(crate) fn write(
        &mut self,
        write: impl FnOnce(&mut Registry, u64) -> Result<Vec<Entry>, RegistryError>,
        cx: &mut Context,
    ) -> Result<(Vec<Entry>, u64), RegistryError> {
        let written = write(&mut self.registry, cx.unix_ms)?;
        let change = match written.is_empty() {
            true => self.pace.latest(),
            false => self.refresh(cx),
        };
        Ok((written, change))
    }

    /// Takes a value for one of this replica's own facts. The peers get it at once, and the next view has it.
    pub(crate) fn set_fact(&mut self, name: &'static str, value: &str, cx: &mut Context) {
        if self.record_fact(name, value, cx) {
            self.refresh(cx);
        }
    }

    /// Takes the digest of this replica's ring. The peers get it at once. The latest view gets it, too, but no new view
    /// is made: the ring was computed from that view, so its followers would only follow the same workers again.
    pub(crate) fn set_ring(&mut self, digest: &str, cx: &mut Context) {
        if self.record_fact(fact::RING, digest, cx) {
            cx.amend_ring(self.replica.clone(), digest.to_owned());
        }
    }

    /// True if the fact has another value now. It is sent without waiting for a view: a replica that leaves may have no
    /// time for one.
    fn record_fact(&mut self, name: &'static str, value: &str, cx: &mut Context) -> bool {
        if !is_fact(value) {
            tracing::error!(
                name,
                "a membership fact must be short printable ASCII; it is not sent"
            );
            return false;
        }
        let is_new = self.facts.insert(name, value.to_owned()).as_deref() != Some(value);
        if is_new {
            cx.fact(name, value.to_owned());
        }
        is_new
    }

    /// Takes all that a peer has, for the first time: what is missing afterwards comes by exchanges. True if that is the
    /// cluster's: one that has met nobody has only what it was configured with.
    /// Errors: `Broken`: the answer is not whole, or nothing of it may be used.
    pub(crate) fn adopt(
        &mut self,
        peer: &ReplicaId,
        answer: Vec<Received>,
        cx: &mut Context,
    ) -> Result<bool, RequestError> {
        let mut entries = Vec::new();
        let mut load = None;
        let mut alone = None;
        let mut is_whole = false;
        for Received {
            header, message, ..
        } in answer
        {
            let Some(Message::Snapshot(piece)) = message else {
                return Err(RequestError::Broken);
            };
            entries.extend(piece.entries);
            // Readers that see the workers see their load.
            load = piece
                .load
                .map(|frame| (peer.clone(), header, frame))
                .or(load);
            alone = piece.alone;
            is_whole = piece.last;
        }
        // A release that does not say it takes everybody that it has met for the cluster.
        let alone = alone.unwrap_or_default();
        if !is_whole {
            return Err(RequestError::Broken);
        }
        // Several are asked at once: the cluster's may be here already, and of one that has met no cluster nothing is taken
        // then, as at every other meeting.
        if self.contact.reunion(alone) == Reunion::PeerStartsOver {
            return Ok(false);
        }
        if self.take_in_of(peer, alone, entries, cx).is_err() {
            return Err(RequestError::Broken);
        }
        self.publish_with(load, cx);
        self.contact.synced(alone);
        Ok(!Contact::is_of_nobody(alone))
    }

    /// Something changed: it becomes a view at once, or together with what changes in the next moment. Returns the
    /// number of the change.
    fn refresh(&mut self, cx: &mut Context) -> u64 {
        if self.pace.changed(cx.now) || self.is_solo {
            self.publish(cx);
        } else {
            cx.wake();
        }
        self.pace.latest()
    }

    fn publish(&mut self, cx: &mut Context) {
        self.publish_with(None, cx);
    }

    fn publish_with(
        &mut self,
        load: Option<(ReplicaId, crate::frame::Header, LoadFrame)>,
        cx: &mut Context,
    ) {
        self.began = cx.now;
        let digest = self.registry.digest();
        self.facts.insert(fact::REGISTRY, digest.to_string());
        cx.fact(fact::REGISTRY, digest.to_string());
        let view = Arc::new(self.view(cx));
        cx.publish(NewView {
            view,
            load,
            change: self.pace.latest(),
        });
        let (mut removed, mut unread) = (0, 0);
        for entry in self.registry.entries() {
            removed += i64::from(entry.is_removed());
            unread += i64::from(!entry.is_read());
        }
        self.metrics.registry_entries.set(i64::from(digest.count));
        self.metrics.registry_tombstones.set(removed);
        self.metrics.registry_digest.set(i64::from(digest.crc));
        self.metrics.registry_unread.set(unread);
    }

    /// What is known now.
    pub(crate) fn view(&mut self, cx: &Context) -> View {
        let own_fact = |name: &str| self.facts.get(name).cloned().unwrap_or_default();
        let own = info(&self.replica, self.generation, self.address, true, own_fact);
        let others = self.others.iter().map(|seen| {
            let fact = |name: &str| seen.fact(name).to_owned();
            info(&seen.id, seen.generation, seen.address, seen.live, fact)
        });
        let replicas = std::iter::once(own).chain(others).collect();
        let mut workers = self.registry.workers();
        let hybrid_ms = self.registry.hybrid_ms(cx.unix_ms);
        self.warmups.settle(&mut workers, hybrid_ms, cx.now);
        View::of(workers, self.registry.digest(), replicas)
    }

    /// Merges entries of a peer, and publishes what they change.
    /// Errors: nothing of them may be used.
    fn merge(
        &mut self,
        from: &ReplicaId,
        entries: Vec<Entry>,
        cx: &mut Context,
    ) -> Result<Merged, RegistryError> {
        let merged = self.take_in(from, entries, cx)?;
        if merged.changed > 0 {
            self.refresh(cx);
        }
        Ok(merged)
    }

    /// [`RegistryPlane::take_in`] of what a peer has that claims to have been alone for so long. The first cluster that this
    /// replica meets knows better than its configuration.
    /// Errors: the same.
    fn take_in_of(
        &mut self,
        peer: &ReplicaId,
        peer_alone: Duration,
        entries: Vec<Entry>,
        cx: &Context,
    ) -> Result<Merged, RegistryError> {
        let joins = self.contact.has_met_nobody() && !Contact::is_of_nobody(peer_alone);
        let of_starts = joins.then(|| Registry::read_at_starts(&entries));
        let mut merged = self.take_in(peer, entries, cx)?;
        merged.changed += self.registry.yield_to(of_starts.unwrap_or_default());
        Ok(merged)
    }

    /// Merges entries of a peer without a view of them.
    /// Errors: nothing of them may be used. That is no offence in itself: an honest peer whose clock was wrong has
    /// nothing else to answer with. What it pushes is its own affair.
    fn take_in(
        &mut self,
        from: &ReplicaId,
        entries: Vec<Entry>,
        cx: &Context,
    ) -> Result<Merged, RegistryError> {
        let merged = self.registry.merge(entries, cx.unix_ms);
        let merged = merged.inspect_err(|error| {
            if let RegistryError::Quarantine { lead, .. } = error {
                self.clocks.show(*lead, &self.metrics, cx.now);
            }
            tracing::error!(replica = %from, "refused registry entries: {error}; check the clocks");
        })?;
        if let Some(lead) = merged.drift {
            // Every replica carries the lead of a clock on for as long as it lasts, whoever had it: no clock need be wrong.
            tracing::debug!(replica = %from, ?lead, "a registry entry is stamped in the future");
        }
        if merged.ahead > 0 {
            tracing::warn!(replica = %from, entries = merged.ahead, "starts of workers lie more than a day in the future and are left out; check the clocks");
        }
        if merged.refused > 0 {
            tracing::error!(replica = %from, entries = merged.refused, "the registry is full; entries were left out");
        }
        if merged.too_far > 0 {
            tracing::warn!(replica = %from, entries = merged.too_far, "registry entries are stamped more than a day in the future and are left out; check the clocks");
        }
        Ok(merged)
    }

    fn answer_snapshot(&self, cx: &mut Context) {
        let alone = Some(self.contact.claimed());
        for (entries, last) in pieces(self.registry.entries().cloned().collect()) {
            let load = last.then(|| (self.load)());
            cx.answer(Message::Snapshot(Snapshot {
                entries,
                load,
                last,
                alone,
            }));
        }
    }

    /// Uses a new look at the others.
    fn round(&mut self, around: &Surroundings, cx: &mut Context) {
        let seen = &around.seen;
        if self.others != seen.others || self.generation != seen.generation {
            self.others.clone_from(&seen.others);
            self.generation = seen.generation;
            self.refresh(cx);
        }
        let live = seen.others.iter().filter(|seen| seen.live).count();
        if self.age(live, cx) {
            greet_silent(around, cx);
        }
        if seen.is_synced {
            self.begin_exchanges(around, cx);
        }
    }

    /// Looks whether this replica may have been away without having noticed: before anything of a peer is used, and before
    /// a peer is told anything. Its map may hold what the others have removed since, and have forgotten to have.
    fn look_back(&mut self, cx: &Context) {
        let unseen = self.unseen.look(cx.now, cx.unix_ms);
        if !unseen.is_zero() && !self.is_solo {
            tracing::warn!(
                ?unseen,
                "the wall clock went on without this replica: its machine was suspended, or the clock was set; taken for time away from the cluster"
            );
            self.contact.add(0, unseen);
        }
    }

    /// Lets the registry grow older, each second; true if one is over.
    fn age(&mut self, live_peers: usize, cx: &mut Context) -> bool {
        let elapsed = cx.now.saturating_duration_since(self.second);
        if elapsed < SECOND {
            return false;
        }
        self.second = cx.now;
        self.clocks.age(&self.metrics, cx.now);
        // Paused for long: nothing was received, whatever the last sightings were.
        let heard = if elapsed > 10 * SECOND { 0 } else { live_peers };
        let contact = self.contact.add(heard, elapsed);
        if self.registry.advance(contact) > 0 {
            self.refresh(cx);
        }
        true
    }
}

impl Plane for RegistryPlane {
    fn names(&self) -> &'static [&'static str] {
        &["registry"]
    }

    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        self.look_back(cx);
        match message {
            Message::RegistryPush(entries) => {
                let merged = self.merge(from.peer, entries, cx);
                if let Err(RegistryError::Quarantine { .. }) = merged {
                    cx.strike(from.peer, Reason::Implausible);
                }
                let is_held = merged.is_ok_and(|merged| merged.is_whole());
                let confirmed = is_held.then_some(Message::PushAck(from.header.seq));
                confirmed.into_iter().for_each(|frame| cx.answer(frame));
            }
            Message::SyncRequest(request) => self.answer_sync(&request, cx),
            Message::SnapshotRequest => self.answer_snapshot(cx),
            // Answers that nobody asked for do not come so far.
            _ => {}
        }
    }

    fn on_answer(
        &mut self,
        peer: &ReplicaId,
        question: &Message,
        answer: Result<Vec<Received>, RequestError>,
        cx: &mut Context,
    ) {
        self.look_back(cx);
        if !self.exchanges.is_under_way(peer) {
            return;
        }
        let step = answer.and_then(|answer| match question {
            Message::SyncRequest(asked) => self.compared(peer, asked, answer, cx),
            _ => Ok(false),
        });
        if step == Ok(true) {
            return;
        }
        match self.exchanges.next(peer, step.is_ok(), cx.now) {
            Step::Push(piece) => return cx.ask(peer.clone(), Message::RegistryPush(piece)),
            Step::None => return,
            Step::Ended => {}
        }
        let reason = match step {
            Ok(_) => "done",
            Err(error) => {
                tracing::debug!(replica = %peer, %error, "registry exchange failed");
                "failed"
            }
        };
        self.metrics.syncs.get_or_create(&Why { reason }).inc();
    }

    fn on_tick(&mut self, around: &Surroundings, cx: &mut Context) -> Option<Instant> {
        self.look_back(cx);
        let is_news = |seen: &Arc<Seen>| !Arc::ptr_eq(seen, &around.seen);
        if self.is_solo {
            // Nobody is there who could bring a removed worker back: as good as contact with all.
            self.age(1, cx);
        } else if self.seen.as_ref().is_none_or(is_news) {
            self.seen = Some(around.seen.clone());
            self.round(around, cx);
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= cx.now);
        // A warm-up that ends changes the view, although no replica wrote anything.
        if is_due(self.pace.due()) || is_due(self.warmups.next_end()) {
            self.publish(cx);
        }
        // In a cluster each round wakes it.
        let next_second = self.is_solo.then(|| self.second + SECOND);
        [self.pace.due(), self.warmups.next_end(), next_second]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_left(&mut self, peer: &ReplicaId, cx: &mut Context) {
        self.others.retain(|seen| seen.id != *peer);
        self.exchanges.left(peer);
        self.refresh(cx);
    }

    /// All others have seen it.
    fn on_view(&mut self, _: &View, cx: &mut Context) {
        self.pace.published(self.began, cx.now);
    }
}

#[cfg(test)]
impl super::tests::Remembers for RegistryPlane {
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str> {
        let Self {
            registry: _,
            contact: _,
            exchanges,
            metrics: _,
            replica: _,
            generation: _,
            address: _,
            facts: _,
            others,
            warmups: _,
            pace: _,
            began: _,
            load: _,
            is_solo: _,
            seen,
            second: _,
            unseen: _,
            clocks: _,
        } = self;
        let is_in = |others: &[SeenReplica]| others.iter().any(|other| other.id == *peer);
        super::tests::named([
            ("exchanges", exchanges.remembers(peer)),
            ("others", is_in(others)),
            (
                "seen",
                seen.as_ref().is_some_and(|seen| is_in(&seen.others)),
            ),
        ])
    }
}

fn info(
    id: &ReplicaId,
    generation: u64,
    gossip_addr: SocketAddr,
    live: bool,
    fact: impl Fn(&str) -> String,
) -> ReplicaInfo {
    ReplicaInfo {
        id: id.clone(),
        generation,
        gossip_addr,
        http: fact(fact::HTTP),
        admin: fact(fact::ADMIN),
        version: fact(fact::VERSION),
        ready: fact(fact::READY) == "1",
        leaving: fact(fact::LEAVING) == "1",
        live,
        registry: fact(fact::REGISTRY),
        settings: fact(fact::SETTINGS),
        ring: fact(fact::RING),
    }
}

/// Pieces that fit one frame each, and whether it is the last one.
fn pieces(entries: Vec<Entry>) -> impl Iterator<Item = (Vec<Entry>, bool)> {
    let pieces = chunks(entries);
    let last = pieces.len() - 1;
    let numbered = pieces.into_iter().enumerate();
    numbered.map(move |(at, entries)| (entries, at == last))
}

/// A connected replica that chitchat does not hold for alive is greeted again: the first greeting may
/// have been lost, and chitchat forgets the dead after a minute.
fn greet_silent(around: &Surroundings, cx: &mut Context) {
    for link in &around.links {
        let mut known = around.seen.others.iter();
        match known.find(|seen| seen.id == link.peer) {
            Some(seen) if seen.live => {}
            Some(seen) => cx.greet(seen.address),
            None => cx.greet(link.address),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
