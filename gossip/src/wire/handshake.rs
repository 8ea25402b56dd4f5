//! How a connection begins, as it travels: HELLO and its answer.

use std::net::SocketAddr;

use super::body::{Body, Frame, later, replica};
use crate::config::HELLO_TEXT_BYTES_MAX;
use crate::frame::{self, Decode, Encode, FrameError};
use crate::replica::ReplicaId;

/// Greatest number of dial hints in a [`HelloAck`].
pub const HINTS_MAX: usize = 256;

/// The side that dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its id, to be compared with its certificate.
    pub replica: ReplicaId,
    /// Its cluster, up to 64 visible ASCII characters.
    pub cluster: String,
    /// Where it can be dialled.
    pub gossip_addr: SocketAddr,
    /// Its release, up to 64 visible ASCII characters.
    pub version: String,
    /// A number that its process drew at its start: two processes of one id differ in it, and one process has one, from
    /// whatever address it dials. `None` from a release that does not say it.
    pub process: Option<u64>,
}

/// The side that answers, and what a new replica needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloAck {
    /// The id of the answering replica, to be compared with its certificate.
    pub replica: ReplicaId,
    /// Highest generation seen of the dialling replica's id; 0 = none. A replica must start with
    /// a higher one.
    pub generation_seen: u64,
    /// Replicas that the answering one knows: to be dialled, not to be trusted.
    pub hints: Vec<PeerHint>,
}

/// The address at which another replica is reported to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHint {
    /// Its id.
    pub replica: ReplicaId,
    /// Where it can be dialled.
    pub gossip_addr: SocketAddr,
}

#[derive(Encode, Decode)]
pub(super) struct WireHello {
    replica: String,
    cluster: String,
    gossip_addr: SocketAddr,
    version: String,
}

#[derive(Encode, Decode)]
pub(super) struct WireHelloAck {
    replica: String,
    generation_seen: u64,
    hints: Vec<(String, SocketAddr)>,
}

impl Body for Hello {
    type Wire = WireHello;

    fn to_wire(&self) -> WireHello {
        WireHello {
            replica: self.replica.to_string(),
            cluster: self.cluster.clone(),
            gossip_addr: self.gossip_addr,
            version: self.version.clone(),
        }
    }

    fn from_wire(wire: WireHello, _: &mut usize) -> Result<Self, FrameError> {
        Ok(Self {
            replica: replica(&wire.replica)?,
            cluster: text(wire.cluster, "cluster")?,
            gossip_addr: wire.gossip_addr,
            version: text(wire.version, "release")?,
            process: None,
        })
    }

    fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
        // Since 0.2.
        frame.put_with(&self.to_wire(), self.process)
    }

    fn read(_code: u8, body: &mut &[u8], refused: &mut usize) -> Result<Self, FrameError> {
        let mut hello = Self::from_wire(frame::decode(body)?, refused)?;
        hello.process = later(body)?;
        Ok(hello)
    }
}

impl Body for HelloAck {
    type Wire = WireHelloAck;

    fn to_wire(&self) -> WireHelloAck {
        let hints = self.hints.iter().take(HINTS_MAX);
        WireHelloAck {
            replica: self.replica.to_string(),
            generation_seen: self.generation_seen,
            hints: hints
                .map(|hint| (hint.replica.to_string(), hint.gossip_addr))
                .collect(),
        }
    }

    fn from_wire(wire: WireHelloAck, _: &mut usize) -> Result<Self, FrameError> {
        if wire.hints.len() > HINTS_MAX {
            return Err(FrameError::Value("number of dial hints"));
        }
        let hint = |(id, gossip_addr): (String, SocketAddr)| {
            let replica = replica(&id)?;
            Ok(PeerHint {
                replica,
                gossip_addr,
            })
        };
        let hints = wire.hints.into_iter().map(hint);
        Ok(Self {
            replica: replica(&wire.replica)?,
            generation_seen: wire.generation_seen,
            hints: hints.collect::<Result<_, FrameError>>()?,
        })
    }
}

fn text(text: String, what: &'static str) -> Result<String, FrameError> {
    let is_valid = text.len() <= HELLO_TEXT_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    if is_valid {
        Ok(text)
    } else {
        Err(FrameError::Value(what))
    }
}
