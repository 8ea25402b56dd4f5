//! Which methods each path of the admin API has: for what a wrong one is told. Pure.

use http::Method;

use super::not_found;
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
