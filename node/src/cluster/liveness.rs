//! Since when each replica is what it is seen to be, for people; and the lines of the log about its changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::{ReplicaInfo, View};
use grapevine_placement::named;
use parking_lot::Mutex;
use tokio::time::Instant;

/// What a replica is seen to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    live: bool,
    ready: bool,
    leaving: bool,
}

/// What is known of a replica's past.
#[derive(Debug, Clone, Copy)]
struct Past {
    seen: Seen,
    /// Since when it is seen so.
    since: Instant,
    /// Since when it is alive, or is not.
    alive_since: Instant,
    /// It was seen alive; before that it is a name that others reported.
    was_alive: bool,
    /// Where it gossips, or did.
    address: SocketAddr,
}

impl Past {
    fn beginning(seen: Seen, address: SocketAddr, now: Instant) -> Self {
        Self {
            address,
            seen,
            since: now,
            alive_since: now,
            was_alive: seen.live,
        }
    }

    fn with(self, seen: Seen, address: SocketAddr, now: Instant) -> Self {
        let since = |is_same: bool, before| if is_same { before } else { now };
        Self {
            address,
            seen,
            since: since(seen == self.seen, self.since),
            alive_since: since(seen.live == self.seen.live, self.alive_since),
            was_alive: self.was_alive || seen.live,
        }
    }
}

/// Since when each replica is seen as it is now. Follows every view, so it has as many as that.
#[derive(Debug)]
pub struct Liveness {
    /// Its own changes are in the log already.
    own: ReplicaId,
    known: Mutex<BTreeMap<ReplicaId, Past>>,
    /// Replicas that died without leaving, and that gossip has forgotten since; since when they are dead, and where they
    /// were.
    lost: Mutex<BTreeMap<ReplicaId, (Instant, SocketAddr)>>,
}

named! {
    /// Why a replica that is not alive troubles nobody.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Absent {
        /// Its name came before its first sign of life.
        Joining = "joining",
        /// Another replica that is alive has its address.
        Replaced = "replaced",
    }
}

/// So many lost replicas are remembered, the latest.
const LOST_MAX: usize = 64;
/// So long a dead replica is listed: an operator who removes replicas by killing them need not see them for ever.
const LOST_FOR: Duration = Duration::from_secs(3_600);
/// Within this time a name that others report shows that it lives, or is taken for that of a dead replica.
const JOINS_WITHIN: Duration = Duration::from_secs(10);

impl Liveness {
    pub(super) fn new(own: ReplicaId) -> Self {
        Self {
            own,
            known: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// There is a new view.
    pub(super) fn follow(&self, view: &View) {
        let now = Instant::now();
        let mut known = self.known.lock();
        let before = std::mem::take(&mut *known);
        let replicas = view.replicas().iter().map(|replica| {
            let seen = seen(replica);
            let former = before.get(&replica.id);
            if replica.id != self.own {
                tell(&replica.id, former.filter(|past| past.was_alive), seen);
            }
            let past = former.map_or_else(
                || Past::beginning(seen, replica.gossip_addr, now),
                |former| former.with(seen, replica.gossip_addr, now),
            );
            (replica.id.clone(), past)
        });
        *known = replicas.collect();
        let mut lost = self.lost.lock();
        let is_gone = |id: &ReplicaId, past: &Past| {
            !known.contains_key(id) && past.was_alive && !past.seen.live && !past.seen.leaving
        };
        let gone = before.into_iter().filter(|(id, past)| is_gone(id, past));
        lost.extend(gone.map(|(id, past)| (id, (past.alive_since, past.address))));
        lost.retain(|id, (since, address)| {
            let is_of_interest = since.elapsed() < LOST_FOR && !is_taken(*address, view);
            !known.contains_key(id) && is_of_interest
        });
        while lost.len() > LOST_MAX {
            let oldest = lost.iter().min_by_key(|(_, (since, _))| *since);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
                break;
            };
            lost.remove(&oldest);
        }
    }

    /// Replicas that died without leaving and are in no view any more, and how long they have been dead; for an hour.
    pub fn lost(&self) -> Vec<(ReplicaId, Duration)> {
        let lost = self.lost.lock();
        let lost = lost.iter();
        let lost = lost.map(|(id, (since, _))| (id.clone(), since.elapsed()));
        lost.filter(|(_, dead_for)| *dead_for < LOST_FOR).collect()
    }

    /// For how long a replica has been seen as it is; none of one that no followed view has so.
    pub fn lasts(&self, replica: &ReplicaInfo) -> Option<Duration> {
        let known = self.known.lock();
        let past = known.get(&replica.id)?;
        (past.seen == seen(replica)).then(|| past.since.elapsed())
    }

    /// Why a replica of this view that is not alive troubles nobody, if so.
    pub fn absent(&self, replica: &ReplicaInfo, view: &View) -> Option<Absent> {
        if replica.live {
            return None;
        }
        if is_taken(replica.gossip_addr, view) {
            return Some(Absent::Replaced);
        }
        let known = self.known.lock();
        // The view may be newer than what was followed.
        let is_joining = known
            .get(&replica.id)
            .is_none_or(|past| !past.was_alive && past.alive_since.elapsed() < JOINS_WITHIN);
        is_joining.then_some(Absent::Joining)
    }
}

/// Whether a replica that is alive has this address.
fn is_taken(address: SocketAddr, view: &View) -> bool {
    let mut replicas = view.replicas().iter();
    replicas.any(|replica| replica.live && replica.gossip_addr == address)
}

fn seen(replica: &ReplicaInfo) -> Seen {
    Seen {
        live: replica.live,
        ready: replica.ready,
        leaving: replica.leaving,
    }
}

/// Writes into the log what a replica became, and what that means for the cluster.
fn tell(replica: &ReplicaId, former: Option<&Past>, now: Seen) {
    let lasted = |is_alive: bool| {
        let past = former.filter(|past| past.seen.live == is_alive)?;
        Some(u64::try_from(past.alive_since.elapsed().as_millis()).unwrap_or(u64::MAX))
    };
    // How long it has been alive until now, or had been dead.
    let (alive_ms, dead_ms) = (lasted(true), lasted(false));
    match story(former.map(|past| past.seen), now) {
        Some(Story::Expected(text)) => tracing::info!(%replica, alive_ms, dead_ms, "{text}"),
        Some(Story::Unexpected(text)) => tracing::warn!(%replica, alive_ms, dead_ms, "{text}"),
        None => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    /// Somebody wanted it.
    Expected(&'static str),
    /// It takes a replica out of use, or back into it.
    Unexpected(&'static str),
}

fn story(before: Option<Seen>, now: Seen) -> Option<Story> {
    use Story::{Expected, Unexpected};
    let was = |is: fn(Seen) -> bool| before.is_some_and(is);
    let is_new = before.is_none();
    if now.live && now.leaving && !was(|before| before.leaving) {
        return Some(Expected(
            "a replica leaves: it finishes its streams, the others take its clients",
        ));
    }
    if !now.live {
        return was(|before| before.live && !before.leaving).then_some(Unexpected(
            "a replica is dead: nothing was heard of it; its load and its findings no longer count, the others take its \
             clients, and no prompt moves",
        ));
    }
    if was(|before| !before.live && before.leaving) {
        return Some(Expected("a replica that had left is back"));
    }
    if was(|before| !before.live) {
        return Some(Unexpected(
            "a replica is alive again: its load and its findings count from now on",
        ));
    }
    match (now.ready, was(|before| before.ready)) {
        (true, false) if is_new => Some(Expected("a replica is there, and ready")),
        (true, false) => Some(Expected("a replica is ready")),
        (false, true) if !now.leaving => Some(Unexpected(
            "a replica is no longer ready: balancers send it nothing; its own log says why",
        )),
        _ if is_new => Some(Expected("a replica is there, not ready yet")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::registry::Registry;

    use super::*;

    const NEW: Seen = Seen {
        live: true,
        ready: false,
        leaving: false,
    };
    const READY: Seen = Seen { ready: true, ..NEW };
    const DEAD: Seen = Seen {
        live: false,
        ..READY
    };
    const LEAVING: Seen = Seen {
        leaving: true,
        ..READY
    };

    fn info(id: &ReplicaId, port: u16, seen: Seen) -> ReplicaInfo {
        ReplicaInfo {
            live: seen.live,
            ready: seen.ready,
            leaving: seen.leaving,
            id: id.clone(),
            generation: 1,
            gossip_addr: ([127, 0, 0, 1], port).into(),
            http: String::new(),
            admin: String::new(),
            version: String::new(),
            registry: String::new(),
            settings: String::new(),
            ring: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_and_who_was_replaced_are_not_missed() {
        let [own, dies, joins] = ["r1", "r2", "r3"].map(|id| id.parse().expect("an id"));
        let liveness = Liveness::new(ReplicaId::clone(&own));
        let registry = Registry::new(own.clone());
        let follow = |of_r2, of_r3| {
            let replicas = [
                (&own, 1, Some(READY)),
                (&dies, 2, of_r2),
                (&joins, 2, of_r3),
            ];
            let replicas = replicas
                .into_iter()
                .filter_map(|(id, port, seen)| Some(info(id, port, seen?)));
            let view = View::new(&registry, replicas.collect());
            liveness.follow(&view);
            let absent = view.replicas().iter();
            let absent = absent.filter(|replica| !replica.live);
            let absent =
                absent.map(|replica| (replica.id.to_string(), liveness.absent(replica, &view)));
            absent.collect::<Vec<_>>()
        };
        let of = |id: &str, absent| (id.to_owned(), absent);
        assert_eq!(follow(Some(READY), None), []);
        assert_eq!(follow(Some(DEAD), None), [of("r2", None)]);
        let joining = Some(Absent::Joining);
        assert_eq!(
            follow(Some(DEAD), Some(DEAD)),
            [of("r2", None), of("r3", joining)]
        );
        tokio::time::advance(JOINS_WITHIN).await;
        assert_eq!(follow(None, Some(DEAD)), [of("r3", None)]);
        assert_eq!(liveness.lost().len(), 1);
        assert_eq!(follow(None, Some(NEW)), []);
        assert_eq!(liveness.lost(), [], "another one is in its place");
        assert_eq!(
            follow(Some(DEAD), Some(NEW)),
            [of("r2", Some(Absent::Replaced))]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_died_without_a_word_is_remembered_for_an_hour() {
        let [own, dies, leaves] = ["r1", "r2", "r3"].map(|id| id.parse().expect("an id"));
        let liveness = Liveness::new(ReplicaId::clone(&own));
        let registry = Registry::new(own.clone());
        let follow = |replicas| liveness.follow(&View::new(&registry, replicas));
        let lost = || {
            liveness
                .lost()
                .into_iter()
                .map(|(id, time)| (id, time.as_secs()))
        };
        follow(vec![
            info(&own, 1, READY),
            info(&dies, 2, READY),
            info(&leaves, 3, READY),
        ]);
        follow(vec![
            info(&own, 1, READY),
            info(&dies, 2, DEAD),
            info(&leaves, 3, LEAVING),
        ]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(lost().count(), 0, "it is in the view still");
        follow(vec![info(&own, 1, READY)]);
        assert_eq!(lost().collect::<Vec<_>>(), [(dies.clone(), 60)]);
        follow(vec![info(&own, 1, READY), info(&dies, 2, READY)]);
        assert_eq!(lost().count(), 0, "it is back");
        follow(vec![info(&own, 1, READY), info(&dies, 2, DEAD)]);
        follow(vec![info(&own, 1, READY)]);
        tokio::time::advance(LOST_FOR).await;
        assert_eq!(lost().count(), 0, "nobody missed it");
    }

    #[test]
    fn what_was_not_wanted_is_a_warning() {
        let is_warning = |before, now| match story(before, now) {
            Some(Story::Unexpected(_)) => Some(true),
            Some(Story::Expected(_)) => Some(false),
            None => None,
        };
        let gone = Seen {
            live: false,
            ..LEAVING
        };
        for (before, now, expected) in [
            (None, NEW, Some(false)),
            (None, DEAD, None),
            (Some(NEW), READY, Some(false)),
            (Some(READY), READY, None),
            (Some(READY), NEW, Some(true)),
            (Some(READY), DEAD, Some(true)),
            (Some(DEAD), READY, Some(true)),
            (Some(DEAD), DEAD, None),
            (Some(READY), LEAVING, Some(false)),
            (Some(LEAVING), gone, None),
            (Some(gone), NEW, Some(false)),
        ] {
            assert_eq!(is_warning(before, now), expected, "{before:?} to {now:?}");
        }
    }
}
