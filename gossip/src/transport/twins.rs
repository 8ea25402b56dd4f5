//! Distinguishes a second process under one replica id from the same replica started again.
//!
//! Both look alike: a HELLO under a known id in another generation. The difference is whether the other process
//! still is. So a connection in another generation that is open at another address is sent something, and the
//! other process has to answer: QUIC acknowledges in user space, so a process that was killed, or stands still, answers
//! nothing, whatever is left of its connections. HELLO says by a number which process sends it: one may be seen at
//! several addresses, since the way to each of ours decides from which it dials. Earlier releases do not say it; of them it
//! is only known that processes never share a socket. So one that renews its generation or its certificate is not taken for
//! its own twin, nor one that restarts on its port.
//!
//! - A later process comes while an earlier one is connected: it is let in at once, as after a restart. The
//!   earlier one is asked after a moment, in which a process that was just ending is gone; if it answers it is
//!   cut off, with the reason.
//! - An earlier process comes while a later one is connected: the later one is asked at once; if it answers, the
//!   earlier one is refused, with the reason. It is asked to start again above the later one only when that one's
//!   connections have ended: a silent moment of the later one must not make them take turns.
//! - A process meets another one of its own id: the earlier of the two knows what it is.
//! - Two that started in the same millisecond have one generation: the one that dials, the other one or a replica that
//!   is connected to the other one, is asked to start again above it, and is the later of two from then on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::Connection;
use tokio::time::{Instant, sleep};

use super::links::Open;
use super::{Close, Shared, now};
use crate::peers::Member;
use crate::replica::ReplicaId;
use crate::twin::{Twin, TwinKept};

/// What is known of a later process than the one that sends HELLO.
pub(super) enum Later {
    /// There is none.
    No,
    /// It is connected and answers.
    Alive(TwinKept),
    /// It is connected and does not answer: dead or alive, its connections will show.
    Silent,
    /// There is one in the same generation, which dialled from elsewhere and answers.
    Tie,
}

/// The one that sends HELLO: from where, and which process of its id, if it says so.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    pub(super) process: Option<u64>,
}

/// Looks for a later process of this id than the one that sends HELLO.
pub(super) async fn later_than(shared: &Shared, member: &Member, caller: Caller) -> Later {
    let mut known = shared.peers.lock().connections_of(&member.id);
    let same = caller.generations(&known);
    let beside = known.iter().filter(|open| {
        open.generation == member.generation && is_from_elsewhere(&open.connection, caller.address)
    });
    let beside: Vec<_> = beside.map(|open| open.connection.clone()).collect();
    if !beside.is_empty() && !same.contains(&member.generation) && is_alive(&beside).await {
        return Later::Tie;
    }
    known.retain(|open| open.generation > member.generation && !same.contains(&open.generation));
    let ranks = known.iter();
    let ranks = ranks.map(|open| (open.generation, open.connection.remote_address()));
    let Some((generation, address)) = ranks.max() else {
        return Later::No;
    };
    let connections: Vec<_> = known.into_iter().map(|open| open.connection).collect();
    let kept = TwinKept {
        address,
        generation,
    };
    if is_alive(&connections).await {
        Later::Alive(kept)
    } else if connections.iter().all(is_closed) {
        Later::No
    } else {
        Later::Silent
    }
}

impl Caller {
    /// The generations in which this process is connected: under its number, or at its address, which is its own. What is
    /// connected elsewhere in one of them is that process too, since behind a relay or NAT it is dialled at another address
    /// than it comes from.
    fn generations(self, known: &[Open]) -> Vec<u64> {
        let is_it = |open: &&Open| {
            let is_same = self.process.is_some() && open.process == self.process;
            is_same || open.connection.remote_address() == self.address
        };
        let its = known.iter().filter(is_it);
        its.map(|open| open.generation).collect()
    }
}

fn is_from_elsewhere(other: &Connection, from: SocketAddr) -> bool {
    other.side().is_server() && other.remote_address() != from
}

/// Refuses a process because a later one of its id is alive.
pub(super) fn refuse(shared: &Shared, id: &ReplicaId, connection: &Connection, kept: TwinKept) {
    connection.close(Close::Twin.code(), kept.to_string().as_bytes());
    shared.handshake("twin");
    shared.twins.lock().cut_off(
        Twin {
            replica: id.clone(),
            kept: kept.address,
            cut_off: connection.remote_address(),
        },
        now(),
    );
}

/// A process was let in: cuts off earlier ones of its id, if they are still alive in a moment.
pub(super) fn cut_off_earlier(
    shared: &Arc<Shared>,
    member: &Member,
    caller: Caller,
    connection: &Connection,
) {
    let from = caller.address;
    shared.twins.lock().let_in(&member.id, from);
    let mut earlier = shared.peers.lock().connections_of(&member.id);
    let same = caller.generations(&earlier);
    earlier.retain(|open| open.generation < member.generation && !same.contains(&open.generation));
    if earlier.is_empty() {
        return;
    }
    let kept = TwinKept {
        address: from,
        generation: member.generation,
    };
    let (task, id, connection) = (shared.clone(), member.id.clone(), connection.clone());
    let stop = shared.stop.clone();
    shared.tracker.spawn(async move {
        let asked = async {
            sleep(ENDS_WITHIN).await;
            for other in earlier.iter().map(|open| &open.connection) {
                if is_alive(std::slice::from_ref(other)).await && !is_closed(&connection) {
                    refuse(&task, &id, other, kept);
                }
            }
        };
        stop.run_until_cancelled(asked).await
    });
}

/// Whether this process starts again above a generation of its id that a peer has seen. Every such report is judged here,
/// or, once this process was let in again, by the first of the two rules alone (`Sightings::take_outrun`).
///
/// It costs all connections. So the generation of the process that was kept instead, by the report of more peers than are
/// connected, is followed once it has ended; the report of one peer, whatever it is, once in a while.
pub(super) fn may_outrun(shared: &Shared, by: &ReplicaId, seen: u64) -> bool {
    // Peers that refused a moment ago are among them.
    shared.kept_instead();
    let is_kept = shared.twins.lock().may_outrun(seen, now());
    is_kept || shared.peer_table.lock().may_outrun(by, seen, now())
}

/// This process met another one under its own id.
pub(super) fn meet(shared: &Shared, generation: u64, address: SocketAddr) {
    let own = shared.address;
    // The one that dials goes on above the other.
    if generation == shared.generation() {
        return;
    }
    let (kept, cut_off) = if generation > shared.generation() {
        let kept = TwinKept {
            address,
            generation,
        };
        shared.twins.lock().met(kept, now());
        (address, own)
    } else {
        (own, address)
    };
    let replica = shared.own.clone();
    let twin = Twin {
        replica,
        kept,
        cut_off,
    };
    shared.twins.lock().cut_off(twin, now());
}

/// Whether the process at the other end of one of these answers something that is sent now.
///
/// It goes to the dialling side, where nobody reads; its arrival is acknowledged all the same. On connections
/// that were dialled from here frames are read, and load is sent every 250 ms at the least: that has to do.
async fn is_alive(connections: &[Connection]) -> bool {
    let before: Vec<_> = connections.iter().map(answers).collect();
    for connection in connections.iter().filter(|one| one.side().is_server()) {
        let _ = connection.send_datagram(Bytes::new());
    }
    let begun = Instant::now();
    while begun.elapsed() < ANSWERS_WITHIN && !connections.iter().all(is_closed) {
        sleep(LOOK_EACH).await;
        let mut each = connections.iter().zip(&before);
        if each.any(|(one, before)| !is_closed(one) && answers(one) > *before) {
            return true;
        }
    }
    false
}

/// Frames of an open connection that only its other end can have made.
fn answers(connection: &Connection) -> u64 {
    let frames = connection.stats().frame_rx;
    frames.acks + frames.ping + frames.stream + frames.datagram
}

fn is_closed(connection: &Connection) -> bool {
    connection.close_reason().is_some()
}

/// For a process that is ending while its successor starts, and for what it sent last to arrive.
const ENDS_WITHIN: Duration = Duration::from_millis(300);
/// A round trip and a busy machine; the one that waits for HELLO-ACK meanwhile gives up after a second.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
const LOOK_EACH: Duration = Duration::from_millis(10);
