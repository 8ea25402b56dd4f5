//! What follows from pictures. Pure; instants are arguments.
//!
//! Each replica runs the rule for each source, on its own picture, the source's part of the replicated worker set, and
//! what the other replicas state. A statement says where a replica's picture differs from the worker set, so it is empty
//! most of the time: a replica that sees the source and objects to nothing sees what the set holds.

#[cfg(test)]
mod cut_tests;
mod memory;
mod others;
#[cfg(test)]
mod stale_tests;
mod statement;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::ReplicaInfo;
use grapevine_gossip::worker::{Labels, State, WorkerId, WorkerSpec};
use tokio::time::Instant;

use self::memory::{Memory, Situation};
use self::others::Others;
pub use self::statement::{
    Believed, Objection, PeerStatement, Statement, What, source_hash, worker_hash,
};
use self::statement::{Votes, spec_hash};
use crate::label::to_write;
use crate::picture::{Found, Picture};

/// How long the rule waits before it believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long nobody must see a worker before it is removed; a restart under the same name takes less.
    pub hold: Duration,
    /// The same where the picture has no worker at all; they stay in use meanwhile.
    pub empty_hold: Duration,
    /// How long one replica that still sees a worker holds it against most others; and how long one that was lost without
    /// leaving is taken for seeing all workers.
    pub contest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(30),
            empty_hold: Duration::from_secs(300),
            contest: Duration::from_secs(600),
        }
    }
}

/// Replicas write one after the other, this far apart, so that one write of a change is enough.
const TURN: Duration = Duration::from_millis(300);
/// How long two descriptions of a worker may differ before most replicas decide: longer than any replica's picture is
/// late.
const SETTLE: Duration = Duration::from_secs(10);

/// The source's part of the worker set: what it says of each worker, `None` for one that it removed.
pub type Entries = BTreeMap<WorkerId, Option<Arc<WorkerSpec>>>;

/// What the worker set holds beside this source's part.
pub trait WorkerSet {
    /// The labels of a worker that is in the set.
    fn labels(&self, id: &WorkerId) -> Option<Arc<Labels>>;

    /// Whether the worker would still be in use without this source: one whose word counts less declares it. Of two that
    /// let go of a worker at once, the one whose word counts less does not wait for the other.
    fn is_held_otherwise(&self, id: &WorkerId) -> bool;
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Workers to write into the registry.
    pub put: Vec<(WorkerId, WorkerSpec)>,
    /// Labels to add to workers, after those were written.
    pub label: Vec<(WorkerId, Labels)>,
    /// Workers that the source takes back.
    pub remove: Vec<WorkerId>,
    /// What the others are told.
    pub statement: Statement,
    /// For metrics and display.
    pub counts: Counts,
    /// When there may be something to do though nothing changes; none while nothing waits.
    pub next: Option<Instant>,
}

/// Workers of one source, as the registry and this replica's picture have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the registry.
    pub registered: usize,
    /// In this replica's picture, fresh or not; 0 before the first.
    pub seen: usize,
    /// Seen and ready.
    pub ready: usize,
    /// In the registry and seen by nobody: they end with the hold.
    pub missing: usize,
    /// Seen by some replicas and not by others, or perhaps by one that was lost without leaving; in the registry or not.
    /// Who misses a registered one counts it, and who sees a removed one.
    pub contested: usize,
}

/// The rule for one source on one replica.
#[derive(Debug)]
pub struct Rule {
    replica: ReplicaId,
    settings: Settings,
    memory: Memory,
    others: Others,
}

/// Everything that one step looks at, gathered.
struct Scene<'a> {
    now: Instant,
    picture: &'a Picture,
    votes: Votes<'a>,
    set: &'a dyn WorkerSet,
    /// How long this replica leaves a write to those before it.
    turn: Duration,
    is_emptied: bool,
}

/// What the step is to do about one worker.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Nothing,
    Put(WorkerSpec),
    Label(Labels),
    Remove,
}

impl Rule {
    /// A rule that remembers nothing yet.
    pub fn new(replica: ReplicaId, settings: Settings) -> Self {
        Self {
            replica,
            settings,
            memory: Memory::default(),
            others: Others::default(),
        }
    }

    /// Other times from now on; what waits already waits for as long as they say.
    pub fn change(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Looks at everything again. `picture` is this replica's, if it may be acted on ([`crate::Watcher::fresh`]);
    /// `set` is the registry beside this source;
    /// `peers` are the statements of the other live replicas about this source, `replicas` all that are known.
    pub fn step(
        &mut self,
        now: Instant,
        picture: Option<&Picture>,
        entries: &Entries,
        set: &dyn WorkerSet,
        peers: &[PeerStatement],
        replicas: &[ReplicaInfo],
    ) -> Step {
        let contest = self.settings.contest;
        self.others.look(peers, replicas, contest, now);
        let registered = entries.values().flatten().count();
        let Some(picture) = picture else {
            self.memory.forget_waits();
            return Step {
                counts: Counts {
                    registered,
                    ..Counts::default()
                },
                ..Step::default()
            };
        };
        self.memory.look(picture, entries);
        let votes = Votes::new(peers);
        let before = votes.seeing().filter(|peer| **peer < self.replica).count();
        let scene = Scene {
            now,
            picture,
            turn: TURN * before as u32,
            is_emptied: picture.is_empty(),
            votes,
            set,
        };
        let mut step = Step {
            counts: Counts {
                registered,
                seen: picture.len(),
                ready: picture.iter().filter(|(_, found)| found.is_ready()).count(),
                ..Counts::default()
            },
            ..Step::default()
        };
        let mut objections = Vec::new();
        let seen = picture.iter().map(|(id, _)| id);
        let all: BTreeSet<&WorkerId> = seen.chain(entries.keys()).collect();
        for id in all {
            let entry = entries.get(id);
            let (what, verdict) = self.judge(&scene, id, entry, &mut step);
            objections.extend(what.map(|what| Objection::new(id, what)));
            match verdict {
                Verdict::Nothing => {}
                Verdict::Put(spec) => {
                    let is_registered = entry.is_some_and(Option::is_some);
                    let labels = picture
                        .get(id)
                        .and_then(|found| self.labels_with(&scene, id, found, is_registered));
                    step.label.extend(labels.map(|labels| (id.clone(), labels)));
                    step.put.push((id.clone(), spec));
                }
                Verdict::Label(labels) => step.label.push((id.clone(), labels)),
                Verdict::Remove => step.remove.push(id.clone()),
            }
        }
        step.statement = Statement::seeing(objections);
        step.next = self.memory.take_next_look();
        step
    }

    /// What this replica objects to about one worker, and what it does.
    fn judge(
        &mut self,
        scene: &Scene<'_>,
        id: &WorkerId,
        entry: Option<&Option<Arc<WorkerSpec>>>,
        step: &mut Step,
    ) -> (Option<What>, Verdict) {
        match (scene.picture.get(id), entry) {
            // It may never become ready, and a place on the ring takes keys from others.
            (Some(found), None | Some(None)) if !found.is_ready() => self.settled(id),
            (Some(found), None) if !self.memory.is_removed(id) => {
                (None, self.add(scene, id, found))
            }
            (Some(found), None | Some(None)) => self.bring_back(scene, id, found, step),
            (Some(found), Some(Some(known))) => self.describe(scene, id, found, known),
            (None, Some(Some(known))) => self.let_go(scene, id, known, step),
            (None, Some(None) | None) => self.settled(id),
        }
    }

    /// Picture and registry agree. What was waited for before is over: a worker that is written again later is missed
    /// from then on, and not since it went the last time.
    fn settled(&mut self, id: &WorkerId) -> (Option<What>, Verdict) {
        self.memory.settle(id);
        (None, Verdict::Nothing)
    }

    /// A worker that the source never spoke of before.
    fn add(&mut self, scene: &Scene<'_>, id: &WorkerId, found: &Found) -> Verdict {
        let since = self.memory.waits_since(id, Situation::New, scene.now);
        self.after(scene, since + scene.turn, || {
            Verdict::Put(found.spec().clone())
        })
    }

    /// A worker that was removed, also where the registry has forgotten that, and that this replica sees.
    fn bring_back(
        &mut self,
        scene: &Scene<'_>,
        id: &WorkerId,
        found: &Found,
        step: &mut Step,
    ) -> (Option<What>, Verdict) {
        let put = || Verdict::Put(found.spec().clone());
        let since = self.memory.waits_since(id, Situation::Removed, scene.now);
        if self.memory.is_news(id) {
            return (
                Some(What::Removed),
                self.after(scene, since + scene.turn, put),
            );
        }
        let (seen, not_seen) = scene.votes.on(id, |what| what == What::Removed);
        // That it was decided between the replicas mends no list: it is so until they see the same.
        step.counts.contested += usize::from(not_seen > 0);
        let verdict = self.after(scene, since + self.settings.hold + scene.turn, || {
            if seen + 1 > not_seen {
                put()
            } else {
                Verdict::Nothing
            }
        });
        (Some(What::Removed), verdict)
    }

    /// A worker that this replica sees otherwise than it is registered.
    fn describe(
        &mut self,
        scene: &Scene<'_>,
        id: &WorkerId,
        found: &Found,
        known: &WorkerSpec,
    ) -> (Option<What>, Verdict) {
        if known.is_as_wanted(found.spec()) {
            return (None, self.label(scene, id, found));
        }
        let put = || Verdict::Put(found.spec().clone());
        let hash = spec_hash(found.spec());
        let what = Some(What::Differs(hash));
        let since = self
            .memory
            .waits_since(id, Situation::Differs(hash), scene.now);
        if self.memory.is_news(id) {
            return (what, self.after(scene, since + scene.turn, put));
        }
        let (with_me, _) = scene.votes.on(id, |what| what == What::Differs(hash));
        let (_, with_entry) = scene.votes.on(id, |_| true);
        let verdict = self.after(scene, since + SETTLE + scene.turn, || {
            if with_me + 1 > with_entry {
                put()
            } else {
                Verdict::Nothing
            }
        });
        (what, verdict)
    }

    /// The labels that go with a description: its reader understands the one by the other.
    fn labels_with(
        &self,
        scene: &Scene<'_>,
        id: &WorkerId,
        found: &Found,
        is_registered: bool,
    ) -> Option<Labels> {
        let wanted = Some(found.labels()).filter(|labels| !labels.is_empty())?;
        if !is_registered {
            // What is known of them already writes nothing.
            return Some(wanted.clone());
        }
        let known = scene.set.labels(id)?;
        to_write(&known, wanted, self.memory.has_new_labels(id))
    }

    /// A worker that is registered as this replica sees it, perhaps without all of its labels. What differs in labels
    /// alone is no objection: others may know better.
    fn label(&mut self, scene: &Scene<'_>, id: &WorkerId, found: &Found) -> Verdict {
        let Some(labels) = self.labels_with(scene, id, found, true) else {
            self.memory.settle(id);
            self.memory.settle_labels(id);
            return Verdict::Nothing;
        };
        let since = self
            .memory
            .waits_since(id, Situation::Unlabelled, scene.now);
        self.after(scene, since + scene.turn, || Verdict::Label(labels))
    }

    /// A registered worker that this replica does not see.
    fn let_go(
        &mut self,
        scene: &Scene<'_>,
        id: &WorkerId,
        known: &WorkerSpec,
        step: &mut Step,
    ) -> (Option<What>, Verdict) {
        let what = Some(What::Missing);
        let since = self.memory.waits_since(id, Situation::Missing, scene.now);
        let (missing, seen) = scene.votes.on(id, |what| what == What::Missing);
        // Who is cut off cannot object: it counts as one that does, and not for ever.
        let seen = seen + self.others.unheard();
        if let Some(at) = self.others.next_forgotten(self.settings.contest) {
            self.memory.look_again(at);
        }
        if seen > 0 {
            step.counts.contested += 1;
            self.memory.contest(id);
            let until = since + self.settings.contest + scene.turn;
            let verdict = self.after(scene, until, || {
                if missing + 1 > seen {
                    Verdict::Remove
                } else {
                    Verdict::Nothing
                }
            });
            return (what, verdict);
        }
        step.counts.missing += 1;
        let since = self.memory.agreed_since(id, scene.is_emptied, scene.now);
        let hold = if scene.is_emptied {
            self.settings.empty_hold
        } else {
            self.settings.hold
        };
        let remove_at = since + hold + scene.turn;
        if scene.now >= remove_at {
            return (what, Verdict::Remove);
        }
        // All at once is a mistake more often than an intention, and without them nothing would be served. Checks find
        // those that are really gone. And a worker is there until the last source lets go of it.
        if scene.is_emptied || scene.set.is_held_otherwise(id) {
            self.memory.look_again(remove_at);
            return (what, Verdict::Nothing);
        }
        // Its place on the ring stays for the time of the hold; new prompts would wait for nothing there.
        if known.state() != State::Draining
            && scene.now >= since + scene.turn
            && let Ok(drained) = Found::new(known, false)
        {
            return (what, Verdict::Put(drained.spec().clone()));
        }
        let drain_at = since + scene.turn;
        self.memory.look_again(if known.state() == State::Draining {
            drain_at + hold
        } else {
            drain_at
        });
        (what, Verdict::Nothing)
    }

    /// `act`, once `until` is there; before, a look at that time.
    fn after(
        &mut self,
        scene: &Scene<'_>,
        until: Instant,
        act: impl FnOnce() -> Verdict,
    ) -> Verdict {
        if scene.now >= until {
            act()
        } else {
            self.memory.look_again(until);
            Verdict::Nothing
        }
    }
}
