//! Anti-entropy: two replicas compare their registries, each takes what it lacks, and what both cannot keep goes. What a
//! push missed is repaired so. Who is compared with when: `exchanges.rs`.

use std::time::Duration;

use super::{RegistryPlane, pieces};
use crate::hlc::Drift;
use crate::plane::{Context, RequestError, Surroundings};
use crate::registry::{Entry, Registry, Reunion, Summary};
use crate::replica::ReplicaId;
use crate::wire::{Message, Received, SyncRequest, SyncResponse, chunks};
use crate::worker::WorkerId;

/// Workers that a line of the log names.
const NAMED_MAX: usize = 20;

impl RegistryPlane {
    pub(super) fn begin_exchanges(&mut self, around: &Surroundings, cx: &mut Context) {
        let ours = self.registry.digest().to_string();
        let (partners, differing) = self.exchanges.begin(around, &ours, cx.now);
        self.metrics.registry_differing.set(differing as i64);
        for peer in partners {
            self.compare(&peer, self.registry.summary(), cx);
        }
    }

    /// Asks a peer for what it holds otherwise than in this summary.
    fn compare(&self, peer: &ReplicaId, summary: Summary, cx: &mut Context) {
        let question = SyncRequest {
            summary,
            alone: self.contact.claimed(),
        };
        cx.ask(peer.clone(), Message::SyncRequest(question));
    }

    /// The peer's registry was compared: takes what is missing here, and notes what is missing there. True if the peer is
    /// asked for more first.
    pub(super) fn compared(
        &mut self,
        peer: &ReplicaId,
        asked: &SyncRequest,
        answer: Vec<Received>,
        cx: &mut Context,
    ) -> Result<bool, RequestError> {
        // An entry that only a later release can read is in the peer's count, too.
        let unreadable: usize = answer.iter().map(|received| received.refused).sum();
        let answer = join(answer)?;
        let is_changed = answer
            .clock_ms
            .is_some_and(|clock_ms| self.compare_clocks(peer, clock_ms, cx));
        let step = self.exchanged(peer, asked, answer, unreadable, cx);
        // Afterwards: what was dropped may have stood over what the peer has, and nobody sees a moment without that.
        if is_changed {
            self.refresh(cx);
        }
        step
    }

    /// The same once clocks were compared. `unreadable`: entries of the peer that are left out.
    fn exchanged(
        &mut self,
        peer: &ReplicaId,
        asked: &SyncRequest,
        answer: Answer,
        unreadable: usize,
        cx: &mut Context,
    ) -> Result<bool, RequestError> {
        let Answer {
            summary: theirs,
            alone,
            clock_ms,
            entries,
        } = answer;
        let is_taken = match self.contact.reunion(alone) {
            Reunion::Merge => self.take_exchanged(peer, alone, entries, cx),
            // Only parts that differ came so far. Once: what it answers then may still be less than it says.
            Reunion::StartOver if asked.summary != Summary::of_nothing() => {
                self.compare(peer, Summary::of_nothing(), cx);
                return Ok(true);
            }
            Reunion::StartOver if entries.len() + unreadable < theirs.digest.count as usize => {
                return Ok(false);
            }
            Reunion::StartOver => self.start_over(peer, entries, cx),
            // It will ask us, and take ours.
            Reunion::PeerStartsOver => return Ok(false),
        };
        if !is_taken {
            self.exchanges.refused(peer, cx.now);
            return Err(RequestError::Broken);
        }
        self.contact.synced(alone);
        // Who may hold what others removed gives it to nobody that does not ask, and is told so.
        if !self.contact.is_away() {
            let mut missing = self.registry.differing(&theirs);
            // While our clock is ahead: it would be refused, and held against us.
            let would_be_taken = |entry: &Entry| {
                clock_ms.is_none_or(|clock_ms| !Drift::is_too_far(entry.stamp, clock_ms))
            };
            missing.retain(would_be_taken);
            if !missing.is_empty() {
                self.exchanges.lacks(peer, chunks(missing));
            }
        }
        Ok(false)
    }

    /// What follows from the wall clock of a peer, before anything else of its answer is used. True if the registry changed.
    fn compare_clocks(&mut self, peer: &ReplicaId, peer_ms: u64, cx: &Context) -> bool {
        let lead = Duration::from_millis(peer_ms.saturating_sub(cx.unix_ms));
        self.clocks.compare(peer, lead, &self.metrics, cx.now);
        // Ours may be the one that is wrong, and behind: then the peer's shows it.
        let now_ms = peer_ms.max(cx.unix_ms);
        if !self.registry.leads_too_far(now_ms) {
            return false;
        }
        let former = self.registry.clone();
        self.registry.begin_anew(now_ms);
        tracing::warn!(replica = %peer, "this replica's clock was more than a day ahead and is right again; what was stamped then is dropped");
        self.tell_lost(&former);
        true
    }

    /// Takes what the peer has otherwise. False if nothing of it may be used.
    fn take_exchanged(
        &mut self,
        peer: &ReplicaId,
        peer_alone: Duration,
        entries: Vec<Entry>,
        cx: &mut Context,
    ) -> bool {
        let merged = self.take_in_of(peer, peer_alone, entries, cx);
        if merged.as_ref().is_ok_and(|merged| merged.changed > 0) {
            self.refresh(cx);
        }
        merged.is_ok()
    }

    /// Takes the peer's whole registry in place of ours, as one change: nobody sees a moment without workers. False if
    /// nothing of it may be used; then ours stays.
    fn start_over(&mut self, peer: &ReplicaId, entries: Vec<Entry>, cx: &mut Context) -> bool {
        let former = self.registry.clone();
        self.registry.start_over();
        if self.take_in(peer, entries, cx).is_err() {
            self.registry = former;
            return false;
        }
        tracing::warn!(replica = %peer, "away for longer than removals are remembered; took the peer's registry");
        self.tell_lost(&former);
        self.refresh(cx);
        true
    }

    /// Names what somebody has to write again, since it went with `former`.
    fn tell_lost(&self, former: &Registry) {
        let lost = self.registry.lost_since(former);
        if !lost.is_empty() {
            let named: Vec<_> = lost.iter().take(NAMED_MAX).map(WorkerId::as_str).collect();
            tracing::warn!(
                workers = lost.len(),
                named = named.join(" "),
                "changes of these workers were made here, and the cluster does not have them: make them again, unless it undid them"
            );
        }
    }

    pub(super) fn answer_sync(&self, request: &SyncRequest, cx: &mut Context) {
        let summary = self.registry.summary();
        let clock_ms = Some(cx.unix_ms);
        let alone = self.contact.claimed();
        // We were away too long: what we hold may be removed elsewhere. Our own next exchange starts over.
        let entries = match self.contact.reunion(request.alone) {
            Reunion::StartOver => Vec::new(),
            Reunion::Merge | Reunion::PeerStartsOver => self.registry.differing(&request.summary),
        };
        for (entries, last) in pieces(entries) {
            cx.answer(Message::SyncResponse(SyncResponse {
                summary: summary.clone(),
                alone,
                entries,
                last,
                clock_ms,
            }));
        }
    }
}

/// The frames of one answer of anti-entropy together.
struct Answer {
    summary: Summary,
    alone: Duration,
    clock_ms: Option<u64>,
    entries: Vec<Entry>,
}

fn join(answer: Vec<Received>) -> Result<Answer, RequestError> {
    let mut entries = Vec::new();
    let mut end = None;
    for received in answer {
        let Some(Message::SyncResponse(piece)) = received.message else {
            return Err(RequestError::Broken);
        };
        entries.extend(piece.entries);
        if piece.last {
            end = Some((piece.summary, piece.alone, piece.clock_ms));
        }
    }
    let (summary, alone, clock_ms) = end.ok_or(RequestError::Broken)?;
    Ok(Answer {
        summary,
        alone,
        clock_ms,
        entries,
    })
}
