//! A body of the OpenAI API → key → decision.

use bytes::Bytes;
use grapevine::alone::{Alone, worker};
use grapevine::api::endpoint::Form;
use grapevine::api::{ApiError, Endpoint};
use grapevine::cluster::Cluster;
use grapevine::config::KvEventsConfig;
use grapevine::proxy::caller::Caller;
use grapevine::proxy::routing_query::{RoutingInput, RoutingQuery};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

/// Two models, so that one of them is wrong.
const MODELS: [&str; 2] = ["m", "n"];
const WORKERS: usize = 6;
const BOUNDARY: &str = "multipart/form-data; boundary=b";

thread_local! {
    /// Two replicas that know the same workers, which the first lists in another order.
    static REPLICAS: [Alone; 2] = [replica("r1", true), replica("r2", false)];
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
            .map(|replica| home(&replica.cluster, endpoint, body));
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
    let sent = query.body_of(bytes, None);
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

fn replica(name: &str, backwards: bool) -> Alone {
    let number = |at| if backwards { WORKERS - 1 - at } else { at };
    let workers = (0..WORKERS).map(|at| {
        let number = number(at);
        worker(number, MODELS[number % MODELS.len()])
    });
    Alone::new(name, workers, &KvEventsConfig::default(), 100)
}
