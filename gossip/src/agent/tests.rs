//! What only the inside can bring about: the end of the gossip task, and a forgotten generation.

use std::time::Duration;

use super::*;
use crate::config::{Facts, GossipConfig};
use crate::identity;
use crate::metrics::Metrics;
use crate::transport::Receiver;

pub(super) const LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn agent() -> Agent {
    let authority = identity::create("demo").expect("authority");
    start(&authority, &[]).await
}

pub(super) async fn start(authority: &identity::Authority, seeds: &[String]) -> Agent {
    let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, "demo", "a").expect("leaf");
    let identity = Identity::from_pem(
        "demo",
        "a",
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    );
    let config = GossipConfig {
        seeds: seeds.to_vec(),
        ..GossipConfig::new(([127, 0, 0, 1], 0).into(), Facts::default())
    };
    Agent::start(
        config,
        identity.expect("identity"),
        |_| 1.0,
        Metrics::default(),
    )
    .await
    .expect("starts")
}

/// A worker at a port of this machine where nobody needs to be.
pub(super) fn spec(port: u16) -> WorkerSpec {
    let raw = crate::worker::RawWorker::at(format!("http://127.0.0.1:{port}"));
    WorkerSpec::new(raw).expect("spec")
}

fn generation(view: &View) -> u64 {
    view.replicas()[0].generation
}

pub(super) async fn becomes_ready(agent: &Agent, wanted: bool) {
    let mut ready = agent.ready();
    let changed = timeout(LIMIT, ready.wait_for(|ready| *ready == wanted)).await;
    assert!(changed.is_ok(), "ready never became {wanted}");
}

/// The message that ends chitchat's task; the judge refuses it, so it is put behind the judge.
fn deadly(agent: &Agent) -> Vec<u8> {
    let transport = &agent.0.driver.net().expect("has a network").transport;
    let text = |text: &str| [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
    let port = transport.address().port().to_le_bytes();
    let operations = [
        &[0][..],
        &text("a"),
        &transport.generation().to_le_bytes(),
        &[4, 127, 0, 0, 1],
        &port,
        &[0; 16],
        &[1],
        &text("key"),
        &text("value"),
        &100u64.to_le_bytes(),
        &[0, 2],
        &90u64.to_le_bytes(),
    ]
    .concat();
    let length = (operations.len() as u16).to_le_bytes();
    [&[0x53, 0xb0, 0, 2, 2][..], &length, &operations, &[0]].concat()
}

/// R08: not ready at once, back under a higher generation, the view stays.
#[tokio::test]
async fn the_gossip_task_is_started_again_when_it_ends() {
    let agent = agent().await;
    becomes_ready(&agent, true).await;
    let spec = spec(8000);
    let id = spec.default_id();
    agent.configure(id.clone(), spec).expect("room");
    let former = generation(&agent.view());
    let message = deadly(&agent);
    agent.0.driver.gossip(([127, 0, 0, 1], 1).into(), message);
    becomes_ready(&agent, false).await;
    assert!(
        agent.view().worker(&id).is_some(),
        "routing goes on with the last view"
    );
    becomes_ready(&agent, true).await;
    let mut views = agent.watch();
    let renewed = timeout(LIMIT, views.wait_for(|view| generation(view) > former)).await;
    assert!(renewed.is_ok(), "the generation did not rise");
    assert_eq!(agent.0.driver.metrics().restarts.get(), 1);
    agent.shutdown().await;
}

#[tokio::test]
async fn a_generation_seen_by_others_is_exceeded_unless_it_is_absurd() {
    let agent = agent().await;
    becomes_ready(&agent, true).await;
    let seen = generation(&agent.view()) + 5_000_000;
    agent.0.driver.outrun(u64::MAX);
    agent.0.driver.outrun(seen);
    let mut views = agent.watch();
    let renewed = timeout(LIMIT, views.wait_for(|view| generation(view) == seen + 1)).await;
    assert!(
        renewed.is_ok(),
        "{} did not follow {seen}",
        generation(&agent.view())
    );
    agent.shutdown().await;
}

/// Who divides a request reads a worker's role together with its labels.
#[tokio::test(start_paused = true)]
async fn no_view_has_a_declared_worker_without_its_labels() {
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("valid");
    let labels = |value: &str| Labels::new([("kv.connector", value)]).expect("valid");
    let see = async |port: u16, value: &str| {
        let id = spec(port).default_id();
        let mut views = agent.watch();
        let seen = views.wait_for(|view| view.worker(&id).is_some()).await;
        let seen = seen.expect("views go on").worker(&id).cloned();
        assert_eq!(*seen.expect("there").labels, labels(value));
    };
    let put = agent.declare(
        Source::Admin,
        vec![(spec(8000).default_id(), spec(8000))],
        vec![(spec(8000).default_id(), labels("a"))],
    );
    let (declared, ()) = tokio::join!(put, see(8000, "a"));
    assert_eq!(declared.expect("room").unlabelled.len(), 0);
    let lease = Source::provider("lease").expect("valid");
    let id = spec(8001).default_id();
    let held = agent.hold_worker(id, lease, spec(8001), Some(labels("b")));
    let (held, ()) = tokio::join!(held, see(8001, "b"));
    assert_eq!(held.expect("room").unlabelled.len(), 0);
    // Labels of nobody are refused, and take nothing with them.
    let nobody = spec(8003).default_id();
    let put = agent.declare(
        Source::Admin,
        vec![(spec(8002).default_id(), spec(8002))],
        vec![(nobody.clone(), labels("c"))],
    );
    let refused = put.await.expect("room").unlabelled;
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].0, nobody);
    assert!(agent.view().worker(&spec(8002).default_id()).is_some());
}

/// No replica writes anything, and no network is there: the view changes when the warm-up ends.
#[tokio::test(start_paused = true)]
async fn a_view_changes_by_itself_when_a_warm_up_ends() {
    use crate::worker::{RawWorker, State};
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("valid");
    let warming = |seconds: u64| {
        let mut raw = RawWorker::at("http://127.0.0.1:8000");
        let until_ms = agent.hybrid_ms() + seconds * 1000;
        raw.state = State::Warming { until_ms };
        WorkerSpec::new(raw).expect("spec")
    };
    let id = warming(1).default_id();
    let put = async |seconds| {
        let put = agent.put_worker(id.clone(), Source::Admin, warming(seconds));
        put.await.expect("room");
        let view = agent.view();
        let worker = view.worker(&id).expect("there").clone();
        assert!(worker.is_warming(agent.hybrid_ms()));
        worker.warming.expect("warming")
    };
    let is_active = async |within: Duration| {
        let mut views = agent.watch();
        let active = views.wait_for(|view| {
            let worker = view.worker(&id).expect("there");
            worker.spec.state() == State::Active && worker.warming.is_none()
        });
        timeout(within, active).await.is_ok()
    };
    let first = put(60).await;
    assert!(!is_active(Duration::from_secs(50)).await);
    assert!(is_active(Duration::from_secs(11)).await);

    let second = put(600).await;
    assert!(!is_active(Duration::from_secs(500)).await);
    let ended = agent.finish_warming(&id, first.stamp).await;
    assert_eq!(
        ended.expect("no error"),
        None,
        "that one was described anew"
    );
    let ended = agent.finish_warming(&id, second.stamp).await;
    assert!(ended.expect("no error").is_some());
    assert!(is_active(Duration::from_secs(1)).await);
    agent.shutdown().await;
}

/// Nobody could bring the worker back, so its end need not be remembered for ever.
#[tokio::test(start_paused = true)]
async fn a_replica_alone_forgets_removals_after_a_day() {
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("valid");
    let dns = || Source::provider("dns").expect("valid");
    let id = spec(8000).default_id();
    let put = agent.put_worker(id.clone(), dns(), spec(8000));
    put.await.expect("room");
    agent.remove_worker(&id, dns()).await.expect("declared");
    let mut views = agent.watch();
    views.mark_unchanged();
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let changed = timeout(hours(23), views.changed()).await;
    assert!(changed.is_err() && agent.entries_of(&dns()).len() == 1);
    let forgotten = timeout(hours(2), views.changed()).await;
    assert!(forgotten.is_ok() && agent.entries_of(&dns()).is_empty());
    agent.shutdown().await;
}

/// The followers of a view compute the ring from it, and report it: that must not be a change that they follow again.
#[tokio::test]
async fn one_changed_worker_and_the_ring_that_it_gives_are_one_view() {
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("valid");
    let mut views = agent.watch();
    let made = agent.0.driver.metrics().views.get();
    let own_ring = || agent.view().replicas()[0].ring.clone();
    for (port, digest) in [(8000, "one"), (8001, "two")] {
        let spec = spec(port);
        let put = agent.put_worker(spec.default_id(), Source::Admin, spec);
        put.await.expect("room");
        assert!(views.has_changed().expect("the agent runs"));
        views.mark_unchanged();
        agent.set_ring(digest);
        assert!(!views.has_changed().expect("the agent runs"), "woken twice");
        assert_eq!(own_ring(), digest);
    }
    assert_eq!(agent.0.driver.metrics().views.get() - made, 2);
    // A fact that does not come from the view wakes its followers, and does not lose the ring.
    agent.set_ready(true);
    assert!(views.has_changed().expect("the agent runs"));
    assert_eq!(own_ring(), "two");
    agent.shutdown().await;
}
