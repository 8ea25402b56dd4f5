//! Keeps a task for each worker: it finds out where the worker publishes, and hears its engines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::caches::{Caches, Engine};
use super::listener;
use super::sources::{self, BadSource, Source};
use crate::standing::Standing;
use crate::upstream::{Worker, read_within};

/// How often a worker's labels and its start are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Between two questions where it publishes, after an answer; it may have been started anew, with other settings.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// The same while a subscription is lost.
const ASK_LOST_EVERY: Duration = Duration::from_secs(5);
/// First pause after a question without an answer; each one is twice the one before, up to [`ASK_EVERY`].
const RETRY_MIN: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Where vLLM says it, from 0.31 on.
const PATH: &str = "/kv_event_sources";

/// What the tasks share.
#[derive(Debug, Clone)]
pub struct KvParts {
    /// What is known.
    pub caches: Arc<Caches>,
    /// How long an engine may be silent before it is asked.
    pub silence: Duration,
    /// Where tasks are started.
    pub standing: Standing,
    /// Whether what peers know was taken over, or cannot be had.
    pub handed_over: watch::Receiver<bool>,
}

/// Hears the workers that it follows; dropping it ends that.
#[derive(Debug)]
pub struct KvFollower {
    parts: KvParts,
    tasks: BTreeMap<Arc<str>, (Arc<Worker>, AbortOnDropHandle<()>)>,
}

impl KvFollower {
    /// One that follows nobody yet.
    pub fn new(parts: KvParts) -> Self {
        Self {
            parts,
            tasks: BTreeMap::new(),
        }
    }

    /// Begins to hear new workers, and forgets those that left.
    pub fn follow<'a>(&mut self, workers: impl IntoIterator<Item = &'a Arc<Worker>>) {
        let mut kept = BTreeMap::new();
        for worker in workers {
            let task = match self.tasks.remove(&worker.label) {
                Some((known, task)) if Arc::ptr_eq(&known, worker) => task,
                _ => {
                    let hearing = hear(Arc::clone(worker), self.parts.clone());
                    AbortOnDropHandle::new(self.parts.standing.run("kv_events", hearing))
                }
            };
            kept.insert(Arc::clone(&worker.label), (Arc::clone(worker), task));
        }
        let left = std::mem::replace(&mut self.tasks, kept);
        for worker in left.into_keys() {
            if !self.tasks.contains_key(&worker) {
                self.parts.caches.forget(&worker);
            }
        }
    }
}

/// What is known of where one worker publishes.
#[derive(Default)]
struct Found {
    /// As it was found; each source has a listener.
    sources: Vec<Source>,
    listeners: Vec<(Arc<Engine>, AbortOnDropHandle<()>)>,
    /// What was last wrong with it, so that the log has it once.
    problem: Option<BadSource>,
}

/// When a worker is asked where it publishes.
#[derive(Debug)]
struct Questions {
    next: Instant,
    last: Instant,
    /// Behind a question without an answer.
    pause: Duration,
}

impl Questions {
    /// The first one is due at once.
    fn from(now: Instant) -> Self {
        Self {
            next: now,
            last: now,
            pause: RETRY_MIN,
        }
    }

    /// `is_lost`: a subscription ended.
    fn is_due(&self, is_lost: bool, now: Instant) -> bool {
        now >= self.next || is_lost && now >= self.last + ASK_LOST_EVERY
    }

    /// Its start was known as `before`, and is as `epoch`; 0: it is not known. The first that is known is no restart, but
    /// shows as well that somebody answers there now: what was asked in vain meanwhile is no reason to wait.
    fn knows_start(&mut self, before: u64, epoch: u64, now: Instant) {
        if epoch != before {
            *self = Self::from(now);
        }
    }

    /// One was asked at `asked`, and is answered, or not.
    fn ended(&mut self, asked: Instant, is_answered: bool, now: Instant) {
        self.last = asked;
        if is_answered {
            (self.next, self.pause) = (now + ASK_EVERY, RETRY_MIN);
        } else {
            self.pause = (self.pause * 2).min(ASK_EVERY);
            self.next = now + self.pause;
        }
    }
}

async fn hear(worker: Arc<Worker>, mut parts: KvParts) {
    // If nobody is there any more to say it, this ends soon, too.
    let _ = parts.handed_over.wait_for(|is_done| *is_done).await;
    let mut found = Found::default();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut questions = Questions::from(Instant::now());
    let mut epoch = worker.epoch.load(Ordering::Relaxed);
    loop {
        ticks.tick().await;
        let before = std::mem::replace(&mut epoch, worker.epoch.load(Ordering::Relaxed));
        if before != 0 && epoch != before {
            // Another process: nothing of what is known holds. Without a replay socket each connection begins anew, and the
            // one to this process may have heard all of it already.
            if found.sources.iter().all(|source| source.replay.is_some()) {
                found.restarted(&worker, &parts);
            }
        }
        questions.knows_start(before, epoch, Instant::now());
        let about = worker.about.load_full();
        let (host, rank) = (worker.address.url.host(), worker.address.rank());
        match sources::of_labels(&about.labels, host, rank, about.ranks) {
            Ok(None) => {}
            Ok(Some(declared)) => {
                found.begin(declared, &worker, &parts);
                continue;
            }
            Err(problem) => {
                found.report(problem, &worker);
                continue;
            }
        }
        let asked = Instant::now();
        if !questions.is_due(found.has_lost_one(), asked) {
            continue;
        }
        let answer = ask(&worker).await;
        questions.ended(asked, answer.is_ok(), Instant::now());
        match answer {
            Ok(answer) => match sources::of_answer(&answer, host, rank) {
                Ok(sources) => found.begin(sources, &worker, &parts),
                Err(problem) => found.report(problem, &worker),
            },
            Err(error) => {
                tracing::debug!(worker = &*worker.label, %error, "worker did not say where it publishes KV events");
            }
        }
    }
}

async fn ask(worker: &Worker) -> anyhow::Result<Vec<u8>> {
    let request = worker.connector.get(&worker.address, PATH).await?;
    read_within(request, ANSWER_BYTES_MAX, ANSWER_MAX).await
}

impl Found {
    /// Hears these; nothing changes if they are heard already.
    fn begin(&mut self, sources: Vec<Source>, worker: &Arc<Worker>, parts: &KvParts) {
        self.problem = None;
        if sources == self.sources {
            return;
        }
        // Ended before another one begins under the same rank.
        self.listeners.clear();
        for source in &sources {
            let engine = parts.caches.begin(worker, source.clone());
            let hearing = listener::hear(
                Arc::clone(worker),
                Arc::clone(&engine),
                Arc::clone(&parts.caches),
                parts.silence,
            );
            let task = parts.standing.run("kv_events", hearing);
            self.listeners.push((engine, AbortOnDropHandle::new(task)));
        }
        self.sources = sources;
    }

    /// Nothing of what is known holds: another process answers. A listener whose connection ended with the former one may
    /// not have come back to notice it by itself.
    fn restarted(&mut self, worker: &Arc<Worker>, parts: &KvParts) {
        for (engine, _) in &self.listeners {
            engine.note_restart();
        }
        self.begin(Vec::new(), worker, parts);
    }

    /// Whether a subscription ended: the worker may publish elsewhere since.
    fn has_lost_one(&self) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|(engine, _)| !engine.is_connected())
    }

    fn report(&mut self, problem: BadSource, worker: &Worker) {
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                worker = &*worker.label,
                %problem,
                "worker publishes KV events that cannot be heard"
            );
            self.problem = Some(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_did_not_answer_while_it_started_is_asked_once_its_start_is_known() {
        let start = Instant::now();
        let mut questions = Questions::from(start);
        let pause = |questions: &mut Questions, is_answered| {
            questions.ended(start, is_answered, start);
            (questions.next - start).as_secs()
        };
        let pauses = [false, false, true, false].map(|is| pause(&mut questions, is));
        assert_eq!(pauses, [2, 4, 60, 2]);
        let later = start + ASK_LOST_EVERY;
        for (before, epoch) in [(0, 7), (7, 8)] {
            for _ in 0..10 {
                assert!(pause(&mut questions, false) <= 60);
            }
            assert!(!questions.is_due(false, later));
            assert!(questions.is_due(true, later), "a subscription is lost");
            questions.knows_start(before, before, later);
            assert!(!questions.is_due(false, later), "no news");
            questions.knows_start(before, epoch, later);
            assert!(questions.is_due(false, later));
            assert_eq!(pause(&mut questions, false), 2);
        }
    }
}
