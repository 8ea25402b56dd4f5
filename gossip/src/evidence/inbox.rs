//! What the other replicas sent: every batch once, gaps found and asked for, heat by version.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::early::Early;
use super::kept::Kept;
use super::known_workers::Fit;
use super::sequence::{Arrival, Sequence};
use super::{
    Batch, EvidenceEvent, Gap, HEADS_MAX, Head, HeatReport, KnownWorkers, LOG_BATCHES_MAX, Mark,
    Record,
};
use crate::budget::Budget;
use crate::config::EvidenceConfig;
use crate::replica::ReplicaId;

pub(crate) struct Inbox {
    config: EvidenceConfig,
    senders: BTreeMap<ReplicaId, Sender>,
    /// About replicas that are silent now: generation and head, from snapshots, or from the time
    /// before they fell silent.
    hints: Kept<(u64, u64)>,
    /// What each may still cost us by our own settings: also those that only ask, and never send.
    allowances: Kept<Budget>,
    /// Records about workers, or epochs, that are not known yet.
    early: Early,
}

/// One other replica, in one generation.
struct Sender {
    generation: u64,
    /// `None` until the first message about batches.
    sequence: Option<Sequence>,
    heat: Option<u64>,
    received_at: Instant,
    /// The listener has not got the end of it.
    is_present: bool,
    /// No pull before this; far away while one is under way.
    pull_at: Instant,
}

/// A question to a sender: send these again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    pub(crate) from: ReplicaId,
    pub(crate) gaps: Vec<Gap>,
}

/// What a message brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) events: Vec<EvidenceEvent>,
    /// Records about workers that left or restarted, or did not become known.
    pub(crate) stale: usize,
    /// Batches that came in order, closed a gap, or had come before; and batches given up.
    pub(crate) fresh: u64,
    pub(crate) late: u64,
    pub(crate) duplicate: u64,
    pub(crate) lost: u64,
}

impl Inbox {
    /// Nothing received yet.
    pub(crate) fn new(config: &EvidenceConfig) -> Self {
        Self {
            config: config.clone(),
            senders: BTreeMap::new(),
            hints: Kept::default(),
            allowances: Kept::default(),
            early: Early::default(),
        }
    }

    /// Charges a peer for what it costs us. False if it sends or asks more than one with our settings does. A restart does
    /// not fill its allowance.
    pub(crate) fn charge(&mut self, from: &ReplicaId, bytes: usize, now: Instant) -> bool {
        let (per_s, burst) = (self.config.allowed_per_s(), self.config.allowed_burst());
        let new = || Budget::new(per_s, burst, now);
        let allowance = self.allowances.touch(from, new);
        let is_open = allowance.is_open(now);
        if is_open {
            allowance.spend(bytes);
        }
        is_open
    }

    /// Takes a batch that a sender pushed.
    pub(crate) fn batch(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        batch: Batch,
        known_workers: &KnownWorkers,
        now: Instant,
    ) -> Outcome {
        let (start, lost) = self.start(from, generation, batch.number, now);
        let Some((sender, mut outcome)) = self.sender(from, generation, now) else {
            return Outcome::default();
        };
        outcome.lose(from, lost);
        let records = sender.take(from, start, batch, now, &mut outcome);
        self.sift(from, records, known_workers, now, &mut outcome);
        outcome
    }

    /// Takes a sender's mark.
    pub(crate) fn mark(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        mark: Mark,
        now: Instant,
    ) -> Outcome {
        let (start, lost) = self.start(from, generation, mark.next, now);
        let Some((sender, mut outcome)) = self.sender(from, generation, now) else {
            return Outcome::default();
        };
        outcome.lose(from, lost);
        let sequence = sender.sequence.get_or_insert(start);
        outcome.lose(from, sequence.mark(mark.first, mark.next, now));
        outcome
    }

    /// Takes a heat report, if it is newer than the last one.
    pub(crate) fn heat(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        report: HeatReport,
        now: Instant,
    ) -> Outcome {
        let Some((sender, mut outcome)) = self.sender(from, generation, now) else {
            return Outcome::default();
        };
        if sender.heat.is_none_or(|version| version < report.version) {
            sender.heat = Some(report.version);
            outcome.events.push(EvidenceEvent::Heat {
                from: from.clone(),
                report,
            });
        }
        outcome
    }

    /// Takes the heads of a snapshot: what its sender had received need not be received again, and what
    /// came after it must be.
    pub(crate) fn take_heads(&mut self, heads: Vec<Head>, now: Instant) {
        for head in heads {
            match self.senders.get_mut(&head.replica) {
                Some(sender) if sender.sequence.is_some() => {
                    if sender.generation == head.generation
                        && let Some(sequence) = &mut sender.sequence
                    {
                        sequence.reach_back(head.next, now);
                    }
                }
                _ => self.remember(&head.replica, head.generation, head.next),
            }
        }
    }

    /// How much of every sender's batches has been received.
    pub(crate) fn heads(&self) -> Vec<Head> {
        let head = |(id, sender): (&ReplicaId, &Sender)| {
            Some(Head {
                replica: id.clone(),
                generation: sender.generation,
                next: sender.sequence.as_ref()?.complete_below(),
            })
        };
        self.senders
            .iter()
            .filter_map(head)
            .take(HEADS_MAX)
            .collect()
    }

    /// The pulls that are due; each must be answered by [`Inbox::pulled`]. None from a sender that sends too much already:
    /// what is dropped of it would come again.
    pub(crate) fn pulls(&mut self, now: Instant) -> Vec<Pull> {
        let allowances = &mut self.allowances;
        let pull = |(id, sender): (&ReplicaId, &mut Sender)| {
            let gaps = sender.sequence.as_ref()?.overdue(now);
            if gaps.is_empty() || now < sender.pull_at {
                return None;
            }
            let allowance = allowances.get_mut(id);
            if allowance.is_some_and(|allowance| !allowance.is_open(now)) {
                return None;
            }
            sender.pull_at = now + GIVEN_UP_AFTER;
            Some(Pull {
                from: id.clone(),
                gaps,
            })
        };
        self.senders.iter_mut().filter_map(pull).collect()
    }

    /// Takes the answer to a pull; without one it is asked again later.
    pub(crate) fn pulled(
        &mut self,
        from: &ReplicaId,
        answer: Option<(u64, Mark, Vec<Batch>)>,
        known_workers: &KnownWorkers,
        now: Instant,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(sender) = self.senders.get_mut(from) else {
            return outcome;
        };
        sender.pull_at = now + PULL_PAUSE;
        let Some((generation, mark, batches)) = answer else {
            return outcome;
        };
        if sender.generation != generation {
            return outcome;
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        for batch in batches {
            bytes += batch.records.iter().map(Record::wire_len).sum::<usize>();
            // Answers hold what was asked for; whatever else is in them stays out.
            let is_known = |sequence: &Sequence| sequence.knows_of(batch.number);
            if sender.sequence.as_ref().is_some_and(is_known) {
                let start = Sequence::starting_at(0);
                records.extend(sender.take(from, start, batch, now, &mut outcome));
            }
        }
        if let Some(sequence) = &mut sender.sequence {
            outcome.lose(from, sequence.mark(mark.first, mark.next, now));
        }
        // It was asked for, so it is taken in any case.
        self.charge(from, bytes, now);
        self.sift(from, records, known_workers, now, &mut outcome);
        outcome
    }

    /// Takes what may be used of these records. What is about a worker, or an epoch, that is not known yet waits, and what
    /// the same sender says behind it about the same worker, too.
    fn sift(
        &mut self,
        from: &ReplicaId,
        records: Vec<Record>,
        known_workers: &KnownWorkers,
        now: Instant,
        outcome: &mut Outcome,
    ) {
        for record in records {
            let fit = known_workers.fit(&record, now);
            let is_kept = if fit == Fit::Later || self.early.holds(from, record.about().0) {
                self.early.keep(from, record, now)
            } else if fit == Fit::Now {
                outcome.events.push(record.received_from(from.clone()));
                true
            } else {
                false
            };
            outcome.stale += usize::from(!is_kept);
        }
    }

    /// What became usable since because its worker is known by now. Call it about once a second: who listens has to learn
    /// of a new worker first.
    pub(crate) fn known(&mut self, known_workers: &KnownWorkers, now: Instant) -> Outcome {
        let (events, stale) = self.early.take(known_workers, now);
        Outcome {
            events,
            stale,
            ..Outcome::default()
        }
    }

    /// Gives up old gaps and notices senders that fell silent. Call it about once a second.
    pub(crate) fn tick(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for (id, sender) in &mut self.senders {
            if let Some(sequence) = &mut sender.sequence {
                outcome.lose(id, sequence.give_up(now));
            }
            if sender.silent_for(now) >= self.config.silent_after && sender.is_present {
                sender.is_present = false;
                sender.heat = None;
                outcome
                    .events
                    .push(EvidenceEvent::Gone { from: id.clone() });
            }
        }
        let (forgotten, senders) = std::mem::take(&mut self.senders)
            .into_iter()
            .partition(|(_, sender)| sender.silent_for(now) >= FORGOTTEN_AFTER);
        self.senders = senders;
        self.allowances.retain(|allowance| !allowance.is_full(now));
        let forgotten: BTreeMap<ReplicaId, Sender> = forgotten;
        for (id, sender) in forgotten {
            // If it comes back in the same life, it sent records meanwhile that we did not receive.
            if let Some(sequence) = sender.sequence {
                self.remember(&id, sender.generation, sequence.complete_below());
            }
        }
        outcome
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(crate) fn remembers(&self, peer: &ReplicaId) -> bool {
        let Self {
            config: _,
            senders,
            hints,
            allowances,
            early,
        } = self;
        senders.contains_key(peer)
            || hints.remembers(peer)
            || allowances.remembers(peer)
            || early.remembers(peer)
    }

    fn remember(&mut self, id: &ReplicaId, generation: u64, head: u64) {
        let hint = (generation, head);
        *self.hints.touch(id, || hint) = hint;
    }

    /// A replica announced that it leaves.
    pub(crate) fn left(&mut self, id: &ReplicaId) -> Option<EvidenceEvent> {
        self.hints.remove(id);
        self.allowances.remove(id);
        self.early.forget(id);
        let sender = self.senders.remove(id)?;
        sender
            .is_present
            .then(|| EvidenceEvent::Gone { from: id.clone() })
    }

    /// The sender in this generation, and the end of its former life; `None` for a former life.
    fn sender(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        now: Instant,
    ) -> Option<(&mut Sender, Outcome)> {
        let mut outcome = Outcome::default();
        match self.senders.get(from) {
            Some(known) if known.generation > generation => return None,
            Some(known) if known.generation < generation => {
                if known.is_present {
                    outcome
                        .events
                        .push(EvidenceEvent::Gone { from: from.clone() });
                }
                let sender = Sender::new(generation, now);
                self.senders.insert(from.clone(), sender);
            }
            Some(_) => {}
            None => {
                if self.senders.len() == HEADS_MAX {
                    return None;
                }
                self.senders
                    .insert(from.clone(), Sender::new(generation, now));
            }
        }
        let sender = self.senders.get_mut(from)?;
        sender.received_at = now;
        sender.is_present = true;
        Some((sender, outcome))
    }

    /// Where to begin with a sender whose message with this `number` came first: there, or where we stopped, or
    /// the snapshot did, if the rest can be had. Also how many batches are lost because it cannot.
    fn start(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        number: u64,
        now: Instant,
    ) -> (Sequence, u64) {
        match self.hints.remove(from) {
            Some((told, head)) if told == generation && head < number => {
                let start = head.max(number.saturating_sub(LOG_BATCHES_MAX as u64));
                (Sequence::starting_at(start), start - head)
            }
            _ => (Sequence::guessed_at(number, now), 0),
        }
    }
}

impl Sender {
    fn new(generation: u64, now: Instant) -> Self {
        Self {
            generation,
            sequence: None,
            heat: None,
            received_at: now,
            is_present: true,
            pull_at: now,
        }
    }

    fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received_at)
    }

    /// The records of a batch that had not come before.
    fn take(
        &mut self,
        from: &ReplicaId,
        start: Sequence,
        batch: Batch,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Vec<Record> {
        let sequence = self.sequence.get_or_insert(start);
        let (arrival, lost) = sequence.arrive(batch.number, now);
        outcome.lose(from, lost);
        match arrival {
            Arrival::New => outcome.fresh += 1,
            Arrival::Late => outcome.late += 1,
            Arrival::Duplicate => {
                outcome.duplicate += 1;
                return Vec::new();
            }
        }
        batch.records
    }
}

impl Outcome {
    /// Records among what was received.
    pub(crate) fn records(&self) -> usize {
        let is_record = |event: &&EvidenceEvent| {
            matches!(
                event,
                EvidenceEvent::Evidence { .. } | EvidenceEvent::Retraction { .. }
            )
        };
        self.events.iter().filter(is_record).count()
    }

    fn lose(&mut self, from: &ReplicaId, batches: u64) {
        self.lost += batches;
        if batches > 0 {
            self.events.push(EvidenceEvent::Lost { from: from.clone() });
        }
    }
}

/// No gap of a sender can be repaired any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Between two pulls from one sender.
const PULL_PAUSE: Duration = Duration::from_millis(250);
/// A pull that was not even reported as failed.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
