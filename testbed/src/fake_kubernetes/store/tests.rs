//! Tests of the store as a whole.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::*;

const BOUNDS: Bounds = Bounds {
    pods_max: 8,
    namespaces_max: 3,
    history_max: 16,
};

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

fn fresh(uid: &str) -> Fresh {
    Fresh {
        uid: uid.to_owned(),
        suffix: "x7z2q".to_owned(),
        now: at(0),
    }
}

fn pod(name: &str, label: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": label } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] } })
}

fn store() -> Store {
    let mut store = Store::new(BOUNDS);
    store.add_namespace("default", &fresh("n")).expect("new");
    store
}

fn add(store: &mut Store, name: &str, label: &str) -> Arc<Value> {
    let created = store.create("default", pod(name, label), "node-1", &fresh(name));
    created.expect("valid and new")
}

fn relabel(store: &mut Store, name: &str, label: &str) {
    let patch = json!({ "metadata": { "labels": { "app": label } } });
    let change = |old: &Value| Form::Merge.apply(old, &patch);
    store
        .update("default", name, Part::Main, change)
        .expect("there");
}

/// Type and name of what a watch shows after a revision.
fn seen(store: &Store, revision: u64, labels: &str) -> Vec<(&'static str, String)> {
    let selector = Selector::parse(labels, "").expect("valid");
    let changes = store.changes_after(revision).expect("in the window");
    let events = changes.filter_map(|change| change.event(Some("default"), &selector));
    events
        .map(|(kind, pod)| (kind, name_of(&pod).to_owned()))
        .collect()
}

fn names(page: &Page) -> Vec<&str> {
    page.items.iter().map(|pod| name_of(pod)).collect()
}

#[test]
fn every_write_has_a_later_revision() {
    let mut store = store();
    let mut revisions = vec![store.revision()];
    add(&mut store, "a", "vllm");
    revisions.push(store.revision());
    relabel(&mut store, "a", "other");
    revisions.push(store.revision());
    relabel(&mut store, "a", "other"); // nothing changes
    assert_eq!(Some(&store.revision()), revisions.last());
    store
        .delete("default", "a", &Deletion::default(), at(1))
        .expect("there");
    revisions.push(store.revision());
    store.expire(at(31));
    revisions.push(store.revision());
    assert!(
        revisions.is_sorted_by(|one, next| one < next),
        "{revisions:?}"
    );
}

#[test]
fn a_watch_with_a_selector_sees_pods_come_and_go_by_their_labels() {
    let mut store = store();
    let before = store.revision();
    add(&mut store, "a", "other");
    relabel(&mut store, "a", "vllm");
    relabel(&mut store, "a", "other");
    add(&mut store, "b", "vllm");
    let expected = [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b")];
    let expected: Vec<_> = expected.map(|(kind, name)| (kind, name.to_owned())).into();
    assert_eq!(seen(&store, before, "app=vllm"), expected);
    let unfiltered: Vec<_> = seen(&store, before, "")
        .into_iter()
        .map(|one| one.0)
        .collect();
    assert_eq!(unfiltered, ["ADDED", "MODIFIED", "MODIFIED", "ADDED"]);
}

#[test]
fn a_deleted_pod_is_told_to_end_first_and_is_gone_after_its_grace() {
    let mut store = store();
    add(&mut store, "a", "vllm");
    let before = store.revision();
    let told = store
        .delete("default", "a", &Deletion::default(), at(5))
        .expect("there");
    assert_eq!(
        told["metadata"]["deletionTimestamp"],
        "1970-01-01T00:00:35Z"
    );
    assert_eq!(store.next_end(), Some(at(35)));
    store.expire(at(34));
    assert!(store.pod("default", "a").is_ok());
    store.expire(at(35));
    assert_eq!(store.pod("default", "a").expect_err("gone").code, 404);
    let kinds: Vec<_> = seen(&store, before, "")
        .into_iter()
        .map(|one| one.0)
        .collect();
    assert_eq!(kinds, ["MODIFIED", "DELETED"]);
}

#[test]
fn a_delete_is_refused_for_another_uid_and_immediate_without_grace() {
    let mut store = store();
    add(&mut store, "a", "vllm");
    let mut deletion = Deletion {
        grace_s: Some(0),
        uid: Some("successor".to_owned()),
    };
    let refused = store
        .delete("default", "a", &deletion, at(1))
        .expect_err("another");
    assert_eq!(refused.code, 409);
    deletion.uid = Some("a".to_owned());
    store
        .delete("default", "a", &deletion, at(1))
        .expect("the same");
    assert_eq!(store.pod_count(), 0);
}

#[test]
fn a_pod_with_finalizers_stays_until_they_are_removed() {
    let mut store = store();
    let mut pinned = pod("a", "vllm");
    pinned["metadata"]["finalizers"] = json!(["example.org/wait"]);
    store
        .create("default", pinned, "node-1", &fresh("a"))
        .expect("valid");
    let now = Deletion {
        grace_s: Some(1),
        uid: None,
    };
    store.delete("default", "a", &now, at(1)).expect("there");
    store.expire(at(10));
    assert!(store.pod("default", "a").is_ok());
    let patch = json!({ "metadata": { "finalizers": null } });
    let change = |old: &Value| Form::Merge.apply(old, &patch);
    store
        .update("default", "a", Part::Main, change)
        .expect("there");
    assert_eq!(store.pod_count(), 0);
}

#[test]
fn status_and_the_rest_are_changed_by_paths_of_their_own() {
    let mut store = store();
    add(&mut store, "a", "vllm");
    let patch = json!({ "metadata": { "labels": { "app": "new" } },
        "spec": { "nodeName": "x" }, "status": { "podIP": "10.0.0.1" } });
    let change = |old: &Value| Form::Merge.apply(old, &patch);
    let main = store
        .update("default", "a", Part::Main, change)
        .expect("there");
    assert_eq!(
        (&main["status"]["podIP"], &main["spec"]["nodeName"]),
        (&Value::Null, &json!("x"))
    );
    let status = store
        .update("default", "a", Part::Status, change)
        .expect("there");
    assert_eq!(status["status"]["podIP"], "10.0.0.1");
}

#[test]
fn an_update_with_an_old_revision_is_a_conflict() {
    let mut store = store();
    let old = add(&mut store, "a", "vllm");
    relabel(&mut store, "a", "new");
    let put = |_: &Value| Ok((*old).clone());
    let refused = store
        .update("default", "a", Part::Main, put)
        .expect_err("stale");
    assert_eq!((refused.code, refused.reason), (409, "Conflict"));
}

#[test]
fn pages_of_one_list_show_one_revision() {
    let mut store = store();
    for name in ["a", "b", "c", "d"] {
        add(&mut store, name, "vllm");
    }
    let mut query = ListQuery {
        limit: Some(2),
        ..ListQuery::default()
    };
    let first = store.list(&query).expect("a list");
    assert_eq!((names(&first), first.remaining), (vec!["a", "b"], Some(2)));
    // What happens between two pages is not in the second.
    let gone = Deletion {
        grace_s: Some(0),
        uid: None,
    };
    store.delete("default", "c", &gone, at(1)).expect("there");
    add(&mut store, "e", "vllm");
    query.after.clone_from(&first.next);
    let second = store.list(&query).expect("in the window");
    assert_eq!(
        (names(&second), second.revision),
        (vec!["c", "d"], first.revision)
    );
    assert_eq!(second.next, None);
}

#[test]
fn history_that_is_compacted_is_refused() {
    let mut store = store();
    for name in ["a", "b", "c"] {
        add(&mut store, name, "vllm");
    }
    let before = store.revision();
    let mut query = ListQuery {
        limit: Some(1),
        ..ListQuery::default()
    };
    query.after = store.list(&query).expect("a list").next;
    relabel(&mut store, "a", "new");
    store.compact();
    assert_eq!(
        store
            .changes_after(before)
            .map(|_| ())
            .expect_err("compacted")
            .code,
        410
    );
    assert!(store.changes_after(store.revision()).is_ok());
    let refused = store.list(&query).expect_err("compacted");
    assert_eq!((refused.code, refused.reason), (410, "Expired"));
    // The refusal has a token with which the list goes on in the present.
    let next = refused.status()["metadata"]["continue"]
        .as_str()
        .map(str::to_owned);
    query.after = next;
    assert_eq!(names(&store.list(&query).expect("inconsistent")), ["b"]);
}

#[test]
fn the_window_moves_on_by_itself_when_it_is_full() {
    let mut store = store();
    add(&mut store, "a", "vllm");
    let first = store.revision();
    for step in 0..BOUNDS.history_max {
        relabel(&mut store, "a", &step.to_string());
    }
    assert!(store.changes_after(first).is_ok());
    relabel(&mut store, "a", "last");
    assert_eq!(
        store
            .changes_after(first)
            .map(|_| ())
            .expect_err("passed")
            .code,
        410
    );
}

#[test]
fn the_store_has_an_end() {
    let mut store = store();
    for index in 0..BOUNDS.pods_max {
        add(&mut store, &format!("p{index}"), "vllm");
    }
    let full = store.create("default", pod("more", "vllm"), "node-1", &fresh("m"));
    assert_eq!(full.expect_err("full").code, 403);
    let unknown = store.create("elsewhere", pod("a", "x"), "node-1", &fresh("m"));
    assert_eq!(unknown.expect_err("no namespace").code, 404);
}
