//! Runs the engine model in scaled real time and tells requests how far their sequences are.
//!
//! The rim around the pure `engine`: one task, one lock that is never held across an await. A
//! request that reads slowly costs nothing here: it sees the latest state, not a queue of events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::kv_events::Publisher;
use crate::engine::{
    Change, Counters, Engine, EngineConfig, Gauges, Kv, Passes, Progress, Refusal, Sequence,
};

/// How far real time may run ahead of the model before the model stops catching up. Covers timer
/// resolution and scheduling; a longer gap is a freeze or an overloaded machine.
const LAG_MAX: Duration = Duration::from_millis(100);

pub(super) struct Pacer {
    state: Mutex<State>,
    wake: Notify,
    frozen: watch::Sender<bool>,
    speed: f64,
    /// Where it says what enters and leaves its cache.
    publisher: Option<Arc<Publisher>>,
}

struct State {
    engine: Engine,
    listeners: HashMap<u64, Listener>,
    /// The session ids of requests, by sequence.
    sessions: HashMap<u64, Arc<str>>,
    next_id: u64,
}

/// Where the progress of one sequence is published.
struct Listener {
    progress: Arc<watch::Sender<Vec<Progress>>>,
    index: usize,
}

/// A running request. Dropping it aborts what is still running, and frees what was kept and not taken.
pub(super) struct Ticket {
    pacer: Arc<Pacer>,
    ids: Vec<u64>,
    /// The blocks of its sequences stay occupied after their end.
    keeps: bool,
    progress: watch::Receiver<Vec<Progress>>,
}

/// Blocks of an ended sequence. Dropping it frees them.
pub(super) struct Kept {
    pacer: Arc<Pacer>,
    id: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.pacer.abort(self.id);
    }
}

/// Answers hold one entry a sequence, in the order submitted.
impl Ticket {
    /// Where the sequences are now.
    pub(super) fn now(&mut self) -> Vec<Progress> {
        self.progress.borrow_and_update().clone()
    }

    /// Waits until something changed since the last look.
    pub(super) async fn changed(&mut self) {
        let changed = self.progress.changed().await;
        changed.expect("the pacer publishes until all sequences are done");
    }

    /// Waits until all sequences are done.
    pub(super) async fn done(&mut self) -> Vec<Progress> {
        let done = self
            .progress
            .wait_for(|all| all.iter().all(|p| p.done))
            .await;
        done.expect("the pacer publishes until all sequences are done")
            .clone()
    }

    /// Waits until sequence `index` has its blocks and waits for another worker; what is known of it.
    pub(super) async fn reserved(&mut self, index: usize) -> Progress {
        let reserved = self.progress.wait_for(|all| all[index].reserved).await;
        reserved.expect("the pacer publishes until all sequences are done")[index]
    }

    /// The keys and values of sequence `index` came.
    pub(super) fn arrived(&self, index: usize) {
        self.pacer.state.lock().engine.arrived(self.ids[index]);
        self.pacer.wake.notify_one();
    }

    /// The blocks of the ended sequences, one a sequence; they are occupied until dropped.
    pub(super) fn take_kept(&mut self) -> Vec<Kept> {
        self.keeps = false;
        let kept = |&id: &u64| Kept {
            pacer: Arc::clone(&self.pacer),
            id,
        };
        self.ids.iter().map(kept).collect()
    }
}

impl Pacer {
    #[cfg(test)]
    pub(super) fn new(config: EngineConfig, speed: f64) -> Arc<Self> {
        Self::publishing(config, speed, None)
    }

    /// One that publishes KV events, if there is a publisher.
    pub(super) fn publishing(
        config: EngineConfig,
        speed: f64,
        publisher: Option<Arc<Publisher>>,
    ) -> Arc<Self> {
        let mut engine = Engine::new(config);
        if publisher.is_some() {
            engine.keep_changes();
        }
        Arc::new(Self {
            publisher,
            state: Mutex::new(State {
                engine,
                listeners: HashMap::new(),
                sessions: HashMap::new(),
                next_id: 0,
            }),
            wake: Notify::new(),
            frozen: watch::Sender::new(false),
            speed,
        })
    }

    /// Queues all sequences of one request, or none. Their ids are overwritten.
    #[cfg(test)]
    pub(super) fn submit(
        self: &Arc<Self>,
        sequences: Vec<Sequence>,
        kv: Kv,
    ) -> Result<Ticket, Refusal> {
        self.submit_of(None, sequences, kv)
    }

    /// The same of a request that may have a session id, which is published with what it stores.
    pub(super) fn submit_of(
        self: &Arc<Self>,
        session: Option<&str>,
        sequences: Vec<Sequence>,
        kv: Kv,
    ) -> Result<Ticket, Refusal> {
        let session: Option<Arc<str>> = session.map(Arc::from);
        let (publish, progress) = watch::channel(vec![Progress::default(); sequences.len()]);
        let publish = Arc::new(publish);
        let mut ticket = Ticket {
            pacer: Arc::clone(self),
            ids: Vec::with_capacity(sequences.len()),
            keeps: kv == Kv::Kept,
            progress,
        };
        for (index, mut sequence) in sequences.into_iter().enumerate() {
            // The lock is released before an early return drops, and so aborts, the ticket.
            let queued = {
                let mut state = self.state.lock();
                let id = state.next_id;
                state.next_id += 1;
                sequence.id = id;
                state.engine.submit_with(sequence, kv).map(|()| {
                    let progress = Arc::clone(&publish);
                    state.listeners.insert(id, Listener { progress, index });
                    if let Some(session) = &session {
                        state.sessions.insert(id, Arc::clone(session));
                    }
                    id
                })
            };
            ticket.ids.push(queued?);
        }
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Stops or resumes the engine; HTTP goes on as if nothing were wrong.
    pub(super) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Empties the prefix cache.
    pub(super) fn forget_cache(&self) {
        let mut state = self.state.lock();
        state.engine.forget_cache();
        let Some(publisher) = &self.publisher else {
            return;
        };
        // A new process says what it has: what running requests still use.
        state.engine.take_changes();
        publisher.restart();
        let blocks = state.engine.blocks().into_iter();
        let stored = |block| Change::Stored {
            parent: None,
            block,
            owner: u64::MAX,
        };
        publisher.publish(&blocks.map(stored).collect::<Vec<_>>(), &HashMap::new());
    }

    /// All blocks in its cache.
    pub(super) fn blocks(&self) -> Vec<u64> {
        self.state.lock().engine.blocks()
    }

    /// Where it says what enters and leaves its cache.
    pub(super) fn publisher(&self) -> Option<&Arc<Publisher>> {
        self.publisher.as_ref()
    }

    fn publish_changes(&self, state: &mut State) {
        if let Some(publisher) = &self.publisher {
            publisher.publish(&state.engine.take_changes(), &state.sessions);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.state.lock().engine.counters()
    }

    pub(super) fn gauges(&self) -> Gauges {
        self.state.lock().engine.gauges()
    }

    /// The engine's loop; never returns.
    pub(super) async fn run(self: Arc<Self>) {
        let mut frozen = self.frozen.subscribe();
        let mut model_time = Instant::now();
        loop {
            thaw(&mut frozen).await;
            let passes = self.begin();
            let Some(passes) = passes else {
                self.wake.notified().await;
                model_time = Instant::now();
                continue;
            };
            // Deadlines add up, so the average is right although timers tick in milliseconds.
            let earliest = Instant::now() - LAG_MAX;
            model_time = model_time.max(earliest) + passes.cost(1).div_f64(self.speed);
            sleep_until(model_time).await;
            thaw(&mut frozen).await;
            self.publish();
        }
    }

    /// Plans the next pass, and tells sequences that got their blocks that they did.
    fn begin(&self) -> Option<Passes> {
        let mut state = self.state.lock();
        let passes = state.engine.begin(1);
        self.publish_changes(&mut state);
        for (id, now) in state.engine.take_reserved() {
            if let Some(listener) = state.listeners.get(&id) {
                let index = listener.index;
                listener.progress.send_modify(|all| all[index] = now);
            }
        }
        passes
    }

    /// Ends a sequence, or frees the blocks that it kept. Others may wait for the room.
    fn abort(&self, id: u64) {
        self.state.lock().engine.abort(id);
        self.wake.notify_one();
    }

    fn publish(&self) {
        let mut state = self.state.lock();
        for (id, now) in state.engine.finish(1) {
            let Some(listener) = state.listeners.get(&id) else {
                continue; // aborted meanwhile
            };
            let index = listener.index;
            listener.progress.send_modify(|all| all[index] = now);
            if now.done {
                state.listeners.remove(&id);
            }
        }
        self.publish_changes(&mut state);
    }
}

async fn thaw(frozen: &mut watch::Receiver<bool>) {
    frozen
        .wait_for(|frozen| !frozen)
        .await
        .expect("the pacer owns the sender and outlives its loop");
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.pacer.state.lock();
        for id in &self.ids {
            state.sessions.remove(id);
            if state.listeners.remove(id).is_some() || self.keeps {
                state.engine.abort(*id);
            }
        }
        drop(state);
        // Others may wait for the room.
        self.pacer.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(answer_tokens: u32) -> Sequence {
        Sequence {
            id: 0,
            chain: Vec::new(),
            prompt_tokens: 100,
            answer_tokens,
        }
    }

    /// 10 ms prefill of 100 tokens, then 10.2 ms a token.
    async fn run_one(pacer: &Arc<Pacer>, answer_tokens: u32) -> Duration {
        let start = Instant::now();
        let mut ticket = pacer
            .submit(vec![sequence(answer_tokens)], Kv::Local)
            .expect("no limit");
        ticket
            .progress
            .wait_for(|all| all[0].done)
            .await
            .expect("published");
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn speed_scales_the_time() {
        for (speed, expected_ms) in [(1.0, 1_029), (10.0, 103)] {
            let pacer = Pacer::new(EngineConfig::default(), speed);
            let engine = tokio::spawn(Arc::clone(&pacer).run());
            let taken = run_one(&pacer, 100).await.as_millis() as i64;
            assert!(
                (taken - expected_ms).abs() <= 2,
                "{taken} ms at speed {speed}"
            );
            engine.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_frees_its_slot_and_blocks() {
        let pacer = Pacer::new(EngineConfig::default(), 1.0);
        let _engine = tokio::spawn(Arc::clone(&pacer).run());
        let mut ticket = pacer
            .submit(vec![sequence(1_000); 3], Kv::Local)
            .expect("no limit");
        ticket
            .progress
            .wait_for(|all| all[2].produced > 0)
            .await
            .expect("published");
        assert_eq!(pacer.gauges().running, 3);
        drop(ticket);
        assert_eq!(pacer.gauges(), Gauges::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_queued_whole_or_not_at_all() {
        let limits = EngineConfig {
            queued_requests_max: Some(2),
            ..EngineConfig::default()
        };
        let pacer = Pacer::new(limits, 1.0);
        assert!(pacer.submit(vec![sequence(1); 3], Kv::Local).is_err());
        assert_eq!(pacer.gauges().waiting, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frozen_engine_gives_no_token_until_thawed() {
        let pacer = Pacer::new(EngineConfig::default(), 1.0);
        let _engine = tokio::spawn(Arc::clone(&pacer).run());
        let mut ticket = pacer
            .submit(vec![sequence(5)], Kv::Local)
            .expect("no limit");
        ticket
            .progress
            .wait_for(|all| all[0].produced == 1)
            .await
            .expect("published");
        pacer.freeze(true);
        let silent = tokio::time::timeout(Duration::from_secs(60), ticket.progress.changed()).await;
        assert!(silent.is_err());
        pacer.freeze(false);
        ticket
            .progress
            .wait_for(|all| all[0].done)
            .await
            .expect("published");
    }
}
