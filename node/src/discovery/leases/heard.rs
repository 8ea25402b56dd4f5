//! What a replica heard of leases itself, and what is due by that. Pure: `now` is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::registry::Entry;
use grapevine_gossip::view::ReplicaInfo;
use grapevine_gossip::worker::{Labels, State, WorkerId};
use tokio::time::Instant;

use crate::config::LeaseConfig;
use crate::discovery::processes::Processes;

/// What this replica heard itself.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// By worker that this replica answers for: the last renewal, or when it took over.
    renewed: BTreeMap<WorkerId, Renewal>,
    /// What those workers declared of themselves at last, where it is anything.
    declared: BTreeMap<WorkerId, Labels>,
    /// Which processes renewed here, where they say so.
    pub(super) processes: BTreeMap<WorkerId, Processes>,
    /// The last renewal of any.
    pub(super) last: Option<Instant>,
    /// Nobody heard anything at the last look.
    pub(super) is_deaf: bool,
    /// Writers of leases that were seen leaving, and have not come back.
    left: BTreeSet<ReplicaId>,
}

/// A renewal, and how long its caller was told that it lasts: a shorter time that is configured later is for later ones.
#[derive(Debug, Clone, Copy)]
struct Renewal {
    at: Instant,
    ttl: Duration,
}

/// What is to be done about one lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    StopUse,
    Remove,
}

impl Heard {
    pub(super) fn renewal(&mut self, id: &WorkerId, ttl: Duration, now: Instant) {
        self.renewed.insert(id.clone(), Renewal { at: now, ttl });
        self.last = Some(now);
    }

    /// Takes in what a worker declares of itself. Returns whether that is not what it declared here before.
    pub(super) fn declares(&mut self, id: &WorkerId, labels: &Labels) -> bool {
        if self.declared.get(id) == Some(labels) {
            return false;
        }
        match labels.is_empty() {
            true => drop(self.declared.remove(id)),
            false => drop(self.declared.insert(id.clone(), labels.clone())),
        }
        true
    }

    /// What a worker declared was not written: it is still news when it declares it again.
    pub(super) fn take_back(&mut self, id: &WorkerId) {
        self.declared.remove(id);
    }

    /// A worker took itself out.
    pub(super) fn forget(&mut self, id: &WorkerId) {
        self.renewed.remove(id);
        self.declared.remove(id);
        self.processes.remove(id);
    }

    /// Whether a renewal was heard here lately.
    pub(super) fn hears(&self, ttl: Duration, now: Instant) -> bool {
        let since = |last| now.saturating_duration_since(last);
        self.last.is_some_and(|last| since(last) <= ttl)
    }

    /// Keeps what this replica answers for; its time begins when it takes over, and anew when renewals are heard again
    /// after nobody heard any. `stood_still`: until now this replica heard nothing, and what came meanwhile may wait still.
    pub(super) fn follow<'a>(
        &mut self,
        mine: impl Iterator<Item = &'a WorkerId>,
        peers_hear: bool,
        stood_still: bool,
        ttl: Duration,
        now: Instant,
    ) {
        let is_deaf = !peers_hear && !self.hears(ttl, now);
        let was_deaf = std::mem::replace(&mut self.is_deaf, is_deaf);
        let before = std::mem::take(&mut self.renewed);
        let anew = Renewal { at: now, ttl };
        let since = |id: &WorkerId| before.get(id).copied().unwrap_or(anew);
        let kept = mine.map(|id| {
            let since = if stood_still || was_deaf && !self.is_deaf {
                anew
            } else {
                since(id)
            };
            (id.clone(), since)
        });
        self.renewed = kept.collect();
        let renewed = &self.renewed;
        self.declared.retain(|id, _| renewed.contains_key(id));
    }

    /// Takes in which of the writers of leases leave.
    pub(super) fn see<'a>(
        &mut self,
        replicas: &[ReplicaInfo],
        writers: impl Iterator<Item = &'a ReplicaId>,
    ) {
        for replica in replicas {
            if replica.leaving {
                self.left.insert(replica.id.clone());
            } else if replica.live {
                self.left.remove(&replica.id);
            }
        }
        let known: BTreeSet<&ReplicaId> = writers.collect();
        self.left.retain(|id| known.contains(id));
    }

    /// Whether the writer of an entry that this replica answers for is another one, which did not leave. It may live on
    /// where this replica does not hear it, and take renewals.
    pub(super) fn is_taken_over(&self, own: &ReplicaId, entry: &Entry) -> bool {
        let writer = entry.writer.as_ref();
        writer.is_some_and(|writer| writer != own && !self.left.contains(writer))
    }

    /// `is_masked`: an operator removed the worker, so that nobody loses it with its lease. `is_kept`: it is there, and may
    /// be renewed where this replica does not hear it. Asked of silent ones only.
    pub(super) fn due(
        &self,
        entry: &Entry,
        is_masked: impl FnOnce() -> bool,
        is_kept: impl FnOnce() -> bool,
        config: &LeaseConfig,
        now: Instant,
    ) -> Due {
        let renewed = self.renewed.get(&entry.id);
        let silent = renewed.map_or(Duration::ZERO, |renewed| {
            now.saturating_duration_since(renewed.at)
        });
        let ttl = renewed.map_or(config.ttl, |renewed| renewed.ttl.max(config.ttl));
        let is_in_use = entry
            .spec
            .as_ref()
            .is_some_and(|spec| spec.state() != State::Draining);
        if silent <= ttl {
            return Due::Nothing;
        }
        let is_masked = is_masked();
        match () {
            () if self.is_deaf && !is_masked => Due::Nothing,
            () if is_in_use && !is_masked && is_kept() => Due::Nothing,
            () if silent > ttl + config.grace => Due::Remove,
            () if is_in_use && !is_masked => Due::StopUse,
            () => Due::Nothing,
        }
    }
}

/// Whether this replica answers for an entry: it wrote it, or its writer is gone and it is the first that lives.
pub(super) fn answers_for(own: &ReplicaId, writer: Option<&ReplicaId>, live: &[ReplicaId]) -> bool {
    let is_live = |replica: &ReplicaId| live.contains(replica);
    match writer {
        Some(writer) if writer == own || is_live(writer) => writer == own,
        _ => live.iter().all(|other| own <= other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use grapevine_gossip::worker::{RawWorker, Source, WorkerSpec};

    use super::*;
    use crate::discovery::LEASE_SOURCE;

    fn config() -> LeaseConfig {
        LeaseConfig::default()
    }

    fn id() -> WorkerId {
        "w".parse().expect("an id")
    }

    fn entry(state: State) -> Entry {
        let mut raw = RawWorker::at("http://w:8000");
        raw.state = state;
        Entry {
            id: id(),
            source: Source::provider(LEASE_SOURCE).expect("a name"),
            stamp: grapevine_gossip::hlc::Stamp::ZERO,
            writer: None,
            spec: Some(Arc::new(WorkerSpec::new(raw).expect("valid"))),
            unused_ms: 0,
        }
    }

    fn after(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// What is due at this second, when peers hear renewals or not.
    fn due(heard: &mut Heard, state: State, peers_hear: bool, now: Instant) -> Due {
        heard.follow([&id()].into_iter(), peers_hear, false, config().ttl, now);
        heard.due(&entry(state), || false, || false, &config(), now)
    }

    /// Looks at these seconds, at which peers hear renewals.
    fn looks<const N: usize>(heard: &mut Heard, start: Instant, steps: [(u64, State, Due); N]) {
        for (second, state, expected) in steps {
            let found = due(heard, state, true, after(second, start));
            assert_eq!(found, expected, "{second}");
        }
    }

    #[test]
    fn an_expired_lease_stops_use_then_removes() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        looks(
            &mut heard,
            start,
            [
                (30, State::Active, Due::Nothing),
                (31, State::Active, Due::StopUse),
                (330, State::Draining, Due::Nothing),
                (331, State::Draining, Due::Remove),
            ],
        );
        heard.renewal(&id(), config().ttl, after(332, start));
        looks(&mut heard, start, [(340, State::Active, Due::Nothing)]);
    }

    /// Whoever renewed was told the longer time, and comes again within that.
    #[test]
    fn a_shorter_time_is_for_later_renewals() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl * 10, start);
        let steps = [(31, Due::Nothing), (300, Due::Nothing), (301, Due::StopUse)];
        let steps = steps.map(|(second, expected)| (second, State::Active, expected));
        looks(&mut heard, start, steps);
    }

    #[test]
    fn the_lease_of_a_worker_that_an_operator_removed_expires_all_the_same() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        let mut due = |seconds| {
            let now = after(seconds, start);
            heard.follow([&id()].into_iter(), false, false, config().ttl, now);
            heard.due(&entry(State::Active), || true, || true, &config(), now)
        };
        let over = config().ttl + config().grace;
        assert_eq!(due(over.as_secs()), Due::Nothing, "nobody loses it");
        assert_eq!(due(over.as_secs() + 1), Due::Remove);
    }

    #[test]
    fn nothing_expires_while_nobody_hears() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        assert_eq!(
            due(&mut heard, State::Active, false, after(1000, start)),
            Due::Nothing
        );
        // Another worker's renewal comes through first: this one has its time.
        looks(
            &mut heard,
            start,
            [
                (1001, State::Active, Due::Nothing),
                (1031, State::Active, Due::Nothing),
                (1032, State::Active, Due::StopUse),
            ],
        );
    }

    /// One renewal of many has been taken in since it woke; the others wait in their connections.
    #[test]
    fn a_pause_of_this_replica_ends_no_lease() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        let woken = after(400, start);
        heard.last = Some(woken);
        heard.follow([&id()].into_iter(), true, true, config().ttl, woken);
        let due = heard.due(&entry(State::Active), || false, || false, &config(), woken);
        assert_eq!(due, Due::Nothing);
        let steps = [(430, Due::Nothing), (431, Due::StopUse)];
        let steps = steps.map(|(second, expected)| (second, State::Active, expected));
        looks(&mut heard, start, steps);
    }

    #[test]
    fn the_first_live_replica_follows() {
        let [one, two, three] =
            ["r1", "r2", "r3"].map(|id| id.parse::<ReplicaId>().expect("an id"));
        let all = [one.clone(), two.clone(), three.clone()];
        assert!(answers_for(&two, Some(&two), &all));
        assert!(!answers_for(&one, Some(&two), &all));
        let without_two = [one.clone(), three.clone()];
        assert!(answers_for(&one, Some(&two), &without_two));
        assert!(!answers_for(&three, Some(&two), &without_two));
        let (mut heard, start) = (Heard::default(), Instant::now());
        looks(
            &mut heard,
            start,
            [
                (0, State::Active, Due::Nothing),
                (30, State::Active, Due::Nothing),
                (31, State::Active, Due::StopUse),
            ],
        );
    }

    /// Its own writer may be alive beyond a broken link, and take renewals. One that was drained before is over.
    #[test]
    fn a_good_worker_outlives_a_writer_that_was_lost() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        let over = config().ttl + config().grace;
        heard.renewal(&id(), config().ttl, start);
        let mut due = |state, is_good, seconds| {
            let now = after(seconds, start);
            heard.follow([&id()].into_iter(), true, false, config().ttl, now);
            heard.due(&entry(state), || false, || is_good, &config(), now)
        };
        for seconds in [31, over.as_secs() + 1] {
            assert_eq!(due(State::Active, true, seconds), Due::Nothing, "{seconds}");
        }
        assert_eq!(due(State::Active, false, 31), Due::StopUse);
        let last = over.as_secs() + 1;
        assert_eq!(due(State::Active, false, last), Due::Remove);
        assert_eq!(due(State::Draining, true, last), Due::Remove);
    }

    #[test]
    fn a_writer_that_left_is_no_lost_one_until_it_is_back() {
        let [own, writer, other] =
            ["r1", "r2", "r3"].map(|id| id.parse::<ReplicaId>().expect("an id"));
        let of = |writer: &ReplicaId| Entry {
            writer: Some(writer.clone()),
            ..entry(State::Active)
        };
        let seen = |live, leaving| ReplicaInfo {
            id: writer.clone(),
            generation: 1,
            gossip_addr: ([127, 0, 0, 1], 1).into(),
            http: String::new(),
            admin: String::new(),
            version: String::new(),
            ready: true,
            leaving,
            live,
            registry: String::new(),
            settings: String::new(),
            ring: String::new(),
        };
        let mut heard = Heard::default();
        assert!(!heard.is_taken_over(&own, &of(&own)));
        assert!(!heard.is_taken_over(&own, &entry(State::Active)), "nobody");
        for (replicas, is_taken_over) in [
            (vec![seen(false, false)], true),
            (vec![seen(true, true)], false),
            (vec![], false),
            (vec![seen(false, false)], false),
            (vec![seen(true, false)], true),
            (vec![], true),
        ] {
            heard.see(&replicas, [&writer].into_iter());
            let found = heard.is_taken_over(&own, &of(&writer));
            assert_eq!(found, is_taken_over, "{replicas:?}");
        }
        heard.see(&[seen(true, true)], [&other].into_iter());
        assert!(heard.left.is_empty(), "as many as leases have writers");
    }

    #[test]
    fn a_renewal_anywhere_keeps_it() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        heard.renewal(&id(), config().ttl, start);
        // It renewed at another replica, which answers for it since.
        heard.follow([].into_iter(), true, false, config().ttl, after(20, start));
        looks(&mut heard, start, [(60, State::Active, Due::Nothing)]);
    }
}
