//! How far each peer was sent our batches and our heat.
//!
//! No queue for each peer: all follow the one log. A peer that is slow, or was away for a moment, goes
//! on where it stopped; if the log has moved on meanwhile, the oldest batches are skipped for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::config::EvidenceConfig;
use crate::evidence::{Batch, Gap, HeatReport, Log, Mark, Record};
use crate::replica::ReplicaId;
use crate::wire::Message;

#[derive(Debug)]
pub(crate) struct Outbox {
    bytes_per_s: u32,
    log: Log,
    courses: BTreeMap<ReplicaId, Course>,
}

/// One peer.
#[derive(Debug)]
struct Course {
    /// A restarted peer starts over: with a snapshot.
    generation: u64,
    next: u64,
    budget: Budget,
    marked: Option<Instant>,
    heat: Option<(u64, Instant)>,
    linked: Instant,
}

/// What could not be sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Withheld {
    /// Batches that left the log before a peer was sent them.
    pub(crate) skipped: u64,
    /// Peers for which batches wait because the budget is spent.
    pub(crate) throttled: u64,
}

impl Outbox {
    /// Nothing sent yet.
    pub(crate) fn new(config: &EvidenceConfig) -> Self {
        Self {
            bytes_per_s: config.peer_bytes_per_s,
            log: Log::new(config.log_bytes),
            courses: BTreeMap::new(),
        }
    }

    pub(crate) fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    /// Number of the next batch.
    pub(crate) fn head(&self) -> u64 {
        self.log.next()
    }

    /// Sends every linked peer (with its generation) what is due. `send` takes a message or, while
    /// the peer's connection is behind, does not: then it is offered again next time.
    pub(crate) fn send(
        &mut self,
        linked: &[(ReplicaId, u64)],
        heat: Option<&Arc<HeatReport>>,
        now: Instant,
        mut send: impl FnMut(&ReplicaId, &Message) -> bool,
    ) -> Withheld {
        let mut withheld = Withheld::default();
        for (peer, generation) in linked {
            let rate = self.bytes_per_s;
            let courses = &mut self.courses;
            let course = Self::course(courses, &self.log, rate, peer, *generation, now);
            course.linked = now;
            course.send(&self.log, heat, now, &mut withheld, |message| {
                send(peer, message)
            });
        }
        self.courses
            .retain(|_, course| now.saturating_duration_since(course.linked) < COURSE_KEPT);
        withheld
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(crate) fn remembers(&self, peer: &ReplicaId) -> bool {
        let Self {
            bytes_per_s: _,
            log: _,
            courses,
        } = self;
        courses.contains_key(peer)
    }

    /// Answers a peer that missed batches: what is kept, and as much of it as its budget allows.
    pub(crate) fn pulled(
        &mut self,
        peer: &ReplicaId,
        generation: u64,
        gaps: &[Gap],
        now: Instant,
    ) -> Vec<Message> {
        let rate = self.bytes_per_s;
        let course = Self::course(&mut self.courses, &self.log, rate, peer, generation, now);
        let mut answer = vec![Message::EvidenceMark(course.mark(&self.log))];
        for number in gaps.iter().flat_map(|gap| gap.start..gap.end) {
            let Some(batch) = self.log.get(number) else {
                continue;
            };
            if !course.budget.is_open(now) {
                break;
            }
            course.budget.spend(batch.wire_len());
            answer.push(Message::Evidence(batch.clone()));
        }
        answer
    }

    /// The course of a peer; a new one starts with what is sent from now on.
    fn course<'a>(
        courses: &'a mut BTreeMap<ReplicaId, Course>,
        log: &Log,
        bytes_per_s: u32,
        peer: &ReplicaId,
        generation: u64,
        now: Instant,
    ) -> &'a mut Course {
        if courses
            .get(peer)
            .is_some_and(|course| course.generation != generation)
        {
            courses.remove(peer);
        }
        courses.entry(peer.clone()).or_insert_with(|| Course {
            generation,
            next: log.next(),
            budget: Budget::new(bytes_per_s, bytes_per_s, now),
            marked: None,
            heat: None,
            linked: now,
        })
    }
}

impl Course {
    fn send(
        &mut self,
        log: &Log,
        heat: Option<&Arc<HeatReport>>,
        now: Instant,
        withheld: &mut Withheld,
        mut send: impl FnMut(&Message) -> bool,
    ) {
        let is_due = |last: Option<Instant>, interval| {
            last.is_none_or(|last| now.saturating_duration_since(last) >= interval)
        };
        // Small, rare, and what the others' hot set hangs on: before everything else.
        if let Some(heat) = heat {
            let is_news = self.heat.is_none_or(|(version, _)| version != heat.version);
            let interval = if is_news { HEAT_PAUSE } else { HEAT_REFRESH };
            if is_due(self.heat.map(|(_, at)| at), interval) && send(&Message::Heat(heat.clone())) {
                self.heat = Some((heat.version, now));
            }
        }
        withheld.skipped += log.first().saturating_sub(self.next);
        self.next = self.next.max(log.first());
        while let Some(batch) = log.get(self.next) {
            if !self.budget.is_open(now) {
                withheld.throttled += 1;
                break;
            }
            if !send(&Message::Evidence(batch.clone())) {
                break;
            }
            self.budget.spend(batch.wire_len());
            self.next += 1;
        }
        // The last batch before a pause may be lost, too; and a mark shows that this replica is there.
        if is_due(self.marked, MARK_INTERVAL) && send(&Message::EvidenceMark(self.mark(log))) {
            self.marked = Some(now);
        }
    }

    /// Up to what was sent, and not to the end of the log: the peer would take what waits for its budget for lost, and
    /// ask for it.
    fn mark(&self, log: &Log) -> Mark {
        let first = log.first();
        Mark {
            first,
            next: self.next.max(first),
        }
    }
}

impl Batch {
    fn wire_len(&self) -> usize {
        const FRAME: usize = 40;
        FRAME + self.records.iter().map(Record::wire_len).sum::<usize>()
    }
}

/// How often a replica sends its mark.
const MARK_INTERVAL: Duration = Duration::from_secs(1);
/// Between two reports, at least: what comes faster is skipped for the latest.
const HEAT_PAUSE: Duration = Duration::from_millis(400);
/// How often an unchanged report is sent again: heals a lost one.
const HEAT_REFRESH: Duration = Duration::from_secs(3);
/// How long an unconnected peer can go on where it stopped. The log seldom reaches back further.
const COURSE_KEPT: Duration = Duration::from_secs(60);
