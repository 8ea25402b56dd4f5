//! What becomes of what workers say of themselves: it goes to the registry once, and differences to the log.
//!
//! All that waits is taken together: thousands of workers that were added at once are a few changes of the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use grapevine_gossip::worker::{Labels, RawWorker, Role, WorkerError, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, WorkerReport};
use grapevine_kv_events::endpoint;
use grapevine_transfer::label;
use tokio::sync::mpsc;

use crate::cluster::Cluster;
use crate::shutdown::Phase;
use crate::upstream::Worker;
use crate::upstream::engine_metrics::SleepState;
use crate::upstream::probe_parts::{Fact, Learned};
use crate::upstream::worker::sleep_in;

/// Most facts that are taken together.
const TOGETHER_MAX: usize = 1_024;

/// Learns what workers say.
pub struct Learner {
    /// Where the registry is.
    pub agent: Arc<Agent>,
    /// Where the workers of a model are.
    pub cluster: Arc<Cluster>,
    /// What the workers of a model did not agree on when it was last said.
    differed: BTreeMap<String, String>,
    /// Why what a worker said could not be used, when it was last said: it is asked again each second.
    refused: BTreeMap<WorkerId, String>,
}

impl Learner {
    /// One that has learned nothing yet.
    pub fn new(agent: Arc<Agent>, cluster: Arc<Cluster>) -> Self {
        Self {
            agent,
            cluster,
            differed: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Runs until the replica is closed.
    pub async fn run(mut self, mut learned: mpsc::Receiver<Learned>, phase: Phase) {
        let mut waiting = Vec::with_capacity(TOGETHER_MAX);
        loop {
            let count = tokio::select! {
                () = phase.closed() => return,
                count = learned.recv_many(&mut waiting, TOGETHER_MAX) => count,
            };
            if count == 0 {
                return;
            }
            let (mut reports, mut models) = (Vec::new(), BTreeSet::new());
            for Learned { worker, fact } in waiting.drain(..) {
                match fact {
                    Fact::Models(models) => match facts(&worker, models) {
                        Ok(facts) => reports.push((worker.id.clone(), facts)),
                        Err(error) => self.unusable(&worker.id, &error),
                    },
                    Fact::Started(epoch) => {
                        reports.push((worker.id.clone(), WorkerReport::Started(epoch)))
                    }
                    Fact::Sleep(state) => reports.extend(self.sleep_reports(&worker.id, state)),
                    Fact::Labels(labels) => {
                        if self.are_news(&worker.id, &labels) {
                            reports.push((worker.id.clone(), WorkerReport::Labels(labels)));
                        }
                    }
                    Fact::Cards => {
                        self.cluster.fleet().cards_changed(&worker);
                        let cards = worker.cards.load();
                        models.extend(cards.iter().map(|card| card.id().to_owned()));
                    }
                }
            }
            if !reports.is_empty() {
                self.register(reports).await;
            }
            self.compare(&models);
        }
    }

    /// Whether these labels are not known of a worker that takes halves of requests, or says by labels where it publishes
    /// KV events. It may have been added again, as another one, since it was asked; and answers to requests teach the same
    /// again and again.
    fn are_news(&self, id: &WorkerId, labels: &Labels) -> bool {
        let view = self.agent.view();
        view.worker(id).is_some_and(|worker| {
            let publishes = endpoint::are_named(worker.labels.iter().map(|(name, _)| name));
            (worker.spec.role() != Role::Any || publishes) && !worker.labels.contain(labels)
        })
    }

    /// What the registry is to know of a worker whose engine fell asleep, or was woken. Either way its cache is empty, as
    /// after a start: the time of it counts as one, a second later at least where its process began just now.
    fn sleep_reports(&self, id: &WorkerId, state: SleepState) -> Vec<(WorkerId, WorkerReport)> {
        let view = self.agent.view();
        let Some(worker) = view.worker(id) else {
            return Vec::new();
        };
        let known = sleep_in(&worker.labels);
        if known.is_some() == (state != SleepState::Awake) {
            return Vec::new();
        }
        let labels = Labels::new([(label::SLEEP_STATE, state.as_str())]);
        let labels = labels.expect("names and values of ours are within the limits");
        let emptied = (self.agent.hybrid_ms() / 1000).max(worker.spec.epoch() + 1);
        vec![
            (id.clone(), WorkerReport::Started(emptied)),
            (id.clone(), WorkerReport::Labels(labels)),
        ]
    }

    async fn register(&mut self, reports: Vec<(WorkerId, WorkerReport)>) {
        for (worker, error) in self.agent.learn_all(reports).await {
            // It may have been removed while it was asked.
            if self.agent.view().worker(&worker).is_some() {
                self.unusable(&worker, &error);
            }
        }
    }

    /// Says it once for each worker and reason.
    fn unusable(&mut self, worker: &WorkerId, error: &dyn Display) {
        let view = self.agent.view();
        self.refused.retain(|id, _| view.worker(id).is_some());
        let error = error.to_string();
        if self.refused.get(worker) != Some(&error) {
            tracing::warn!(
                worker = worker.as_str(),
                error,
                "cannot register what the worker reported about itself; until it says something else, it gets no requests \
                 for what it did not register"
            );
            self.refused.insert(worker.clone(), error);
        }
    }

    /// Says once what the workers of a model say differently of it.
    fn compare(&mut self, models: &BTreeSet<String>) {
        let fleet = self.cluster.fleet();
        for model in models {
            match fleet.card_of(model).difference() {
                None => {
                    self.differed.remove(model);
                }
                Some(what) if self.differed.get(model) == Some(&what) => {}
                Some(what) => {
                    tracing::warn!(
                        model,
                        what,
                        "the workers of a model report different facts about it"
                    );
                    self.differed.insert(model.clone(), what);
                }
            }
        }
        self.differed.retain(|model, _| fleet.pool(model).is_some());
    }
}

fn facts(worker: &Worker, models: Vec<String>) -> Result<WorkerReport, WorkerError> {
    let facts = WorkerSpec::new(RawWorker {
        models,
        ..RawWorker::at(worker.address.url(""))
    })?;
    Ok(WorkerReport::Facts(Box::new(facts)))
}
