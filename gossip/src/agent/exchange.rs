//! The registry between replicas: changes written and confirmed, anti-entropy for what a push missed, and
//! the first snapshot of a starting replica.

use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::Ack;
use super::core::{Core, State};
use super::newcomer;
use super::pushes;
use super::unlike::Pair;
use crate::config::{CONFIRM_WITHIN, WRITES_AFTER};
use crate::error::ChangeError;
use crate::frame::Header;
use crate::metrics::Why;
use crate::registry::{Entry, Registry, RegistryError, Reunion, Summary};
use crate::replica::ReplicaId;
use crate::transport::RequestError;
use crate::wire::{Message, Received, Snapshot, SyncRequest, SyncResponse, chunks};

/// Writes to the registry and waits until a peer has it.
pub(super) async fn change(
    core: &Arc<Core>,
    write: impl FnOnce(&mut Registry, u64) -> Result<Vec<Entry>, RegistryError>,
) -> Result<Ack, ChangeError> {
    // Before the first exchange our clock may lie behind the stamps that the change must beat.
    let mut synced = core.synced.subscribe();
    let _ = tokio::time::timeout_at(
        core.started + WRITES_AFTER,
        synced.wait_for(|synced| *synced),
    )
    .await;
    let (written, change) = {
        let mut state = core.state();
        let written = write(&mut state.registry, core.unix_ms())?;
        let change = match written.is_empty() {
            true => state.pace.latest(),
            false => core.refresh(&mut state),
        };
        (written, change)
    };
    let confirmed_by = match written.is_empty() {
        true => 0,
        false => pushes::push(core, written).await,
    };
    // Who was told that it is done finds it in the view. Only the end of this replica can prevent it.
    let mut published = core.published.subscribe();
    let _ = timeout(
        CONFIRM_WITHIN,
        published.wait_for(|latest| *latest >= change),
    )
    .await;
    Ok(Ack {
        confirmed_by,
        replicated: confirmed_by > 0,
    })
}

/// Answers a request of a peer.
pub(super) fn answer(
    core: &Core,
    from: &ReplicaId,
    header: Header,
    message: Message,
) -> Vec<Message> {
    let mut state = core.state();
    match message {
        Message::RegistryPush(entries) => {
            if core.merge(&mut state, from, entries) {
                vec![Message::PushAck { seq: header.seq }]
            } else {
                Vec::new()
            }
        }
        Message::SyncRequest(request) => sync_answer(&state, &request),
        Message::SnapshotRequest => snapshot_answer(&state),
        // Answers and messages without an answer have no business here.
        _ => Vec::new(),
    }
}

fn sync_answer(state: &State, request: &SyncRequest) -> Vec<Message> {
    let summary = state.registry.summary();
    let alone = state.contact.alone();
    // We were away too long: what we hold may be removed elsewhere. Our own next exchange starts over.
    let entries = match Reunion::of(alone, request.alone) {
        Reunion::StartOver => Vec::new(),
        Reunion::Merge | Reunion::PeerStartsOver => state.registry.differing(&request.summary),
    };
    let pieces = chunks(entries);
    let last = pieces.len() - 1;
    let frame = |(at, entries)| {
        Message::SyncResponse(SyncResponse {
            summary: summary.clone(),
            alone,
            entries,
            last: at == last,
        })
    };
    pieces.into_iter().enumerate().map(frame).collect()
}

fn snapshot_answer(state: &State) -> Vec<Message> {
    let pieces = chunks(state.registry.entries().cloned().collect());
    let last = pieces.len() - 1;
    let frame = |(at, entries)| {
        let load = (at == last).then(|| state.plane.snapshot());
        Message::Snapshot(Snapshot {
            entries,
            load,
            last: at == last,
        })
    };
    pieces.into_iter().enumerate().map(frame).collect()
}

/// Begins an exchange with a peer, unless one is under way: the snapshot at first, anti-entropy later.
///
/// `differing`: the digests for whose sake it is begun, if that is why.
pub(super) fn begin(core: &Arc<Core>, peer: &ReplicaId, differing: Option<Pair>) {
    let Some(net) = &core.net else {
        return;
    };
    if !core.state().exchanging.insert(peer.clone()) {
        return;
    }
    let (core, peer) = (core.clone(), peer.clone());
    net.transport.spawn(async move {
        let is_first = !*core.synced.borrow();
        let result = if is_first {
            take_snapshot(&core, &peer).await
        } else {
            synchronise(&core, &peer).await
        };
        let reason = match &result {
            Ok(()) if is_first => "snapshot",
            Ok(()) => "done",
            Err(error) => {
                tracing::debug!(replica = %peer, %error, "registry exchange failed");
                "failed"
            }
        };
        core.metrics.syncs.get_or_create(&Why { reason }).inc();
        let mut state = core.state();
        state.exchanging.remove(&peer);
        if let (Ok(()), Some(pair)) = (result, differing) {
            state
                .unlike
                .exchanged(&peer, pair, Instant::now().into_std());
        }
    });
}

async fn take_snapshot(core: &Arc<Core>, peer: &ReplicaId) -> Result<(), RequestError> {
    let mut entries = Vec::new();
    let mut load = None;
    let mut is_whole = false;
    for received in request(core, peer, &Message::SnapshotRequest).await? {
        let Received {
            header,
            message: Some(Message::Snapshot(piece)),
            ..
        } = received
        else {
            return Err(RequestError::Broken);
        };
        entries.extend(piece.entries);
        load = piece.load.map(|frame| (header, frame)).or(load);
        is_whole = piece.last;
    }
    if !is_whole {
        return Err(RequestError::Broken);
    }
    {
        let mut state = core.state();
        if core.take_in(&mut state, peer, entries).is_none() {
            return Err(RequestError::Broken);
        }
        // Whoever sees the workers sees their load. It counts for the workers of the view only, so it can be applied
        // when the planes follow the view, neither before nor after; and the sums are not left to the next frame.
        core.publish_with(&mut state, |state| {
            if let Some((header, frame)) = load {
                let now = Instant::now().into_std();
                let plane = &mut state.plane;
                plane.apply(peer, header.generation, header.seq, &frame, now);
                plane.aggregate(now);
            }
        });
        state.contact.synced();
    }
    // After the view: evidence about workers that are not known is of no use. Nobody routes by that view meanwhile, for
    // this replica is not ready before it has taken the evidence, or waited for it in vain.
    newcomer::take_evidence(core, peer).await?;
    core.synced.send_replace(true);
    Ok(())
}

async fn synchronise(core: &Core, peer: &ReplicaId) -> Result<(), RequestError> {
    let question = {
        let state = core.state();
        SyncRequest {
            summary: state.registry.summary(),
            alone: state.contact.alone(),
        }
    };
    let answer = request(core, peer, &Message::SyncRequest(question)).await?;
    let (theirs, alone, entries) = join(answer)?;
    let missing_there = {
        let mut state = core.state();
        match Reunion::of(state.contact.alone(), alone) {
            Reunion::Merge => {}
            Reunion::StartOver => {
                tracing::warn!(replica = %peer, "away for longer than removals are remembered; taking the peer's registry");
                state.registry.start_over();
                core.refresh(&mut state);
            }
            // It will ask us, and take ours.
            Reunion::PeerStartsOver => return Ok(()),
        }
        if !core.merge(&mut state, peer, entries) {
            return Err(RequestError::Broken);
        }
        state.contact.synced();
        state.registry.differing(&theirs)
    };
    if !missing_there.is_empty() {
        for piece in chunks(missing_there) {
            request(core, peer, &Message::RegistryPush(piece)).await?;
        }
    }
    Ok(())
}

/// Puts the frames of one answer together.
fn join(answer: Vec<Received>) -> Result<(Summary, std::time::Duration, Vec<Entry>), RequestError> {
    let mut entries = Vec::new();
    let mut end = None;
    for received in answer {
        let Some(Message::SyncResponse(piece)) = received.message else {
            return Err(RequestError::Broken);
        };
        entries.extend(piece.entries);
        if piece.last {
            end = Some((piece.summary, piece.alone));
        }
    }
    let (summary, alone) = end.ok_or(RequestError::Broken)?;
    Ok((summary, alone, entries))
}

pub(super) async fn request(
    core: &Core,
    peer: &ReplicaId,
    message: &Message,
) -> Result<Vec<Received>, RequestError> {
    let net = core.net.as_ref().ok_or(RequestError::NotLinked)?;
    net.transport.request(peer, message).await
}
