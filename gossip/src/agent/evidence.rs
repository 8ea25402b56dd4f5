//! Evidence and heat: told to the peers in batches, heard from them, repaired after gaps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::core::{Core, Net};
use super::exchange::request;
use crate::config::EvidenceConfig;
use crate::evidence::{
    Batch, Ear, Evidence, EvidenceSnapshot, Head, Heard, HeatReport, Inbox, Mark, Outbox, Outcome,
    Pull, Record, Roster, Tell, Told, snapshot_pieces,
};
use crate::firewall::Reason;
use crate::frame::Header;
use crate::replica::ReplicaId;
use crate::view::View;
use crate::wire::{Message, Received};

/// Where the evidence for starting replicas comes from.
pub type EvidenceSource = Arc<dyn Fn() -> Vec<Evidence> + Send + Sync>;

/// The agent's part of the plane. Its locks are taken after the agent's own, never before it, and
/// requests tell under one that is held for a push only.
pub(super) struct EvidenceDesk {
    config: EvidenceConfig,
    told: Mutex<Told>,
    pub(super) plane: Mutex<Plane>,
    source: Mutex<Option<EvidenceSource>>,
    /// Whether a snapshot was taken. One exchange at a time takes it.
    pub(super) snapshot: tokio::sync::Mutex<bool>,
}

pub(super) struct Plane {
    pub(super) roster: Roster,
    outbox: Outbox,
    pub(super) inbox: Inbox,
    pub(super) ear: Ear,
}

impl EvidenceDesk {
    pub(super) fn new(config: &EvidenceConfig) -> Self {
        let plane = Plane {
            roster: Roster::default(),
            outbox: Outbox::new(config),
            inbox: Inbox::new(config),
            ear: Ear::default(),
        };
        Self {
            config: config.clone(),
            told: Mutex::default(),
            plane: Mutex::new(plane),
            source: Mutex::default(),
            snapshot: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn listen(&self) -> mpsc::Receiver<Heard> {
        lock(&self.plane).ear.listen()
    }

    pub(super) fn serve(&self, source: EvidenceSource) {
        *lock(&self.source) = Some(source);
    }

    /// Takes over the workers of a new view: what is known of former ones is not sent any more.
    pub(super) fn follow(&self, view: &View) -> usize {
        let roster = Roster::new(view);
        let Plane {
            roster: known,
            outbox,
            ..
        } = &mut *lock(&self.plane);
        if *known == roster {
            return 0;
        }
        *known = roster;
        outbox.log().retain(|record| known.allows(record))
    }
}

impl Core {
    pub(super) fn tell_record(&self, record: Record) {
        self.metrics.evidence("told", 1);
        if self.net.is_none() {
            return;
        }
        match lock(&self.evidence.told).tell(record) {
            Tell::Queued { dropped } => self.metrics.evidence("queue_full", dropped),
            Tell::Malformed => self.metrics.evidence("malformed", 1),
        }
    }

    pub(super) fn tell_heat(&self, report: HeatReport) {
        if !lock(&self.evidence.told).heat(report) {
            self.metrics.evidence("malformed", 1);
        }
    }

    /// Takes what a peer pushed. A flood counts against it.
    pub(super) fn hear(&self, from: &ReplicaId, header: Header, message: Message, bytes: usize) {
        let now = Instant::now().into_std();
        let generation = header.generation;
        let mut plane = lock(&self.evidence.plane);
        if !plane.inbox.charge(from, bytes, now) {
            drop(plane);
            return self.flooded(from);
        }
        let Plane { roster, inbox, .. } = &mut *plane;
        let outcome = match message {
            Message::Evidence(batch) => inbox.batch(from, generation, batch, roster, now),
            Message::EvidenceMark(mark) => inbox.mark(from, generation, mark, now),
            Message::Heat(report) => {
                inbox.heat(from, generation, Arc::unwrap_or_clone(report), now)
            }
            _ => return,
        };
        self.metrics.evidence_batches("overtaken", outcome.late);
        self.pass(&mut plane, outcome);
    }

    /// A peer said that it leaves.
    pub(super) fn unheard(&self, id: &ReplicaId) {
        let mut plane = lock(&self.evidence.plane);
        let gone = plane.inbox.left(id);
        plane.ear.pass(gone);
    }

    /// Answers a question about evidence.
    pub(super) fn evidence_answer(
        &self,
        from: &ReplicaId,
        header: Header,
        question: &Message,
    ) -> Vec<Message> {
        let Some(net) = &self.net else {
            return Vec::new();
        };
        let now = Instant::now().into_std();
        let cost = match question {
            Message::EvidenceSnapshotRequest => self.evidence.config.snapshot_cost(),
            _ => self.evidence.config.pull_cost(),
        };
        let mut plane = lock(&self.evidence.plane);
        if !plane.inbox.charge(from, cost, now) {
            drop(plane);
            self.flooded(from);
            return Vec::new();
        }
        match question {
            Message::EvidencePull(gaps) => plane.outbox.pulled(from, header.generation, gaps, now),
            Message::EvidenceSnapshotRequest => {
                // Before the evidence is read: what comes between is then heard twice, not never.
                let mut heads = plane.inbox.heads();
                heads.push(Head {
                    replica: self.replica.clone(),
                    generation: net.transport.generation(),
                    next: plane.outbox.head(),
                });
                drop(plane);
                self.snapshot(heads)
            }
            Message::EvidenceSizeRequest => {
                drop(plane);
                let links = |said: Evidence| said.links.len() as u64;
                let size = self.believed().into_iter().map(links).sum();
                vec![Message::EvidenceSize(size)]
            }
            _ => Vec::new(),
        }
    }

    /// What this replica believes, as far as it may be passed on.
    fn believed(&self) -> Vec<Evidence> {
        let source = lock(&self.evidence.source).clone();
        let all = source.map(|source| source()).unwrap_or_default();
        let roster = Roster::new(&self.view.borrow());
        let is_fit = |said: &Evidence| {
            let record = Record::Evidence(said.clone());
            record.is_valid() && roster.allows(&record)
        };
        all.into_iter().filter(is_fit).collect()
    }

    fn snapshot(&self, heads: Vec<Head>) -> Vec<Message> {
        let (pieces, cut) = snapshot_pieces(self.believed());
        self.metrics.evidence("snapshot_cut", cut);
        let last = pieces.len() - 1;
        let frame = |(at, evidence)| {
            let heads = if at == last {
                heads.clone()
            } else {
                Vec::new()
            };
            Message::EvidenceSnapshot(EvidenceSnapshot {
                evidence,
                heads,
                last: at == last,
            })
        };
        pieces.into_iter().enumerate().map(frame).collect()
    }

    fn flooded(&self, from: &ReplicaId) {
        self.metrics.dropped("evidence_flood");
        if let Some(net) = &self.net {
            net.transport.strike(from, Reason::TooMany);
        }
    }

    /// Counts what came, and passes it to the listener.
    fn pass(&self, plane: &mut Plane, outcome: Outcome) {
        self.metrics.evidence("heard", outcome.records());
        self.metrics.evidence("stale", outcome.stale);
        self.metrics.evidence_batches("heard", outcome.fresh);
        self.metrics
            .evidence_batches("duplicate", outcome.duplicate);
        self.metrics.evidence_batches("lost", outcome.lost);
        let dropped = plane.ear.pass(outcome.heard);
        self.metrics.evidence("listener_full", dropped);
    }

    /// Sends what was told since the last time, and what peers still lack of what was told before.
    fn send_evidence(&self, net: &Net, now: std::time::Instant) {
        let (mut records, heat) = {
            let mut told = lock(&self.evidence.told);
            (told.take(), told.latest_heat())
        };
        let linked = net.transport.linked_generations();
        let mut plane = lock(&self.evidence.plane);
        let Plane { roster, outbox, .. } = &mut *plane;
        let before = records.len();
        records.retain(|record| roster.allows(record));
        self.metrics.evidence("stale", before - records.len());
        outbox.log().append(records);
        let withheld = outbox.send(&linked, heat.as_ref(), now, |peer, message| {
            let is_sent = net.transport.send_evidence(peer, message);
            if is_sent && let Message::Evidence(batch) = message {
                self.metrics.evidence("sent", batch.records.len());
                self.metrics.evidence_batches("sent", 1);
            }
            is_sent
        });
        self.metrics.evidence_batches("skipped", withheld.skipped);
        self.metrics.evidence_throttled.inc_by(withheld.throttled);
    }
}

/// Sends, repairs and notices silence by the clock, until the transport closes.
pub(super) async fn rounds(core: Arc<Core>, batch: Duration) {
    let Some(net) = &core.net else {
        return;
    };
    let mut tick = interval(batch);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut second = Instant::now();
    loop {
        let at = tick.tick().await;
        let now = at.into_std();
        core.send_evidence(net, now);
        let pulls = {
            let mut plane = lock(&core.evidence.plane);
            let outcome = if at.duration_since(second) >= SECOND {
                second = at;
                plane.inbox.tick(now)
            } else {
                Outcome::default()
            };
            core.pass(&mut plane, outcome);
            plane.inbox.pulls(now)
        };
        for wanted in pulls {
            net.transport.spawn(pull(core.clone(), wanted));
        }
    }
}

/// Asks a sender for the batches that did not arrive.
async fn pull(core: Arc<Core>, wanted: Pull) {
    let question = Message::EvidencePull(wanted.gaps);
    let answer = request(&core, &wanted.from, &question).await;
    if let Err(error) = &answer {
        tracing::debug!(replica = %wanted.from, %error, "missed evidence not repaired yet");
    }
    let answer = answer.ok().and_then(pull_answer);
    let mut plane = lock(&core.evidence.plane);
    let Plane { roster, inbox, .. } = &mut *plane;
    let now = Instant::now().into_std();
    let outcome = inbox.pulled(&wanted.from, answer, roster, now);
    core.metrics.evidence("pulled", outcome.records());
    core.metrics.evidence_batches("pulled", outcome.late);
    core.pass(&mut plane, outcome);
}

/// Generation and mark of the sender, and its batches; `None` if it cannot answer now.
fn pull_answer(answer: Vec<Received>) -> Option<(u64, Mark, Vec<Batch>)> {
    let mut frames = answer.into_iter();
    let first = frames.next()?;
    let Some(Message::EvidenceMark(mark)) = first.message else {
        return None;
    };
    let batches = frames.filter_map(|received| match received.message {
        Some(Message::Evidence(batch)) => Some(batch),
        _ => None,
    });
    Some((first.header.generation, mark, batches.collect()))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is one call into a pure part, whole or not made.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const SECOND: Duration = Duration::from_secs(1);
