//! Evidence and heat between replicas: sent to the peers in batches, received from them, repaired after gaps.

mod outbox;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc;

pub(crate) use outbox::Outbox;

use crate::config::EvidenceConfig;
use crate::evidence::{
    Batch, Evidence, EvidenceEvent, EvidenceSnapshot, Gap, HEADS_MAX, Head, HeatReport, Inbox,
    KnownWorkers, ListenerQueue, Mark, Outcome, Pending, Pull, Record, Recorded, snapshot_pieces,
};
use crate::metrics::Metrics;
use crate::plane::{Context, Origin, Plane, RequestError, Surroundings};
use crate::replica::ReplicaId;
use crate::view::View;
use crate::wire::{Message, Received};

/// Where the evidence for starting replicas comes from.
pub type EvidenceSource = Arc<dyn Fn() -> Vec<Evidence> + Send + Sync>;

/// Where tasks queue what this replica is to send: under a lock that is held for a push only, for
/// requests are waiting.
#[derive(Clone, Default)]
pub(crate) struct PendingHandle {
    queue: Arc<Mutex<Pending>>,
    metrics: Metrics,
}

impl PendingHandle {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self {
            queue: Arc::default(),
            metrics,
        }
    }

    /// Queues a record for the next batch, if there are other replicas.
    pub(crate) fn record(&self, record: Record, is_solo: bool) {
        self.metrics.evidence("recorded", 1);
        if is_solo {
            return;
        }
        match self.queue.lock().record(record) {
            Recorded::Queued { dropped } => self.metrics.evidence("queue_full", dropped),
            Recorded::Malformed => self.metrics.evidence("malformed", 1),
        }
    }

    /// Replaces the report that is sent.
    pub(crate) fn heat(&self, report: HeatReport) {
        if !self.queue.lock().heat(report) {
            self.metrics.evidence("malformed", 1);
        }
    }
}

/// What was sent, and what was received.
pub(crate) struct EvidencePlane {
    config: EvidenceConfig,
    replica: ReplicaId,
    generation: u64,
    pending: PendingHandle,
    known_workers: Arc<KnownWorkers>,
    outbox: Outbox,
    inbox: Inbox,
    listener: ListenerQueue,
    source: Option<EvidenceSource>,
    metrics: Metrics,
    /// When the next batch is due.
    due: Instant,
    /// When the rarer duties were last done.
    second: Instant,
}

impl EvidencePlane {
    pub(crate) fn new(
        replica: ReplicaId,
        config: &EvidenceConfig,
        pending: PendingHandle,
        metrics: Metrics,
        now: Instant,
    ) -> Self {
        Self {
            config: config.clone(),
            replica,
            generation: 0,
            pending,
            known_workers: Arc::default(),
            outbox: Outbox::new(config),
            inbox: Inbox::new(config),
            listener: ListenerQueue::default(),
            source: None,
            metrics,
            due: now,
            second: now,
        }
    }

    /// See [`ListenerQueue::listen`].
    pub(crate) fn listen(&mut self) -> mpsc::Receiver<EvidenceEvent> {
        self.listener.listen()
    }

    /// Takes what answers starting replicas.
    pub(crate) fn serve(&mut self, source: EvidenceSource) {
        self.source = Some(source);
    }

    /// Takes what a peer believes, for the first time: the records that may be used, and the channel of the listener,
    /// for a task that can wait for room.
    /// Errors: `Broken`: the answer is not whole.
    pub(crate) fn adopt(
        &mut self,
        answer: Vec<Received>,
        now: Instant,
    ) -> Result<(Vec<Record>, mpsc::Sender<EvidenceEvent>), RequestError> {
        let mut records = Vec::new();
        let mut heads = Vec::new();
        // A peer of an earlier release, which knows no evidence, answers nothing.
        let mut is_whole = true;
        for received in answer {
            let Some(Message::EvidenceSnapshot(piece)) = received.message else {
                return Err(RequestError::Broken);
            };
            records.extend(piece.evidence.into_iter().map(Record::Evidence));
            heads.extend(piece.heads);
            is_whole = piece.last;
        }
        if !is_whole {
            return Err(RequestError::Broken);
        }
        heads.retain(|head| head.replica != self.replica);
        self.inbox.take_heads(heads, now);
        records.retain(|record| self.known_workers.allows(record, now));
        self.metrics.evidence("snapshot", records.len());
        Ok((records, self.listener.sender()))
    }

    /// The listener did not take all of that in time.
    pub(crate) fn overrun(&mut self, from: &ReplicaId, records: usize) {
        self.metrics.evidence("listener_full", records);
        self.listener
            .pass([EvidenceEvent::Lost { from: from.clone() }]);
    }

    /// Whether there is room for what this costs; if not, it is dropped. That is no offence, for the sender goes by its own
    /// settings, which may allow more than ours: how much any replica may send is the transport's to judge.
    fn charge(&mut self, from: &ReplicaId, cost: usize, now: Instant) -> bool {
        let is_open = self.inbox.charge(from, cost, now);
        if !is_open {
            self.metrics.dropped("evidence_flood");
        }
        is_open
    }

    /// Counts what came, and passes it to the listener.
    fn pass(&mut self, outcome: Outcome) {
        self.metrics.evidence("received", outcome.records());
        self.metrics.evidence("stale", outcome.stale);
        self.metrics.evidence_batches("received", outcome.fresh);
        self.metrics
            .evidence_batches("duplicate", outcome.duplicate);
        self.metrics.evidence_batches("lost", outcome.lost);
        let dropped = self.listener.pass(outcome.events);
        self.metrics.evidence("listener_full", dropped);
    }

    fn answer_pull(&mut self, from: Origin<'_>, gaps: &[Gap], cx: &mut Context) {
        if self.charge(from.peer, self.config.pull_cost(), cx.now) {
            let generation = from.header.generation;
            let answer = self.outbox.pulled(from.peer, generation, gaps, cx.now);
            answer.into_iter().for_each(|frame| cx.answer(frame));
        }
    }

    fn answer_snapshot(&mut self, from: &ReplicaId, cx: &mut Context) {
        if !self.charge(from, self.config.snapshot_cost(), cx.now) {
            return;
        }
        // Before the evidence is read: what comes between is then received twice, not never.
        let mut heads = self.inbox.heads();
        // With the own one no more than are taken.
        heads.truncate(HEADS_MAX - 1);
        heads.push(Head {
            replica: self.replica.clone(),
            generation: self.generation,
            next: self.outbox.head(),
        });
        let (believed, metrics) = (self.believed(cx.now), self.metrics.clone());
        cx.answer_at_length(move || {
            let (pieces, cut) = snapshot_pieces(believed());
            metrics.evidence("snapshot_cut", cut);
            let last = pieces.len() - 1;
            let frame = |(at, evidence)| {
                let is_last = at == last;
                Message::EvidenceSnapshot(EvidenceSnapshot {
                    evidence,
                    heads: if is_last { heads.clone() } else { Vec::new() },
                    last: is_last,
                })
            };
            pieces.into_iter().enumerate().map(frame).collect()
        });
    }

    fn answer_size(&mut self, from: &ReplicaId, cx: &mut Context) {
        // All of it is read to be counted.
        if self.charge(from, self.config.snapshot_cost(), cx.now) {
            let believed = self.believed(cx.now);
            cx.answer_at_length(move || {
                let links = |evidence: Evidence| evidence.links.len() as u64;
                vec![Message::EvidenceSize(
                    believed().into_iter().map(links).sum(),
                )]
            });
        }
    }

    /// What this replica believes, as far as it may be passed on. The source that keeps it is asked.
    fn believed(&self, now: Instant) -> impl FnOnce() -> Vec<Evidence> + Send + use<> {
        let (source, known_workers) = (self.source.clone(), self.known_workers.clone());
        move || {
            let all = source.map(|source| source()).unwrap_or_default();
            let is_fit = |evidence: &Evidence| {
                let record = Record::Evidence(evidence.clone());
                record.is_valid() && known_workers.allows(&record, now)
            };
            all.into_iter().filter(is_fit).collect()
        }
    }

    /// Sends what was queued since the last time, and what peers still lack of what was queued before.
    fn send(&mut self, around: &Surroundings, cx: &mut Context) {
        let (mut records, heat) = {
            let mut pending = self.pending.queue.lock();
            (pending.take(), pending.latest_heat())
        };
        let before = records.len();
        records.retain(|record| self.known_workers.allows(record, cx.now));
        self.metrics.evidence("stale", before - records.len());
        self.outbox.log().append(records);
        let links = around.links.iter();
        let linked = links.map(|link| (link.peer.clone(), link.generation));
        let linked: Vec<_> = linked.collect();
        let links = around.links.iter();
        let mut room: BTreeMap<_, _> = links.map(|link| (&link.peer, link.room)).collect();
        let (metrics, now) = (&self.metrics, cx.now);
        let send = |peer: &ReplicaId, message: &Message| {
            let Some(room) = room.get_mut(peer).filter(|room| **room > 0) else {
                return false;
            };
            *room -= 1;
            cx.send(peer.clone(), message.clone());
            if let Message::Evidence(batch) = message {
                metrics.evidence("sent", batch.records.len());
                metrics.evidence_batches("sent", 1);
            }
            true
        };
        let withheld = self.outbox.send(&linked, heat.as_ref(), now, send);
        self.metrics.evidence_batches("skipped", withheld.skipped);
        self.metrics.evidence_throttled.inc_by(withheld.throttled);
    }
}

impl Plane for EvidencePlane {
    fn names(&self) -> &'static [&'static str] {
        &["evidence", "heat"]
    }

    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        let (peer, generation, now) = (from.peer, from.header.generation, cx.now);
        match &message {
            Message::EvidencePull(gaps) => return self.answer_pull(from, gaps, cx),
            Message::EvidenceSnapshotRequest => return self.answer_snapshot(peer, cx),
            Message::EvidenceSizeRequest => return self.answer_size(peer, cx),
            _ => {}
        }
        if !self.charge(peer, from.bytes, now) {
            return;
        }
        let outcome = match message {
            Message::Evidence(batch) => {
                let batch = Arc::unwrap_or_clone(batch);
                self.inbox
                    .batch(peer, generation, batch, &self.known_workers, now)
            }
            Message::EvidenceMark(mark) => self.inbox.mark(peer, generation, mark, now),
            Message::Heat(report) => {
                let report = Arc::unwrap_or_clone(report);
                self.inbox.heat(peer, generation, report, now)
            }
            _ => return,
        };
        self.metrics.evidence_batches("overtaken", outcome.late);
        self.pass(outcome);
    }

    /// The batches that did not arrive.
    fn on_answer(
        &mut self,
        peer: &ReplicaId,
        _: &Message,
        answer: Result<Vec<Received>, RequestError>,
        cx: &mut Context,
    ) {
        if let Err(error) = &answer {
            tracing::debug!(replica = %peer, %error, "missed evidence not repaired yet");
        }
        let answer = answer.ok().and_then(pull_answer);
        let outcome = self.inbox.pulled(peer, answer, &self.known_workers, cx.now);
        self.metrics.evidence("pulled", outcome.records());
        self.metrics.evidence_batches("pulled", outcome.late);
        self.pass(outcome);
    }

    /// Sends, repairs, and notices silence.
    fn on_tick(&mut self, around: &Surroundings, cx: &mut Context) -> Option<Instant> {
        self.generation = around.seen.generation;
        if cx.now < self.due {
            return Some(self.due);
        }
        let next = self.due + self.config.batch;
        self.due = if next > cx.now {
            next
        } else {
            cx.now + self.config.batch
        };
        self.send(around, cx);
        let since = cx.now.saturating_duration_since(self.second);
        let outcome = if since >= SECOND {
            self.second = cx.now;
            let early = self.inbox.known(&self.known_workers, cx.now);
            self.pass(early);
            self.inbox.tick(cx.now)
        } else {
            Outcome::default()
        };
        self.pass(outcome);
        for Pull { from, gaps } in self.inbox.pulls(cx.now) {
            cx.ask(from, Message::EvidencePull(gaps));
        }
        Some(self.due)
    }

    fn on_left(&mut self, peer: &ReplicaId, _: &mut Context) {
        let gone = self.inbox.left(peer);
        self.listener.pass(gone);
    }

    /// What is known of former workers is not sent any more.
    fn on_view(&mut self, view: &View, cx: &mut Context) {
        let known_workers = KnownWorkers::following(&self.known_workers, view, cx.now);
        if *self.known_workers == known_workers {
            return;
        }
        self.known_workers = Arc::new(known_workers);
        let known_workers = &self.known_workers;
        let outdated = self
            .outbox
            .log()
            .retain(|record| known_workers.allows(record, cx.now));
        self.metrics.evidence("stale", outdated);
    }
}

#[cfg(test)]
impl super::tests::Remembers for EvidencePlane {
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str> {
        let Self {
            config: _,
            replica: _,
            generation: _,
            pending: _,
            known_workers: _,
            outbox,
            inbox,
            listener,
            source: _,
            metrics: _,
            due: _,
            second: _,
        } = self;
        super::tests::named([
            ("outbox", outbox.remembers(peer)),
            ("inbox", inbox.remembers(peer)),
            ("listener", listener.remembers(peer)),
        ])
    }
}

/// Generation and mark of the sender, and its batches; `None` if it cannot answer now.
fn pull_answer(answer: Vec<Received>) -> Option<(u64, Mark, Vec<Batch>)> {
    let mut frames = answer.into_iter();
    let first = frames.next()?;
    let Some(Message::EvidenceMark(mark)) = first.message else {
        return None;
    };
    let batches = frames.filter_map(|received| match received.message {
        Some(Message::Evidence(batch)) => Some(Arc::unwrap_or_clone(batch)),
        _ => None,
    });
    Some((first.header.generation, mark, batches.collect()))
}

const SECOND: Duration = Duration::from_secs(1);
