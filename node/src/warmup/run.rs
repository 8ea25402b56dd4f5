//! Run: the warm-ups that are under way, one task each.
//!
//! The view of the registry shows which there are: the replica that wrote the state `warming` warms, and a state that
//! is replaced (the worker was removed, drained, changed, or its time is over) ends its task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grapevine_gossip::hlc::Stamp;
use grapevine_gossip::registry::Warming;
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::{Health, named};
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use super::plan::{Planned, plan};
use super::{Progress, WarmUps};
use crate::http::headers::REQUEST_ID;
use crate::http::request_id;
use crate::http::worker_body::WorkerBody;
use crate::metrics::ResultLabels;
use crate::upstream::Worker;
use crate::upstream::attempt::{self, AttemptLimits};
use crate::upstream::failure::Failure;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::patience::{Patience, WaitsFor};

/// How often cooled prompts are forgotten.
const TICK: Duration = Duration::from_secs(1);
/// How often it is looked whether a new worker answers.
const LOOK: Duration = Duration::from_millis(50);
/// A healthy worker that has not reported its start by now does not report it.
const STARTED_WITHIN: Duration = Duration::from_secs(1);
/// Where workers publish what their caches hold, a new one has announced it by now, or does not publish.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of an answer's first event that are held; one token is asked for.
const HELD_BYTES: usize = 64 * 1024;

named! {
    /// How a warm-up ended, as metric label.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum End {
        /// Everything that was planned was sent; the worker is active.
        Complete = "complete",
        /// Nothing will move to it that is kept here; the worker is active.
        Nothing = "nothing",
        /// Its time is over; the worker is active.
        OutOfTime = "out_of_time",
        /// It stopped answering; it becomes active when the time is over, unless its entry changes.
        Unhealthy = "unhealthy",
        /// The entry of the worker was changed, or this replica ended.
        Cancelled = "cancelled",
        /// It broke off by a mistake of this replica; the worker becomes active when the time is over.
        Panicked = "panicked",
    }
}

impl End {
    /// Of one that was sent all that was planned. A worker that takes prompts and answers none is no better than one that
    /// does not answer.
    fn of_all(progress: Progress) -> Self {
        match progress.failed > 0 && progress.warmed + progress.held == 0 {
            true => Self::Unhealthy,
            false => Self::Complete,
        }
    }
}

/// A warm-up that is under way; its end is counted and told when this is dropped, however it comes.
struct UnderWay<'a> {
    warm_ups: &'a WarmUps,
    id: &'a WorkerId,
    begun: Instant,
    end: Option<End>,
}

impl<'a> UnderWay<'a> {
    fn begin(warm_ups: &'a WarmUps, id: &'a WorkerId) -> Self {
        warm_ups
            .progress
            .lock()
            .insert(id.clone(), Progress::default());
        Self {
            warm_ups,
            id,
            begun: Instant::now(),
            end: None,
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let end = self.end.unwrap_or(match std::thread::panicking() {
            true => End::Panicked,
            false => End::Cancelled,
        });
        let progress = self
            .warm_ups
            .progress
            .lock()
            .remove(self.id)
            .unwrap_or_default();
        let elapsed = self.begun.elapsed();
        let metrics = &self.warm_ups.parts.metrics;
        let result = end.as_str();
        metrics.ended.get_or_create(&ResultLabels { result }).inc();
        metrics.seconds.observe(elapsed.as_secs_f64());
        tracing::info!(
            worker = self.id.as_str(),
            result,
            warmed = progress.warmed,
            held = progress.held,
            failed = progress.failed,
            of = progress.of,
            ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            "warm-up of a joining worker ended"
        );
    }
}

impl WarmUps {
    /// Warms what this replica is to warm, until it ends: while it drains it goes on, since no other replica would, and
    /// the worker would stand idle.
    pub async fn run(self: Arc<Self>) {
        let mut views = self.parts.agent.watch();
        let mut under_way: BTreeMap<(WorkerId, Stamp), CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            let ours: BTreeMap<(WorkerId, Stamp), &Warming> = view
                .workers()
                .iter()
                .filter_map(|worker| Some((worker, worker.warming.as_ref()?)))
                .filter(|(_, warming)| warming.by == *self.parts.agent.replica())
                .map(|(worker, warming)| ((worker.id.clone(), warming.stamp), warming))
                .collect();
            under_way.retain(|which, stop| {
                let goes_on = ours.contains_key(which);
                if !goes_on {
                    stop.cancel();
                }
                goes_on
            });
            for (which, warming) in ours {
                under_way.entry(which).or_insert_with_key(|(id, _)| {
                    let stop = CancellationToken::new();
                    let task = Arc::clone(&self).warm(id.clone(), warming.clone(), stop.clone());
                    tasks.spawn(task);
                    stop
                });
            }
            tokio::select! {
                () = self.parts.phase.closed() => break,
                changed = views.changed() => if changed.is_err() { break },
                _ = tick.tick() => self.tick(),
                _ = tasks.join_next(), if !tasks.is_empty() => {}
            }
        }
        under_way.values().for_each(CancellationToken::cancel);
        while tasks.join_next().await.is_some() {}
    }

    /// One warm-up from its first state to its end.
    async fn warm(self: Arc<Self>, id: WorkerId, warming: Warming, stop: CancellationToken) {
        let mut under_way = UnderWay::begin(&self, &id);
        let left = warming
            .until_ms
            .saturating_sub(self.parts.agent.hybrid_ms());
        let by = under_way.begun + Duration::from_millis(left);
        let end = tokio::select! {
            biased;
            end = self.fill(&id, by) => end,
            () = sleep_until(by) => End::OutOfTime,
            // The view changes at the end of the time, too.
            () = stop.cancelled() => if Instant::now() >= by { End::OutOfTime } else { End::Cancelled },
        };
        if matches!(end, End::Complete | End::Nothing) {
            let finished = self.parts.agent.finish_warming(&id, warming.stamp).await;
            if let Err(error) = finished {
                tracing::warn!(worker = id.as_str(), %error, "the end of the warm-up was not registered");
            }
        }
        under_way.end = Some(end);
    }

    /// Sends what will be looked for on the worker, hottest first.
    async fn fill(&self, id: &WorkerId, by: Instant) -> End {
        if self.store.lock().len() == 0 {
            // A replica that restarted meanwhile has nothing for it.
            return End::Nothing;
        }
        let worker = self.answering(id).await;
        let planned = {
            let fleet = self.parts.cluster.fleet();
            let hot = self.parts.cluster.cache_view().hot();
            let prompts = self.store.lock().hottest(&hot);
            let most = self.parts.config.look().prompts as usize;
            plan(fleet.prospective(), id, &hot, prompts, most)
        };
        if planned.is_empty() {
            return End::Nothing;
        }
        self.note(id, |progress| progress.of = planned.len());
        tracing::info!(
            worker = id.as_str(),
            prompts = planned.len(),
            within_ms = u64::try_from((by - Instant::now()).as_millis()).unwrap_or(u64::MAX),
            "warm-up of a joining worker begins"
        );
        self.told_by(&worker).await;
        let mut queue = planned.into_iter();
        let mut sent = JoinSet::new();
        loop {
            while sent.len() < self.parts.config.look().concurrency as usize
                && let Some(next) = queue.next()
            {
                if self.is_held(&worker, &next) {
                    self.note(id, |progress| progress.held += 1);
                    self.count("held");
                    continue;
                }
                sent.spawn(self.send(&worker, next, by));
            }
            let Some(result) = sent.join_next().await else {
                return self.progress(id).map_or(End::Complete, End::of_all);
            };
            let result = match result {
                Ok((Ok(()), done)) => {
                    let cache_view = self.parts.cluster.cache_view();
                    cache_view.record_warmed(&done.pool, done.worker, &done.prompt.key);
                    Ok(())
                }
                Ok((Err(why), _)) => Err(why),
                // The log has the panic already.
                Err(_) => Err("panicked"),
            };
            self.note(id, |progress| progress.count(result));
            let result = result.err().unwrap_or("warmed");
            self.count(result);
            if result == "unreachable" || !worker.health.is_usable() {
                return End::Unhealthy;
            }
        }
    }

    /// Waits until the worker has published what its cache holds; not for long, and only where any worker does.
    async fn told_by(&self, worker: &Worker) {
        let caches = self.parts.cluster.cache_view();
        if !caches.told().hears_any() {
            return;
        }
        let has_told = || {
            let engines = worker.kv_engines.load();
            !engines.is_empty() && engines.iter().all(|engine| engine.tells_all())
        };
        let until = Instant::now() + TOLD_WITHIN;
        let mut looks = interval(LOOK);
        while !has_told() && Instant::now() < until {
            looks.tick().await;
        }
    }

    /// Whether the worker publishes that it holds what the prompt is to bring it: it was here before, or serves others, too.
    fn is_held(&self, worker: &Worker, planned: &Planned) -> bool {
        let prompt = &planned.prompt;
        let caches = self.parts.cluster.cache_view();
        caches
            .told()
            .is_held(worker, &prompt.key, prompt.warm_tokens())
    }

    fn count(&self, result: &'static str) {
        let prompts = &self.parts.metrics.prompts;
        prompts.get_or_create(&ResultLabels { result }).inc();
    }

    /// Waits until the worker passes its probes, its models are known, and it reported when it started: knowledge about
    /// a worker is dropped when that changes.
    async fn answering(&self, id: &WorkerId) -> Arc<Worker> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut healthy_since = None;
        loop {
            looks.tick().await;
            let fleet = self.parts.cluster.fleet();
            let Some(member) = fleet
                .joining()
                .iter()
                .find(|member| member.worker.id == *id)
            else {
                continue;
            };
            let worker = &member.worker;
            if worker.health.probes() != Health::Healthy {
                healthy_since = None;
                continue;
            }
            let since: &mut Instant = healthy_since.get_or_insert_with(Instant::now);
            let has_said = worker.epoch.load(Ordering::Relaxed) > 0;
            let is_known = has_said || since.elapsed() >= STARTED_WITHIN;
            if is_known && !worker.models.load().is_empty() {
                return Arc::clone(worker);
            }
        }
    }

    /// One prompt, on one of our own connections. A prompt gets half of the whole time at most.
    fn send(
        &self,
        worker: &Arc<Worker>,
        planned: Planned,
        by: Instant,
    ) -> impl Future<Output = (Result<(), &'static str>, Planned)> + Send + use<> {
        let worker = Arc::clone(worker);
        let connect = self.parts.timeouts.look().connect;
        let begun = Instant::now();
        let limits = AttemptLimits {
            connect,
            patience: Patience {
                begun,
                // One token is asked for: there is nothing else to wait for.
                waits_for: WaitsFor::Token,
                silence: by
                    .saturating_duration_since(begun)
                    .min(self.parts.config.look().limit / 2),
                deadline: None,
                worker_gone: self.parts.timeouts.look().worker_gone,
            },
            held_bytes: HELD_BYTES,
        };
        let outgoing = self.outgoing(&planned);
        async move {
            let result =
                match attempt::attempt(&worker, &outgoing, &limits, || false, |_| None).await {
                    Ok(answer) if answer.status().is_success() => Ok(()),
                    Ok(_) => Err("refused"),
                    Err(Failure::Connect(_) | Failure::Closed(_)) => Err("unreachable"),
                    Err(Failure::Late) => Err("late"),
                    Err(failure) if failure.is_back_pressure() => Err("back_pressure"),
                    Err(_) => Err("refused"),
                };
            (result, planned)
        }
    }

    fn outgoing(&self, planned: &Planned) -> Outgoing {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(REQUEST_ID, request_id::of_warm_up());
        Outgoing {
            method: Method::POST,
            target: Uri::from_static(planned.prompt.path()),
            headers,
            body: WorkerBody::unchanged(planned.prompt.body.clone()),
            upgrade: None,
            stream: false,
            repeatable: true,
            keeps_key: false,
            one_value: true,
        }
    }

    fn note(&self, id: &WorkerId, change: impl FnOnce(&mut Progress)) {
        if let Some(progress) = self.progress.lock().get_mut(id) {
            change(progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::alone::{Alone, worker};
    use crate::config::{KvEventsConfig, TimeoutConfig, WarmupConfig};
    use crate::shutdown::Shutdown;
    use crate::warmup::{WarmUpParts, WarmupMetrics};

    fn warm_ups() -> Arc<WarmUps> {
        let alone = Alone::new("r1", [worker(0, "m")], &KvEventsConfig::default(), 1);
        let parts = WarmUpParts {
            agent: alone.agent,
            cluster: Arc::new(alone.cluster),
            metrics: WarmupMetrics::register(&mut Registry::default()),
            config: WarmupConfig::default().into(),
            timeouts: TimeoutConfig::default().into(),
            phase: Shutdown::new().phase(),
        };
        Arc::new(WarmUps::new(parts))
    }

    #[tokio::test(start_paused = true)]
    async fn a_warm_up_that_panics_has_an_end_all_the_same() {
        let warm_ups = warm_ups();
        let id: WorkerId = "w0".parse().expect("an id");
        let (own, of) = (Arc::clone(&warm_ups), id.clone());
        let task = tokio::spawn(async move {
            let _under_way = UnderWay::begin(&own, &of);
            assert!(own.progress(&of).is_none(), "a mistake");
        });
        assert!(task.await.expect_err("it panics").is_panic());
        assert_eq!(warm_ups.progress(&id), None);
        let ended = |end: End| {
            let result = end.as_str();
            let ended = &warm_ups.parts.metrics.ended;
            ended.get_or_create(&ResultLabels { result }).get()
        };
        assert_eq!(ended(End::Panicked), 1);
        // One that is dropped before its end did not fail.
        drop(UnderWay::begin(&warm_ups, &id));
        assert_eq!([End::Panicked, End::Cancelled].map(ended), [1, 1]);
    }

    #[test]
    fn every_prompt_that_is_not_warmed_has_failed() {
        let mut progress = Progress::default();
        for result in [Ok(()), Err("refused"), Err("panicked")] {
            progress.count(result);
        }
        assert_eq!((progress.warmed, progress.failed), (1, 2));
    }

    #[test]
    fn a_worker_that_answered_none_of_its_prompts_is_not_warm() {
        for (warmed, held, failed, end) in [
            (0, 0, 2, End::Unhealthy),
            (1, 0, 2, End::Complete),
            (0, 1, 2, End::Complete),
            (0, 0, 0, End::Complete),
        ] {
            let progress = Progress {
                warmed,
                held,
                failed,
                ..Progress::default()
            };
            assert_eq!(End::of_all(progress), end, "{progress:?}");
        }
    }
}
