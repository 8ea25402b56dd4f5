//! The accepting side: connections that peers dialled, on which this replica only reads and answers.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Connection, Incoming, RecvStream, SendStream};
use tokio::time::timeout;

use super::handshakes::{Doorstep, Turn};
use super::stream::{StreamError, read_all, read_frame, write_all};
use super::{Planes, Shared, credentials, hello, limits, now, peer, twins};
use crate::firewall::{Lane, MESSAGE_BYTES_MAX, Member, Reason, Refused};
use crate::frame::{FRAME_BYTES_MAX, FrameError};
use crate::wire::{self, Message, Received};

/// Takes connections until the endpoint closes.
pub(super) async fn accept(shared: Arc<Shared>, planes: Arc<dyn Planes>) {
    let doorstep = Arc::<Doorstep>::default();
    while let Some(incoming) = shared.endpoint.accept().await {
        if shared.endpoint.open_connections() >= limits::CONNECTIONS {
            shared.handshake("too_many");
            incoming.refuse();
            continue;
        }
        let address = incoming.remote_address().ip();
        match doorstep.enter(address, incoming.remote_address_validated()) {
            Turn::Come(place) => {
                let task = serve(shared.clone(), planes.clone(), incoming, place);
                let stop = shared.stop.clone();
                shared
                    .tracker
                    .spawn(async move { stop.run_until_cancelled(task).await });
            }
            // Under pressure an address must prove itself before it costs us a handshake.
            Turn::ProveYourself => {
                shared.handshake("retried");
                let _ = incoming.retry();
            }
            // Not refused: an answer is what a flood wants. Who is honest comes again.
            Turn::Wait => {
                shared.handshake("crowded");
                incoming.ignore();
            }
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    planes: Arc<dyn Planes>,
    incoming: Incoming,
    place: super::handshakes::Place,
) {
    let from = incoming.remote_address();
    let connection = match timeout(limits::CONNECT, incoming).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            shared.handshake("refused");
            // By machine: whoever tries again comes from another port.
            if shared.alarms.due((from.ip(), 0).into(), "refused") {
                tracing::warn!(address = %from, %error, "refused a connection; a certificate of this cluster's authority is needed");
            }
            return;
        }
        Err(_) => return shared.handshake("slow"),
    };
    let member = match hello::accept(&shared, &connection).await {
        Ok(member) => member,
        Err(close) => {
            shared.handshake("no_hello");
            connection.close(close.code(), b"");
            return;
        }
    };
    drop(place);
    shared.handshake("accepted");
    if member.id == shared.own {
        // Our own address among the seeds: the dialling side has its answer.
        connection.closed().await;
        return;
    }
    twins::cut_off_earlier(&shared, &member, &connection);
    peer::meet(&shared, &planes, &member);
    shared.peers().accepted(&member, &connection);
    if !credentials::is_late(&shared, &connection) {
        peer::shown(&shared, &member.id, &connection);
    }
    read(&shared, &planes, &member, &connection).await;
    shared.peers().ended(&member.id);
}

/// Reads until the connection ends. QUIC bounds how many streams are open at once.
async fn read(
    shared: &Arc<Shared>,
    planes: &Arc<dyn Planes>,
    member: &Member,
    connection: &Connection,
) {
    loop {
        let link = Link {
            shared: shared.clone(),
            planes: planes.clone(),
            member: member.clone(),
        };
        tokio::select! {
            stream = connection.accept_uni() => match stream {
                Ok(stream) => shared.tracker.spawn(link.message(stream)),
                Err(_) => return,
            },
            stream = connection.accept_bi() => match stream {
                Ok((send, receive)) => shared.tracker.spawn(link.request(send, receive)),
                Err(_) => return,
            },
            datagram = connection.read_datagram() => match datagram {
                Ok(datagram) => {
                    if link.allows(Lane::Bytes, datagram.len()) {
                        link.frame(&datagram);
                    }
                    continue;
                }
                Err(_) => return,
            },
        };
    }
}

/// One accepted connection of one peer.
struct Link {
    shared: Arc<Shared>,
    planes: Arc<dyn Planes>,
    member: Member,
}

impl Link {
    /// A uni stream: a message for chitchat, or one frame of ours.
    async fn message(self, mut stream: RecvStream) {
        let bytes = match read_all(&mut stream, FRAME_BYTES_MAX).await {
            Ok(bytes) => bytes,
            Err(StreamError::TooLong(_)) => return self.strike(Reason::TooLong),
            Err(_) => return self.shared.metrics.dropped("stream_broken"),
        };
        if !self.allows(Lane::Bytes, bytes.len()) {
            return;
        }
        if bytes.starts_with(&MAGIC) {
            self.frame(&bytes);
        } else {
            self.gossip(&bytes);
        }
    }

    fn gossip(&self, bytes: &[u8]) {
        self.shared.metrics.received("gossip", bytes.len());
        if bytes.len() > MESSAGE_BYTES_MAX {
            return self.strike(Reason::TooLong);
        }
        let verdict = self
            .shared
            .firewall()
            .inspect(&self.member.id, bytes, now());
        match verdict {
            Ok(passed) => {
                self.shared.metrics.trimmed.inc_by(passed.trimmed as u64);
                for (id, address) in &passed.strangers {
                    peer::consider(&self.shared, &self.planes, id, *address);
                }
                self.planes.gossip(self.member.address, passed.bytes);
            }
            Err(refused) => self.refuse(refused),
        }
    }

    fn refuse(&self, refused: Refused) {
        if refused.reason == Reason::Unknown {
            // Streams overtake each other: this one was sent before the goodbye.
            self.shared.metrics.dropped("after_leave");
        } else {
            self.shared.offence(&self.member.id, self.from(), refused);
        }
    }

    /// Whether the peer may send this now; if not, that is counted.
    fn allows(&self, lane: Lane, cost: usize) -> bool {
        let verdict = self
            .shared
            .firewall()
            .allow(&self.member.id, lane, cost, now());
        verdict.map_err(|refused| self.refuse(refused)).is_ok()
    }

    /// One frame without an answer.
    fn frame(&self, bytes: &[u8]) {
        let Some(Received {
            header, message, ..
        }) = self.decode(bytes)
        else {
            return;
        };
        match message {
            Some(Message::Load(frame)) => {
                if !self.allows(Lane::Load, 1) {
                    return;
                }
                self.shared.metrics.received("load", bytes.len());
                if !self.planes.load(&self.member.id, header, frame) {
                    self.strike(Reason::Malformed);
                }
            }
            Some(
                message @ (Message::Evidence(_) | Message::EvidenceMark(_) | Message::Heat(_)),
            ) => {
                if !self.allows(Lane::Evidence, 1) {
                    return;
                }
                self.shared.metrics.received(message.plane(), bytes.len());
                self.planes
                    .evidence(&self.member.id, header, message, bytes.len());
            }
            Some(message @ (Message::Health(_) | Message::Usage(_) | Message::Quarantine(_))) => {
                self.shared.metrics.received(message.plane(), bytes.len());
                self.planes.bulletin(&self.member.id, header, message);
            }
            // Another process of this id came since: this one takes its own leave only.
            Some(Message::Leave) if self.is_former() => {
                self.shared.metrics.dropped("former_generation");
            }
            Some(Message::Leave) => {
                tracing::info!(replica = %self.member.id, "a replica leaves");
                self.shared.peers().leave(&self.member.id);
                self.shared.firewall().forget(&self.member.id);
                self.planes.left(&self.member.id);
            }
            Some(_) => self.strike(Reason::Malformed),
            None => self.shared.metrics.dropped("unknown_kind"),
        }
    }

    /// A bi stream: one request, answered on the same stream.
    async fn request(self, mut send: SendStream, mut receive: RecvStream) {
        let bytes = match timeout(limits::STREAM, read_frame(&mut receive)).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Err(StreamError::Frame(FrameError::Version(_)))) => {
                return self.shared.metrics.dropped("other_version");
            }
            Ok(Err(StreamError::Frame(_))) => return self.strike(Reason::Malformed),
            _ => return self.shared.metrics.dropped("stream_broken"),
        };
        if !self.allows(Lane::Bytes, bytes.len()) {
            return;
        }
        let Some(Received {
            header, message, ..
        }) = self.decode(&bytes)
        else {
            return;
        };
        let Some(message) = message else {
            return self.shared.metrics.dropped("unknown_kind");
        };
        if !message.is_request() {
            return self.strike(Reason::Malformed);
        }
        let plane = message.plane();
        self.shared.metrics.received(plane, bytes.len());
        let is_registry = plane == "registry";
        if is_registry && !self.may_ask() {
            return;
        }
        let mut answer = Vec::new();
        for message in self.planes.request(&self.member.id, header, message) {
            answer.extend(self.shared.encode(&message).unwrap_or_default());
        }
        if is_registry {
            let mut firewall = self.shared.firewall();
            firewall.answered(&self.member.id, answer.len(), now());
        }
        self.shared.metrics.sent(plane, answer.len());
        let _ = timeout(limits::REQUEST, write_all(&mut send, &answer)).await;
    }

    /// Whether a question of the registry is answered now. The other planes that answer have shares of
    /// their own.
    fn may_ask(&self) -> bool {
        if !self.allows(Lane::Registry, 1) {
            return false;
        }
        let may = self.shared.firewall().may_answer(&self.member.id, now());
        if !may {
            self.shared.metrics.dropped("answer_withheld");
        }
        may
    }

    /// Takes a frame apart; damaged ones count against the sender, former generations are ignored.
    fn decode(&self, bytes: &[u8]) -> Option<Received> {
        let received = match wire::decode(bytes) {
            Ok(received) => received,
            // A later release may speak another version, or know entries that this one does not.
            Err(FrameError::Version(_)) => {
                self.shared.metrics.dropped("other_version");
                return None;
            }
            Err(_) => {
                self.strike(Reason::Malformed);
                return None;
            }
        };
        for _ in 0..received.refused {
            self.shared.metrics.dropped("entry");
        }
        if received.unread > 0 {
            self.shared.metrics.dropped("later_fields");
        }
        if received.header.generation != self.member.generation {
            self.shared.metrics.dropped("former_generation");
            return None;
        }
        Some(received)
    }

    fn is_former(&self) -> bool {
        let known = self.shared.firewall().generation(&self.member.id);
        known.is_some_and(|known| known > self.member.generation)
    }

    fn strike(&self, reason: Reason) {
        self.shared.strike(&self.member.id, self.from(), reason);
    }

    fn from(&self) -> SocketAddr {
        self.member.address
    }
}

/// First bytes of our frames; a chitchat message begins differently.
const MAGIC: [u8; 2] = *b"GV";
