//! What the API server does to a pod before it is stored: checks, defaults, and who may change which part.
//!
//! Pure: time and identity are arguments.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::fake_kubernetes::refusal::Refusal;

/// Seconds that a pod has to end, unless it says otherwise.
const GRACE_S: u64 = 30;

/// What a new object gets from outside the store.
#[derive(Debug, Clone)]
pub(in crate::fake_kubernetes) struct Fresh {
    pub(in crate::fake_kubernetes) uid: String,
    /// End of a generated name.
    pub(in crate::fake_kubernetes) suffix: String,
    pub(in crate::fake_kubernetes) now: SystemTime,
}

/// The part of a pod that a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fake_kubernetes) enum Part {
    /// Everything but the status.
    Main,
    /// The subresource `status`.
    Status,
}

/// A time as Kubernetes writes it.
pub(in crate::fake_kubernetes) fn timestamp(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Name of an object; empty if it has none.
pub(in crate::fake_kubernetes) fn name_of(object: &Value) -> &str {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or_default()
}

/// A new pod as it is stored: on a node at once, as a scheduler would have it, and pending.
pub(in crate::fake_kubernetes) fn admitted(
    mut pod: Value,
    namespace: &str,
    node: &str,
    fresh: &Fresh,
) -> Result<Value, Refusal> {
    is_kind(&pod, "Pod")?;
    let metadata = pod.get_mut("metadata").and_then(Value::as_object_mut);
    let metadata =
        metadata.ok_or_else(|| Refusal::bad_request("name or generateName is needed"))?;
    let generated = metadata.get("generateName").and_then(Value::as_str);
    let generated = generated.map(|prefix| format!("{prefix}{}", fresh.suffix));
    let name = metadata.get("name").and_then(Value::as_str);
    let name = name.map(str::to_owned).or(generated).unwrap_or_default();
    if !is_subdomain(&name) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character";
        let problem = format!("Invalid value: {name:?}: {rule}");
        return Err(Refusal::invalid(&name, "metadata.name", &problem));
    }
    let given = metadata.get("namespace").and_then(Value::as_str);
    if given.is_some_and(|given| given != namespace) {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(namespace));
    metadata.insert("uid".to_owned(), json!(fresh.uid));
    metadata.insert("creationTimestamp".to_owned(), json!(timestamp(fresh.now)));
    for own in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        metadata.remove(own);
    }
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    if containers.is_none_or(Vec::is_empty) {
        return Err(Refusal::invalid(&name, "spec.containers", "Required value"));
    }
    let spec = pod["spec"].as_object_mut().expect("it has containers");
    for (field, default) in [
        ("nodeName", json!(node)),
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(GRACE_S)),
    ] {
        spec.entry(field).or_insert(default);
    }
    // A status that a client gives is dropped; the kubelet, or a test in its place, writes the subresource.
    pod["status"] = json!({ "phase": "Pending", "qosClass": "BestEffort" });
    Ok(pod)
}

/// The stored pod after a change of one part, or why it may not be changed so.
pub(in crate::fake_kubernetes) fn changed(
    old: &Value,
    mut new: Value,
    part: Part,
) -> Result<Value, Refusal> {
    is_kind(&new, "Pod")?;
    let name = name_of(old);
    let stamp = |object: &Value, field: &str| {
        let value = object.pointer("/metadata").and_then(|m| m.get(field));
        value.and_then(Value::as_str).map(str::to_owned)
    };
    if stamp(&new, "name").is_some_and(|given| given != name) {
        return Err(Refusal::bad_request(
            "the name of the object does not match the name on the URL",
        ));
    }
    if let Some(uid) = stamp(&new, "uid").filter(|uid| Some(uid) != stamp(old, "uid").as_ref()) {
        let has = stamp(old, "uid").unwrap_or_default();
        let because =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {has}");
        return Err(Refusal::conflict(name, &because));
    }
    let revision = stamp(&new, "resourceVersion").filter(|given| !given.is_empty());
    if revision.is_some() && revision != stamp(old, "resourceVersion") {
        return Err(Refusal::conflict(
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    let kept = match part {
        Part::Main => "status",
        Part::Status => "spec",
    };
    new[kept] = old.get(kept).cloned().unwrap_or_else(|| json!({}));
    if !new["metadata"].is_object() {
        new["metadata"] = json!({});
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let metadata = new["metadata"].as_object_mut().expect("made above");
        match old["metadata"].get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    Ok(new)
}

/// Seconds until a pod that is deleted now is gone; at once where no kubelet has to end it.
pub(in crate::fake_kubernetes) fn grace(pod: &Value, asked: Option<u64>) -> u64 {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return 0;
    }
    let own = pod.pointer("/spec/terminationGracePeriodSeconds");
    asked.unwrap_or_else(|| own.and_then(Value::as_u64).unwrap_or(GRACE_S))
}

/// Somebody has still to do something before the pod may go.
pub(in crate::fake_kubernetes) fn has_finalizers(pod: &Value) -> bool {
    let finalizers = pod
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array);
    finalizers.is_some_and(|list| !list.is_empty())
}

/// A body without a kind is one of the path's kind, as for the real server.
pub(in crate::fake_kubernetes) fn is_kind(object: &Value, kind: &str) -> Result<(), Refusal> {
    let is = |field: &str, wanted: &str| {
        let given = object.get(field).and_then(Value::as_str);
        given.is_none_or(|given| given == wanted)
    };
    if object.is_object() && is("kind", kind) && is("apiVersion", "v1") {
        return Ok(());
    }
    let message =
        format!("the object provided is unrecognized (must be of type {kind}, version v1)");
    Err(Refusal::bad_request(message))
}

/// RFC 1123, at most 253 bytes.
pub(in crate::fake_kubernetes) fn is_subdomain(name: &str) -> bool {
    let is_part = |part: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty()
            && part.bytes().all(plain)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}
