//! Laws of what decisions leave behind and what other replicas add.

use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::dry_run::DryRun;
use grapevine_gossip::evidence::{Evidence, EvidenceEvent, HeatReport, Lack, Retraction};
use grapevine_gossip::registry::Worker as RegisteredWorker;
use grapevine_gossip::worker::{Labels, RawWorker, Source, State, WorkerId, WorkerSpec};
use grapevine_placement::{AttemptOutcome, ClusterSettings, Key, KeyBuilder, NoWorker, Reason};
use grapevine_transfer::label;
use tokio::time::{Instant, advance};

use super::Placed;
use crate::alone::{Alone, worker};
use crate::api::cards::Card;
use crate::cluster::agreement::encode_key;
use crate::config::KvEventsConfig;
use crate::http::sse::Usage;
use crate::upstream::failure::Failure;
use crate::upstream::{InFlight, Worker};

pub(super) const MODEL: &str = "m";
pub(super) const WORKERS: usize = 4;

/// A replica alone with its workers; one of them has no metrics of its own.
pub(super) fn house() -> Alone {
    let workers = (0..WORKERS).map(|number| worker(number, MODEL));
    Alone::new("r1", workers, &KvEventsConfig::default(), WORKERS - 1)
}

fn key(text: &str, turns: usize) -> Key {
    let mut builder = KeyBuilder::new(&ClusterSettings::default().key, MODEL, b"");
    for turn in 0..turns {
        builder.begin_message("user");
        builder.text(format!("{text} {turn} {}", "word ".repeat(800)));
        builder.end_message();
    }
    builder.finish()
}

impl Alone {
    fn place(&self, key: &Key) -> Placed {
        let pool = self.cluster.fleet().pool(MODEL).expect("it is served");
        self.cluster
            .place(&pool, key, &[], &[])
            .expect("all are usable")
    }

    /// Tokens expected at each worker, in order of the workers, by evidence and credit.
    fn expected(&self, key: &Key) -> Vec<u32> {
        let pool = self.cluster.fleet().pool(MODEL).expect("it is served");
        let mut rows = self.cluster.explain(&pool, key, false, &[]).rows;
        rows.sort_by_key(|row| row.index);
        rows.iter().map(|row| row.expected_tokens).collect()
    }

    fn hear_of(&self, worker: usize, epoch: u64, key: &Key) -> Evidence {
        let evidence = Evidence {
            worker: format!("w{worker}").parse().expect("an id"),
            epoch,
            links: key.marks().iter().map(|mark| mark.hash).collect(),
        };
        self.cluster.cache_view().receive([EvidenceEvent::Evidence {
            from: "r2".parse().expect("an id"),
            evidence: evidence.clone(),
        }]);
        evidence
    }
}

#[test]
fn what_was_placed_is_expected_there() {
    let house = house();
    let first = house.place(&key("a", 2));
    let next = key("a", 3);
    let marks = key("a", 2).marks().last().expect("it has marks").tokens;
    assert_eq!(house.expected(&next)[first.decision.worker], marks);
    assert_eq!(
        house.expected(&next).iter().filter(|t| **t > 0).count(),
        1,
        "nobody else is expected to hold it"
    );
    let again = house.place(&next);
    assert_eq!(again.worker.id, first.worker.id);
    assert_eq!(again.decision.expected_tokens, marks);
}

#[test]
fn a_failed_attempt_is_forgotten() {
    let house = house();
    let before = house.expected(&key("a", 2));
    let placed = house.place(&key("a", 2));
    assert_ne!(house.expected(&key("a", 2)), before);
    house
        .cluster
        .cache_view()
        .retract(placed.recorded.expect("recorded"));
    assert_eq!(house.expected(&key("a", 2)), before);
}

/// A worker that is full refuses requests; what it holds stays known, here and where that is heard.
#[test]
fn a_failed_attempt_says_nothing_of_other_prompts() {
    let house = house();
    let home = house.place(&key("a", 2)).decision.worker;
    let (told, also) = (key("b", 2), key("c", 2));
    house.hear_of(home, 0, &told);
    let failed = house.hear_of(home, 0, &also);
    let before = [&key("a", 2), &told].map(|key| house.expected(key));
    // One that goes on behind what is known there.
    let next = house.place(&key("a", 3));
    assert_eq!(next.decision.worker, home);
    let cache_view = house.cluster.cache_view();
    cache_view.retract(next.recorded.expect("recorded"));
    let retraction = Retraction {
        worker: failed.worker,
        epoch: 0,
        links: failed.links,
        lack: Lack::NotComputed,
    };
    let from = "r2".parse().expect("an id");
    cache_view.receive([EvidenceEvent::Retraction { from, retraction }]);
    assert_eq!([&key("a", 2), &told].map(|key| house.expected(key)), before);
    assert_eq!(house.expected(&also)[home], 0);
}

/// What was sent there long ago is told to the others again, and is no less true where the worker refuses this request.
#[tokio::test(start_paused = true)]
async fn a_failed_attempt_takes_back_nothing_that_was_known_long_before() {
    let house = house();
    let home = house.place(&key("a", 2)).decision.worker;
    let before = house.expected(&key("a", 2));
    advance(Duration::from_secs(600)).await;
    let next = house.place(&key("a", 3));
    assert_eq!(next.decision.worker, home);
    let cache_view = house.cluster.cache_view();
    cache_view.retract(next.recorded.expect("recorded"));
    assert_eq!(house.expected(&key("a", 2)), before);
    assert_eq!(house.expected(&key("a", 3)), before, "what was new is gone");
}

/// It need not say when it began.
#[test]
fn a_worker_at_another_address_holds_nothing_of_what_the_former_one_held() {
    let house = house();
    let home = house.place(&key("a", 2)).decision.worker;
    let (id, spec) = worker(home, MODEL);
    let mut raw = spec.to_raw();
    raw.weight_milli = 2_000;
    let becomes = |raw: &RawWorker| {
        let spec = WorkerSpec::new(raw.clone()).expect("a worker");
        house.agent.configure(id.clone(), spec).expect("room");
        house.cluster.update(&house.agent.view());
        house.expected(&key("a", 2))[home]
    };
    assert!(becomes(&raw) > 0, "the same one, otherwise described");
    raw.url = "http://elsewhere:8000".to_owned();
    assert_eq!(becomes(&raw), 0);
}

#[test]
fn a_settled_placement_is_not_taken_back() {
    let house = house();
    let mut placed = house.place(&key("a", 2));
    let after = house.expected(&key("a", 2));
    let mut recorded = placed.recorded.take().expect("recorded");
    recorded.settle();
    house.cluster.cache_view().retract(recorded);
    assert_eq!(house.expected(&key("a", 2)), after);
}

#[test]
fn answers_correct_what_is_expected() {
    let house = house();
    house.place(&key("a", 2));
    let placed = house.place(&key("a", 3));
    let recorded = placed.recorded.expect("recorded");
    let prompt = u64::from(placed.decision.prompt_tokens);
    // The worker's tokenizer makes half as many tokens of the text: all that was expected is there.
    let cached = u64::from(recorded.expected_tokens()) / 2;
    let usage = |prompt_tokens, cached_tokens| Usage {
        prompt_tokens,
        completion_tokens: 1,
        cached_tokens,
    };
    let before = house.expected(&key("a", 2));
    let cache_view = house.cluster.cache_view();
    cache_view.correct(&recorded, &usage(prompt / 2, Some(cached)));
    cache_view.correct(&recorded, &usage(prompt, None));
    assert_eq!(house.expected(&key("a", 2)), before);
    let other = house.place(&key("b", 2));
    cache_view.correct(&recorded, &usage(prompt, Some(0)));
    let tokens = house.expected(&key("b", 2))[other.decision.worker];
    assert!(tokens > 0, "what was used later is still believed");
}

#[test]
fn evidence_of_others_decides_and_is_passed_to_those_who_start() {
    let house = house();
    let conversation = key("a", 3);
    let home = house.place(&key("other", 1)).decision.home;
    let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
    let by_hash = house.cluster.explain(&pool, &conversation, false, &[]);
    let by_hash = by_hash.decision.expect("all are usable").worker;
    let elsewhere = (by_hash + 1) % WORKERS;
    let said = house.hear_of(elsewhere, 0, &conversation);
    let placed = house.place(&conversation);
    assert_eq!(placed.decision.worker, elsewhere, "home {home}");
    assert_eq!(placed.decision.reason, Reason::Evidence);
    let told = house.cluster.evidence();
    let links: Vec<u64> = told
        .iter()
        .filter(|evidence| evidence.worker == said.worker)
        .flat_map(|evidence| evidence.links.clone())
        .collect();
    assert!(said.links.iter().all(|link| links.contains(link)));

    let from = "r2".parse().expect("an id");
    let retraction = Retraction {
        worker: said.worker,
        epoch: 0,
        links: said.links,
        lack: Lack::Forgotten,
    };
    house
        .cluster
        .cache_view()
        .receive([EvidenceEvent::Retraction { from, retraction }]);
    assert_eq!(house.place(&conversation).decision.worker, by_hash);
}

#[test]
fn workers_that_a_request_is_not_for_were_not_tried() {
    let house = house();
    let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
    let strangers: Vec<usize> = (1..WORKERS).collect();
    let why = |tried: &[usize]| {
        let placed = house.cluster.place(&pool, &key("a", 1), tried, &strangers);
        placed.map(|placed| placed.decision.worker)
    };
    assert_eq!(why(&[]), Ok(0));
    assert_eq!(why(&[0]), Err(NoWorker::Tried));
    pool.members()[0].worker.health.eject();
    assert_eq!(why(&[]), Err(NoWorker::Unhealthy));
}

#[test]
fn heat_of_others_counts_until_they_are_gone() {
    let house = house();
    let from: grapevine_gossip::ReplicaId = "r2".parse().expect("an id");
    let cool = house.cluster.cache_view().heat_digest();
    let prompt = key("a", 1);
    let mut counts: Vec<(u64, u32)> = prompt.marks().iter().map(|m| (m.hash, 1_000)).collect();
    counts.push((prompt.model(), 1_000));
    counts.sort_unstable();
    let report = HeatReport {
        version: 1,
        counts,
        total: 1_000,
    };
    let heat = EvidenceEvent::Heat {
        from: from.clone(),
        report,
    };
    house.cluster.cache_view().receive([heat]);
    assert_ne!(house.cluster.cache_view().heat_digest(), cool);
    house.cluster.tick();
    assert_ne!(house.cluster.cache_view().heat_digest(), cool);
    house
        .cluster
        .cache_view()
        .receive([EvidenceEvent::Gone { from }]);
    assert_eq!(house.cluster.cache_view().heat_digest(), cool);
}

#[test]
fn a_dry_run_decides_alike_and_leaves_nothing() {
    let house = house();
    let conversation = key("a", 3);
    house.hear_of(2, 0, &key("a", 2));
    let question = || DryRun {
        pool: MODEL.to_owned(),
        key: encode_key(&conversation),
        at_us: None,
    };
    let answer = house
        .cluster
        .dry_run(question(), None)
        .expect("it is served");
    assert_eq!(
        house.cluster.dry_run(question(), None).expect("the same"),
        answer
    );
    let placed = house.place(&conversation);
    assert_eq!(answer.worker, Some(placed.worker.id.clone()));
    assert_eq!(answer.reason, placed.decision.reason.as_str());
    assert_eq!(answer.expected_tokens, placed.decision.expected_tokens);

    let unknown = DryRun {
        pool: "unknown".to_owned(),
        ..question()
    };
    assert_eq!(house.cluster.dry_run(unknown, None), None);
    let mut broken = question();
    broken.key.prompt_tokens = 0;
    assert_eq!(
        house.cluster.dry_run(broken, None),
        None,
        "marks beyond its end"
    );
}

#[tokio::test]
async fn a_joining_worker_changes_no_ring_until_it_is_active() {
    let Alone { cluster, agent, .. } = house();
    let before = cluster.fleet().digest();
    let until_ms = agent.hybrid_ms() + 60_000;
    let spec = WorkerSpec::new(RawWorker {
        models: vec![MODEL.to_owned()],
        state: State::Warming { until_ms },
        ..RawWorker::at("http://new:8000")
    });
    let id: WorkerId = "new".parse().expect("an id");
    let put = agent.put_worker(id.clone(), Source::Admin, spec.expect("a worker"));
    put.await.expect("there is room");
    cluster.update(&agent.view());
    let fleet = cluster.fleet();
    assert_eq!(fleet.digest(), before);
    assert_eq!(fleet.whole().members().len(), WORKERS);
    assert_eq!(fleet.pool(MODEL).expect("served").members().len(), WORKERS);
    assert_eq!(
        fleet.workers().count(),
        WORKERS + 1,
        "it is known, and probed"
    );
    assert_eq!(fleet.joining()[0].worker.id, id);
    assert_eq!(fleet.prospective()[0].members().len(), WORKERS + 1);
    let probed = Arc::clone(&fleet.joining()[0].worker);

    let stamp = agent
        .view()
        .worker(&id)
        .and_then(|w| Some(w.warming.as_ref()?.stamp));
    let finished = agent.finish_warming(&id, stamp.expect("it is warming"));
    finished
        .await
        .expect("there is room")
        .expect("it was warming");
    cluster.update(&agent.view());
    let fleet = cluster.fleet();
    assert_ne!(fleet.digest(), before);
    assert!(fleet.joining().is_empty() && fleet.prospective().is_empty());
    let whole = fleet.whole();
    let active = whole.members().iter().find(|member| member.worker.id == id);
    // The same connections, health and load.
    assert!(active.is_some_and(|member| Arc::ptr_eq(&member.worker, &probed)));
}

#[test]
fn a_worker_that_leaves_makes_room_for_the_series_of_one_that_comes_with_it() {
    let house = house();
    let with_series = || -> Vec<String> {
        let fleet = house.cluster.fleet();
        let workers = fleet.workers().filter(|worker| worker.has_series());
        workers.map(|worker| worker.id.to_string()).collect()
    };
    assert_eq!(with_series(), ["w0", "w1", "w2"]);
    let spec = |url: &str| {
        let spec = WorkerSpec::new(RawWorker {
            models: vec![MODEL.to_owned()],
            ..RawWorker::at(url)
        });
        spec.expect("a worker")
    };
    let new: WorkerId = "w9".parse().expect("an id");
    house
        .agent
        .configure(new, spec("http://w9:8000"))
        .expect("there is room");
    let view = house.agent.view();
    let mut registry = grapevine_gossip::registry::Registry::new("r1".parse().expect("an id"));
    for worker in view.workers().iter().filter(|w| w.id.as_str() != "w1") {
        let put = registry.put(
            worker.id.clone(),
            Source::Config,
            WorkerSpec::clone(&worker.spec),
            1_700_000_000_000,
        );
        drop(put.expect("there is room"));
    }
    let view = grapevine_gossip::view::View::new(&registry, Vec::new());
    house.cluster.update(&view);
    assert_eq!(with_series(), ["w0", "w2", "w9"]);
}

#[test]
fn what_workers_say_is_merged_once_and_again_when_one_says_something_else() {
    let house = house();
    let fleet = house.cluster.fleet();
    let says = |worker: &Worker, length: u32| {
        let card = serde_json::json!({ "id": MODEL, "max_model_len": length });
        let card = Card::of(card).expect("it has an id");
        worker.cards.store(Arc::new(vec![card]));
    };
    let worker = fleet.workers().next().expect("there are some");
    says(worker, 8);
    let first = fleet.card_of(MODEL);
    assert_eq!(first.fields["max_model_len"], 8);
    assert!(Arc::ptr_eq(&first, &fleet.card_of(MODEL)));
    says(worker, 4);
    fleet.cards_changed(worker);
    assert_eq!(fleet.card_of(MODEL).fields["max_model_len"], 4);
    assert!(fleet.card_of("nobody's").fields.is_empty());
}

#[test]
fn the_ranks_of_an_engine_are_those_that_it_reports_else_those_of_its_description() {
    let ranks = |described: Option<u32>, reported: Option<&str>| {
        let spec = WorkerSpec::new(RawWorker {
            dp_size: described,
            ..RawWorker::at("http://w:8000")
        });
        let labels = Labels::new(reported.map(|ranks| (label::DP_SIZE, ranks)));
        super::registrations::ranks_of(&RegisteredWorker {
            id: "w".parse().expect("an id"),
            spec: Arc::new(spec.expect("a worker")),
            warming: None,
            labels: Arc::new(labels.expect("a label")),
            is_drained: false,
            models_are_learned: false,
        })
    };
    assert_eq!(ranks(Some(4), Some("2")), Some(2));
    assert_eq!(ranks(None, Some("2")), Some(2));
    assert_eq!(ranks(Some(4), None), Some(4));
    assert_eq!(ranks(Some(4), Some("many")), Some(4));
    assert_eq!(ranks(None, None), None);
}

#[tokio::test(start_paused = true)]
async fn a_slow_readers_end_is_no_sign_of_life_of_its_worker() {
    let house = house();
    let Placed {
        worker, decision, ..
    } = house.place(&key("a", 1));
    let begin = || InFlight::begin(&worker, &decision).expect("it is usable");
    // All of its answer lies in buffers, and its client takes its time.
    let mut read_slowly = begin();
    read_slowly.delivered();
    advance(Duration::from_secs(1)).await;
    let asked = Instant::now();
    let waits = begin();
    advance(Duration::from_secs(60)).await;
    waits.stalled(asked);
    assert!(worker.health.awaits_token());
    read_slowly.end(AttemptOutcome::Success);
    assert!(
        worker.health.awaits_token(),
        "it has computed nothing since"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_leaves_its_verdict() {
    let closed = Failure::Closed("cut".into());
    for (why, unreachable, awaits_token) in [
        (&closed, true, false),
        (&Failure::Late, false, true),
        (&Failure::WorkerBad, false, false),
    ] {
        let house = house();
        let placed = house.place(&key("a", 1));
        let mut begun = InFlight::begin(&placed.worker, &placed.decision).expect("it is usable");
        let since = Instant::now();
        advance(Duration::from_secs(60)).await;
        begun.fail(why, why.verdict(), since);
        let health = &placed.worker.health;
        let found = (health.look().is_unreachable, health.awaits_token());
        assert_eq!(found, (unreachable, awaits_token), "{why:?}");
    }
}
