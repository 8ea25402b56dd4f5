//! The evidence that a starting replica takes before it is ready: from the peer that holds most.
//!
//! Any peer will do for the registry, but not for evidence: one that has just started itself has
//! none. So a few are asked how much they hold first, all at once and not for long.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout_at};

use super::core::{Core, Net};
use super::evidence::{Plane, lock};
use super::exchange::request;
use crate::evidence::{Heard, Record};
use crate::membership::fact;
use crate::replica::ReplicaId;
use crate::transport::RequestError;
use crate::wire::Message;

/// Takes the evidence of the peer that holds most, once; `registry_from` is asked in any case.
pub(super) async fn take_evidence(
    core: &Arc<Core>,
    registry_from: &ReplicaId,
) -> Result<(), RequestError> {
    // Several exchanges may come here at once: one takes it, the others wait for that.
    let mut is_taken = core.evidence.snapshot.lock().await;
    let mut result = Ok(());
    if *is_taken {
        return result;
    }
    for peer in survey(core, registry_from).await.iter().take(TRIED_MAX) {
        result = take_from(core, peer).await;
        if result.is_ok() {
            *is_taken = true;
            break;
        }
    }
    result
}

/// Whom to take from, best first. Ends as soon as enough is known, at the latest after [`SURVEY`].
async fn survey(core: &Arc<Core>, registry_from: &ReplicaId) -> Vec<ReplicaId> {
    let mut found: Vec<(Option<u64>, ReplicaId)> = Vec::new();
    let mut asked: Vec<ReplicaId> = Vec::new();
    if let Some(net) = &core.net {
        let deadline = Instant::now() + SURVEY;
        let (tell, mut told) = mpsc::channel(ASKED_MAX);
        let mut tick = interval(SURVEY_STEP);
        loop {
            for peer in candidates(core, net, registry_from) {
                if asked.len() < ASKED_MAX && !asked.contains(&peer) {
                    asked.push(peer.clone());
                    net.transport.spawn(ask(core.clone(), peer, tell.clone()));
                }
            }
            let holding = found.iter().filter(|(size, _)| *size > Some(0)).count();
            let is_everybody = asked.len() == ASKED_MAX || asked.len() >= net.transport.dialled();
            if holding >= HOLDING_ENOUGH || (is_everybody && found.len() == asked.len()) {
                break;
            }
            let next = async {
                tokio::select! {
                    answer = told.recv() => answer,
                    _ = tick.tick() => None,
                }
            };
            match timeout_at(deadline, next).await {
                Ok(answer) => found.extend(answer),
                Err(_) => break,
            }
        }
    }
    order(found, registry_from)
}

/// Connected peers; whom the registry came from first, then who takes requests, as far as is known.
fn candidates(core: &Core, net: &Net, registry_from: &ReplicaId) -> Vec<ReplicaId> {
    let mut linked = net.transport.linked();
    linked.shuffle(&mut rand::rng());
    let state = core.state();
    let is_ready = |id: &ReplicaId| {
        let mut told = state.others.iter().filter(|seen| seen.id == *id);
        told.any(|seen| {
            seen.facts
                .get(fact::READY)
                .is_some_and(|ready| ready == "1")
        })
    };
    linked.sort_by_key(|id| (id != registry_from, !is_ready(id)));
    linked
}

/// Asks one peer how much it holds; `None` if it does not say: perhaps an earlier release.
async fn ask(core: Arc<Core>, peer: ReplicaId, tell: mpsc::Sender<(Option<u64>, ReplicaId)>) {
    let answer = request(&core, &peer, &Message::EvidenceSizeRequest).await;
    let first = answer.ok().and_then(|frames| frames.into_iter().next());
    let size = match first.and_then(|received| received.message) {
        Some(Message::EvidenceSize(links)) => Some(links),
        _ => None,
    };
    // Nobody waits for it any more once enough is known.
    let _ = tell.try_send((size, peer));
}

/// Who holds something by how much; then who did not say; then who holds nothing.
fn order(found: Vec<(Option<u64>, ReplicaId)>, registry_from: &ReplicaId) -> Vec<ReplicaId> {
    let mut found = found;
    if found.iter().all(|(_, peer)| peer != registry_from) {
        found.push((None, registry_from.clone()));
    }
    found.sort_by_key(|(size, _)| match size {
        Some(0) => (2, Reverse(0)),
        Some(links) => (0, Reverse(*links)),
        None => (1, Reverse(0)),
    });
    found.into_iter().map(|(_, peer)| peer).collect()
}

/// Takes what one peer believes. A peer of an earlier release, which knows no evidence, answers nothing.
async fn take_from(core: &Core, peer: &ReplicaId) -> Result<(), RequestError> {
    let mut records = Vec::new();
    let mut heads = Vec::new();
    let mut is_whole = true;
    for received in request(core, peer, &Message::EvidenceSnapshotRequest).await? {
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
    heads.retain(|head| head.replica != core.replica);
    let listener = {
        let mut plane = lock(&core.evidence.plane);
        let Plane { roster, inbox, .. } = &mut *plane;
        inbox.take_heads(heads, Instant::now().into_std());
        records.retain(|record| roster.allows(record));
        plane.ear.sender()
    };
    let total = records.len();
    core.metrics.evidence("snapshot", total);
    // More than the channel holds: the listener works it off meanwhile.
    let deadline = Instant::now() + LISTENER_PATIENCE;
    for (at, record) in records.into_iter().enumerate() {
        let heard = record.heard_from(peer.clone());
        if !matches!(timeout_at(deadline, listener.send(heard)).await, Ok(Ok(()))) {
            core.metrics.evidence("listener_full", total - at);
            let lost = Heard::Lost { from: peer.clone() };
            lock(&core.evidence.plane).ear.pass([lost]);
            break;
        }
    }
    Ok(())
}

/// How long peers are asked how much they hold, from the first question.
const SURVEY: Duration = Duration::from_millis(300);
/// How often new connections are looked for meanwhile.
const SURVEY_STEP: Duration = Duration::from_millis(20);
/// Peers that are asked.
const ASKED_MAX: usize = 8;
/// Peers that hold something: the best of them will do.
const HOLDING_ENOUGH: usize = 3;
/// Peers that a snapshot is asked from, one after the other.
const TRIED_MAX: usize = 3;
/// How long a starting replica waits for its listener to take the snapshot.
const LISTENER_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_comes_first() {
        let id = |name: &str| name.parse::<ReplicaId>().expect("valid");
        let check = |found: &[(Option<u64>, &str)], expected: &[&str]| {
            let found = found.iter().map(|(size, name)| (*size, id(name)));
            let order = order(found.collect(), &id("r"));
            assert_eq!(
                order,
                expected.iter().map(|name| id(name)).collect::<Vec<_>>()
            );
        };
        check(&[], &["r"]);
        check(
            &[(Some(0), "r"), (Some(5), "a"), (Some(9), "b")],
            &["b", "a", "r"],
        );
        check(
            &[(Some(0), "a"), (None, "b"), (Some(1), "c")],
            &["c", "b", "r", "a"],
        );
        check(&[(Some(0), "r"), (None, "old")], &["old", "r"]);
    }
}
