//! A body of the OpenAI API → key → decision.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use grapevine::alone::{Alone, worker};
use grapevine::api::endpoint::Form;
use grapevine::api::{ApiError, Endpoint};
use grapevine::cluster::Cluster;
use grapevine::config::{KvEventsConfig, parse_keys};
use grapevine::proxy::caller::Caller;
use grapevine::proxy::routing_query::{RoutingInput, RoutingQuery};
use grapevine::tenants::metrics::TenantMetrics;
use grapevine::tenants::{ApiKey, Keys, secret};
use http::{HeaderMap, HeaderValue, header};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::time::Instant;

/// Two models, so that one of them is wrong.
const MODELS: [&str; 2] = ["m", "n"];
const WORKERS: usize = 6;
const BOUNDARY: &str = "multipart/form-data; boundary=b";
/// How ids of stored responses begin that carry their tenant; nobody else may choose one.
const OWNED: &str = "resp_g1";
/// What follows: 16 random bytes and 8 of their hash with the tenant.
const OWNED_DIGITS: usize = 48;

/// The key of a tenant.
static KEY: LazyLock<Arc<ApiKey>> = LazyLock::new(|| {
    let hash = secret::hash_of(b"gv-fuzz");
    let file = format!("[[key]]\nname = \"fuzz\"\nhash = \"{hash}\"\n");
    let listed = parse_keys(Path::new("keys.toml"), &file).expect("a good file");
    let keys = Keys::open(TenantMetrics::register(&mut Registry::default()));
    keys.set(listed, Instant::now());
    let bearer = HeaderValue::from_static("Bearer gv-fuzz");
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
    keys.caller(&headers).expect("let in").expect("a key")
});

thread_local! {
    /// Two replicas that know the same workers, which the first lists in another order.
    static REPLICAS: [Alone; 2] = [replica("r1", true), replica("r2", false)];
}

/// The first byte chooses the endpoint, the rest is the body.
///
/// # Panics
/// Two replicas name different workers, reading twice gives different keys, the body that a worker gets is not
/// the client's (but for the id of a response that is stored for a tenant), or the pool is not the one of the model that an
/// ordinary reader of JSON finds.
pub fn body(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else {
        return;
    };
    let endpoint = Endpoint::ALL[usize::from(first) % Endpoint::ALL.len()];
    REPLICAS.with(|replicas| {
        if endpoint == Endpoint::Responses {
            check_owned(&replicas[0].cluster, body);
        }
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

/// What is stored for a tenant gets an id that only a replica can choose, once and for every reader of JSON, and all else
/// stays as the client said it.
fn check_owned(cluster: &Cluster, body: &[u8]) {
    let tenant = KEY.tenant().number();
    let input = RoutingInput {
        endpoint: Endpoint::Responses,
        path: "/v1/responses",
        headers: &HeaderMap::new(),
        body,
        upload: None,
        caller: Caller::Keyed(&KEY),
    };
    let Ok(query) = RoutingQuery::of(cluster, &input) else {
        return;
    };
    let sent = query.body_of(Bytes::copy_from_slice(body), Some(tenant));
    let sent = sent.to_bytes();
    // If the ordinary reader gives up, there is nothing to compare with.
    let Ok(Value::Object(asked)) = serde_json::from_slice(body) else {
        return;
    };
    let read = serde_json::from_slice(&sent);
    let Ok(Value::Object(mut read)) = read else {
        panic!("no object any more: {}", String::from_utf8_lossy(&sent));
    };
    let chosen = asked.get("request_id");
    let is_owned = |id: &Value| {
        let digits = id.as_str().and_then(|id| id.strip_prefix(OWNED));
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        digits.is_some_and(|digits| digits.len() == OWNED_DIGITS && digits.bytes().all(digit))
    };
    let may_be_anothers = chosen.is_some_and(is_owned);
    assert!(
        !may_be_anothers,
        "an id that only a replica chooses: {asked:?}"
    );
    if sent == body {
        let stores_nothing = asked.get("store") == Some(&Value::Bool(false));
        assert!(
            stores_nothing || chosen.is_some() || asked.is_empty(),
            "stored, and nobody's: {asked:?}"
        );
    } else {
        assert_eq!(chosen, None, "the client's own id is taken away");
        let id = read.remove("request_id").expect("an id that was added");
        assert!(is_owned(&id), "{id}");
        assert_eq!(read, asked, "something else differs");
    }
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
