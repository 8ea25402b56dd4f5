//! What engines tell, and what of it replicas know then: workers that are only known, without a socket.

use std::sync::Arc;
use std::time::Duration;

use grapevine_kv_events::batch::{Batch, Event, Stored};
use grapevine_kv_events::stream::Mark;
use grapevine_kv_events::texts::TextName;
use grapevine_kv_events::{BlockHash, Tier};

use super::caches::{Caches, Engine};
use super::listener;
use super::sources::Source;
use crate::alone::{Alone, worker};
use crate::config::KvEventsConfig;
use crate::upstream::Worker;

const MODEL: &str = "m";

/// A replica and some workers of one model.
pub(super) struct Scene {
    alone: Alone,
    pub(super) workers: Vec<Arc<Worker>>,
}

impl Scene {
    pub(super) fn of(count: usize) -> Self {
        Self::with(count, &KvEventsConfig::default())
    }

    pub(super) fn with(count: usize, config: &KvEventsConfig) -> Self {
        let workers = (0..count).map(|number| worker(number, MODEL));
        let alone = Alone::new("r1", workers, config, count);
        let pool = alone.cluster.fleet().pool(MODEL).expect("a model");
        let mut workers: Vec<_> = pool
            .members()
            .iter()
            .map(|member| Arc::clone(&member.worker))
            .collect();
        workers.sort_by_key(|worker| Arc::clone(&worker.label));
        Self { alone, workers }
    }

    pub(super) fn caches(&self) -> &Caches {
        &self.alone.caches
    }

    /// One engine of each worker, heard from now on, each at an address of its own.
    pub(super) fn begin(&self) -> Vec<Arc<Engine>> {
        let workers = self.workers.iter().zip(1_u16..);
        let begin = |(worker, port)| {
            let address = |port| format!("tcp://*:{port}").parse().expect("an address");
            let source = Source {
                rank: 0,
                events: address(port),
                replay: Some(address(1_000 + port)),
                topic: String::new(),
            };
            self.caches().begin(worker, source)
        };
        workers.map(begin).collect()
    }

    /// An engine stored these blocks for a text, behind another block.
    pub(super) fn tell(&self, engine: &Engine, text: u64, parent: Option<u64>, blocks: &[u64]) {
        self.tell_of_size(engine, 16, text, parent, blocks);
    }

    /// The same with blocks of so many tokens, as it says.
    pub(super) fn tell_of_size(
        &self,
        engine: &Engine,
        block_tokens: u32,
        text: u64,
        parent: Option<u64>,
        blocks: &[u64],
    ) {
        let stored = Stored {
            hashes: blocks.iter().copied().map(BlockHash).collect(),
            parent: parent.map(BlockHash),
            tokens: Vec::new(),
            block_tokens,
            tier: Tier::Gpu,
            lora: None,
            group: 0,
            text: Some(TextName {
                whole: text,
                common: None,
            }),
            is_full_attention: true,
        };
        let batch = Batch {
            time: 0.0,
            events: vec![Event::Stored(stored)],
            rank: None,
            unknown_events: 0,
        };
        let mark = Mark {
            sequence: 0,
            fingerprint: 0,
        };
        self.caches().apply_batch(engine, mark, &batch);
    }

    /// A gap that could not be filled, or a restart.
    pub(super) fn lose(&self, engine: &Engine) {
        self.caches().forget_engine(engine, "gap");
        engine.begin(false);
    }

    /// These engines tell of texts, each of its own blocks for the same ones, until they are apart.
    pub(super) fn contradict(&self, engines: [&Engine; 2]) {
        for text in 0..4 {
            for (engine, base) in engines.into_iter().zip([1, 2]) {
                let first = base << 32 | text << 8;
                self.tell(engine, 100 + text, None, &[first, first + 1, first + 2]);
            }
        }
    }

    pub(super) fn knows(&self, text: u64) -> bool {
        self.caches().texts().find([text]).is_some()
    }

    pub(super) fn are_alike(&self, one: &Engine, other: &Engine) -> bool {
        let likeness = self.caches().likeness();
        likeness.kind(one.number()) == likeness.kind(other.number())
    }

    /// Whether other engines bear out how it computes hashes.
    pub(super) fn is_odd(&self, worker: usize) -> bool {
        let engines = self.workers[worker].kv_engines.load();
        engines.iter().any(|engine| !engine.hashes_alike())
    }
}

#[test]
fn what_an_odd_engine_taught_before_a_gap_goes_too() {
    // It is found odd after it went on from what it taught, or before.
    for goes_on_first in [true, false] {
        let scene = Scene::of(3);
        let engines = scene.begin();
        engines.iter().for_each(|engine| engine.begin(true));
        let [one, other, odd] = [0, 1, 2].map(|of| &*engines[of]);
        scene.tell(one, 1, None, &[1, 2]);
        scene.tell(other, 1, None, &[1, 2]);
        scene.tell(odd, 2, None, &[11, 12, 13]);
        scene.lose(odd);
        if goes_on_first {
            scene.tell(odd, 3, Some(13), &[14, 15]);
        }
        scene.contradict([one, odd]);
        assert_eq!([0, 1, 2].map(|of| scene.is_odd(of)), [false, false, true]);
        if !goes_on_first {
            assert!(scene.knows(2), "nobody can know whose it is");
            scene.tell(odd, 3, Some(13), &[14, 15]);
        }
        assert!(!scene.knows(2) && !scene.knows(3));
        assert!(scene.knows(1));
    }
}

#[test]
fn an_engine_whose_listener_never_ran_goes_with_it_all_the_same() {
    let scene = Scene::of(1);
    let (engine, worker) = (scene.begin().remove(0), &scene.workers[0]);
    let knows = || !scene.caches().describe(&worker.label).is_empty();
    let listener = listener::hear(
        Arc::clone(worker),
        engine,
        Arc::clone(&scene.alone.caches),
        Duration::from_secs(1),
    );
    assert!(knows() && scene.caches().hears_any());
    // The worker left before the task had its turn.
    drop(listener);
    assert!(!knows() && !scene.caches().hears_any());
    assert!(worker.kv_engines.load().is_empty());
}
