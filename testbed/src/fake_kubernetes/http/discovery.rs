//! What clients ask before they do anything: version, groups, resources, and which parameters a path takes.

use serde_json::{Value, json};

/// The document at a path, if there is one.
pub(super) fn document(path: &str) -> Option<Value> {
    match path {
        "/version" => Some(json!({
            "major": "1", "minor": "37", "gitVersion": "v1.37.1", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "fake",
        })),
        "/api" => Some(json!({ "kind": "APIVersions", "versions": ["v1"] })),
        "/apis" => Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] })),
        "/api/v1" => Some(resources()),
        "/openapi/v3" => Some(json!({
            "paths": { "api/v1": { "serverRelativeURL": "/openapi/v3/api/v1?hash=1" } },
        })),
        "/openapi/v3/api/v1" => Some(operations()),
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

/// The operations that say that the server checks fields, which `kubectl create` asks for. Nothing else is described.
fn operations() -> Value {
    let patch = |kind: &str| {
        json!({ "patch": {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": { "group": "", "kind": kind, "version": "v1" },
            "parameters": [{ "name": "fieldValidation", "in": "query", "schema": { "type": "string" } }],
            "responses": { "200": { "description": "OK" } },
        }})
    };
    json!({
        "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": "v1.37.1" },
        "paths": {
            "/api/v1/namespaces/{name}": patch("Namespace"),
            "/api/v1/namespaces/{namespace}/pods/{name}": patch("Pod"),
        },
    })
}
