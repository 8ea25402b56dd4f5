//! What is seen of a connection that this replica dialled: whose it is, and what its path carries. For operators.

use std::time::{Duration, SystemTime};

use quinn::Connection;

use super::credentials;
use crate::replica::ReplicaId;

/// What QUIC has found out of the path to a peer, since the connection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// A round trip.
    pub round_trip: Duration,
    /// Bytes of the largest UDP payload that passes; 1,200 at least, or there would be no connection.
    pub mtu: u16,
    /// Times that packets of a size that had passed before were lost in a row, and the size was reset.
    pub black_holes: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
}

/// A connection that this replica dialled.
pub(crate) struct SeenLink {
    pub(crate) peer: ReplicaId,
    /// End of the certificate that the peer showed.
    pub(crate) certificate_ends: Option<SystemTime>,
    pub(crate) path: PathReport,
}

impl SeenLink {
    pub(super) fn of(peer: ReplicaId, connection: &Connection) -> Self {
        let path = connection.stats().path;
        Self {
            peer,
            certificate_ends: credentials::leaf_of(connection).map(|leaf| leaf.until),
            path: PathReport {
                round_trip: connection.rtt(),
                mtu: path.current_mtu,
                black_holes: path.black_holes_detected,
                sent: path.sent_packets,
                lost: path.lost_packets,
            },
        }
    }
}
