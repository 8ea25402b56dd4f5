//! One request: who asks, may they, does a fault wait for them, and what the store says.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Request, Response};
use serde_json::{Value, json};

use super::route::{Query, Target};
use super::{Body, discovery, json as json_answer, refuse, watch};
use crate::fake_kubernetes::fault::Fault;
use crate::fake_kubernetes::refusal::Refusal;
use crate::fake_kubernetes::state::{State, fresh};
use crate::fake_kubernetes::store::{Deletion, Form, Page, Part};

/// The connection is to end without an answer.
#[derive(Debug, thiserror::Error)]
#[error("hung up on command")]
pub(super) struct HangUp;

/// Answers one request, or ends its connection.
pub(super) async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Body>, HangUp> {
    let query = Query::parse(request.uri().query());
    let target = Target::of(request.uri().path());
    let verb = target.verb(request.method(), &query);
    let (resource, namespace, name) = target.parts();
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    let fault = {
        let mut inner = state.lock();
        let known = inner.access.authenticate(header(AUTHORIZATION));
        let fault = match known {
            Ok(()) if !resource.is_empty() => {
                let continued = !query.text("continue").is_empty();
                inner.rules.take(verb, namespace, continued)
            }
            _ => None,
        };
        let allowed = match resource {
            // Discovery is open to everybody who is known.
            "" => Ok(()),
            _ => inner.access.authorize(verb, resource, namespace, name),
        };
        known
            .and_then(|()| if fault.is_some() { Ok(()) } else { allowed })
            .map(|()| fault)
    };
    let response = match fault {
        Err(refusal) => Err(refusal),
        Ok(Some(Fault::HangUp)) => return Err(HangUp),
        Ok(Some(Fault::Stall)) if verb != "watch" => std::future::pending().await,
        Ok(fault) => match fault.as_ref().and_then(refusal_of) {
            Some(refusal) => Err(refusal),
            None => served(&state, request, &target, verb, &query, fault).await,
        },
    };
    let response = response.unwrap_or_else(|refusal| refuse(&refusal));
    state.count(verb, response.status().as_u16());
    Ok(response)
}

fn refusal_of(fault: &Fault) -> Option<Refusal> {
    match fault {
        Fault::Gone => Some(Refusal::too_old(1, 2)),
        Fault::TooManyRequests(seconds) => Some(Refusal::too_many_requests(*seconds)),
        Fault::Unauthorized => Some(Refusal::unauthorized()),
        Fault::InternalError => {
            let message = "Internal error occurred: etcdserver: request timed out";
            Some(Refusal::new(500, "InternalError", message))
        }
        Fault::Unavailable => {
            let message = "apiserver not ready";
            Some(Refusal::new(503, "ServiceUnavailable", message))
        }
        Fault::GoneEvent | Fault::Stall | Fault::HangUp | Fault::CutLine => None,
    }
}

async fn served(
    state: &Arc<State>,
    request: Request<Incoming>,
    target: &Target,
    verb: &str,
    query: &Query,
    fault: Option<Fault>,
) -> Result<Response<Body>, Refusal> {
    if !query.text("dryRun").is_empty() {
        return Err(Refusal::bad_request("the fake API server has no dry run"));
    }
    match target {
        Target::Pods(_) | Target::Pod { .. } => {
            of_pods(state, request, target, verb, query, fault).await
        }
        Target::Namespaces | Target::Namespace(_) => {
            of_namespaces(state, request, target, verb).await
        }
        Target::Other(path) if verb == "get" => discovery::document(path)
            .map(|document| json_answer(200, &document))
            .ok_or_else(Refusal::no_such_resource),
        _ => Err(Refusal::method_not_allowed()),
    }
}

async fn of_pods(
    state: &Arc<State>,
    request: Request<Incoming>,
    target: &Target,
    verb: &str,
    query: &Query,
    fault: Option<Fault>,
) -> Result<Response<Body>, Refusal> {
    match (target, verb) {
        (Target::Pods(namespace), "watch") => watch::open(state, namespace.clone(), query, fault),
        (Target::Pods(namespace), "list") => {
            let page = state.lock().store.list(&query.list(namespace.clone())?)?;
            Ok(json_answer(200, &list_of(&page)))
        }
        (Target::Pods(Some(namespace)), "create") => {
            let pod = object(body(state, request).await?)?;
            let node = &state.config.node;
            let created = state.write(|store| store.create(namespace, pod, node, &fresh()))?;
            Ok(json_answer(201, &created))
        }
        (
            Target::Pod {
                namespace, name, ..
            },
            "get",
        ) => {
            let pod = state.lock().store.pod(namespace, name)?;
            Ok(json_answer(200, &pod))
        }
        (
            Target::Pod {
                namespace,
                name,
                status,
            },
            "update" | "patch",
        ) => {
            let part = if *status { Part::Status } else { Part::Main };
            let kind = request
                .headers()
                .get(CONTENT_TYPE)
                .and_then(|v| v.to_str().ok());
            let form = Form::of(kind.unwrap_or_default());
            let given = object(body(state, request).await?)?;
            let change = |old: &Value| match form {
                _ if verb == "update" => Ok(given),
                Some(form) => form.apply(old, &given),
                None => Err(unsupported()),
            };
            let changed = state.write(|store| store.update(namespace, name, part, change))?;
            Ok(json_answer(200, &changed))
        }
        (
            Target::Pod {
                namespace,
                name,
                status: false,
            },
            "delete",
        ) => {
            let deletion = deletion(query, &body(state, request).await?)?;
            let now = SystemTime::now();
            let deleted = state.write(|store| store.delete(namespace, name, &deletion, now))?;
            Ok(json_answer(200, &deleted))
        }
        _ => Err(Refusal::method_not_allowed()),
    }
}

async fn of_namespaces(
    state: &Arc<State>,
    request: Request<Incoming>,
    target: &Target,
    verb: &str,
) -> Result<Response<Body>, Refusal> {
    match (target, verb) {
        (Target::Namespaces, "list") => {
            let items: Vec<Value> = state.lock().store.namespaces().cloned().collect();
            let revision = state.lock().store.revision().to_string();
            let metadata = json!({ "resourceVersion": revision });
            let list = json!({ "kind": "NamespaceList", "apiVersion": "v1", "metadata": metadata, "items": items });
            Ok(json_answer(200, &list))
        }
        (Target::Namespaces, "create") => {
            let given = object(body(state, request).await?)?;
            let name = crate::fake_kubernetes::store::name_of(&given).to_owned();
            let added = state.write(|store| store.add_namespace(&name, &fresh()))?;
            Ok(json_answer(201, &added))
        }
        (Target::Namespace(name), "get") => {
            let namespace = state.lock().store.namespace(name)?.clone();
            Ok(json_answer(200, &namespace))
        }
        _ => Err(Refusal::method_not_allowed()),
    }
}

fn unsupported() -> Refusal {
    let message = "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";
    Refusal::new(415, "UnsupportedMediaType", message)
}

async fn body(state: &State, request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let limit = state.config.body_bytes_max;
    let body = Limited::new(request.into_body(), limit).collect().await;
    let body = body.map_err(|_| Refusal::too_large_body(limit))?;
    Ok(body.to_bytes())
}

fn object(bytes: Bytes) -> Result<Value, Refusal> {
    let wrong = |e| Refusal::bad_request(format!("the body is not JSON: {e}"));
    serde_json::from_slice(&bytes).map_err(wrong)
}

fn deletion(query: &Query, body: &Bytes) -> Result<Deletion, Refusal> {
    let options = if body.is_empty() {
        Value::Null
    } else {
        object(body.clone())?
    };
    let own = query.number("gracePeriodSeconds")?;
    let uid = options
        .pointer("/preconditions/uid")
        .and_then(Value::as_str);
    Ok(Deletion {
        grace_s: own.or_else(|| options.get("gracePeriodSeconds")?.as_u64()),
        uid: uid.map(str::to_owned),
    })
}

fn list_of(page: &Page) -> Value {
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if let Some(next) = &page.next {
        metadata["continue"] = json!(next);
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    let items: Vec<&Value> = page.items.iter().map(|pod| &**pod).collect();
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items })
}
