//! Workers that register themselves: each renews a lease at any replica, and the one that it renewed at last answers for
//! it.
//!
//! The writer of a worker's entry in the registry is the replica that answers for it; a renewal at another one moves
//! that. An expired lease stops use first, and removes the worker after a grace. Who answered for a worker and is gone is
//! followed by the first live replica, which ends no lease of a worker that it finds good: who is gone without leaving may
//! take renewals elsewhere. While no replica hears any renewal nothing expires: then the fault is on the way, not with all
//! workers at once. Rules, each a test of that name: `a_renewal_anywhere_keeps_it`,
//! `an_expired_lease_stops_use_then_removes`, `nothing_expires_while_nobody_hears`, `the_first_live_replica_follows`,
//! `a_good_worker_outlives_a_writer_that_was_lost`, `a_renewal_between_look_and_write_wins`.
//!
//! `heard.rs` decides what is due, purely; this is its rim.

mod heard;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use grapevine_discovery::label::to_write;
use grapevine_discovery::{Counts, Sight, Statement};
use grapevine_gossip::registry::{Entry, TakenOut};
use grapevine_gossip::worker::{Labels, Source, State, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, ChangeError, ReplicaId};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::heard::{Due, Heard, answers_for};
use super::board::Board;
use super::metrics::DiscoveryMetrics;
use super::processes::{Processes, Renewer};
use super::sightings;
use crate::config::LeaseConfig;
use crate::live::Live;
use crate::metrics::{ResultLabels, SourceLabels};
use crate::shutdown::Phase;
use crate::warmup::WarmUps;

/// The name in the registry of workers that register by `PUT /leases/{id}`.
pub const SOURCE: &str = "lease";
/// How often is looked for leases that have expired.
const LOOK: Duration = Duration::from_secs(1);
/// So long after the last look a replica was paused, or had no processor. No lease is shorter.
const STOOD_STILL: Duration = Duration::from_secs(5);

/// Why a lease was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The registry did not take the worker.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// What leases are made of.
pub struct LeaseParts {
    /// The source's name in the registry: workers that renew in another way are another source.
    pub source: &'static str,
    /// The replicated view.
    pub agent: Arc<Agent>,
    /// Whether the checks of this replica find a worker good.
    pub is_good: Box<dyn Fn(&WorkerId) -> bool + Send + Sync>,
    /// How new workers join.
    pub warm_ups: Arc<WarmUps>,
    /// What sources show.
    pub board: Arc<Board>,
    /// Where to count.
    pub metrics: DiscoveryMetrics,
    /// How long leases last.
    pub config: Live<LeaseConfig>,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

/// The leases of the cluster, as this replica knows them.
pub struct Leases {
    parts: LeaseParts,
    source: Source,
    heard: Mutex<Heard>,
}

impl Leases {
    /// Leases that are yet to be heard of.
    pub fn new(parts: LeaseParts) -> Self {
        Self {
            source: Source::provider(parts.source).expect("a valid name"),
            heard: Mutex::new(Heard::default()),
            parts,
        }
    }

    /// How long a lease lasts.
    pub fn ttl(&self) -> Duration {
        self.parts.config.look().ttl
    }

    /// Registers a worker, or renews its lease. Repeating it changes nothing, and what was lost is there again; of labels
    /// that are known with another value, those that the worker declares anew count. `by`: the process that renews, where
    /// it says so.
    /// Errors: [`LeaseError::Change`] if the registry is full.
    pub async fn renew(
        &self,
        id: &WorkerId,
        spec: WorkerSpec,
        labels: Labels,
        by: Option<Renewer<'_>>,
    ) -> Result<(), LeaseError> {
        let is_elsewhere = self.is_elsewhere(id);
        let is_news = self.heard.lock().declares(id, &labels);
        let result = self.try_renew(id, spec, labels, is_news).await;
        if result.is_err() {
            // It is still to be written.
            self.heard.lock().take_back(id);
        }
        let label = if result.is_ok() { "renewed" } else { "failed" };
        self.count(label);
        if result.is_ok()
            && let Some(by) = by
        {
            self.renewed_by(id, by, is_elsewhere);
        }
        result
    }

    /// Whether two processes renew the lease, which do not know of each other.
    pub fn are_two(&self, id: &WorkerId) -> bool {
        let processes = &self.heard.lock().processes;
        let of_it = processes.get(id);
        of_it.is_some_and(|of_it| of_it.are_two(self.ttl(), Instant::now()))
    }

    /// Whether another replica answers for the lease now.
    fn is_elsewhere(&self, id: &WorkerId) -> bool {
        let entry = self.parts.agent.entry_of(id, &self.source);
        let entry = entry.filter(|entry| !entry.is_removed());
        let writer = entry.and_then(|entry| entry.writer);
        writer.is_some_and(|writer| writer != *self.parts.agent.replica())
    }

    fn renewed_by(&self, id: &WorkerId, by: Renewer<'_>, is_elsewhere: bool) {
        let (ttl, now) = (self.ttl(), Instant::now());
        let mut heard = self.heard.lock();
        let is_news = match heard.processes.get_mut(id) {
            Some(known) => known.renewed(by, is_elsewhere, ttl, now),
            None => {
                let first = Processes::first(by, now);
                heard.processes.insert(id.clone(), first);
                false
            }
        };
        drop(heard);
        if is_news {
            tracing::warn!(worker = %id, "two processes renew the lease of one worker: what they say of it replaces each other, and when one ends it takes the worker out; end one of the two");
        }
    }

    async fn try_renew(
        &self,
        id: &WorkerId,
        spec: WorkerSpec,
        labels: Labels,
        is_news: bool,
    ) -> Result<(), LeaseError> {
        self.heard.lock().renewal(id, self.ttl(), Instant::now());
        let entry = self.parts.agent.entry_of(id, &self.source);
        let known = entry.as_ref().and_then(|entry| entry.spec.as_deref());
        let is_mine = entry
            .as_ref()
            .is_some_and(|entry| entry.writer.as_ref() == Some(self.parts.agent.replica()));
        let labels = self.to_write(id, labels, is_news);
        if is_mine && known.is_some_and(|known| known.is_as_wanted(&spec)) {
            if let Some(labels) = labels {
                self.parts.agent.label_worker(id, labels).await?;
            }
            return Ok(());
        }
        let mut raw = spec.to_raw();
        raw.state = match known.map(WorkerSpec::state) {
            // Another replica warms it.
            Some(warming @ State::Warming { .. }) if spec.state() == State::Active => warming,
            _ => self.parts.warm_ups.joining_state(id, &spec),
        };
        let spec = WorkerSpec::new(raw).unwrap_or(spec);
        let source = self.source.clone();
        let held = self
            .parts
            .agent
            .hold_worker(id.clone(), source, spec, labels);
        let mut held = held.await?;
        if known.is_none() {
            tracing::info!(worker = %id, "a worker registered itself");
        }
        let refused = held.unlabelled.pop();
        refused.map_or(Ok(()), |(_, error)| Err(error.into()))
    }

    /// What of its labels a worker that renews is to get now.
    fn to_write(&self, id: &WorkerId, labels: Labels, is_news: bool) -> Option<Labels> {
        match self.parts.agent.view().worker(id) {
            // It has no labels while it is no worker.
            None if self.is_masked(id) => None,
            Some(worker) => to_write(&worker.labels, &labels, is_news),
            None => Some(labels).filter(|labels| !labels.is_empty()),
        }
    }

    /// Ends a lease: the worker is removed at once.
    /// Errors: [`LeaseError::Change`] if it could not be written.
    pub async fn release(&self, id: &WorkerId) -> Result<(), LeaseError> {
        self.heard.lock().forget(id);
        let source = self.source.clone();
        let ack = self.parts.agent.remove_worker(id, source).await?;
        // Of a lease that is not there, or has ended, there was nothing to take out.
        if ack.written {
            self.count("released");
            tracing::info!(worker = %id, "a worker took itself out");
        }
        Ok(())
    }

    /// Looks for expired leases until the replica ends.
    pub async fn run(self: Arc<Self>) {
        for result in ["renewed", "failed", "released", "expired", "removed"] {
            let labels = ResultLabels { result };
            drop(self.parts.metrics.renewals.get_or_create(&labels));
        }
        let mut ready = self.parts.agent.ready();
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::select! {
            () = self.parts.phase.closed() => return,
            known = async { ready.wait_for(|ready| *ready).await.is_ok() } => if !known { return },
        }
        let mut looked = Instant::now();
        loop {
            tokio::select! {
                () = self.parts.phase.closed() => return,
                _ = tick.tick() => {}
            }
            let now = Instant::now();
            let since = now.duration_since(std::mem::replace(&mut looked, now));
            self.look(since >= STOOD_STILL).await;
        }
    }

    async fn look(&self, stood_still: bool) {
        let agent = &self.parts.agent;
        let entries = agent.entries_of(&self.source);
        let entries: Vec<Entry> = entries
            .into_iter()
            .filter(|entry| !entry.is_removed())
            .collect();
        let live = self.live();
        let believed = sightings::decode(&agent.peer_states());
        let peers_hear = believed
            .about(self.parts.source)
            .iter()
            .any(|peer| peer.statement.is_seeing);
        let (now, config) = (Instant::now(), &*self.parts.config.now());
        let mine = |entry: &&Entry| answers_for(agent.replica(), entry.writer.as_ref(), &live);
        let mine: Vec<&Entry> = entries.iter().filter(mine).collect();
        {
            let mut heard = self.heard.lock();
            heard
                .processes
                .retain(|_, processes| !processes.is_over(config.ttl, now));
            let ids = mine.iter().map(|entry| &entry.id);
            heard.follow(ids, peers_hear, stood_still, config.ttl, now);
            let writers = entries.iter().filter_map(|entry| entry.writer.as_ref());
            heard.see(agent.view().replicas(), writers);
        }
        self.show(&entries, mine.len(), now);
        for entry in mine {
            if self.judge(entry, config) != Due::Nothing {
                self.end(&entry.id, config).await;
            }
        }
    }

    /// Replicas that live, this one among them.
    fn live(&self) -> Vec<ReplicaId> {
        let view = self.parts.agent.view();
        let live = view.replicas().iter().filter(|replica| replica.live);
        live.map(|replica| replica.id.clone()).collect()
    }

    fn judge(&self, entry: &Entry, config: &LeaseConfig) -> Due {
        let (now, is_masked) = (Instant::now(), || self.is_masked(&entry.id));
        let heard = self.heard.lock();
        let is_taken_over = heard.is_taken_over(self.parts.agent.replica(), entry);
        let is_kept = || is_taken_over && (self.parts.is_good)(&entry.id);
        heard.due(entry, is_masked, is_kept, config, now)
    }

    /// An operator removed the worker, so that no source has it in the set.
    fn is_masked(&self, id: &WorkerId) -> bool {
        self.parts.agent.taken_out(id) == Some(TakenOut::ByAdmin)
    }

    /// Writes what is due about a lease that has expired. Writes of others were waited for since it was looked at, so it is
    /// judged by what is known now: it may have been renewed, here or at another replica.
    async fn end(&self, id: &WorkerId, config: &LeaseConfig) {
        let entry = self.parts.agent.entry_of(id, &self.source);
        let Some(entry) = entry.filter(|entry| !entry.is_removed()) else {
            return;
        };
        let own = self.parts.agent.replica();
        if !answers_for(own, entry.writer.as_ref(), &self.live()) {
            return;
        }
        let due = self.judge(&entry, config);
        let (id, source) = (entry.id.clone(), self.source.clone());
        let done = match (due, &entry.spec) {
            (Due::StopUse, Some(spec)) => {
                let mut raw = spec.to_raw();
                raw.state = State::Draining;
                let Ok(stopped) = WorkerSpec::new(raw) else {
                    return;
                };
                tracing::warn!(worker = %id, "the lease of a worker expired: it gets no new prompts until it renews it");
                self.count("expired");
                let held = self.parts.agent.hold_worker(id, source, stopped, None);
                held.await.map(drop)
            }
            (Due::Remove, _) => {
                tracing::warn!(worker = %id, "a worker is removed whose lease expired and was not renewed since");
                self.count("removed");
                self.parts.agent.remove_worker(&id, source).await.map(drop)
            }
            (Due::Nothing | Due::StopUse, _) => return,
        };
        if let Err(error) = done {
            tracing::warn!(%error, "an expired lease could not be written");
        }
    }

    /// For peers: that renewals are heard here. For operators: how many leases there are.
    fn show(&self, entries: &[Entry], mine: usize, now: Instant) {
        let (last, is_seeing, is_deaf) = {
            let heard = self.heard.lock();
            let is_seeing = heard.hears(self.parts.config.look().ttl, now);
            // Where no lease is left, nothing is to be heard.
            let is_deaf = heard.is_deaf && !entries.iter().all(|entry| self.is_masked(&entry.id));
            (heard.last, is_seeing, is_deaf)
        };
        let ready = |entry: &&Entry| {
            let spec = entry.spec.as_ref();
            spec.is_some_and(|spec| spec.state() != State::Draining)
        };
        let counts = Counts {
            registered: entries.len(),
            // Some replica answers for each, and it is there as long as that one does not end it.
            seen: entries.len(),
            ready: entries.iter().filter(ready).count(),
            ..Counts::default()
        };
        let statement = Statement {
            is_seeing,
            objections: Vec::new(),
        };
        let deaf = "no replica hears any renewal; nothing expires meanwhile";
        let sight = Sight {
            seen: last,
            failure: is_deaf.then(|| deaf.to_owned()),
            ..Sight::default()
        };
        let labels = SourceLabels {
            source: self.parts.source.into(),
        };
        let leases = &self.parts.metrics.leases;
        leases.get_or_create(&labels).set(mine as i64);
        let board = &self.parts.board;
        // A cluster in which nobody registers shows no such source. One that was shown goes on being so: the last lease may
        // have been of a worker that never renewed here.
        if last.is_some() || !entries.is_empty() || board.shows(self.parts.source) {
            let metrics = &self.parts.metrics;
            metrics.show(labels.source, &sight, !is_deaf, counts);
            board.show(self.parts.source, statement, counts, (sight, !is_deaf), 0);
        }
    }

    fn count(&self, result: &'static str) {
        let renewals = &self.parts.metrics.renewals;
        renewals.get_or_create(&ResultLabels { result }).inc();
    }
}
