//! What only the inside can bring about: the end of the gossip task, and a forgotten generation.

use std::time::Duration;

use tokio::time::timeout;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

async fn agent() -> Agent {
    let authority = identity::create("demo").expect("authority");
    let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, "demo", "a").expect("leaf");
    let identity = Identity::from_pem(
        "demo",
        "a",
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    );
    let config = GossipConfig::new(([127, 0, 0, 1], 0).into(), Facts::default());
    Agent::start(
        config,
        identity.expect("identity"),
        |_| 1.0,
        Metrics::default(),
    )
    .await
    .expect("starts")
}

fn generation(view: &View) -> u64 {
    view.replicas()[0].generation
}

async fn becomes_ready(agent: &Agent, wanted: bool) {
    let mut ready = agent.ready();
    let changed = timeout(LIMIT, ready.wait_for(|ready| *ready == wanted)).await;
    assert!(changed.is_ok(), "ready never became {wanted}");
}

/// The message that ends chitchat's task; the firewall refuses it, so it is put behind the firewall.
fn deadly(agent: &Agent) -> Vec<u8> {
    let transport = &agent.core.net.as_ref().expect("has a network").transport;
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
    let spec =
        WorkerSpec::new(crate::worker::RawWorker::at("http://127.0.0.1:8000")).expect("spec");
    let id = spec.default_id();
    agent.configure(id.clone(), spec).expect("room");
    let former = generation(&agent.view());
    let message = deadly(&agent);
    agent.core.gossip(([127, 0, 0, 1], 1).into(), message);
    becomes_ready(&agent, false).await;
    assert!(
        agent.view().worker(&id).is_some(),
        "routing goes on with the last view"
    );
    becomes_ready(&agent, true).await;
    let mut views = agent.watch();
    let renewed = timeout(LIMIT, views.wait_for(|view| generation(view) > former)).await;
    assert!(renewed.is_ok(), "the generation did not rise");
    assert_eq!(agent.core.metrics.restarts.get(), 1);
    agent.shutdown().await;
}

#[tokio::test]
async fn a_generation_seen_by_others_is_exceeded_unless_it_is_absurd() {
    let agent = agent().await;
    becomes_ready(&agent, true).await;
    let seen = generation(&agent.view()) + 5_000_000;
    agent.core.outrun(u64::MAX);
    agent.core.outrun(seen);
    let mut views = agent.watch();
    let renewed = timeout(LIMIT, views.wait_for(|view| generation(view) == seen + 1)).await;
    assert!(
        renewed.is_ok(),
        "{} did not follow {seen}",
        generation(&agent.view())
    );
    agent.shutdown().await;
}
