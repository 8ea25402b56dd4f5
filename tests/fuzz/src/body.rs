//! A body of the OpenAI API → key → decision.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grapevine::agreement::Samples;
use grapevine::api::Endpoint;
use grapevine::cluster::{Cluster, WorkerDefaults};
use grapevine::config::{BreakerConfig, HealthConfig};
use grapevine::metrics::Metrics;
use grapevine::proxy::caller::Caller;
use grapevine::proxy::question::Question;
use grapevine::upstream::{Reach, ReachParts};
use grapevine_gossip::Agent;
use grapevine_gossip::config::Facts;
use grapevine_gossip::worker::{RawWorker, WorkerSpec};
use grapevine_placement::ClusterSettings;
use http::HeaderMap;

const MODEL: &str = "m";
const WORKERS: usize = 5;
const ENDPOINTS: [Endpoint; 4] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Embeddings,
    Endpoint::Passthrough,
];

thread_local! {
    /// Two replicas that know the same workers, which the first lists in another order.
    static REPLICAS: [Cluster; 2] = [replica("r1", true), replica("r2", false)];
}

/// The first byte chooses the endpoint, the rest is the body.
///
/// # Panics
/// Two replicas name different workers, reading twice gives different keys, or the body that a worker gets is not
/// the client's.
pub fn body(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else {
        return;
    };
    let endpoint = ENDPOINTS[usize::from(first) % ENDPOINTS.len()];
    REPLICAS.with(|replicas| {
        let homes = replicas
            .each_ref()
            .map(|cluster| home(cluster, endpoint, body));
        assert_eq!(homes[0], homes[1], "two replicas, two workers");
    });
}

/// The worker of a body, or that there is none.
fn home(cluster: &Cluster, endpoint: Endpoint, body: &[u8]) -> Option<String> {
    let ask = || Question::of(cluster, endpoint, &HeaderMap::new(), body, Caller::Anybody).ok();
    let (question, again) = (ask()?, ask()?);
    assert_eq!(question.key.home(), again.key.home(), "reading twice");
    let bytes = Bytes::copy_from_slice(body);
    let sent = question.body_of(bytes);
    assert_eq!(sent.len(), body.len() as u64, "no alias is configured");
    let explanation = cluster.explain(&question.pool, &question.key, false);
    let decision = explanation.decision.expect("every worker is usable");
    let slot = &question.pool.slots()[decision.worker];
    Some(slot.worker.label.to_string())
}

fn replica(name: &str, backwards: bool) -> Cluster {
    let mut metrics = Metrics::new();
    let gossip = grapevine_gossip::Metrics::register(metrics.registry_mut());
    let facts = Facts {
        http: String::new(),
        admin: String::new(),
        version: "1".to_owned(),
        settings: String::new(),
    };
    let agent = Arc::new(Agent::solo("c", name, &facts, gossip).expect("valid names"));
    for number in 0..WORKERS {
        let number = if backwards {
            WORKERS - 1 - number
        } else {
            number
        };
        let spec = WorkerSpec::new(RawWorker {
            models: vec![MODEL.to_owned()],
            ..RawWorker::at(format!("http://w{number}:8000"))
        });
        let id = format!("w{number}").parse().expect("an id");
        agent
            .configure(id, spec.expect("a worker"))
            .expect("there is room");
    }
    let defaults = WorkerDefaults {
        idle_max: Duration::from_secs(1),
        breaker: BreakerConfig::default(),
        health: HealthConfig::default(),
        reach: Arc::new(Reach::load(ReachParts::default()).expect("nothing is read")),
    };
    let (samples, _) = Samples::new();
    let metrics = Arc::new(metrics);
    let cluster = Cluster::new(
        ClusterSettings::default(),
        defaults,
        &agent,
        samples,
        metrics,
    );
    cluster.update(&agent.view());
    cluster
}
