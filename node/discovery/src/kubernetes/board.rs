//! The pods that are known now, scope by scope, and the picture that they make.
//!
//! Pure. A scope begins with a list, which replaces what was known; events of its watch change single pods. Events that
//! are older than what is known, or of an earlier life of a pod, change nothing.

use std::collections::{BTreeMap, BTreeSet};

use grapevine_gossip::worker::WorkerId;

use super::labels::Problem;
use super::mapping::{Defaults, workers};
use super::pod::Facts;
use super::settings::Scope;
use crate::picture::{Found, Picture, PictureError};

/// Namespace and name.
type Key = (String, String);

#[derive(Debug)]
pub(super) struct Board {
    scopes: Vec<Listed>,
    defaults: Defaults,
}

#[derive(Debug)]
struct Listed {
    scope: Scope,
    /// None before its first list.
    pods: Option<BTreeMap<Key, Facts>>,
    /// It was seen to be true since all were.
    confirmed: bool,
}

impl Board {
    pub(super) fn new(scopes: &[Scope], defaults: Defaults) -> Self {
        let listed = |scope: &Scope| Listed {
            scope: scope.clone(),
            pods: None,
            confirmed: false,
        };
        Self {
            scopes: scopes.iter().map(listed).collect(),
            defaults,
        }
    }

    /// Everything of a scope, from a list.
    pub(super) fn replace(&mut self, scope: usize, pods: impl IntoIterator<Item = Facts>) {
        let pods = pods.into_iter().map(|pod| (key(&pod), pod));
        self.scopes[scope].pods = Some(pods.collect());
    }

    /// A pod as it is now. One of the same name with another uid is gone by that.
    pub(super) fn put(&mut self, scope: usize, pod: Facts) {
        let pods = self.scopes[scope].pods.get_or_insert_default();
        let known = pods.get(&key(&pod));
        if known.is_none_or(|known| known.revision <= pod.revision || pod.revision == 0) {
            pods.insert(key(&pod), pod);
        }
    }

    /// A pod that is gone, or whose labels do not match any more. Its successor of the same name stays.
    pub(super) fn remove(&mut self, scope: usize, pod: &Facts) {
        let pods = self.scopes[scope].pods.get_or_insert_default();
        let key = key(pod);
        if pods.get(&key).is_some_and(|known| known.uid == pod.uid) {
            pods.remove(&key);
        }
    }

    /// A scope is seen to be true; returns whether all were since that was last so.
    pub(super) fn confirm(&mut self, scope: usize) -> bool {
        self.scopes[scope].confirmed = true;
        let all = self
            .scopes
            .iter()
            .all(|one| one.confirmed && one.pods.is_some());
        if all {
            self.scopes.iter_mut().for_each(|one| one.confirmed = false);
        }
        all
    }

    /// All workers, once every scope was listed; with what is wrong with their pods.
    pub(super) fn picture(&self) -> Option<(Result<Picture, PictureError>, Vec<Problem>)> {
        let mut problems = Vec::new();
        let mut found: Vec<(WorkerId, Found)> = Vec::new();
        let mut taken = BTreeSet::new();
        for Listed { scope, pods, .. } in &self.scopes {
            for (key, pod) in pods.as_ref()? {
                if !taken.insert(key) {
                    continue;
                }
                let workers = workers(pod, scope.role, self.defaults, &mut problems);
                found.extend(workers.into_iter().map(|worker| (worker.id, worker.found)));
            }
        }
        Some((Picture::new(found), problems))
    }
}

fn key(pod: &Facts) -> Key {
    (pod.namespace.clone(), pod.name.clone())
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::Role;

    use super::*;
    use crate::kubernetes::settings::Namespace;

    fn pod(name: &str, uid: &str, revision: u64) -> Facts {
        Facts {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            revision,
            ip: "10.0.0.1".to_owned(),
            is_alive: true,
            is_ready: true,
            ..Facts::default()
        }
    }

    fn board(roles: &[Option<Role>]) -> Board {
        let scope = |role: &Option<Role>| Scope {
            namespace: Namespace::All,
            selector: "x".to_owned(),
            role: *role,
        };
        let scopes: Vec<Scope> = roles.iter().map(scope).collect();
        let defaults = Defaults {
            port: 8000,
            https: false,
        };
        Board::new(&scopes, defaults)
    }

    fn ids(board: &Board) -> Vec<String> {
        let (picture, _) = board.picture().expect("all are listed");
        let picture = picture.expect("few workers");
        picture
            .iter()
            .map(|(id, _)| id.as_str().to_owned())
            .collect()
    }

    #[test]
    fn nothing_is_shown_before_every_scope_was_listed() {
        let mut board = board(&[None, Some(Role::Decode)]);
        board.replace(0, [pod("a", "u1", 1)]);
        assert!(board.picture().is_none());
        assert!(!board.confirm(0));
        board.replace(1, []);
        assert_eq!(ids(&board), ["n/a:8000"]);
        assert!(board.confirm(1));
        assert!(!board.confirm(1), "the first one is to be seen again");
    }

    #[test]
    fn a_late_event_of_an_old_life_does_not_touch_the_successor() {
        let mut board = board(&[None]);
        board.replace(0, [pod("a", "old", 5)]);
        board.put(0, pod("a", "new", 8));
        board.remove(0, &pod("a", "old", 9));
        assert_eq!(ids(&board), ["n/a:8000"]);
        board.put(0, pod("a", "old", 7));
        assert_eq!(ids(&board), ["n/a:8000"]);
        board.remove(0, &pod("a", "new", 10));
        assert_eq!(ids(&board), [""; 0]);
    }

    #[test]
    fn a_list_replaces_what_was_known() {
        let mut board = board(&[None]);
        board.replace(0, [pod("a", "u1", 5), pod("b", "u2", 6)]);
        board.replace(0, [pod("b", "u2", 6)]);
        assert_eq!(ids(&board), ["n/b:8000"]);
    }

    #[test]
    fn of_a_pod_in_several_scopes_the_first_counts() {
        let mut board = board(&[Some(Role::Prefill), None]);
        board.replace(0, [pod("a", "u1", 5)]);
        board.replace(1, [pod("a", "u1", 5), pod("b", "u2", 5)]);
        let (picture, _) = board.picture().expect("all are listed");
        let roles: Vec<Role> = picture
            .expect("few")
            .iter()
            .map(|(_, found)| found.spec().role())
            .collect();
        assert_eq!(roles, [Role::Prefill, Role::Any]);
    }
}
