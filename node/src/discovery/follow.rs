//! Runs the rule for one source: looks when something changed, writes what follows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grapevine_discovery::{Entries, Picture, Rule, Settings, Step, Watcher, WorkerSet};
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Labels, Source, State, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, ChangeError};
use tokio::time::{Instant, sleep, sleep_until};

use super::board::Board;
use super::metrics::DiscoveryMetrics;
use super::sightings;
use crate::live::Live;
use crate::metrics::ActionLabels;
use crate::shutdown::Phase;
use crate::upstream::Connector;
use crate::upstream::address::Address;
use crate::warmup::WarmUps;

/// Changes are gathered for so long: a rollout is a few writes, not one for each pod.
const GATHER: Duration = Duration::from_millis(200);
/// What peers state and what the registry holds is looked at so often.
const LOOK: Duration = Duration::from_millis(500);

/// What all sources share.
#[derive(Clone)]
pub struct FollowParts {
    /// The replicated view.
    pub agent: Arc<Agent>,
    /// Where workers may be.
    pub connector: Arc<Connector>,
    /// How new workers join.
    pub warm_ups: Arc<WarmUps>,
    /// What sources show.
    pub board: Arc<Board>,
    /// Where to count.
    pub metrics: DiscoveryMetrics,
    /// How long the rule waits.
    pub settings: Live<Settings>,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

/// Follows one source until the replica ends.
pub struct Follow {
    parts: FollowParts,
    watcher: Watcher,
    source: Source,
    rule: Rule,
    /// Workers that are not allowed here, so that the log names each once.
    refused: BTreeSet<WorkerId>,
    /// The last write did, so that the log says once that workers find no room.
    has_failed: bool,
}

impl Follow {
    /// A task for this source.
    ///
    /// # Panics
    /// The watcher's name is no name of a source; those of this program are.
    pub fn new(parts: FollowParts, watcher: Watcher) -> Self {
        let source = Source::provider(watcher.name()).expect("names of sources are constants");
        let rule = Rule::new(parts.agent.replica().clone(), *parts.settings.now());
        Self {
            parts,
            watcher,
            source,
            rule,
            refused: BTreeSet::new(),
            has_failed: false,
        }
    }

    /// Looks and writes until the replica ends.
    pub async fn run(mut self) {
        self.show(&Step::default());
        for action in ["put", "removed", "refused", "labelled"] {
            self.count(action, 0);
        }
        let phase = self.parts.phase.clone();
        tokio::select! {
            () = phase.closed() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        // Before that, the registry may lack what others removed.
        let mut ready = self.parts.agent.ready();
        if ready.wait_for(|ready| *ready).await.is_err() {
            return;
        }
        loop {
            let step = self.step();
            self.show(&step);
            let next = step.next;
            self.write(step).await;
            sleep(GATHER).await;
            let until = Instant::now() + LOOK;
            tokio::select! {
                () = self.watcher.changed() => {}
                () = sleep_until(next.map_or(until, |next| next.min(until))) => {}
            }
        }
    }

    fn step(&mut self) -> Step {
        let picture = self.watcher.fresh().map(|picture| self.allowed(&picture));
        let entries = self.parts.agent.entries_of(&self.source);
        let entries: Entries = entries
            .into_iter()
            .map(|entry| (entry.id, entry.spec))
            .collect();
        let believed = sightings::decode(&self.parts.agent.peer_states());
        let peers = believed.about(self.watcher.name());
        let beside = Beside {
            agent: &self.parts.agent,
            view: self.parts.agent.view(),
            source: &self.source,
        };
        self.rule.change(*self.parts.settings.now());
        let (now, picture) = (Instant::now(), picture.as_deref());
        let replicas = beside.view.replicas();
        self.rule
            .step(now, picture, &entries, &beside, peers, replicas)
    }

    /// The picture without workers that the settings do not allow: a source is not trusted more than an operator.
    fn allowed(&mut self, picture: &Arc<Picture>) -> Arc<Picture> {
        let mut refused = BTreeSet::new();
        for (id, found) in picture.iter() {
            let host = found.spec().url().host();
            let allowed = self.parts.connector.allow().host(host);
            let allowed = allowed.map_err(|error| error.to_string());
            let usable = allowed.and_then(|()| {
                Address::of(found.spec())
                    .map(drop)
                    .map_err(|error| error.to_string())
            });
            if let Err(error) = usable {
                if !self.refused.contains(id) {
                    tracing::warn!(worker = %id, source = self.watcher.name(), error, "a discovered worker is refused");
                    self.count("refused", 1);
                }
                refused.insert(id.clone());
            }
        }
        self.refused = refused;
        if self.refused.is_empty() {
            return Arc::clone(picture);
        }
        let kept = picture.iter().filter(|(id, _)| !self.refused.contains(*id));
        let kept = kept.map(|(id, found)| (id.clone(), found.clone()));
        Arc::new(Picture::new(kept).expect("a part of a picture is one"))
    }

    async fn write(&mut self, step: Step) {
        let (put, removed) = (step.put.len(), step.remove.len());
        let mut failure = None;
        let view = self.parts.agent.view();
        // What is new may find no room, which must not keep those that are known from being drained.
        let is_known = |id: &WorkerId| view.worker(id).is_some();
        let (known, new) = partition(self.parts.warm_ups.joining(step.put), is_known);
        let (of_known, of_new) = partition(step.label, is_known);
        for (workers, labels) in [(known, of_known), (new, of_new)] {
            if let Err(error) = self.declare(workers, labels).await {
                failure = Some(error);
            }
        }
        if removed > 0 {
            let source = self.source.clone();
            let done = self.parts.agent.remove_workers(step.remove, source).await;
            match done {
                Ok(_) => self.count("removed", removed),
                Err(error) => failure = Some(error),
            }
        }
        let name = self.watcher.name();
        let has_failed = std::mem::replace(&mut self.has_failed, failure.is_some());
        match failure {
            // It is tried again at each look.
            Some(_) if has_failed => {}
            Some(error) => {
                tracing::warn!(source = name, put, removed, %error, "discovered workers were not taken over")
            }
            None if put + removed > 0 => {
                tracing::info!(source = name, put, removed, "discovered workers changed");
            }
            None => {}
        }
    }

    /// What could not be written now is still missing at the next look.
    async fn declare(
        &self,
        workers: Vec<(WorkerId, WorkerSpec)>,
        labels: Vec<(WorkerId, Labels)>,
    ) -> Result<(), ChangeError> {
        let (put, labelled) = (workers.len(), labels.len());
        if put + labelled == 0 {
            return Ok(());
        }
        let source = self.source.clone();
        let declared = self.parts.agent.declare(source, workers, labels).await?;
        self.count("put", put);
        self.count("labelled", labelled - declared.unlabelled.len());
        for (id, error) in declared.unlabelled {
            let source = self.watcher.name();
            tracing::debug!(worker = %id, source, %error, "labels of a discovered worker were not taken over");
        }
        Ok(())
    }

    fn count(&self, action: &'static str, workers: usize) {
        let source = self.watcher.name().into();
        let labels = ActionLabels { source, action };
        let writes = &self.parts.metrics.writes;
        writes.get_or_create(&labels).inc_by(workers as u64);
    }

    fn show(&self, step: &Step) {
        let (name, sight) = (self.watcher.name(), self.watcher.sight());
        let is_fresh = self.watcher.fresh().is_some();
        let mut counts = step.counts;
        // Also while the source cannot be seen: these workers are in use.
        let picture = sight.picture.as_deref();
        counts.seen = picture.map_or(0, Picture::len);
        counts.ready = picture.map_or(0, |picture| {
            picture.iter().filter(|(_, found)| found.is_ready()).count()
        });
        let metrics = &self.parts.metrics;
        metrics.show(name.into(), &sight, is_fresh, counts);
        let statement = step.statement.clone();
        self.parts.board.show(
            name,
            statement,
            counts,
            (sight, is_fresh),
            self.refused.len(),
        );
    }
}

/// Something of each of some workers.
type Of<T> = Vec<(WorkerId, T)>;

/// Those of known workers, and those of others.
fn partition<T>(all: Of<T>, is_known: impl Fn(&WorkerId) -> bool) -> (Of<T>, Of<T>) {
    all.into_iter().partition(|(id, _)| is_known(id))
}

/// The registry beside one source.
struct Beside<'a> {
    agent: &'a Agent,
    view: Arc<View>,
    source: &'a Source,
}

impl WorkerSet for Beside<'_> {
    fn labels(&self, id: &WorkerId) -> Option<Arc<Labels>> {
        Some(Arc::clone(&self.view.worker(id)?.labels))
    }

    fn is_held_otherwise(&self, id: &WorkerId) -> bool {
        let sources = self.agent.sources_of(id);
        let behind = sources.iter().skip_while(|source| *source != self.source);
        behind.skip(1).any(|source| {
            let entry = self.agent.entry_of(id, source);
            let spec = entry.and_then(|entry| entry.spec);
            spec.is_some_and(|spec| spec.state() != State::Draining)
        })
    }
}
