//! The peers that this replica dials: one task each, with its connection.

mod asking;
mod renewal;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::Connection;
use tokio::time::{Instant, sleep};

use super::hello::{self, DialError, Dialled};
use super::links::{Lane, Peer, Peers, Waiting};
use super::stream::{send_uni, write_all};
use super::{Receiver, Shared, credentials, limits};
use crate::peers::Member;
use crate::replica::ReplicaId;
use crate::wire::{Message, PeerHint};

pub(super) use asking::request;

/// A replica proved itself: dial it at its address, at once if that was tried in vain.
pub(super) fn meet(shared: &Arc<Shared>, receiver: &Arc<dyn Receiver>, member: &Member) {
    let mut peers = shared.peers.lock();
    if peers.meet(member) {
        dial(
            &mut peers,
            shared,
            receiver,
            &member.id,
            member.address,
            true,
        );
    }
}

/// A replica leaves in this generation: it is dialled no more, and nothing of it counts. False if that is not the one in
/// which it is here: another process of its id came since, or it has left before.
pub(super) fn leave(
    shared: &Shared,
    receiver: &Arc<dyn Receiver>,
    id: &ReplicaId,
    generation: u64,
) -> bool {
    {
        let mut table = shared.peer_table.lock();
        if table.generation(id) != Some(generation) {
            return false;
        }
        table.forget(id, super::now());
    }
    tracing::debug!(replica = %id, "a replica leaves");
    shared.peers.lock().leave(id);
    receiver.left(id);
    true
}

/// Passes on what an answered HELLO brought: the replica that answered, and others to dial.
pub(super) fn learn(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    member: &Member,
    hints: &[PeerHint],
) {
    meet(shared, receiver, member);
    let outrun = shared.twins.lock().take_outrun(super::now());
    if let Some(seen) = outrun {
        receiver.outrun(seen);
    }
    for hint in hints
        .iter()
        .filter(|hint| hint.replica != shared.own && hint.replica != member.id)
    {
        consider(shared, receiver, &hint.replica, hint.gossip_addr);
    }
}

/// A peer dialled us and showed a certificate. If that of our connection to it is another one, it was
/// replaced: ours should show the new one too, while both are accepted.
pub(super) fn shown(shared: &Shared, id: &ReplicaId, accepted: &Connection) {
    let peers = shared.peers.lock();
    let dialled = peers.connection(id);
    let is_other = dialled.is_some_and(|dialled| {
        credentials::chain(&dialled).first() != credentials::chain(accepted).first()
    });
    if is_other {
        peers.renew(id);
    }
}

/// Another replica named this one: dial it, unless it is known already.
pub(super) fn consider(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    id: &ReplicaId,
    address: SocketAddr,
) {
    let mut peers = shared.peers.lock();
    if peers.is_news(id) {
        dial(&mut peers, shared, receiver, id, address, false);
    }
}

fn dial(
    peers: &mut Peers,
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    id: &ReplicaId,
    address: SocketAddr,
    proven: bool,
) {
    let (peer, waiting) = peers.add(id, address, proven);
    let task = Task {
        shared: shared.clone(),
        receiver: receiver.clone(),
        id: id.clone(),
        peer,
    };
    shared.tracker.spawn(task.run(waiting));
}

/// What the task of a peer works with.
struct Task {
    shared: Arc<Shared>,
    receiver: Arc<dyn Receiver>,
    id: ReplicaId,
    peer: Peer,
}

impl Task {
    async fn run(self, mut waiting: Waiting) {
        let stop = self.peer.stop.clone();
        let whole = self.shared.stop.clone();
        tokio::select! {
            () = self.dial_and_serve(&mut waiting) => {}
            () = stop.cancelled() => {}
            () = whole.cancelled() => return, // the endpoint closes all connections itself
        }
        // Given up; if removed by somebody else, there is nothing left to do.
        let mut peers = self.shared.peers.lock();
        if peers.is_task(&self.id, self.peer.task) {
            peers.leave(&self.id);
            drop(peers);
            self.shared.peer_table.lock().forget(&self.id, super::now());
        }
    }

    async fn dial_and_serve(&self, waiting: &mut Waiting) {
        let mut heard = Instant::now();
        loop {
            let mut pause_min = Duration::ZERO;
            let known = self.shared.peer_table.lock().generation(&self.id);
            match hello::dial(&self.shared, self.peer.address, Some(&self.id)).await {
                Ok(dialled) => {
                    self.serve(dialled, waiting).await;
                    heard = Instant::now();
                }
                // It answers, as its certificate proves, and another process of our id has to end first.
                Err(DialError::Twin { .. }) => {
                    heard = Instant::now();
                    pause_min = limits::TWIN_PAUSE;
                }
                Err(DialError::Leaving) => {
                    let is_gone = known.map_or_else(
                        || !self.shared.peers.lock().is_proven(&self.id),
                        |generation| self.leaves(generation),
                    );
                    if is_gone {
                        return;
                    }
                }
                Err(error) => {
                    let is_proven = self.shared.peers.lock().is_proven(&self.id);
                    self.failed(&error, is_proven);
                    let patience = if is_proven {
                        limits::PROVEN_FOR
                    } else {
                        limits::HINT_FOR
                    };
                    if heard.elapsed() > patience && !self.reaches_us() {
                        return;
                    }
                }
            }
            let pause = limits::pause(heard.elapsed(), rand::random()).max(pause_min);
            tokio::select! {
                () = sleep(pause) => {}
                // It came back and dialled us first.
                () = self.peer.wake.notified() => {}
            }
        }
    }

    /// It has a connection to this replica, though there is none the other way.
    fn reaches_us(&self) -> bool {
        !self.shared.peers.lock().connections_of(&self.id).is_empty()
    }

    fn failed(&self, error: &DialError, is_proven: bool) {
        // Hearsay about a replica that is gone needs nobody's attention.
        if is_proven {
            hello::report(&self.shared, self.peer.address, self.id.as_str(), error);
        }
        if let DialError::Outrun { seen, .. } = error {
            self.receiver.outrun(*seen);
        }
    }

    /// Sends what is queued until the connection ends.
    async fn serve(&self, dialled: Dialled, waiting: &mut Waiting) {
        let Dialled {
            connection,
            generation,
            member,
            hints,
        } = dialled;
        // What was queued for the last connection is old by now.
        for lane in [&mut waiting.urgent, &mut waiting.bulk, &mut waiting.latest] {
            while lane.try_recv().is_ok() {
                self.shared.metrics.dropped("link_lost");
            }
        }
        self.take(&connection, generation, &member);
        learn(&self.shared, &self.receiver, &member, &hints);
        tracing::info!(replica = %self.id, address = %self.peer.address, "connected");
        self.receiver.linked(&member);
        let current = Mutex::new(connection);
        let lanes = async {
            tokio::join!(
                self.drain(&current, &mut waiting.urgent),
                self.drain(&current, &mut waiting.bulk),
                self.drain(&current, &mut waiting.latest)
            );
        };
        let (closed, generation) = tokio::select! {
            closed = self.renewed_until_closed(&current, member) => closed,
            // Not before this task ends: it holds the other ends itself.
            () = lanes => return,
        };
        self.shared
            .peers
            .lock()
            .set_link(&self.id, self.peer.task, None);
        if let Some(kept) = hello::kept_instead(&renewal::current(&current)) {
            let mut twins = self.shared.twins.lock();
            twins.refused(&self.id, kept, super::now());
        }
        tracing::info!(replica = %self.id, address = %self.peer.address, reason = %closed, "connection ended");
        // Its message may be lost.
        if hello::is_leaving(&renewal::current(&current)) {
            self.leaves(generation);
        }
    }

    fn leaves(&self, generation: u64) -> bool {
        leave(&self.shared, &self.receiver, &self.id, generation)
    }

    /// Sends one lane, one message after the other.
    async fn drain(&self, connection: &Mutex<Connection>, lane: &mut Lane) {
        while let Some((plane, bytes)) = lane.recv().await {
            match send_uni(&renewal::current(connection), &bytes).await {
                Ok(()) => self.shared.metrics.sent(plane, bytes.len()),
                Err(_) => self.shared.metrics.dropped("stream_broken"),
            }
        }
    }
}

/// Announces to every connected peer that this replica leaves, and waits until each has it or is gone.
pub(super) async fn say_leave(shared: &Arc<Shared>) {
    let Some(bytes) = shared.encode(&Message::Leave) else {
        return;
    };
    let goodbyes = tokio_util::task::TaskTracker::new();
    for (_, connection) in shared
        .peers
        .lock()
        .linked()
        .into_iter()
        .filter_map(|peer| peer.link)
    {
        let bytes = bytes.clone();
        goodbyes.spawn(async move {
            if let Ok(mut stream) = connection.open_uni().await
                && write_all(&mut stream, &bytes).await.is_ok()
            {
                // Resolves once the peer has acknowledged every byte.
                let _ = stream.stopped().await;
            }
        });
    }
    goodbyes.close();
    goodbyes.wait().await;
}
