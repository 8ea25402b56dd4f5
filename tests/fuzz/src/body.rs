//! A body of the OpenAI API → key → decision.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grapevine::all_metrics::AllMetrics;
use grapevine::api::endpoint::Form;
use grapevine::api::{ApiError, Endpoint};
use grapevine::cluster::agreement::Samples;
use grapevine::cluster::{Cluster, Pairing, WorkerDefaults};
use grapevine::config::{BreakerConfig, HealthConfig, KvEventsConfig, TransferConfig};
use grapevine::kv_events::Caches;
use grapevine::proxy::caller::Caller;
use grapevine::proxy::routing_query::{RoutingInput, RoutingQuery};
use grapevine::upstream::{Connector, ConnectorParts};
use grapevine_gossip::Agent;
use grapevine_gossip::config::Facts;
use grapevine_gossip::worker::{RawWorker, WorkerSpec};
use grapevine_placement::ClusterSettings;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

/// Two models, so that one of them is wrong.
const MODELS: [&str; 2] = ["m", "n"];
const WORKERS: usize = 6;
const BOUNDARY: &str = "multipart/form-data; boundary=b";

thread_local! {
    /// Two replicas that know the same workers, which the first lists in another order.
    static REPLICAS: [Cluster; 2] = [replica("r1", true), replica("r2", false)];
}

/// The first byte chooses the endpoint, the rest is the body.
///
/// # Panics
/// Two replicas name different workers, reading twice gives different keys, the body that a worker gets is not
/// the client's, or the pool is not the one of the model that an ordinary reader of JSON finds.
pub fn body(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else {
        return;
    };
    let endpoint = Endpoint::ALL[usize::from(first) % Endpoint::ALL.len()];
    REPLICAS.with(|replicas| {
        let homes = replicas
            .each_ref()
            .map(|cluster| home(cluster, endpoint, body));
        assert_eq!(homes[0], homes[1], "two replicas, two workers");
    });
}

/// The worker of a body, if there is one.
fn home(cluster: &Cluster, endpoint: Endpoint, body: &[u8]) -> Option<String> {
    let form = endpoint.traits().form;
    let mut headers = HeaderMap::new();
    if form == Form::Multipart {
        headers.insert("content-type", HeaderValue::from_static(BOUNDARY));
    }
    let ask = || {
        let input = RoutingInput {
            endpoint,
            path: "/v1/responses/resp_1",
            headers: &headers,
            body,
            upload: None,
            caller: Caller::Anybody,
        };
        RoutingQuery::of(cluster, &input)
    };
    let asked = ask();
    if matches!(form, Form::Json | Form::Any) && !body.is_empty() {
        check_model(form, body, &asked);
    }
    let (query, again) = (asked.ok()?, ask().ok()?);
    assert_eq!(query.key.home(), again.key.home(), "reading twice");
    let bytes = Bytes::copy_from_slice(body);
    let sent = query.body_of(bytes);
    assert_eq!(sent.len(), body.len() as u64, "no alias is configured");
    let explanation = cluster.explain(&query.pool, &query.key, false, &[]);
    let decision = explanation.decision.expect("every worker is usable");
    let member = &query.pool.members()[decision.worker];
    Some(member.worker.label.to_string())
}

/// The request is routed on the model that an ordinary reader finds, or it is refused.
fn check_model(form: Form, body: &[u8], asked: &Result<RoutingQuery, ApiError>) {
    let pool = match asked {
        Ok(query) => query.pool.model(),
        Err(error) => {
            let status = error.kind.status().as_u16();
            assert!(matches!(status, 400 | 404), "{status}");
            return;
        }
    };
    // If the ordinary reader gives up (nesting, surrogates), there is nothing to compare with.
    let Ok(read) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    let model = read
        .get("model")
        .and_then(Value::as_str)
        .unwrap_or_default();
    assert!(read.is_object(), "sent on, although it is no object");
    assert_eq!(pool, model, "the pool of another model");
    assert!(
        !model.is_empty() || form == Form::Any,
        "any worker for no model"
    );
}

fn replica(name: &str, backwards: bool) -> Cluster {
    let mut metrics = AllMetrics::new();
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
            models: vec![MODELS[number % MODELS.len()].to_owned()],
            ..RawWorker::at(format!("http://w{number}:8000"))
        });
        let id = format!("w{number}").parse().expect("an id");
        agent
            .configure(id, spec.expect("a worker"))
            .expect("there is room");
    }
    let defaults = WorkerDefaults {
        idle_max: Duration::from_secs(1).into(),
        breaker: BreakerConfig::default().into(),
        health: HealthConfig::default().into(),
        worker_series: 100,
        kv_connector: TransferConfig::default().connector,
        pairing: Pairing::default(),
        metrics: metrics.of_upstream(),
        connector: Arc::new(Connector::load(ConnectorParts::default()).expect("nothing is read")),
    };
    let (samples, _) = Samples::new();
    let caches = Caches::new(&KvEventsConfig::default(), 0, metrics.kv_events.clone());
    let metrics = metrics.cluster.clone();
    let cluster = Cluster::new(
        ClusterSettings::default(),
        defaults,
        &agent,
        samples,
        metrics,
        Arc::new(caches),
    );
    cluster.update(&agent.view());
    cluster
}
