//! What changed between two looks at the cluster, as marks. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::worker::{State, WorkerSpec};

use super::marks::{Kind, Mark, Subject};
use crate::shown::difference;
use crate::shown::trouble::RETURNING;

/// What is wrong with a worker that was well and is on its way back.
const FAILED: &str = "failing checks";
/// So many workers to which the same happens at once are one mark.
const TOGETHER: usize = 4;
/// Of these, so many are named by it; the page shows how many more there were.
pub const NAMED_MAX: usize = 32;

/// A replica, as it is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaSeen {
    /// Rises with each of its starts.
    pub generation: u64,
    /// Alive.
    pub is_live: bool,
    /// Takes traffic.
    pub is_ready: bool,
    /// Told to end.
    pub is_leaving: bool,
}

/// Parts of a description of which a change is a mark. What an engine itself says of its models may change each minute,
/// and would leave no room for faults.
const MARKED: [&str; 5] = ["url", "role", "weight", "max_in_flight", "zone"];

/// A worker, as it is seen.
#[derive(Debug, Clone)]
pub struct WorkerSeen {
    /// What is wrong with it, in words.
    pub trouble: Option<&'static str>,
    /// How it is described.
    pub spec: Arc<WorkerSpec>,
}

impl WorkerSeen {
    fn state(&self) -> &'static str {
        self.spec.state().as_str()
    }
}

/// What is wrong for as long as it lasts. It is told once it has lasted for [`TOLD_AFTER`]: a limit of requests, or a link
/// that is slow, may begin and end it each few seconds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// A replica that lives is not heard by this one.
    Unheard {
        /// The one that is not heard.
        replica: String,
        /// This one.
        by: String,
    },
    /// Every worker that could take requests for this model asked to be left alone.
    LeftAlone(String),
}

/// For so long it lasts before it is told.
pub const TOLD_AFTER: Duration = Duration::from_secs(10);

/// How long something has lasted.
#[derive(Debug)]
struct Lasting {
    since: Duration,
    is_told: bool,
}

/// Remembers the latest look.
#[derive(Debug, Default)]
pub struct Watcher {
    replicas: Option<BTreeMap<String, ReplicaSeen>>,
    /// Replicas that were seen alive; at first they are names that others have told of.
    were_alive: BTreeSet<String>,
    workers: Option<BTreeMap<String, WorkerSeen>>,
    conditions: BTreeMap<Condition, Lasting>,
}

impl Watcher {
    /// What became of replicas since the latest look; the first look finds nothing.
    pub fn replicas(&mut self, at: Duration, now: BTreeMap<String, ReplicaSeen>) -> Vec<Mark> {
        let before = self.replicas.take();
        let marks = before.map_or_else(Vec::new, |before| {
            of_replicas(at, &before, &now, &self.were_alive)
        });
        self.were_alive.retain(|id| now.contains_key(id));
        let alive = now.iter().filter(|(_, is)| is.is_live);
        self.were_alive.extend(alive.map(|(id, _)| id.clone()));
        self.replicas = Some(now);
        marks
    }

    /// What became of workers since the latest look; the first look finds nothing.
    pub fn workers(&mut self, at: Duration, mut now: BTreeMap<String, WorkerSeen>) -> Vec<Mark> {
        let before = self.workers.take();
        // On its way back nothing new is wrong with it: until it is used it has what it had. What that was is not known of
        // one that failed and answered between two looks.
        for (id, is) in now
            .iter_mut()
            .filter(|(_, is)| is.trouble == Some(RETURNING))
        {
            let was = before.as_ref().and_then(|before| before.get(id)?.trouble);
            is.trouble = was.or(Some(FAILED));
        }
        let marks = before.map_or_else(Vec::new, |before| of_workers(at, &before, &now));
        self.workers = Some(now);
        marks
    }

    /// Of what is wrong now, what has lasted for long enough; and what was told and is over.
    pub fn conditions(&mut self, at: Duration, now: BTreeSet<Condition>) -> Vec<Mark> {
        let mut told = Vec::new();
        self.conditions.retain(|condition, lasting| {
            let stays = now.contains(condition);
            // One that died is not heard again.
            if !stays && lasting.is_told && !is_of_dead(condition, self.replicas.as_ref()) {
                told.push((Kind::Repair, condition.clone()));
            }
            stays
        });
        for condition in now {
            let lasting = self.conditions.entry(condition.clone());
            let lasting = lasting.or_insert(Lasting {
                since: at,
                is_told: false,
            });
            if !lasting.is_told && at.saturating_sub(lasting.since) >= TOLD_AFTER {
                lasting.is_told = true;
                told.push((Kind::Fault, condition));
            }
        }
        of_conditions(at, told)
    }
}

fn is_of_dead(condition: &Condition, replicas: Option<&BTreeMap<String, ReplicaSeen>>) -> bool {
    let Condition::Unheard { replica, .. } = condition else {
        return false;
    };
    let known = replicas.and_then(|replicas| replicas.get(replica));
    !known.is_some_and(|is| is.is_live)
}

fn of_conditions(at: Duration, told: Vec<(Kind, Condition)>) -> Vec<Mark> {
    let mark = |kind, subject, text: String| Mark {
        at,
        kind,
        subject,
        text,
    };
    let mut models: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
    let mut marks = Vec::new();
    for (kind, condition) in told {
        match condition {
            Condition::Unheard { replica, by } => {
                let text = match kind {
                    Kind::Fault => format!("is not heard by {by}"),
                    _ => format!("is heard by {by} again"),
                };
                marks.push(mark(kind, Subject::Replica(replica), text));
            }
            Condition::LeftAlone(model) => models.entry(kind).or_default().push(model),
        }
    }
    marks.extend(models.into_iter().map(|(kind, mut names)| {
        let wait = if names.len() == 1 { "waits" } else { "wait" };
        let text = match kind {
            Kind::Fault => format!("{wait} for workers: every usable one asked to be left alone"),
            _ => format!("no longer {wait} for workers that asked to be left alone"),
        };
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        mark(kind, Subject::Models(names, more), text)
    }));
    marks
}

fn of_replicas(
    at: Duration,
    before: &BTreeMap<String, ReplicaSeen>,
    now: &BTreeMap<String, ReplicaSeen>,
    were_alive: &BTreeSet<String>,
) -> Vec<Mark> {
    let mark = |id: &String, (kind, text): (Kind, &str)| Mark {
        at,
        kind,
        subject: Subject::Replica(id.clone()),
        text: text.to_owned(),
    };
    let is_known = |id: &String| were_alive.contains(id);
    let gone = before
        .keys()
        .filter(|id| !now.contains_key(*id) && is_known(id));
    let gone = gone.map(|id| mark(id, (Kind::Change, "is gone")));
    let changed = now.iter().filter_map(|(id, is)| {
        let what = match before.get(id).filter(|_| is_known(id)) {
            None => is.is_live.then_some((Kind::Change, "joined")),
            Some(was) => change_of_replica(was, is),
        };
        Some(mark(id, what?))
    });
    gone.chain(changed).collect()
}

fn of_workers(
    at: Duration,
    before: &BTreeMap<String, WorkerSeen>,
    now: &BTreeMap<String, WorkerSeen>,
) -> Vec<Mark> {
    let mut found: BTreeMap<(Kind, String), Vec<String>> = BTreeMap::new();
    let mut note = |id: &String, kind: Kind, text: String| {
        let of_kind = found.entry((kind, text)).or_default();
        of_kind.push(id.clone());
    };
    for id in before.keys().filter(|id| !now.contains_key(*id)) {
        note(id, Kind::Change, "was removed".to_owned());
    }
    for (id, is) in now {
        match before.get(id) {
            None => note(id, Kind::Change, format!("was added, {}", is.state())),
            Some(was) => {
                for (kind, text) in changes_of_worker(was, is) {
                    note(id, kind, text);
                }
            }
        }
    }
    let marks = found.into_iter();
    let marks = marks.flat_map(|((kind, text), ids)| marks_of(at, kind, &text, ids));
    marks.collect()
}

fn marks_of(at: Duration, kind: Kind, text: &str, ids: Vec<String>) -> Vec<Mark> {
    let mark = |subject, text: &str| Mark {
        at,
        kind,
        subject,
        text: text.to_owned(),
    };
    if ids.len() <= TOGETHER {
        let alone = ids.into_iter().map(|id| mark(Subject::Worker(id), text));
        return alone.collect();
    }
    let more = ids.len().saturating_sub(NAMED_MAX);
    let named = ids.into_iter().take(NAMED_MAX).collect();
    let text = match text.split_once(' ') {
        Some(("is", what)) => format!("are {what}"),
        Some(("was", what)) => format!("were {what}"),
        _ => text.to_owned(),
    };
    vec![mark(Subject::Workers(named, more), &text)]
}

fn change_of_replica(was: &ReplicaSeen, is: &ReplicaSeen) -> Option<(Kind, &'static str)> {
    if was.is_live && !is.is_live {
        // It may have said so and ended between two looks.
        return Some(match was.is_leaving || is.is_leaving {
            true => (Kind::Change, "left"),
            false => (Kind::Fault, "is dead"),
        });
    }
    if !is.is_live {
        return None;
    }
    if !was.is_live {
        Some((Kind::Repair, "is alive again"))
    } else if is.generation > was.generation {
        Some((Kind::Change, "started anew"))
    } else if !was.is_leaving && is.is_leaving {
        Some((Kind::Change, "is leaving"))
    } else if was.is_ready && !is.is_ready && !is.is_leaving {
        Some((Kind::Fault, "is not ready"))
    } else if !was.is_ready && is.is_ready {
        Some((Kind::Repair, "is ready"))
    } else {
        None
    }
}

fn changes_of_worker(was: &WorkerSeen, is: &WorkerSeen) -> Vec<(Kind, String)> {
    let mut changes = Vec::new();
    if was.state() != is.state() {
        let text = format!("is {} (was {})", is.state(), was.state());
        changes.push((Kind::Change, text));
    }
    if !Arc::ptr_eq(&was.spec, &is.spec) {
        let parts = difference::of_descriptions(&was.spec, &is.spec).into_iter();
        let parts = parts.filter(|change| MARKED.contains(&change.part.as_str()));
        changes.extend(parts.map(|change| (Kind::Change, format!("was changed, {change}"))));
    }
    match (was.trouble, is.trouble) {
        // Of one that is drained nobody asks how it is.
        (Some(_), None) if is.spec.state() == State::Draining => {}
        (Some(was), None) => changes.push((Kind::Repair, format!("is well again (was {was})"))),
        (was, Some(is)) if was != Some(is) => changes.push((Kind::Fault, format!("is {is}"))),
        _ => {}
    }
    changes
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::RawWorker;

    use super::*;

    const AT: Duration = Duration::from_secs(7);

    fn spec(change: impl FnOnce(&mut RawWorker)) -> Arc<WorkerSpec> {
        let mut raw = RawWorker::at("http://w:8000");
        change(&mut raw);
        Arc::new(WorkerSpec::new(raw).expect("valid"))
    }

    fn texts(marks: &[Mark]) -> Vec<String> {
        let text = |mark: &Mark| {
            let who = match &mark.subject {
                Subject::Worker(id) | Subject::Replica(id) => id.clone(),
                Subject::Workers(ids, more) => format!("{}+{more}", ids.len()),
                Subject::Models(..) => mark.who(),
            };
            format!("{}: {who} {}", mark.kind.as_str(), mark.text)
        };
        marks.iter().map(text).collect()
    }

    #[test]
    fn a_replica_that_dies_comes_back_joins_or_leaves_is_marked() {
        let seen = |generation, is_live, is_ready, is_leaving| ReplicaSeen {
            generation,
            is_live,
            is_ready,
            is_leaving,
        };
        let well = seen(1, true, true, false);
        let look = |list: &[(&str, ReplicaSeen)]| {
            let list = list.iter().map(|(id, seen)| ((*id).to_owned(), *seen));
            list.collect::<BTreeMap<_, _>>()
        };
        let mut watcher = Watcher::default();
        assert!(watcher.replicas(AT, look(&[("r1", well)])).is_empty());
        let mut check = |now: &[(&str, ReplicaSeen)], expected: &[&str]| {
            assert_eq!(texts(&watcher.replicas(AT, look(now))), expected);
        };
        check(&[("r1", well), ("r2", well)], &["change: r2 joined"]);
        let dead = seen(1, false, true, false);
        check(&[("r1", well), ("r2", dead)], &["fault: r2 is dead"]);
        check(&[("r1", well), ("r2", dead)], &[]);
        let anew = seen(2, true, false, false);
        check(
            &[("r1", well), ("r2", anew)],
            &["repair: r2 is alive again"],
        );
        let again = seen(3, true, false, false);
        check(&[("r1", well), ("r2", again)], &["change: r2 started anew"]);
        let ready = seen(3, true, true, false);
        check(&[("r1", well), ("r2", ready)], &["repair: r2 is ready"]);
        let leaving = seen(3, true, false, true);
        check(&[("r1", well), ("r2", leaving)], &["change: r2 is leaving"]);
        let left = seen(3, false, false, true);
        check(&[("r1", well), ("r2", left)], &["change: r2 left"]);
        check(&[("r1", well)], &["change: r2 is gone"]);
        // It says that it leaves, and ends, between two looks.
        check(&[("r1", well), ("r2", well)], &["change: r2 joined"]);
        check(&[("r1", well), ("r2", left)], &["change: r2 left"]);
        check(&[("r1", well)], &["change: r2 is gone"]);
        // At first a replica is a name that others tell of.
        let named = seen(1, false, false, false);
        check(&[("r1", well), ("r3", named)], &[]);
        check(&[("r1", well), ("r3", well)], &["change: r3 joined"]);
        check(&[("r1", well), ("r4", named)], &["change: r3 is gone"]);
        check(&[("r1", well)], &[]);
    }

    #[test]
    fn what_lasts_is_told_once_and_when_it_is_over() {
        let unheard = |id: &str| Condition::Unheard {
            replica: id.to_owned(),
            by: "r1".to_owned(),
        };
        let paused = |model: &str| Condition::LeftAlone(model.to_owned());
        let replicas = |is_live| {
            let seen = ReplicaSeen {
                generation: 1,
                is_live,
                is_ready: true,
                is_leaving: false,
            };
            ["r2", "r3"].map(|id| (id.to_owned(), seen)).into()
        };
        let mut watcher = Watcher::default();
        watcher.replicas(AT, replicas(true));
        let look = |watcher: &mut Watcher, s: u64, now: &[Condition]| {
            let now = now.iter().cloned().collect();
            texts(&watcher.conditions(AT + Duration::from_secs(s), now))
        };
        // Each few seconds it is over, and there again: a limit of requests.
        for s in 0..40 {
            let now = [paused("a")];
            let now = if s % 10 == 9 { &[][..] } else { &now };
            assert_eq!(look(&mut watcher, s, now), [""; 0]);
        }
        let all = [unheard("r2"), unheard("r3"), paused("a"), paused("b")];
        for s in 40..50 {
            assert_eq!(look(&mut watcher, s, &all), [""; 0]);
        }
        let told = look(&mut watcher, 50, &all);
        let expected = [
            "fault: r2 is not heard by r1",
            "fault: r3 is not heard by r1",
            "fault: a, b wait for workers: every usable one asked to be left alone",
        ];
        assert_eq!(told, expected);
        assert_eq!(look(&mut watcher, 51, &all), [""; 0], "once");
        let told = look(&mut watcher, 60, &all[1..3]);
        let expected = [
            "repair: r2 is heard by r1 again",
            "repair: b no longer waits for workers that asked to be left alone",
        ];
        assert_eq!(told, expected);
        watcher.replicas(AT, replicas(false));
        assert_eq!(look(&mut watcher, 61, &all[2..3]), [""; 0], "it is dead");
    }

    #[test]
    fn workers_that_change_together_are_one_mark() {
        let seen = |trouble| WorkerSeen {
            trouble,
            spec: spec(|_| {}),
        };
        let look = |count: usize, seen: &WorkerSeen| {
            let workers = (0..count).map(|n| (format!("w{n:03}"), seen.clone()));
            workers.collect::<BTreeMap<_, _>>()
        };
        let well = &seen(None);
        let mut watcher = Watcher::default();
        assert!(watcher.workers(AT, look(3, well)).is_empty());
        let mut check = |count, seen: &WorkerSeen, expected: &[&str]| {
            assert_eq!(texts(&watcher.workers(AT, look(count, seen))), expected);
        };
        check(4, well, &["change: w003 was added, active"]);
        check(40, well, &["change: 32+4 were added, active"]);
        let silent = seen(Some("giving no tokens"));
        check(40, &silent, &["fault: 32+8 are giving no tokens"]);
        let again = "repair: 32+8 are well again (was giving no tokens)";
        check(40, well, &[again]);
        check(2, well, &["change: 32+6 were removed"]);
        let both = ["fault: w000 is unreachable", "fault: w001 is unreachable"];
        check(2, &seen(Some("unreachable")), &both);
        check(2, &seen(Some(RETURNING)), &[]);
        let well_again = "is well again (was unreachable)";
        let both = ["w000", "w001"].map(|id| format!("repair: {id} {well_again}"));
        check(2, well, &[&both[0], &both[1]]);
        // It failed and answered between two looks.
        let both = ["w000", "w001"].map(|id| format!("fault: {id} is failing checks"));
        check(2, &seen(Some(RETURNING)), &[&both[0], &both[1]]);
        check(2, &seen(Some(RETURNING)), &[]);
        let both =
            ["w000", "w001"].map(|id| format!("repair: {id} is well again (was failing checks)"));
        check(2, well, &[&both[0], &both[1]]);
    }

    #[test]
    fn a_description_that_is_written_anew_is_marked_by_its_parts() {
        let mut watcher = Watcher::default();
        let mut check = |spec, expected: &[&str]| {
            let seen = WorkerSeen {
                trouble: None,
                spec,
            };
            let now = BTreeMap::from([("w1".to_owned(), seen)]);
            assert_eq!(texts(&watcher.workers(AT, now)), expected);
        };
        check(spec(|_| {}), &[]);
        check(spec(|_| {}), &[]);
        let heavy = |raw: &mut RawWorker| raw.weight_milli = 2_500;
        check(spec(heavy), &["change: w1 was changed, weight: 1 -> 2.5"]);
        let learned = |raw: &mut RawWorker| {
            heavy(raw);
            raw.models = vec!["a".to_owned()];
        };
        check(spec(learned), &[]);
        let drained = |raw: &mut RawWorker| {
            learned(raw);
            raw.state = State::Draining;
            raw.max_in_flight = Some(8);
        };
        let both = [
            "change: w1 is draining (was active)",
            "change: w1 was changed, max_in_flight: none -> 8",
        ];
        check(spec(drained), &both);
    }

    #[test]
    fn one_in_trouble_that_is_drained_is_not_well_again() {
        let seen = |state: State, trouble| WorkerSeen {
            trouble,
            spec: spec(|raw| raw.state = state),
        };
        let mut watcher = Watcher::default();
        let mut check = |now: WorkerSeen, expected: &[&str]| {
            let marks = watcher.workers(AT, BTreeMap::from([("w1".to_owned(), now)]));
            assert_eq!(texts(&marks), expected);
        };
        check(seen(State::Active, Some("unreachable")), &[]);
        check(
            seen(State::Draining, None),
            &["change: w1 is draining (was active)"],
        );
        let back = [
            "fault: w1 is unreachable",
            "change: w1 is active (was draining)",
        ];
        check(seen(State::Active, Some("unreachable")), &back);
    }
}
