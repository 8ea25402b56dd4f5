//! Which methods each path of the admin API has, and which parameters in its query: for what a wrong one is told. Pure.

use http::Method;

use super::answer::not_found;
use crate::api::ApiError;

/// What a request asks for: HEAD is a GET of which hyper leaves the body out.
pub(super) fn asked(method: &Method) -> &Method {
    match method {
        &Method::HEAD => &Method::GET,
        method => method,
    }
}

/// Why nothing serves this: no such path, or the path has other methods.
pub(super) fn unserved(asked: &Method, segments: &[&str]) -> ApiError {
    match of(segments) {
        [] => not_found(
            "no such admin endpoint; GET /workers, /cluster, /ring, /metrics, POST /explain are the most used",
        ),
        allowed => ApiError::method_not_allowed(asked, allowed),
    }
}

/// The parameters of what a request asks for. None: whatever else stands there is ignored, by `/metrics` since scrapers
/// add what they like, of leases since a newer `grapevine register` may say more, and where nothing is served.
pub(super) fn parameters(method: &Method, segments: &[&str]) -> Option<&'static [&'static str]> {
    if !of(segments).contains(&method) {
        return None;
    }
    Some(match (method, segments) {
        (_, ["metrics" | "leases", ..]) => return None,
        (&Method::GET, ["workers" | "list_workers"]) => &["limit", "after"],
        (&Method::POST, ["workers"]) => &["warmup"],
        (_, ["add_worker"]) => &["url", "warmup"],
        (_, ["remove_worker"]) => &["url"],
        (_, ["cache"]) => &["limit"],
        (_, ["history"]) => &["worker", "replica"],
        (_, ["explain"]) => &["path", "tenant", "load"],
        _ => &[],
    })
}

/// None of a path that does not exist.
fn of<'a>(segments: &[&str]) -> &'a [&'a Method] {
    match segments {
        [
            "about" | "cache" | "cluster" | "discovery" | "events" | "healthz" | "history"
            | "links" | "list_workers" | "metrics" | "readyz" | "ring",
        ] => &[&Method::GET, &Method::HEAD],
        ["workers"] => &[&Method::GET, &Method::HEAD, &Method::POST],
        ["workers", _] => &[&Method::GET, &Method::HEAD, &Method::PATCH, &Method::DELETE],
        ["add_worker" | "explain" | "remove_worker"]
        | ["config", "reload"]
        | ["workers", _, "drain"] => &[&Method::POST],
        ["leases", _] => &[&Method::PUT, &Method::DELETE],
        ["quarantine"] => &[&Method::GET, &Method::HEAD, &Method::DELETE],
        ["quarantine", _] => &[&Method::DELETE],
        _ => &[],
    }
}
