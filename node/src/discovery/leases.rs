//! Workers that register themselves: each renews a lease at any replica, and the one that it renewed at last answers for
//! it.
//!
//! The writer of a worker's entry in the registry is the replica that answers for it; a renewal at another one moves
//! that. An expired lease stops use first, and removes the worker after a grace. Who answered for a worker and is gone is
//! followed by the first live replica. While no replica hears any renewal nothing expires: then the fault is on the way,
//! not with all workers at once. Rules, each a test of that name: `a_renewal_anywhere_keeps_it`,
//! `an_expired_lease_stops_use_then_removes`, `nothing_expires_while_nobody_hears`, `the_first_live_replica_follows`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grapevine_discovery::label::to_write;
use grapevine_discovery::{Counts, Sight, Statement};
use grapevine_gossip::registry::{Entry, TakenOut};
use grapevine_gossip::worker::{Labels, Source, State, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, ChangeError, ReplicaId};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::board::Board;
use super::metrics::DiscoveryMetrics;
use super::processes::{NAME_BYTES_MAX, Processes, Renewer};
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

/// What this replica heard itself.
#[derive(Debug, Default)]
struct Heard {
    /// By worker that this replica answers for: the last renewal, or when it took over.
    renewed: BTreeMap<WorkerId, Renewal>,
    /// What those workers declared of themselves at last, where it is anything.
    declared: BTreeMap<WorkerId, Labels>,
    /// Which processes renewed here, where they say so.
    processes: BTreeMap<WorkerId, Processes>,
    /// The last renewal of any.
    last: Option<Instant>,
    /// Nobody heard anything at the last look.
    is_deaf: bool,
}

/// A renewal, and how long its caller was told that it lasts: a shorter time that is configured later is for later ones.
#[derive(Debug, Clone, Copy)]
struct Renewal {
    at: Instant,
    ttl: Duration,
}

/// What is to be done about one lease.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    StopUse,
    Remove,
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
    ///
    /// # Errors
    /// [`LeaseError::Change`] if the registry is full.
    pub async fn renew(
        &self,
        id: &WorkerId,
        spec: WorkerSpec,
        labels: Labels,
        by: Option<Renewer<'_>>,
    ) -> Result<(), LeaseError> {
        let is_elsewhere = self.is_elsewhere(id);
        let is_news = self.heard().declares(id, &labels);
        let result = self.try_renew(id, spec, labels, is_news).await;
        if result.is_err() {
            // It is still to be written.
            self.heard().declared.remove(id);
        }
        let label = if result.is_ok() { "renewed" } else { "failed" };
        self.count(label);
        if result.is_ok()
            && let Some(by) = by.filter(|by| by.name.len() <= NAME_BYTES_MAX)
        {
            self.renewed_by(id, by, is_elsewhere);
        }
        result
    }

    /// Whether two processes renew the lease, which do not know of each other.
    pub fn are_two(&self, id: &WorkerId) -> bool {
        let processes = &self.heard().processes;
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
        let mut heard = self.heard();
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
        self.heard().renewal(id, self.ttl(), Instant::now());
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
    ///
    /// # Errors
    /// [`LeaseError::Change`] if it could not be written.
    pub async fn release(&self, id: &WorkerId) -> Result<(), LeaseError> {
        {
            let mut heard = self.heard();
            heard.renewed.remove(id);
            heard.declared.remove(id);
            heard.processes.remove(id);
        }
        let source = self.source.clone();
        self.parts.agent.remove_worker(id, source).await?;
        self.count("released");
        tracing::info!(worker = %id, "a worker took itself out");
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
        loop {
            tokio::select! {
                () = self.parts.phase.closed() => return,
                _ = tick.tick() => self.look().await,
            }
        }
    }

    async fn look(&self) {
        let agent = &self.parts.agent;
        let entries = agent.entries_of(&self.source);
        let entries: Vec<Entry> = entries
            .into_iter()
            .filter(|entry| !entry.is_removed())
            .collect();
        let view = agent.view();
        let live = view.replicas().iter().filter(|replica| replica.live);
        let live: Vec<&ReplicaId> = live.map(|replica| &replica.id).collect();
        let believed = sightings::decode(&agent.peer_states());
        let peers_hear = believed
            .about(self.parts.source)
            .iter()
            .any(|peer| peer.statement.is_seeing);
        let (now, config) = (Instant::now(), &*self.parts.config.now());
        let mine = |entry: &&Entry| answers_for(agent.replica(), entry.writer.as_ref(), &live);
        let mine: Vec<&Entry> = entries.iter().filter(mine).collect();
        let due: Vec<(&Entry, Due)> = {
            let mut heard = self.heard();
            heard
                .processes
                .retain(|_, processes| !processes.is_over(config.ttl, now));
            heard.follow(
                mine.iter().map(|entry| &entry.id),
                peers_hear,
                config.ttl,
                now,
            );
            let due = |entry: &Entry| heard.due(entry, || self.is_masked(&entry.id), config, now);
            mine.iter().map(|entry| (*entry, due(entry))).collect()
        };
        self.show(&entries, mine.len(), now);
        for (entry, due) in due {
            self.act(entry, due).await;
        }
    }

    /// An operator removed the worker, so that no source has it in the set.
    fn is_masked(&self, id: &WorkerId) -> bool {
        self.parts.agent.taken_out(id) == Some(TakenOut::ByAdmin)
    }

    async fn act(&self, entry: &Entry, due: Due) {
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
            let heard = self.heard();
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
            seen: mine,
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
        // A cluster in which nobody registers shows no such source.
        if last.is_some() || !entries.is_empty() {
            let metrics = &self.parts.metrics;
            metrics.show(labels.source, &sight, !is_deaf, counts);
            let board = &self.parts.board;
            board.show(self.parts.source, statement, counts, (sight, !is_deaf), 0);
        }
    }

    fn count(&self, result: &'static str) {
        let renewals = &self.parts.metrics.renewals;
        renewals.get_or_create(&ResultLabels { result }).inc();
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        // Instants, whole whatever panicked.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    fn renewal(&mut self, id: &WorkerId, ttl: Duration, now: Instant) {
        self.renewed.insert(id.clone(), Renewal { at: now, ttl });
        self.last = Some(now);
    }

    /// Takes in what a worker declares of itself. Returns whether that is not what it declared here before.
    fn declares(&mut self, id: &WorkerId, labels: &Labels) -> bool {
        if self.declared.get(id) == Some(labels) {
            return false;
        }
        match labels.is_empty() {
            true => drop(self.declared.remove(id)),
            false => drop(self.declared.insert(id.clone(), labels.clone())),
        }
        true
    }

    /// Whether a renewal was heard here lately.
    fn hears(&self, ttl: Duration, now: Instant) -> bool {
        let since = |last| now.saturating_duration_since(last);
        self.last.is_some_and(|last| since(last) <= ttl)
    }

    /// Keeps what this replica answers for; its time begins when it takes over, and anew when renewals are heard again
    /// after nobody heard any.
    fn follow<'a>(
        &mut self,
        mine: impl Iterator<Item = &'a WorkerId>,
        peers_hear: bool,
        ttl: Duration,
        now: Instant,
    ) {
        let is_deaf = !peers_hear && !self.hears(ttl, now);
        let was_deaf = std::mem::replace(&mut self.is_deaf, is_deaf);
        let before = std::mem::take(&mut self.renewed);
        let anew = Renewal { at: now, ttl };
        let since = |id: &WorkerId| before.get(id).copied().unwrap_or(anew);
        let kept = mine.map(|id| {
            let since = if was_deaf && !self.is_deaf {
                anew
            } else {
                since(id)
            };
            (id.clone(), since)
        });
        self.renewed = kept.collect();
        let renewed = &self.renewed;
        self.declared.retain(|id, _| renewed.contains_key(id));
    }

    /// `is_masked`: an operator removed the worker, so that nobody loses it with its lease. Asked of silent ones only.
    fn due(
        &self,
        entry: &Entry,
        is_masked: impl FnOnce() -> bool,
        config: &LeaseConfig,
        now: Instant,
    ) -> Due {
        let renewed = self.renewed.get(&entry.id);
        let silent = renewed.map_or(Duration::ZERO, |renewed| {
            now.saturating_duration_since(renewed.at)
        });
        let ttl = renewed.map_or(config.ttl, |renewed| renewed.ttl.max(config.ttl));
        let is_in_use = entry
            .spec
            .as_ref()
            .is_some_and(|spec| spec.state() != State::Draining);
        if silent <= ttl {
            return Due::Nothing;
        }
        let is_masked = is_masked();
        match () {
            () if self.is_deaf && !is_masked => Due::Nothing,
            () if silent > ttl + config.grace => Due::Remove,
            () if is_in_use && !is_masked => Due::StopUse,
            () => Due::Nothing,
        }
    }
}

/// Whether this replica answers for an entry: it wrote it, or its writer is gone and it is the first that lives.
fn answers_for(own: &ReplicaId, writer: Option<&ReplicaId>, live: &[&ReplicaId]) -> bool {
    let is_live = |replica: &ReplicaId| live.contains(&replica);
    match writer {
        Some(writer) if writer == own || is_live(writer) => writer == own,
        _ => live.iter().all(|other| own <= other),
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::RawWorker;

    use super::*;

    fn config() -> LeaseConfig {
        LeaseConfig::default()
    }

    fn id() -> WorkerId {
        "w".parse().expect("an id")
    }

    fn entry(state: State) -> Entry {
        let mut raw = RawWorker::at("http://w:8000");
        raw.state = state;
        Entry {
            id: id(),
            source: Source::provider(SOURCE).expect("a name"),
            stamp: grapevine_gossip::hlc::Stamp::ZERO,
            writer: None,
            spec: Some(Arc::new(WorkerSpec::new(raw).expect("valid"))),
            unused_ms: 0,
        }
    }

    fn after(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// What is due at this second, when peers hear renewals or not.
    fn due(heard: &mut Heard, state: State, peers_hear: bool, now: Instant) -> Due {
        heard.follow([&id()].into_iter(), peers_hear, config().ttl, now);
        heard.due(&entry(state), || false, &config(), now)
    }

    #[test]
    fn an_expired_lease_stops_use_then_removes() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        assert_eq!(
            due(&mut heard, State::Active, true, after(30, start)),
            Due::Nothing
        );
        assert_eq!(
            due(&mut heard, State::Active, true, after(31, start)),
            Due::StopUse
        );
        assert_eq!(
            due(&mut heard, State::Draining, true, after(330, start)),
            Due::Nothing
        );
        assert_eq!(
            due(&mut heard, State::Draining, true, after(331, start)),
            Due::Remove
        );
        heard.renewal(&id(), config().ttl, after(332, start));
        assert_eq!(
            due(&mut heard, State::Active, true, after(340, start)),
            Due::Nothing
        );
    }

    /// Whoever renewed was told the longer time, and comes again within that.
    #[test]
    fn a_shorter_time_is_for_later_renewals() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl * 10, start);
        for (second, expected) in [(31, Due::Nothing), (300, Due::Nothing), (301, Due::StopUse)] {
            let found = due(&mut heard, State::Active, true, after(second, start));
            assert_eq!(found, expected, "{second}");
        }
    }

    #[test]
    fn the_lease_of_a_worker_that_an_operator_removed_expires_all_the_same() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        let mut due = |seconds| {
            let now = after(seconds, start);
            heard.follow([&id()].into_iter(), false, config().ttl, now);
            heard.due(&entry(State::Active), || true, &config(), now)
        };
        let over = config().ttl + config().grace;
        assert_eq!(due(over.as_secs()), Due::Nothing, "nobody loses it");
        assert_eq!(due(over.as_secs() + 1), Due::Remove);
    }

    #[test]
    fn nothing_expires_while_nobody_hears() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        assert_eq!(
            due(&mut heard, State::Active, false, after(1000, start)),
            Due::Nothing
        );
        // Another worker's renewal comes through first: this one has its time.
        assert_eq!(
            due(&mut heard, State::Active, true, after(1001, start)),
            Due::Nothing
        );
        assert_eq!(
            due(&mut heard, State::Active, true, after(1031, start)),
            Due::Nothing
        );
        assert_eq!(
            due(&mut heard, State::Active, true, after(1032, start)),
            Due::StopUse
        );
    }

    #[test]
    fn the_first_live_replica_follows() {
        let [one, two, three] =
            ["r1", "r2", "r3"].map(|id| id.parse::<ReplicaId>().expect("an id"));
        let all = [&one, &two, &three];
        assert!(answers_for(&two, Some(&two), &all));
        assert!(!answers_for(&one, Some(&two), &all));
        let without_two = [&one, &three];
        assert!(answers_for(&one, Some(&two), &without_two));
        assert!(!answers_for(&three, Some(&two), &without_two));
        let (mut heard, start) = (Heard::default(), Instant::now());
        assert_eq!(due(&mut heard, State::Active, true, start), Due::Nothing);
        assert_eq!(
            due(&mut heard, State::Active, true, after(30, start)),
            Due::Nothing
        );
        assert_eq!(
            due(&mut heard, State::Active, true, after(31, start)),
            Due::StopUse
        );
    }

    #[test]
    fn a_renewal_anywhere_keeps_it() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        // It renewed at another replica, which answers for it since.
        heard.follow([].into_iter(), true, config().ttl, after(20, start));
        assert_eq!(
            due(&mut heard, State::Active, true, after(60, start)),
            Due::Nothing
        );
    }
}
