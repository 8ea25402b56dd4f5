//! What is known of all caches: the index, and the state of each engine that is heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bytes::Bytes;
use grapevine_kv_events::Tier;
use grapevine_kv_events::batch::{Batch, Event, Limits as BatchLimits};
use grapevine_kv_events::index::{Index, Limits as IndexLimits};
use grapevine_kv_events::likeness::Likeness;
use grapevine_kv_events::publisher::{Knowledge, Publisher};
use grapevine_kv_events::stream::{Cause, Limits as StreamLimits, Mark, Stream};
use grapevine_kv_events::texts::{Lesson, Limits as TextLimits, Speaker, Texts};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::Serialize;
use tokio::time::Instant;

use super::connection::PAYLOAD_BYTES_MAX;
use super::metrics::{Fault, KvMetrics, LEFT};
use super::sources::Source;
use crate::config::KvEventsConfig;
use crate::metrics::WorkerLabels;
use crate::upstream::{KvEngine, KvState, Worker};

/// Parts of the index that are swept after each batch, while there is something to be swept: about 80 microseconds where
/// it has a million blocks.
const SWEPT_PARTS: usize = 1;

/// The same each time that somebody looks: where nothing is published any more nothing else sweeps.
const SWEPT_AT_A_LOOK: usize = 64;
/// Greatest age of a batch that is counted as it is, in seconds.
const AGE_MAX_S: f64 = 3_600.0;

/// A worker and a rank of it.
pub(super) type Key = (Arc<str>, u32);
/// All engines that are heard.
type Engines = BTreeMap<Key, Arc<Engine>>;

/// All caches that this replica hears of.
#[derive(Debug)]
pub struct Caches {
    index: RwLock<Index>,
    texts: Mutex<Texts>,
    likeness: Mutex<Likeness>,
    /// What a block in each tier is worth, against one on the GPU.
    pub(super) worth: [f64; Tier::ALL.len()],
    engines: Mutex<Engines>,
    /// What a peer knew of engines that are not heard yet.
    offers: Mutex<BTreeMap<Key, Offer>>,
    /// How many there are.
    heard: AtomicUsize,
    /// Engines that were heard or told of so far.
    numbered: AtomicU32,
    pub(super) metrics: KvMetrics,
}

/// What a peer knew of an engine.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) number: u32,
    pub(super) publisher: Publisher,
    /// As of this message.
    pub(super) mark: Mark,
}

/// One engine that is heard.
#[derive(Debug)]
pub struct Engine {
    source: Source,
    worker: Arc<Worker>,
    /// Another one for each engine, and after whatever may have been a restart.
    number: AtomicU32,
    /// Where its stream goes on; none if nothing is known of it.
    behind: Option<Mark>,
    /// Held by whoever changes what it holds, and by whoever tells a peer all of it, which takes long: the listener waits
    /// here, where no thread waits with it.
    still: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// As decisions read it.
    shown: Arc<KvEngine>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) publisher: Publisher,
    /// The message that was applied last, since nothing was known.
    pub(super) mark: Option<Mark>,
    is_connected: bool,
    is_current: bool,
    /// Its process is gone, and another one is in its place.
    is_former: bool,
    /// The log has that its batches cannot be read.
    has_told: bool,
    /// When it was last known that nothing is missing.
    current_at: Option<Instant>,
    last: Option<u64>,
}

/// What is known of an engine's cache, as the admin API shows it.
#[derive(Debug, Serialize)]
pub struct EngineView {
    /// Data-parallel rank.
    pub rank: u32,
    /// Whether the subscription stands.
    connected: bool,
    /// `whole`, `partial`, or `unknown`, as of the last message.
    knowledge: &'static str,
    /// Whether nothing is known to be missing.
    current: bool,
    /// Seconds since nothing was known to be missing the last time; null before that.
    age_s: Option<u64>,
    /// Number of the last message.
    last_message: Option<u64>,
    /// Whether it can be asked for what was missed.
    has_replay: bool,
    /// Whether placement goes by it: answers and other engines bear it out.
    believed: bool,
    /// Tokens of a block; 0 until it has stored one.
    block_tokens: u32,
    /// Blocks by where they lie.
    blocks: BTreeMap<&'static str, u32>,
    /// Equal on replicas that know the same blocks of it.
    digest: String,
}

impl Caches {
    /// Nothing is known yet; `seed` is drawn at random.
    pub fn new(config: &KvEventsConfig, seed: u64, metrics: KvMetrics) -> Self {
        let limits = IndexLimits {
            bytes: config.index_bytes.as_usize(),
            ..IndexLimits::default()
        };
        let texts = TextLimits {
            blocks: config.text_blocks as usize,
            ..TextLimits::default()
        };
        let worth = [1.0, config.host_worth.get(), config.storage_worth.get()];
        Self {
            index: RwLock::new(Index::new(limits, seed)),
            texts: Mutex::new(Texts::new(texts)),
            likeness: Mutex::default(),
            worth,
            engines: Mutex::default(),
            offers: Mutex::default(),
            heard: AtomicUsize::new(0),
            numbered: AtomicU32::new(0),
            metrics,
        }
    }

    /// Whether any engine is heard.
    pub fn hears_any(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > 0
    }

    /// The index, to be searched.
    pub fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    pub(super) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write()
    }

    pub(super) fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock()
    }

    pub(super) fn likeness(&self) -> MutexGuard<'_, Likeness> {
        self.likeness.lock()
    }

    pub(super) fn offers(&self) -> MutexGuard<'_, BTreeMap<Key, Offer>> {
        self.offers.lock()
    }

    /// The number of another engine.
    pub(super) fn next_number(&self) -> u32 {
        self.numbered.fetch_add(1, Ordering::Relaxed)
    }

    /// What a peer knew of an engine that is heard from now on; only a replay can show that it holds still.
    fn take_offer(&self, key: &Key, has_replay: bool) -> Option<Offer> {
        let mut offer = self.offers().remove(key)?;
        if !has_replay {
            offer.publisher.forget(&mut self.index_mut());
            return None;
        }
        Some(offer)
    }

    /// Forgets what peers knew of engines that nobody heard since.
    pub(super) fn forget_offers(&self) {
        for (_, mut offer) in std::mem::take(&mut *self.offers()) {
            offer.publisher.forget(&mut self.index_mut());
        }
    }

    /// An engine is heard from now on, in place of what was known under its worker and rank.
    pub fn begin(&self, worker: &Arc<Worker>, source: Source) -> Arc<Engine> {
        let key = (Arc::clone(&worker.label), source.rank);
        let offer = self.take_offer(&key, source.replay.is_some());
        let behind = offer.as_ref().map(|offer| offer.mark);
        let (number, publisher) = match offer {
            Some(offer) => (offer.number, offer.publisher),
            None => (self.next_number(), Publisher::default()),
        };
        let state = State {
            publisher,
            mark: behind,
            ..State::default()
        };
        let engine = Arc::new(Engine {
            source,
            worker: Arc::clone(worker),
            number: number.into(),
            behind,
            still: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            shown: Arc::default(),
        });
        engine.show(&engine.state());
        self.likeness().add(number, &engine.name());
        let before = {
            let mut engines = self.engines.lock();
            let before = engines.insert(key, Arc::clone(&engine));
            self.heard.store(engines.len(), Ordering::Relaxed);
            before
        };
        if let Some(before) = before {
            self.leave(&before);
        }
        self.judge();
        worker.kv_engines.rcu(|engines| {
            let mut engines = engines.to_vec();
            engines.push(Arc::clone(&engine.shown));
            engines
        });
        engine
    }

    /// An engine is not heard any more.
    pub(super) fn end(&self, engine: &Arc<Engine>) {
        let key = (Arc::clone(&engine.worker.label), engine.source.rank);
        let mut engines = self.engines.lock();
        if engines
            .get(&key)
            .is_some_and(|known| Arc::ptr_eq(known, engine))
        {
            engines.remove(&key);
        }
        self.heard.store(engines.len(), Ordering::Relaxed);
        drop(engines);
        self.leave(engine);
        // One engine fewer may leave others right.
        self.judge();
    }

    fn leave(&self, engine: &Engine) {
        self.likeness().remove(engine.number());
        engine.worker.kv_engines.rcu(|engines| {
            let others = engines.iter().filter(|of| !Arc::ptr_eq(of, &engine.shown));
            others.cloned().collect::<Vec<_>>()
        });
        let mut state = engine.state();
        let was_known = state.publisher.knowledge() != Knowledge::Unknown;
        // In any case: a listener that ends in the middle of its work may have begun anew.
        state.publisher.forget(&mut self.index_mut());
        if was_known {
            self.metrics.forgot(match state.is_former {
                true => Cause::Restart.as_str(),
                false => LEFT,
            });
        }
    }

    /// A worker left: its series go.
    pub(super) fn forget(&self, worker: &Arc<str>) {
        self.metrics.forget(worker);
    }

    /// Applies the payload of a message.
    pub(super) fn apply(&self, engine: &Engine, mark: Mark, payload: &Bytes) {
        let limits = BatchLimits {
            payload_bytes: PAYLOAD_BYTES_MAX,
            ..BatchLimits::default()
        };
        // Read before anything is locked.
        match Batch::read(payload, &limits) {
            Ok(batch) => self.apply_batch(engine, mark, &batch),
            Err(error) => {
                let mut state = engine.state();
                state.mark = Some(mark);
                state.publisher.unreadable(&mut self.index_mut());
                engine.show(&state);
                self.metrics.fault(Fault::Unreadable);
                self.metrics.forgot(Fault::Unreadable.as_str());
                if !std::mem::replace(&mut state.has_told, true) {
                    tracing::warn!(
                        worker = &*engine.worker.label,
                        rank = engine.source.rank,
                        %error,
                        "a batch of KV events cannot be read; further ones of this engine are counted only"
                    );
                }
            }
        }
    }

    /// Applies what an engine said in a message.
    pub fn apply_batch(&self, engine: &Engine, mark: Mark, batch: &Batch) {
        let mut state = engine.state();
        state.mark = Some(mark);
        let mut index = self.index_mut();
        let applied = state.publisher.apply(batch, &mut index);
        index.sweep(SWEPT_PARTS);
        drop(index);
        engine.show(&state);
        self.learn(engine, &state.publisher, batch);
        self.metrics.count(&applied);
        self.metrics.age.observe(age(batch.time));
    }

    pub(super) fn forget_engine(&self, engine: &Engine, reason: &'static str) {
        let number = self.next_number();
        let former = engine.number.swap(number, Ordering::Relaxed);
        let mut likeness = self.likeness();
        likeness.remove(former);
        likeness.add(number, &engine.name());
        drop(likeness);
        let mut state = engine.state();
        state.mark = None;
        state.publisher.forget(&mut self.index_mut());
        engine.show(&state);
        self.metrics.forgot(reason);
    }

    /// Which blocks texts became. The engine's state is locked: its events are learned in their order.
    fn learn(&self, engine: &Engine, publisher: &Publisher, batch: &Batch) {
        for event in &batch.events {
            let Event::Stored(stored) = event else {
                continue;
            };
            if stored.tier == Tier::Gpu && publisher.follows(stored) {
                let (text, parent) = (stored.text, stored.parent);
                let speaker = Speaker {
                    engine: engine.number(),
                    may_teach: engine.shown.hashes_alike(),
                };
                let lesson = self.texts().learn(speaker, text, parent, &stored.hashes);
                if text.is_some() {
                    self.metrics
                        .learned(lesson.learned, stored.hashes.len() as u64);
                }
                if self.tells_of_others(speaker.engine, &lesson) {
                    self.judge();
                    // What it just went on from may be its own, of a time before it was found odd.
                    if !engine.shown.hashes_alike() {
                        self.forget_kind(&self.likeness(), speaker.engine);
                    }
                }
            }
        }
    }

    /// Whether what an engine told is news of who computes hashes as others do.
    fn tells_of_others(&self, engine: u32, lesson: &Lesson) -> bool {
        if lesson.shares_with.is_none() && lesson.contradicts.is_none() {
            return false;
        }
        let mut likeness = self.likeness();
        let shares = |with| likeness.share(engine, with);
        let is_news = lesson.shares_with.is_some_and(shares);
        let contradicts = |with| likeness.contradict(engine, with);
        lesson.contradicts.is_some_and(contradicts) || is_news
    }

    /// Whose hashes count, once more is known of who computes them alike.
    pub(super) fn judge(&self) {
        // Until all of it is shown: a judgement that was overtaken must not be the last one.
        let likeness = self.likeness();
        let odd = likeness.odd();
        let engines = self.listed();
        find_shared(&engines);
        for (_, engine) in engines {
            let number = engine.number();
            let is_odd = odd.contains(&number);
            if !engine.shown.is_found_odd(is_odd) {
                continue;
            }
            let (worker, rank) = (&*engine.worker.label, engine.source.rank);
            if is_odd {
                self.forget_kind(&likeness, number);
                tracing::warn!(
                    worker,
                    rank,
                    "texts become other blocks at this worker than at most others of its model, so its KV events are not \
                     used; give all of them the same --block-size and --prefix-caching-hash-algo, and PYTHONHASHSEED \
                     where vLLM draws a seed"
                );
            } else {
                tracing::info!(worker, rank, "this worker's KV events are used again");
            }
        }
    }

    /// Forgets the texts that engines of this one's kind told of: those that are heard, and what they were before a gap or a
    /// restart.
    fn forget_kind(&self, likeness: &Likeness, engine: u32) {
        let kind = likeness.kind(engine);
        let is_of_kind = |teacher| likeness.kind(teacher) == kind;
        self.texts().forget_taught_by(is_of_kind);
    }

    /// Sets gauges that follow from what is known.
    pub fn show<'a>(&self, workers: impl IntoIterator<Item = &'a Arc<Worker>>) {
        let (mut known, mut stale) = ([0; Knowledge::ALL.len()], 0);
        let mut blocks: BTreeMap<Arc<str>, i64> = BTreeMap::new();
        for ((worker, _), engine) in self.listed() {
            let state = engine.state();
            let index = self.index();
            known[state.publisher.knowledge() as usize] += 1;
            stale += i64::from(!state.is_current);
            let held = Tier::ALL.map(|tier| state.held(&index, tier));
            let sum: u32 = held.iter().sum();
            *blocks.entry(worker).or_default() += i64::from(sum);
        }
        self.metrics.show_engines(known, stale);
        // Decisions read the index in between.
        for _ in 0..SWEPT_AT_A_LOOK {
            self.index_mut().sweep(SWEPT_PARTS);
        }
        let index = self.index();
        self.metrics.index_blocks.set(index.blocks() as i64);
        self.metrics.index_bytes.set(index.bytes() as i64);
        drop(index);
        let texts = self.texts();
        self.metrics.text_blocks.set(texts.blocks() as i64);
        self.metrics.texts.set(texts.names() as i64);
        drop(texts);
        for worker in workers.into_iter().filter(|worker| worker.has_series()) {
            let labels = WorkerLabels::of(&worker.label);
            match blocks.get(&worker.label) {
                Some(blocks) => {
                    let show = || {
                        self.metrics.blocks.get_or_create(&labels).set(*blocks);
                    };
                    // This list may be older than what has been forgotten.
                    worker.series.look_up(show, || ());
                }
                // It publishes nothing, or no more.
                None => self.metrics.forget(&worker.label),
            }
        }
    }

    pub(super) fn listed(&self) -> Vec<(Key, Arc<Engine>)> {
        let engines = self.engines.lock();
        let engines = engines.iter();
        engines
            .map(|(key, engine)| (key.clone(), Arc::clone(engine)))
            .collect()
    }

    /// What is known of a worker's engines; empty for one that does not publish.
    pub fn describe(&self, worker: &Arc<str>) -> Vec<EngineView> {
        let all = (Arc::clone(worker), 0)..=(Arc::clone(worker), u32::MAX);
        let engines: Vec<_> = self
            .engines
            .lock()
            .range(all)
            .map(|(_, e)| Arc::clone(e))
            .collect();
        let describe = |engine: &Arc<Engine>| {
            let state = engine.state();
            let index = self.index();
            let tiers = Tier::ALL.into_iter();
            let holder = state.publisher.holder();
            EngineView {
                rank: engine.source.rank,
                connected: state.is_connected,
                knowledge: state.publisher.knowledge().as_str(),
                current: state.is_current,
                age_s: state.current_at.map(|at| at.elapsed().as_secs()),
                last_message: state.last,
                has_replay: engine.source.replay.is_some(),
                believed: engine.shown.is_believed(),
                block_tokens: state.publisher.block_tokens(),
                blocks: tiers
                    .map(|tier| (tier.as_str(), state.held(&index, tier)))
                    .collect(),
                digest: format!("{:016x}", holder.map_or(0, |holder| index.digest(holder))),
            }
        };
        engines.iter().map(describe).collect()
    }
}

impl Engine {
    /// To be locked before the index, never after it: whoever applies a batch holds both.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Before something changes of what it holds. No further wait while this is kept.
    pub(super) async fn changes(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.still.lock().await
    }

    /// It changes no more while this is kept, unless it ends. For threads that may wait; a change takes a moment.
    #[expect(clippy::disallowed_methods, reason = "threads that may wait")]
    pub(super) fn stands_still(&self) -> tokio::sync::MutexGuard<'_, ()> {
        loop {
            match self.still.try_lock() {
                Ok(still) => return still,
                // A walk through the index for another peer that starts holds it for a quarter of a second.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Its messages, from the first one on, or behind what is known of it.
    pub(super) fn stream<P>(&self) -> Stream<P> {
        let has_replay = self.source.replay.is_some();
        let limits = StreamLimits::default();
        match self.behind {
            Some(mark) => {
                let is_whole = self.state().publisher.knowledge() == Knowledge::Whole;
                Stream::behind(mark, is_whole, has_replay, limits)
            }
            None => Stream::new(has_replay, limits),
        }
    }

    /// What is applied from here on is everything, or not.
    pub fn begin(&self, is_first: bool) {
        let mut state = self.state();
        state.publisher.begin(is_first);
        self.show(&state);
    }

    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The same wherever it is heard.
    fn name(&self) -> String {
        format!("{} {}", self.worker.label, self.source.rank)
    }

    /// For those who decide.
    fn show(&self, state: &State) {
        let publisher = &state.publisher;
        self.shown.show(KvState {
            holder: publisher.holder(),
            tells_all: publisher.knowledge() == Knowledge::Whole && state.is_current,
            block_tokens: publisher.block_tokens(),
        });
    }

    /// The worker was started anew: once this engine ends, that is why.
    pub(super) fn note_restart(&self) {
        self.state().is_former = true;
    }

    /// Whether there is a subscription to it.
    pub(super) fn is_connected(&self) -> bool {
        self.state().is_connected
    }

    /// How its stream stands.
    pub fn stands(&self, is_connected: bool, is_current: bool, last: Option<u64>) {
        let mut state = self.state();
        (state.is_connected, state.is_current, state.last) = (is_connected, is_current, last);
        if is_current {
            state.current_at = Some(Instant::now());
        }
        self.shown.hears_all(is_current);
        self.show(&state);
    }
}

impl State {
    pub(super) fn held(&self, index: &Index, tier: Tier) -> u32 {
        self.publisher
            .holder()
            .map_or(0, |holder| index.held(holder, tier))
    }
}

/// Of engines that are said to publish at one address nobody knows whose events are heard there: none of them is believed.
fn find_shared(engines: &[(Key, Arc<Engine>)]) {
    let mut by_address: BTreeMap<_, Vec<&Arc<Engine>>> = BTreeMap::new();
    for (_, engine) in engines {
        let (at, own) = (&engine.source.events, engine.worker.address.url.host());
        let host = at.host.as_deref().unwrap_or(own);
        by_address.entry((host, at.port)).or_default().push(engine);
    }
    for ((host, port), engines) in by_address {
        let is_shared = engines.len() > 1;
        for engine in engines {
            if engine.shown.is_found_shared(is_shared) && is_shared {
                tracing::warn!(
                    worker = &*engine.worker.label,
                    rank = engine.source.rank,
                    address = %format_args!("{host}:{port}"),
                    "another worker is said to publish its KV events at the same address, so neither is believed; correct \
                     the labels kv.events"
                );
            }
        }
    }
}

/// Seconds since an engine's time, by this machine's clock; 0 if that is behind.
fn age(time: f64) -> f64 {
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let age = now.as_secs_f64() - time;
    // Whatever it says; one that is infinite, or no number, would be the sum for ever.
    if age.is_nan() {
        return 0.0;
    }
    age.clamp(0.0, AGE_MAX_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_number_whatever_time_an_engine_says() {
        for (time, expected) in [
            (f64::NAN, 0.0),
            (f64::INFINITY, 0.0),
            (f64::NEG_INFINITY, AGE_MAX_S),
            (0.0, AGE_MAX_S),
            (f64::MAX, 0.0),
        ] {
            assert_eq!(age(time), expected, "{time}");
        }
    }
}
