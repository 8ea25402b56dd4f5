//! Hears one engine: a subscription that is made again whenever it ends, and replays of what was missed.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use grapevine_kv_events::stream::{Counts, Mark, Message, Step, Stream};
use grapevine_zmtp::SocketType;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::caches::{Caches, Engine};
use super::connection::{Connection, End, read_message};
use super::metrics::{APPLIED, COMPLETE, FAILED, Fault, REPEATED};
use super::replay::{Replay, Replayed};
use crate::upstream::Worker;

/// First pause before an engine is connected to again; each one is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A connection that lasted so long was good: the pauses begin anew.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// A worker that starts is not reached at once: so many subscriptions that end soon, one after the other, go to the log,
/// once until one lasts.
const TOLD_AFTER: u32 = 4;
/// First pause before a replay that follows another one within a minute.
const REPLAY_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
const REPLAY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A replay that follows none in this time begins at once.
const REPLAY_REST: Duration = Duration::from_secs(60);
/// A subscription that brought nothing while so many looks in a row found messages is made again.
const VAIN_LOOKS_MAX: u32 = 2;

/// Hears an engine until it is dropped; then the engine is not known any more, also where it was never polled.
pub(super) fn hear(
    worker: Arc<Worker>,
    engine: Arc<Engine>,
    caches: Arc<Caches>,
    silence: Duration,
) -> impl Future<Output = ()> + Send + use<> {
    Listener::new(worker, engine, caches, silence).run()
}

enum Never {}

/// What is applied, with its place in the stream.
type Payload = (Mark, Bytes);

fn with_mark(message: Message<Bytes>) -> Message<Payload> {
    Message {
        sequence: message.sequence,
        fingerprint: message.fingerprint,
        bytes: message.bytes,
        payload: (message.mark(), message.payload),
    }
}

struct Listener {
    worker: Arc<Worker>,
    engine: Arc<Engine>,
    caches: Arc<Caches>,
    silence: Duration,
    stream: Stream<Payload>,
    /// As it was counted last.
    counted: Counts,
    steps: Vec<Step<Payload>>,
    replay: Option<Replay>,
    replay_pause: Duration,
    replayed_at: Option<Instant>,
    /// Whether the replay under way is a look, and what had been applied and heard before it.
    look: Option<(u64, u64)>,
    /// Messages that the subscription brought.
    heard: u64,
    vain_looks: u32,
}

impl Listener {
    fn new(
        worker: Arc<Worker>,
        engine: Arc<Engine>,
        caches: Arc<Caches>,
        silence: Duration,
    ) -> Self {
        let stream = engine.stream();
        Self {
            worker,
            engine,
            caches,
            silence,
            stream,
            counted: Counts::default(),
            steps: Vec::new(),
            replay: None,
            replay_pause: REPLAY_PAUSE_MIN,
            replayed_at: None,
            look: None,
            heard: 0,
            vain_looks: 0,
        }
    }

    /// One connection after the other.
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        let mut failures = 0_u32;
        loop {
            let began = Instant::now();
            let end = match self.session().await {
                Ok(never) => match never {},
                Err(end) => end,
            };
            self.disconnected().await;
            self.caches.metrics.fault(end.fault());
            tracing::debug!(
                worker = &*self.worker.label,
                rank = self.engine.source().rank,
                reason = %end,
                "a subscription to KV events ended"
            );
            if began.elapsed() >= GOOD_AFTER {
                (pause, failures) = (PAUSE_MIN, 0);
            }
            failures = failures.saturating_add(1);
            if failures == TOLD_AFTER {
                tracing::warn!(
                    worker = &*self.worker.label,
                    rank = self.engine.source().rank,
                    reason = %end,
                    "the KV events of a worker cannot be heard; what is sent to it counts in their place"
                );
            }
            // Replicas that lost a worker together come back apart.
            sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One connection, from its beginning to its end.
    async fn session(&mut self) -> Result<Never, End> {
        let source = self.engine.source();
        let mut subscription =
            Connection::open(&self.worker, &source.events, SocketType::Sub).await?;
        let mut topic = BytesMut::with_capacity(1 + source.topic.len());
        topic.put_u8(1);
        topic.put_slice(source.topic.as_bytes());
        subscription.send(&[topic.freeze()]).await?;
        self.vain_looks = 0;
        self.stream.connected(&mut self.steps);
        self.carry_out(true).await;
        let mut look_at = Instant::now() + self.silence;
        loop {
            tokio::select! {
                frames = subscription.next() => {
                    self.heard += 1;
                    look_at = Instant::now() + self.silence;
                    self.hear_message(&frames?);
                }
                replayed = next(&mut self.replay) => self.take_replayed(replayed)?,
                () = sleep_until(look_at) => {
                    look_at = Instant::now() + self.silence;
                    self.look();
                }
            }
            self.carry_out(true).await;
        }
    }

    fn hear_message(&mut self, frames: &[Bytes]) {
        match read_message(frames) {
            Some(message) if message.sequence != grapevine_kv_events::stream::END => {
                self.received(&message);
                self.stream.heard(with_mark(message), &mut self.steps);
                if self.replay.is_some() && !self.stream.is_replaying() {
                    // So much came meanwhile that it was given up; the rest of it is not worth its bytes.
                    self.replay = None;
                    self.look = None;
                    self.caches.metrics.replay(FAILED);
                }
            }
            _ => self.caches.metrics.fault(Fault::Malformed),
        }
    }

    fn take_replayed(&mut self, replayed: Replayed) -> Result<(), End> {
        match replayed {
            Replayed::Message(message) => {
                self.received(&message);
                self.stream.replayed(with_mark(message), &mut self.steps);
                return Ok(());
            }
            Replayed::Ended => {
                self.replay = None;
                self.caches.metrics.replay(COMPLETE);
                self.stream.replay_ended(&mut self.steps);
            }
            Replayed::Failed(end) => {
                self.replay = None;
                self.caches.metrics.replay(FAILED);
                tracing::debug!(
                    worker = &*self.worker.label,
                    reason = %end,
                    "a replay of KV events failed"
                );
                self.stream.replay_failed(&mut self.steps);
            }
        }
        if let Some((applied, heard)) = self.look.take() {
            let is_vain = self.stream.counts().applied > applied && self.heard == heard;
            self.vain_looks = if is_vain { self.vain_looks + 1 } else { 0 };
            if self.vain_looks >= VAIN_LOOKS_MAX {
                return Err(End::Silent);
            }
        }
        Ok(())
    }

    /// Nothing came for long.
    fn look(&mut self) {
        self.stream.verify(&mut self.steps);
        // A look follows silence, so it does not wait; what it leads to does.
        self.replayed_at = None;
        if !self.steps.is_empty() {
            self.look = Some((self.stream.counts().applied, self.heard));
        }
    }

    fn received(&self, message: &Message<Bytes>) {
        self.caches.metrics.bytes.inc_by(message.bytes as u64);
    }

    /// Does what is to be done, and shows how the stream stands.
    async fn carry_out(&mut self, is_connected: bool) {
        let engine = Arc::clone(&self.engine);
        let changes = engine.changes().await;
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Ask(from) => self.ask(from),
                Step::Forget(cause) => {
                    self.caches.forget_engine(&self.engine, cause.as_str());
                }
                Step::Begin { is_first } => self.engine.begin(is_first),
                Step::Apply((mark, payload)) => self.caches.apply(&self.engine, mark, &payload),
            }
        }
        drop(changes);
        let counts = self.stream.counts();
        let metrics = &self.caches.metrics;
        metrics.gaps.inc_by(counts.gaps - self.counted.gaps);
        metrics.message(APPLIED, counts.applied - self.counted.applied);
        metrics.message(REPEATED, counts.repeated - self.counted.repeated);
        self.counted = counts;
        let (is_current, last) = (self.stream.is_current(), self.stream.last());
        self.engine.stands(is_connected, is_current, last);
    }

    /// One replay at a time; those that follow each other soon wait longer and longer.
    fn ask(&mut self, from: u64) {
        self.replay = None;
        let Some(endpoint) = self.engine.source().replay.clone() else {
            return;
        };
        let now = Instant::now();
        let is_soon = self
            .replayed_at
            .is_some_and(|at| now.duration_since(at) < REPLAY_REST);
        let pause = if is_soon {
            let pause = self.replay_pause;
            self.replay_pause = (pause * 2).min(REPLAY_PAUSE_MAX);
            pause
        } else {
            self.replay_pause = REPLAY_PAUSE_MIN;
            Duration::ZERO
        };
        self.replayed_at = Some(now + pause);
        self.replay = Some(Replay::begin(
            Arc::clone(&self.worker),
            endpoint,
            from,
            pause,
        ));
    }

    async fn disconnected(&mut self) {
        self.replay = None;
        self.look = None;
        self.stream.disconnected();
        self.carry_out(false).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.caches.end(&self.engine);
    }
}

async fn next(replay: &mut Option<Replay>) -> Replayed {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}
