//! The configuration file read again at SIGHUP, or when an operator asks for it: its workers come and go, and settings
//! change, without a restart.
//!
//! The whole file is read and checked as at the start, and a mistake anywhere changes nothing. Then the source `config`
//! says of each worker what the file says now: one that is new or described anew is written with a stamp, so that it
//! wins over every replica's former file, and one that is gone is retracted for the whole cluster. Settings whose rows
//! are `live` are handed to the parts that use them, and count for what begins from then on. What else differs from the
//! running settings is named in the log: it needs a restart. Certificates and keys have reloads of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::{ArcSwap, ArcSwapOption};
use grapevine_discovery::label::to_write;
use grapevine_gossip::worker::{Labels, Source, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, ChangeError};
use serde::Serialize;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::cluster::refuse_replica;
use crate::config::{Config, Followed, Layers};
use crate::left_out::{LeftOut, LeftOutWorker};
use crate::metrics::operator::OperatorMetrics;
use crate::metrics::{Counter, ResultLabels};
use crate::shown::difference::overrules;
use crate::shutdown::Phase;
use crate::upstream::Connector;
use crate::warmup::WarmUps;

/// What reads the configuration again, and acts on it.
pub struct Reload {
    /// Where the configuration came from.
    pub layers: Layers,
    /// As it is in use.
    pub current: Config,
    /// Where workers are written.
    pub agent: Arc<Agent>,
    /// How workers are reached.
    pub connector: Arc<Connector>,
    /// Hands settings to the parts that use them.
    pub apply: Apply,
    /// Warms workers that join.
    pub warm_ups: Arc<WarmUps>,
    /// Where to count.
    pub metrics: OperatorMetrics,
    /// What is said of workers that are not in the cluster.
    pub left_out: LeftOut,
    /// Workers of which the log said that the cluster knows something else of them.
    pub said_to_differ: BTreeSet<WorkerId>,
    /// What readings have shown.
    pub readings: Arc<Readings>,
    /// Workers of which the log said that labels of the configuration are refused.
    pub said_unlabelled: BTreeSet<WorkerId>,
    /// Is told once the labels that the configuration declares are in the registry, or were refused.
    pub labelled: watch::Sender<bool>,
}

/// What a reading of the configuration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Workers of the cluster that are new or described anew.
    pub put: usize,
    /// Workers that are gone from the file, and from the cluster.
    pub retracted: usize,
    /// Workers of the file that are not in the cluster, because somebody took them out.
    pub left_out: Vec<LeftOutWorker>,
    /// Workers that are gone from the file and stay in the cluster.
    pub stay: Vec<Staying>,
    /// Settings that changed, and are in use now.
    pub changed: Vec<String>,
    /// Settings that differ from those in use, and that only a restart brings into use.
    pub needs_restart: Vec<String>,
    /// Workers of the cluster of which it knows something else than this file says: an administrator described them, or
    /// another replica read another file since this one changed.
    pub differs: Vec<String>,
}

/// A worker that stays in the cluster although the file has it no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Staying {
    /// Its id.
    pub worker: String,
    /// Sources that declare it still, such as `admin`; the first one counts.
    pub declared_by: Vec<String>,
}

/// Hands the live settings of a configuration to the parts that use them.
pub type Apply = Box<dyn Fn(&Config) + Send + Sync>;

/// An operator's wish to have it read, and where the outcome goes: what it did, or why nothing was taken over.
pub type Wish = oneshot::Sender<Result<Reloaded, String>>;

/// What readings of the configuration have shown since the start.
#[derive(Debug, Default)]
pub struct Readings {
    /// The latest one, where it was refused and the former configuration stays; none once one was taken over.
    pub refused: ArcSwapOption<RefusedReading>,
    /// Settings that the latest one that was taken over says otherwise than what runs: only a restart brings them into use.
    pub waiting: ArcSwap<Vec<String>>,
    /// The same as `refused`, of the file of clients' keys.
    pub refused_keys: ArcSwapOption<RefusedReading>,
}

/// A reading of a file that changed nothing.
#[derive(Debug)]
pub struct RefusedReading {
    /// When.
    pub at: Instant,
    /// Every mistake that was found, one a line, or what else was in the way.
    pub why: String,
}

impl RefusedReading {
    /// One of now; `why` is shortened.
    #[must_use]
    pub fn now(why: &str) -> Self {
        Self {
            at: Instant::now(),
            why: why.chars().take(WHY_CHARS_MAX).collect(),
        }
    }
}

/// Why the task woke.
enum Woken {
    /// The configuration is to be read, at an operator's wish or at a hang-up.
    Reload(Option<Wish>),
    /// The registry is to be compared with what the configuration declares.
    Look,
}

/// The workers of a configuration, as the registry knows them.
type Workers = BTreeMap<WorkerId, WorkerSpec>;

/// Most workers that one line of the log names.
const LISTED_MAX: usize = 10;
/// Most characters that are kept of why a reading was refused.
const WHY_CHARS_MAX: usize = 2_000;
/// How often is looked whether the registry has the labels that the configuration declares.
const LABELS_EVERY: Duration = Duration::from_secs(5);

impl Reload {
    /// Reads it at each hang-up, and whenever it is wished, until the replica ends.
    pub async fn run(
        mut self,
        mut hangups: Signal,
        mut wishes: mpsc::Receiver<Wish>,
        phase: Phase,
    ) {
        // What the cluster takes the file's workers to be, as far as this replica has seen to it: what it found at its
        // start, then what it read. A reading writes what differs from that, so that a file that did not change writes
        // nothing over what another replica has read since.
        let mut declared = workers(&self.current).unwrap_or_default();
        let agent = Arc::clone(&self.agent);
        let (mut ready, mut is_started) = (agent.ready(), false);
        let mut look = interval(LABELS_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let woken = tokio::select! {
                () = phase.closed() => return,
                // The registry was received, so it is known which workers were removed.
                // Without its guard, which would be held while the start is looked at.
                true = async { ready.wait_for(|ready| *ready).await.is_ok() }, if !is_started => {
                    is_started = true;
                    self.look_at_the_start(&mut declared);
                    look.reset_immediately();
                    continue;
                }
                _ = look.tick(), if is_started => Woken::Look,
                Some(()) = hangups.recv() => Woken::Reload(None),
                Some(wish) = wishes.recv() => Woken::Reload(Some(wish)),
            };
            let Woken::Reload(wish) = woken else {
                self.label_missing().await;
                self.labelled.send_replace(true);
                continue;
            };
            let reloaded = self
                .reload(&mut declared)
                .await
                .map_err(|error| format!("{error:#}"));
            if let Err(error) = &reloaded {
                tracing::error!(
                    error,
                    "the configuration was not taken over; the former one stays"
                );
            }
            let result = if reloaded.is_ok() { "loaded" } else { "failed" };
            self.counter(result).inc();
            self.metrics.config_refused.set(reloaded.is_err().into());
            let refused = reloaded.as_ref().err();
            let refused = refused.map(|why| RefusedReading::now(why));
            self.readings.refused.store(refused.map(Arc::new));
            if let Ok(reloaded) = &reloaded {
                let waiting = reloaded.needs_restart.clone();
                self.readings.waiting.store(Arc::new(waiting));
            }
            if let Some(wish) = wish {
                // The operator may have left.
                let _ = wish.send(reloaded);
            }
        }
    }

    /// A start retracts nothing: what the cluster still takes the file to say is reported, and goes into `declared`.
    fn look_at_the_start(&mut self, declared: &mut Workers) {
        let labels = labels(&self.current);
        self.left_out.look(declared.iter(), &labels, &self.agent);
        let other = self.otherwise(declared);
        if !other.is_empty() {
            tracing::warn!(
                count = other.len(),
                ids = some_of(other.keys()),
                "the cluster has workers from a file that says something else of them, or nothing: `grapevine config \
                 reload` or SIGHUP makes it follow this replica's file"
            );
        }
        declared.extend(other);
    }

    /// What the cluster takes files to say of workers, where that is something else than these declarations.
    fn otherwise(&self, declared: &Workers) -> Workers {
        let entries = self.agent.entries_of(&Source::Config).into_iter();
        let known = entries.filter_map(|entry| Some((entry.id, entry.spec?)));
        known
            .filter(|(id, spec)| !declared.get(id).is_some_and(|of| spec.is_as_wanted(of)))
            .map(|(id, spec)| (id, WorkerSpec::clone(&spec)))
            .collect()
    }

    /// Workers of the file that an administrator has described otherwise.
    fn overruled(&self, will: &Workers) -> Vec<WorkerId> {
        let entries = self.agent.entries_of(&Source::Admin).into_iter();
        let known = entries.filter_map(|entry| Some((entry.id, entry.spec?)));
        let overruled = known.filter(|(id, known)| {
            let of_file = will.get(id);
            of_file.is_some_and(|of_file| overrules(known, of_file))
        });
        overruled.map(|(id, _)| id).collect()
    }

    /// The workers of [`Reloaded::differs`]; the log has them once.
    fn differs(&mut self, will: &Workers) -> Vec<String> {
        let is_there = |id: &WorkerId| self.agent.taken_out(id).is_none();
        let otherwise = self.otherwise(will).into_keys();
        let otherwise = otherwise.chain(self.overruled(will));
        let differs: BTreeSet<_> = otherwise.filter(is_there).collect();
        if !differs.is_subset(&self.said_to_differ) {
            tracing::warn!(
                count = differs.len(),
                ids = some_of(differs.iter()),
                "the cluster knows something else of these workers than this replica's file says, or that says nothing \
                 of them: what an administrator wrote counts, else the last file that changed"
            );
        }
        let named = differs.iter().map(ToString::to_string).collect();
        self.said_to_differ = differs;
        named
    }

    /// Those of these workers, gone from the file, that others declare still.
    fn staying(&self, gone: Vec<WorkerId>) -> Vec<Staying> {
        let declared = gone.into_iter().map(|id| Staying {
            declared_by: {
                let sources = self.agent.sources_of(&id).into_iter();
                sources.map(|source| source.to_string()).collect()
            },
            worker: id.to_string(),
        });
        declared
            .filter(|worker| !worker.declared_by.is_empty())
            .collect()
    }

    /// Declares labels that the registry lacks: configuration, as read at the start, loses to anything that is known, and
    /// what two replicas wrote at one moment may lack what one of them wrote.
    async fn label_missing(&mut self) {
        let view = self.agent.view();
        let missing = labels(&self.current)
            .into_iter()
            .filter_map(|(id, labels)| {
                let known = &view.worker(&id)?.labels;
                Some((id, to_write(known, &labels, false)?))
            });
        let missing: Vec<_> = missing.collect();
        let all: Vec<_> = missing.iter().map(|(id, _)| (id.clone(), ())).collect();
        // They are missing at the next look, too.
        match self.put(Vec::new(), missing).await {
            Ok(refused) => say_unlabelled(untold(&mut self.said_unlabelled, refused)),
            Err(error) => {
                if !untold(&mut self.said_unlabelled, all).is_empty() {
                    tracing::warn!(%error, "labels of the configuration were not taken over");
                }
            }
        }
    }

    /// Workers and labels that the configuration declares. Returns the workers whose labels were refused.
    async fn put(
        &self,
        workers: Vec<(WorkerId, WorkerSpec)>,
        labels: Vec<(WorkerId, Labels)>,
    ) -> Result<Vec<(WorkerId, ChangeError)>, ChangeError> {
        if workers.is_empty() && labels.is_empty() {
            return Ok(Vec::new());
        }
        let declared = self.agent.declare(Source::Config, workers, labels).await?;
        Ok(declared.unlabelled)
    }

    fn counter(&self, result: &'static str) -> Counter {
        let reloads = &self.metrics.config_reloads;
        reloads.get_or_create(&ResultLabels { result }).clone()
    }

    /// Each as one change: a long file costs every replica two rings, and a wait for two confirmations.
    async fn declare(
        &self,
        put: Vec<(WorkerId, WorkerSpec)>,
        labels: Vec<(WorkerId, Labels)>,
        gone: Vec<WorkerId>,
    ) -> anyhow::Result<()> {
        let put = self.put(self.warm_ups.joining(put), labels).await;
        say_unlabelled(put.context("nothing of the file was taken over")?);
        if !gone.is_empty() {
            self.agent.remove_workers(gone, Source::Config).await?;
        }
        Ok(())
    }

    async fn reload(&mut self, declared: &mut Workers) -> anyhow::Result<Reloaded> {
        let layers = self.layers.clone();
        // A network file system may take its time.
        let (layers, new) = spawn_blocking(move || layers.again()).await??;
        let will = workers(&new)?;
        let mut next = self.current.clone();
        let Followed { changed, waiting } = next.follow(&new);
        next.is_whole()
            .context("beside settings that need a restart")?;
        let new_or_changed = will
            .iter()
            .filter(|(id, spec)| declared.get(id) != Some(spec));
        let new_or_changed = new_or_changed.map(|(id, spec)| (id.clone(), spec.clone()));
        let new_or_changed: Vec<_> = new_or_changed.collect();
        let view = self.agent.view();
        for (id, spec) in &new_or_changed {
            refuse_replica(&view, spec).with_context(|| format!("worker {id}"))?;
        }
        self.connector
            .follow(next.workers.clone(), next.worker.clone())?;
        if !waiting.is_empty() {
            tracing::warn!(
                settings = waiting.join(", "),
                "these settings of the configuration differ from what runs; restart to use them"
            );
        }
        let before = labels(&self.current);
        let new_labels = labels(&new)
            .into_iter()
            .filter(|(id, labels)| before.get(id) != Some(labels));
        let new_labels: Vec<_> = new_labels.collect();
        let gone = declared.keys().filter(|id| !will.contains_key(id)).cloned();
        let gone: Vec<_> = gone.collect();
        let put: Vec<_> = new_or_changed.iter().map(|(id, _)| id.clone()).collect();
        let declare = self.declare(new_or_changed, new_labels, gone.clone());
        if let Err(error) = declare.await {
            // The keys were read before, so that a new worker has its own from its first request on.
            let former = &self.current;
            let back = self
                .connector
                .follow(former.workers.clone(), former.worker.clone());
            back.context("and the former keys of workers cannot be read")?;
            return Err(error);
        }
        // Nothing can fail any more.
        self.layers = layers;
        (self.apply)(&next);
        if !changed.is_empty() {
            tracing::info!(settings = changed.join(", "), "these settings changed");
        }
        // Of one that an administrator described, or took out, the file decides nothing.
        let counts = |id: &&WorkerId| self.agent.sources_of(id).first() == Some(&Source::Config);
        let put = put.iter().filter(counts).count();
        let gone_count = gone.len();
        let stay = self.staying(gone);
        let retracted = gone_count - stay.len();
        tell_of_loss(declared, &will, &stay);
        tracing::info!(
            put,
            retracted,
            stay = stay.len(),
            "the configuration was read again"
        );
        let left_out = self.left_out.look(will.iter(), &labels(&next), &self.agent);
        let differs = self.differs(&will);
        *declared = will;
        self.current = next;
        Ok(Reloaded {
            put,
            retracted,
            left_out,
            stay,
            changed,
            needs_restart: waiting,
            differs,
        })
    }
}

/// Names the workers that have left with this reading where they are most of the former file's, as of a file that was read
/// before it was written to its end.
fn tell_of_loss(former: &Workers, new: &Workers, stay: &[Staying]) {
    let stays = |id: &WorkerId| stay.iter().any(|of| of.worker == id.as_str());
    let left = former
        .keys()
        .filter(|id| !new.contains_key(*id) && !stays(id));
    let left: Vec<&WorkerId> = left.collect();
    if left.len() * 2 > former.len() {
        tracing::warn!(
            count = left.len(),
            of = former.len(),
            ids = some_of(left.into_iter()),
            "most workers of the file are gone from it, and from the cluster: is it whole? Write such a file beside and rename \
             it"
        );
    }
}

fn say_unlabelled(refused: Vec<(WorkerId, ChangeError)>) {
    for (worker, error) in refused {
        tracing::warn!(%worker, %error, "labels of a worker of the configuration were not taken over");
    }
}

/// Those of the refused workers that the log has not told. One that is refused no more is forgotten, and news the next time.
fn untold<T>(told: &mut BTreeSet<WorkerId>, refused: Vec<(WorkerId, T)>) -> Vec<(WorkerId, T)> {
    let now = refused.iter().map(|(id, _)| id.clone()).collect();
    let before = std::mem::replace(told, now);
    let is_news = |(id, _): &(WorkerId, T)| !before.contains(id);
    refused.into_iter().filter(is_news).collect()
}

/// The first of some workers, for a line of the log.
fn some_of<'a>(workers: impl Iterator<Item = &'a WorkerId>) -> String {
    let some: Vec<_> = workers.take(LISTED_MAX).map(WorkerId::as_str).collect();
    some.join(", ")
}

fn workers(config: &Config) -> anyhow::Result<Workers> {
    let all = config.worker.iter();
    Ok(all.map(|w| w.registered()).collect::<Result<_, _>>()?)
}

/// The labels that a configuration declares, of workers of which it declares any.
fn labels(config: &Config) -> BTreeMap<WorkerId, Labels> {
    let declared = config.worker.iter().filter_map(|worker| {
        let labels = worker.declared_labels().ok()?;
        let (id, _) = worker.registered().ok()?;
        (!labels.is_empty()).then_some((id, labels))
    });
    declared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_at_each_look_is_told_once() {
        let [one, other]: [WorkerId; 2] = ["a", "b"].map(|id| id.parse().expect("an id"));
        let mut told = BTreeSet::new();
        let mut look = |refused: &[&WorkerId]| {
            let refused = refused.iter().map(|id| ((*id).clone(), ())).collect();
            untold(&mut told, refused).len()
        };
        assert_eq!(look(&[&one]), 1);
        assert_eq!(look(&[&one]), 0);
        assert_eq!(look(&[&one, &other]), 1);
        assert_eq!(look(&[&other]), 0);
        assert_eq!(look(&[&one]), 1, "it fitted meanwhile");
    }
}
