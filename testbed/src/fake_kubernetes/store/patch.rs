//! Patches: merge patch (RFC 7386), JSON patch (RFC 6902), and what clients use of strategic merge.
//!
//! Pure. A strategic merge differs from a merge patch in lists whose elements have a key, and in `$` directives.

use serde_json::{Map, Value};

use crate::fake_kubernetes::refusal::Refusal;

/// Operations in one JSON patch, the real server's limit.
const OPERATIONS_MAX: usize = 10_000;
/// Depth to which a patch is followed.
const DEPTH_MAX: usize = 64;

/// A patch in the form that its content type names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fake_kubernetes) enum Form {
    Merge,
    Json,
    Strategic,
}

impl Form {
    /// The form of a content type; parameters of the type are ignored.
    pub(in crate::fake_kubernetes) fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Some(Self::Merge),
            "application/json-patch+json" => Some(Self::Json),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }

    /// The object with the patch applied.
    pub(in crate::fake_kubernetes) fn apply(
        self,
        object: &Value,
        patch: &Value,
    ) -> Result<Value, Refusal> {
        let mut patched = object.clone();
        match self {
            Self::Json => operations(&mut patched, patch)?,
            Self::Merge => merge(&mut patched, patch, DEPTH_MAX),
            Self::Strategic => strategic(&mut patched, patch, DEPTH_MAX)?,
        }
        if patched.is_object() {
            Ok(patched)
        } else {
            Err(Refusal::bad_request("the patch does not leave an object"))
        }
    }
}

fn merge(target: &mut Value, patch: &Value, depth: usize) {
    let (Some(changes), true) = (patch.as_object(), depth > 0) else {
        *target = patch.clone();
        return;
    };
    let target = object_of(target);
    for (key, value) in changes {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(
                target.entry(key.as_str()).or_insert(Value::Null),
                value,
                depth - 1,
            );
        }
    }
}

/// The map inside, after anything else was replaced by an empty one.
fn object_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it was made one")
}

/// The field by which elements of a pod's list are the same; none where the list is replaced as a whole.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" => Some("type"),
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets" => Some("name"),
        "ports" => Some("containerPort"),
        "podIPs" | "hostAliases" => Some("ip"),
        "volumeMounts" => Some("mountPath"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

fn strategic(target: &mut Value, patch: &Value, depth: usize) -> Result<(), Refusal> {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return Ok(());
    };
    if depth == 0 {
        return Err(Refusal::bad_request("the patch is nested too deeply"));
    }
    match changes.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let mut whole = changes.clone();
            whole.remove("$patch");
            *target = Value::Object(whole);
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        _ => {}
    }
    let target = object_of(target);
    for (key, value) in changes {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            remove_primitives(target.get_mut(field), value);
        } else if key.starts_with('$') {
            // Orders and retained keys change nothing that is modelled.
        } else if value.is_null() {
            target.remove(key);
        } else {
            let old = target.entry(key.as_str()).or_insert(Value::Null);
            match (value, merge_key(key)) {
                (Value::Array(new), Some(by)) => merge_list(old, new, by, depth - 1)?,
                (Value::Array(new), None) if key == "finalizers" => add_primitives(old, new),
                _ => strategic(old, value, depth - 1)?,
            }
        }
    }
    Ok(())
}

fn merge_list(old: &mut Value, new: &[Value], by: &str, depth: usize) -> Result<(), Refusal> {
    if !old.is_array() {
        *old = Value::Array(Vec::new());
    }
    let list = old.as_array_mut().expect("it was made one");
    for element in new {
        let directive = element.get("$patch").and_then(Value::as_str);
        let key = element.get(by);
        match (directive, key) {
            (Some("replace"), None) => list.clear(),
            (_, None) => {
                let what = format!("map: {element} does not contain declared merge key: {by}");
                return Err(Refusal::bad_request(what));
            }
            (Some("delete"), Some(key)) => list.retain(|had| had.get(by) != Some(key)),
            (_, Some(key)) => {
                if let Some(had) = list.iter_mut().find(|had| had.get(by) == Some(key)) {
                    strategic(had, element, depth)?;
                } else {
                    list.push(element.clone());
                }
            }
        }
    }
    Ok(())
}

fn add_primitives(old: &mut Value, new: &[Value]) {
    if !old.is_array() {
        *old = Value::Array(Vec::new());
    }
    let list = old.as_array_mut().expect("it was made one");
    for value in new {
        if !list.contains(value) {
            list.push(value.clone());
        }
    }
}

fn remove_primitives(list: Option<&mut Value>, gone: &Value) {
    if let (Some(Value::Array(list)), Some(gone)) = (list, gone.as_array()) {
        list.retain(|value| !gone.contains(value));
    }
}

fn operations(target: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let unfit = |why: String| Refusal::new(422, "Invalid", format!("jsonpatch: {why}"));
    let list = patch.as_array();
    let list = list.ok_or_else(|| Refusal::bad_request("a JSON patch is a list of operations"))?;
    if list.len() > OPERATIONS_MAX {
        return Err(Refusal::too_large_body(OPERATIONS_MAX));
    }
    for step in list {
        let text = |field: &str| step.get(field).and_then(Value::as_str);
        let path = text("path").ok_or_else(|| unfit("an operation has no path".to_owned()))?;
        let value = || step.get("value").cloned().unwrap_or(Value::Null);
        let from = || {
            let from = text("from").and_then(|from| target.pointer(from));
            from.cloned()
                .ok_or_else(|| unfit(format!("nothing to take for {path}")))
        };
        match text("op").unwrap_or_default() {
            "test" if target.pointer(path) == Some(&value()) => {}
            "test" => return Err(unfit(format!("test of {path} failed"))),
            "add" => put(target, path, value(), true).map_err(unfit)?,
            "replace" => put(target, path, value(), false).map_err(unfit)?,
            "remove" => drop(take(target, path).map_err(unfit)?),
            "copy" => {
                let value = from()?;
                put(target, path, value, true).map_err(unfit)?;
            }
            "move" => {
                let value = take(target, text("from").unwrap_or_default()).map_err(unfit)?;
                put(target, path, value, true).map_err(unfit)?;
            }
            other => return Err(unfit(format!("unknown operation {other:?}"))),
        }
    }
    Ok(())
}

/// The place that holds the last part of a path, and that part unescaped.
fn parent<'a>(target: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), String> {
    let missing = || format!("{path} is not there");
    let (above, last) = path.rsplit_once('/').ok_or_else(missing)?;
    let holder = target.pointer_mut(above).ok_or_else(missing)?;
    Ok((holder, last.replace("~1", "/").replace("~0", "~")))
}

fn put(target: &mut Value, path: &str, value: Value, insert: bool) -> Result<(), String> {
    let missing = format!("{path} is not there");
    let (holder, last) = parent(target, path)?;
    match holder {
        Value::Object(map) if insert || map.contains_key(&last) => {
            map.insert(last, value);
        }
        Value::Array(list) if insert && last == "-" => list.push(value),
        Value::Array(list) => {
            let index: usize = last.parse().map_err(|_| missing.clone())?;
            match (insert, index.cmp(&list.len())) {
                (true, std::cmp::Ordering::Less | std::cmp::Ordering::Equal) => {
                    list.insert(index, value);
                }
                (false, std::cmp::Ordering::Less) => list[index] = value,
                _ => return Err(missing),
            }
        }
        _ => return Err(missing),
    }
    Ok(())
}

fn take(target: &mut Value, path: &str) -> Result<Value, String> {
    let missing = || format!("{path} is not there");
    let (holder, last) = parent(target, path)?;
    match holder {
        Value::Object(map) => map.remove(&last).ok_or_else(missing),
        Value::Array(list) => {
            let index: usize = last.parse().map_err(|_| missing())?;
            if index >= list.len() {
                return Err(missing());
            }
            Ok(list.remove(index))
        }
        _ => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_form_of_patch_gives_what_its_definition_says() {
        let pod = json!({
            "metadata": { "labels": { "a": "1", "b/c": "2" } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "X", "status": "True" }] },
        });
        let cases = [
            (
                Form::Merge,
                json!({ "metadata": { "labels": { "a": null, "d": "3" } } }),
                "/metadata/labels",
                json!({ "b/c": "2", "d": "3" }),
            ),
            (
                Form::Merge,
                json!({ "status": { "conditions": [{ "type": "Ready" }] } }),
                "/status/conditions",
                json!([{ "type": "Ready" }]),
            ),
            (
                Form::Strategic,
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
                "/status/conditions",
                json!([{ "type": "Ready", "status": "False" }, { "type": "X", "status": "True" }]),
            ),
            (
                Form::Strategic,
                json!({ "status": { "conditions": [{ "type": "X", "$patch": "delete" }] } }),
                "/status/conditions",
                json!([{ "type": "Ready", "status": "True" }]),
            ),
            (
                Form::Json,
                json!([
                    { "op": "test", "path": "/metadata/labels/a", "value": "1" },
                    { "op": "remove", "path": "/metadata/labels/b~1c" },
                    { "op": "add", "path": "/metadata/labels/e", "value": "5" },
                    { "op": "replace", "path": "/metadata/labels/a", "value": "9" },
                ]),
                "/metadata/labels",
                json!({ "a": "9", "e": "5" }),
            ),
            (
                Form::Json,
                json!([{ "op": "add", "path": "/status/conditions/-", "value": 7 },
                       { "op": "remove", "path": "/status/conditions/0" },
                       { "op": "move", "from": "/status/conditions/1", "path": "/status/conditions/0" }]),
                "/status/conditions",
                json!([7, { "type": "X", "status": "True" }]),
            ),
        ];
        for (form, patch, path, expected) in cases {
            let patched = form.apply(&pod, &patch).expect("it fits");
            assert_eq!(
                patched.pointer(path),
                Some(&expected),
                "{form:?} of {patch}"
            );
        }
    }

    #[test]
    fn a_patch_that_does_not_fit_is_refused_and_changes_nothing() {
        let pod = json!({ "metadata": { "labels": {} } });
        let cases = [
            (
                Form::Json,
                json!([{ "op": "remove", "path": "/metadata/labels/a" }]),
                422,
            ),
            (
                Form::Json,
                json!([{ "op": "test", "path": "/metadata", "value": 1 }]),
                422,
            ),
            (Form::Json, json!({ "op": "add" }), 400),
            (Form::Merge, json!([1]), 400),
            (
                Form::Strategic,
                json!({ "status": { "conditions": [{ "status": "True" }] } }),
                400,
            ),
        ];
        for (form, patch, code) in cases {
            assert_eq!(
                form.apply(&pod, &patch).expect_err("it does not fit").code,
                code
            );
        }
    }
}
