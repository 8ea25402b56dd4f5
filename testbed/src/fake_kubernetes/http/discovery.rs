//! What clients ask before they do anything: version, groups, resources, and which parameters a path takes.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// The document at a path, if there is one.
pub(super) fn document(path: &str, _server: &SocketAddr) -> Option<Value> {
    match path {
        "/version" => Some(json!({
            "major": "1", "minor": "37", "gitVersion": "v1.37.1", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "fake",
        })),
        "/api" => Some(json!({ "kind": "APIVersions", "versions": ["v1"] })),
        "/apis" => Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] })),
        "/api/v1" => Some(resources()),
        _ => None,
    }
}

fn resources() -> Value {
    let pods = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    let kind = |name: &str, singular: &str, kind: &str, namespaced: bool, verbs: &[&str]| json!({ "name": name, "singularName": singular, "namespaced": namespaced, "kind": kind, "verbs": verbs });
    let mut pod = kind("pods", "pod", "Pod", true, &pods);
    pod["shortNames"] = json!(["po"]);
    pod["categories"] = json!(["all"]);
    let mut namespace = kind(
        "namespaces",
        "namespace",
        "Namespace",
        false,
        &["create", "get", "list"],
    );
    namespace["shortNames"] = json!(["ns"]);
    json!({
        "kind": "APIResourceList", "groupVersion": "v1",
        "resources": [namespace, pod, kind("pods/status", "", "Pod", true, &["get", "patch", "update"])],
    })
}
