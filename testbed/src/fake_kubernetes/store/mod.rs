//! What the API server keeps: pods and namespaces, one revision for all of them, and a window of history.
//!
//! Pure: no clock, no socket. A watch is a cursor into the history, so it needs no queue: one that lags behind the
//! window is told so ([`Store::changes_after`]).
//!
//! Invariants, each a test of that name: `every_write_has_a_later_revision`, `pages_of_one_list_show_one_revision`,
//! `history_that_is_compacted_is_refused`.

mod page;
mod patch;
mod pod;
mod selector;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::refusal::Refusal;
pub(super) use page::{ListQuery, Page};
pub(super) use patch::Form;
pub(super) use pod::{Fresh, Part, name_of};
pub(super) use selector::Selector;

/// Namespace and name.
pub(super) type Key = (String, String);

/// First revision: large, so that nobody takes it for a count.
const FIRST_REVISION: u64 = 1_000;

/// Bounds of the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) pods_max: usize,
    pub(super) namespaces_max: usize,
    /// Changes that watches can go back; older ones are compacted away.
    pub(super) history_max: usize,
}

/// One write to one pod.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) revision: u64,
    key: Key,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// What a delete asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Deletion {
    pub(super) grace_s: Option<u64>,
    /// Only the object with this identity.
    pub(super) uid: Option<String>,
}

#[derive(Debug)]
pub(super) struct Store {
    bounds: Bounds,
    revision: u64,
    /// Changes up to this revision are forgotten.
    compacted: u64,
    pods: BTreeMap<Key, Arc<Value>>,
    namespaces: BTreeMap<String, Value>,
    history: VecDeque<Change>,
    /// When pods that were told to end are gone.
    ends: BTreeMap<Key, SystemTime>,
}

impl Store {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            revision: FIRST_REVISION,
            compacted: FIRST_REVISION,
            pods: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            history: VecDeque::new(),
            ends: BTreeMap::new(),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// Adds a namespace; one that is there stays as it is.
    pub(super) fn add_namespace(&mut self, name: &str, fresh: &Fresh) -> Result<Value, Refusal> {
        if !pod::is_subdomain(name) {
            return Err(Refusal::bad_request(format!("{name:?} names no namespace")));
        }
        if self.namespaces.contains_key(name) {
            return Err(Refusal::already_exists("namespaces", name));
        }
        if self.namespaces.len() >= self.bounds.namespaces_max {
            return Err(self.full("namespaces"));
        }
        self.revision += 1;
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {
                "name": name, "uid": fresh.uid, "resourceVersion": self.revision.to_string(),
                "creationTimestamp": pod::timestamp(fresh.now),
                "labels": { "kubernetes.io/metadata.name": name },
            },
            "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" },
        });
        self.namespaces.insert(name.to_owned(), namespace.clone());
        Ok(namespace)
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Value> {
        self.namespaces.values()
    }

    pub(super) fn namespace(&self, name: &str) -> Result<&Value, Refusal> {
        let found = self.namespaces.get(name);
        found.ok_or_else(|| Refusal::not_found("namespaces", name))
    }

    pub(super) fn pod(&self, namespace: &str, name: &str) -> Result<Arc<Value>, Refusal> {
        let found = self.pods.get(&(namespace.to_owned(), name.to_owned()));
        let found = found.ok_or_else(|| Refusal::not_found("pods", name))?;
        Ok(Arc::clone(found))
    }

    /// Creates a pod on `node`.
    pub(super) fn create(
        &mut self,
        namespace: &str,
        pod: Value,
        node: &str,
        fresh: &Fresh,
    ) -> Result<Arc<Value>, Refusal> {
        self.namespace(namespace)?;
        let pod = pod::admitted(pod, namespace, node, fresh)?;
        let key = (namespace.to_owned(), name_of(&pod).to_owned());
        if self.pods.contains_key(&key) {
            return Err(Refusal::already_exists("pods", &key.1));
        }
        if self.pods.len() >= self.bounds.pods_max {
            return Err(self.full("pods"));
        }
        Ok(self.write(key, Some(pod)))
    }

    /// Changes a part of a pod; `change` makes the new object from the stored one.
    pub(super) fn update(
        &mut self,
        namespace: &str,
        name: &str,
        part: Part,
        change: impl FnOnce(&Value) -> Result<Value, Refusal>,
    ) -> Result<Arc<Value>, Refusal> {
        let old = self.pod(namespace, name)?;
        let new = pod::changed(&old, change(&old)?, part)?;
        // The real server writes nothing where nothing changed, so there is no event either.
        if new == *old {
            return Ok(old);
        }
        let key = (namespace.to_owned(), name.to_owned());
        let was_due = new.pointer("/metadata/deletionGracePeriodSeconds") == Some(&json!(0));
        if was_due && !pod::has_finalizers(&new) {
            return Ok(self.write(key, None));
        }
        Ok(self.write(key, Some(new)))
    }

    /// Deletes a pod: first told to end, then, after its grace, gone. The answer is the pod as it is then.
    pub(super) fn delete(
        &mut self,
        namespace: &str,
        name: &str,
        deletion: &Deletion,
        now: SystemTime,
    ) -> Result<Arc<Value>, Refusal> {
        let old = self.pod(namespace, name)?;
        let uid = old.pointer("/metadata/uid").and_then(Value::as_str);
        if let Some(wanted) = deletion.uid.as_deref().filter(|uid_| Some(*uid_) != uid) {
            let has = uid.unwrap_or_default();
            let because = format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {has}"
            );
            return Err(Refusal::conflict(name, &because));
        }
        let key = (namespace.to_owned(), name.to_owned());
        let grace = pod::grace(&old, deletion.grace_s);
        if grace == 0 && !pod::has_finalizers(&old) {
            return Ok(self.write(key, None));
        }
        let ends = now + Duration::from_secs(grace);
        // A second delete can only shorten what is left.
        if self.ends.get(&key).is_some_and(|earlier| *earlier <= ends) {
            return Ok(old);
        }
        let mut ending = (*old).clone();
        ending["metadata"]["deletionTimestamp"] = json!(pod::timestamp(ends));
        ending["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self.ends.insert(key.clone(), ends);
        Ok(self.write(key, Some(ending)))
    }

    /// Removes pods whose grace has passed, as their kubelet would report. Pods with finalizers stay.
    pub(super) fn expire(&mut self, now: SystemTime) {
        let due = self.ends.iter().filter(|(_, at)| **at <= now);
        let due: Vec<Key> = due.map(|(key, _)| key.clone()).collect();
        for key in due {
            self.ends.remove(&key);
            let Some(pod) = self.pods.get(&key) else {
                continue;
            };
            if pod::has_finalizers(pod) {
                let mut waiting = (**pod).clone();
                waiting["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                self.write(key, Some(waiting));
            } else {
                self.write(key, None);
            }
        }
    }

    /// When [`Store::expire`] has something to do next.
    pub(super) fn next_end(&self) -> Option<SystemTime> {
        self.ends.values().min().copied()
    }

    /// Writes of other resources: the revision moves on, and no pod changes.
    pub(super) fn pass_revisions(&mut self, count: u64) {
        self.revision = self.revision.saturating_add(count);
    }

    /// Forgets the history: watches and continue tokens from before now are refused.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
    }

    /// Oldest revision after which changes are known.
    pub(super) fn oldest(&self) -> u64 {
        self.compacted
    }

    /// Changes after a revision, oldest first. Refused below the window.
    pub(super) fn changes_after(
        &self,
        revision: u64,
    ) -> Result<impl Iterator<Item = &Change>, Refusal> {
        if revision < self.compacted {
            return Err(Refusal::too_old(revision, self.compacted));
        }
        let from = self.history.partition_point(|one| one.revision <= revision);
        Ok(self.history.range(from..))
    }

    fn write(&mut self, key: Key, new: Option<Value>) -> Arc<Value> {
        self.revision += 1;
        let revision = json!(self.revision.to_string());
        let before = self.pods.get(&key).map(Arc::clone);
        let after = new.map(|mut pod| {
            pod["kind"] = json!("Pod");
            pod["apiVersion"] = json!("v1");
            pod["metadata"]["resourceVersion"] = revision;
            Arc::new(pod)
        });
        match &after {
            Some(pod) => {
                self.pods.insert(key.clone(), Arc::clone(pod));
            }
            None => {
                self.pods.remove(&key);
                self.ends.remove(&key);
            }
        }
        let shown = after.clone().or_else(|| before.clone());
        self.history.push_back(Change {
            revision: self.revision,
            key,
            before,
            after,
        });
        while self.history.len() > self.bounds.history_max {
            let oldest = self.history.pop_front().expect("it is not empty");
            self.compacted = oldest.revision;
        }
        shown.expect("a write makes or removes a pod")
    }

    fn full(&self, what: &str) -> Refusal {
        let Bounds {
            pods_max,
            namespaces_max,
            ..
        } = self.bounds;
        let message = format!(
            "the fake keeps at most {pods_max} pods and {namespaces_max} namespaces; no room for {what}"
        );
        Refusal::new(403, "Forbidden", message)
    }
}

impl Change {
    /// What a watch in `namespace` (all, if none) with this selector shows of the change: type and object.
    ///
    /// An object that stops to match is DELETED, in its last matching state with the revision of the change.
    pub(super) fn event(
        &self,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> Option<(&'static str, Value)> {
        if namespace.is_some_and(|namespace| namespace != self.key.0) {
            return None;
        }
        let before = self.before.as_ref().filter(|pod| selector.matches(pod));
        let after = self.after.as_ref().filter(|pod| selector.matches(pod));
        match (before, after) {
            (None, None) => None,
            (None, Some(pod)) => Some(("ADDED", (**pod).clone())),
            (Some(_), Some(pod)) => Some(("MODIFIED", (**pod).clone())),
            (Some(pod), None) => {
                let mut last = (**pod).clone();
                last["metadata"]["resourceVersion"] = json!(self.revision.to_string());
                Some(("DELETED", last))
            }
        }
    }
}
