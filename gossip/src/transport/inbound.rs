//! The accepting side: connections that peers dialled, on which this replica only reads and answers.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Connection, ConnectionError, Incoming, RecvStream, SendStream};
use tokio::time::timeout;

use super::handshakes::{Admit, HandshakeLimiter};
use super::hello::{Accepted, Broken};
use super::links::Open;
use super::stream::{StreamError, read_all, read_frame_while, write_all};
use super::{Close, Receiver, Shared, credentials, hello, limits, now, peer, twins};
use crate::frame::{FRAME_BYTES_MAX, FrameError, Header};
use crate::peers::{Lane, Member, Reason, Refused};
use crate::wire::{self, Message, Rate, Received, Role};

/// Takes connections until the endpoint closes.
pub(super) async fn accept(shared: Arc<Shared>, receiver: Arc<dyn Receiver>) {
    let limiter = Arc::<HandshakeLimiter>::default();
    while let Some(incoming) = shared.endpoint.accept().await {
        if is_full(
            shared.peers.lock().open_count(),
            shared.endpoint.open_connections(),
        ) {
            shared.handshake("too_many");
            incoming.refuse();
            continue;
        }
        let address = incoming.remote_address().ip();
        match limiter.enter(address, incoming.remote_address_validated()) {
            Admit::Accept(place) => {
                let task = serve(shared.clone(), receiver.clone(), incoming, place);
                let stop = shared.stop.clone();
                shared
                    .tracker
                    .spawn(async move { stop.run_until_cancelled(task).await });
            }
            // Under pressure an address must prove itself before it costs us a handshake.
            Admit::Retry => {
                shared.handshake("retried");
                let _ = incoming.retry();
            }
            // Not refused: a flood aims at answers. An honest replica comes again.
            Admit::Ignore => {
                shared.handshake("crowded");
                incoming.ignore();
            }
        }
    }
}

/// Whether there is no place for another connection.
pub(super) fn is_full(open: usize, remembered: usize) -> bool {
    open >= limits::CONNECTIONS || remembered >= limits::CONNECTIONS_REMEMBERED
}

async fn serve(
    shared: Arc<Shared>,
    receiver: Arc<dyn Receiver>,
    incoming: Incoming,
    place: super::handshakes::Place,
) {
    let from = incoming.remote_address();
    let connection = match timeout(limits::CONNECT, incoming).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            broken(&shared, from, &error);
            return;
        }
        Err(_) => return shared.handshake("slow"),
    };
    let Accepted { member, caller } = match hello::accept(&shared, &connection).await {
        Ok(accepted) => accepted,
        Err(close) => {
            shared.handshake("no_hello");
            connection.close(close.code(), b"");
            return;
        }
    };
    drop(place);
    shared.handshake("accepted");
    if member.id == shared.own {
        // Our own address among the seeds: the dialling side has its answer. Another process of our id is bound by no limit
        // of a peer's.
        let _ = timeout(limits::CONNECT, connection.closed()).await;
        connection.close(Close::Done.code(), b"");
        return;
    }
    twins::cut_off_earlier(&shared, &member, caller, &connection);
    peer::meet(&shared, &receiver, &member);
    let open = Open {
        generation: member.generation,
        process: caller.process,
        connection: connection.clone(),
    };
    shared.peers.lock().accepted(&member.id, open);
    if !credentials::is_late(&shared, &connection) {
        peer::shown(&shared, &member.id, &connection);
    }
    read(&shared, &receiver, &member, &connection).await;
    shared.peers.lock().ended(&member.id);
    // Its message may be lost.
    if hello::is_leaving(&connection) {
        peer::leave(&shared, &receiver, &member.id, member.generation);
    }
}

/// A handshake that came to no connection: only what TLS refused is for an operator.
fn broken(shared: &Shared, from: SocketAddr, error: &ConnectionError) {
    let why = Broken::of(error);
    if why == Broken::Ended {
        shared.handshake("closed");
        tracing::debug!(address = %from, %error, "a connection ended in its handshake");
        return;
    }
    shared.handshake("refused");
    // By machine: a second try comes from another port.
    if !shared.log_limit.due((from.ip(), 0).into(), "refused") {
        return;
    }
    if hello::looks_for_another(error) {
        tracing::warn!(address = %from, %error, "a caller does not take this replica's certificate: it looks for another replica at this address");
    } else if why == Broken::Certificate {
        tracing::warn!(address = %from, %error, "refused a connection; a certificate of this cluster's authority is needed");
    } else {
        tracing::warn!(address = %from, %error, "refused a connection; it is not one of a Grapevine replica of this protocol");
    }
}

/// Reads until the connection ends. QUIC bounds how many streams are open at once.
async fn read(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    member: &Member,
    connection: &Connection,
) {
    loop {
        let link = Link {
            shared: shared.clone(),
            receiver: receiver.clone(),
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
    receiver: Arc<dyn Receiver>,
    member: Member,
}

impl Link {
    /// A uni stream: a message for chitchat, or one frame of ours.
    async fn message(self, mut stream: RecvStream) {
        if !self.allows(Lane::Bytes, limits::STREAM_COST) {
            return;
        }
        let may_come = |bytes| self.allows(Lane::Bytes, bytes);
        let bytes = match read_all(&mut stream, FRAME_BYTES_MAX, may_come).await {
            Ok(bytes) => bytes,
            Err(StreamError::TooLong(_)) => return self.strike(Reason::TooLong),
            Err(error) => return self.broken(&error),
        };
        if bytes.starts_with(&MAGIC) {
            self.frame(&bytes);
        } else {
            self.gossip(&bytes);
        }
    }

    fn gossip(&self, bytes: &[u8]) {
        self.shared.metrics.received("gossip", bytes.len());
        if bytes.len() > limits::CHITCHAT_BYTES_MAX {
            return self.strike(Reason::TooLong);
        }
        let verdict = self
            .shared
            .peer_table
            .lock()
            .inspect(&self.member.id, bytes, now());
        match verdict {
            Ok(passed) => {
                self.shared.metrics.trimmed.inc_by(passed.trimmed as u64);
                for (id, address) in &passed.strangers {
                    peer::consider(&self.shared, &self.receiver, id, *address);
                }
                if let Some(version) = passed.outdone {
                    self.receiver.outdone(version);
                }
                for address in passed.ask {
                    self.receiver.has_news(address);
                }
                self.receiver.gossip(self.member.address, passed.bytes);
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

    /// A stream that brought no whole message. Not an offence: an honest peer gives up what takes too long.
    fn broken(&self, error: &StreamError) {
        match error {
            // Counted where it was refused.
            StreamError::Refused => return,
            // What came of it and was not read yet is lost, and nobody knows how much it was.
            StreamError::Reset if !self.allows(Lane::Bytes, limits::RESET_COST) => return,
            _ => {}
        }
        self.shared.metrics.dropped("stream_broken");
    }

    /// Whether the peer may send this now; if not, that is counted.
    fn allows(&self, lane: Lane, cost: usize) -> bool {
        let verdict = self
            .shared
            .peer_table
            .lock()
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
            Some(Message::Leave) => {
                let Member { id, generation, .. } = &self.member;
                if !peer::leave(&self.shared, &self.receiver, id, *generation) {
                    // Another process of this id came since: this one takes its own leave only.
                    self.shared.metrics.dropped("former_generation");
                }
            }
            Some(message) => self.push(header, message, bytes.len()),
            None => self.shared.metrics.dropped("unknown_kind"),
        }
    }

    fn push(&self, header: Header, message: Message, bytes: usize) {
        let kind = message.kind();
        if !matches!(kind.role, Role::Push(_)) {
            return self.strike(Reason::Malformed);
        }
        if Lane::of(kind.rate).is_none_or(|lane| self.allows(lane, 1)) {
            self.shared.metrics.received(kind.plane, bytes);
            self.receiver
                .message(&self.member.id, header, message, bytes);
        }
    }

    /// A bi stream: one request, answered on the same stream.
    async fn request(self, mut send: SendStream, mut receive: RecvStream) {
        if !self.allows(Lane::Bytes, limits::STREAM_COST) {
            return;
        }
        let may_come = |bytes| self.allows(Lane::Bytes, bytes);
        let read = read_frame_while(&mut receive, may_come);
        let bytes = match timeout(limits::STREAM, read).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Err(StreamError::Frame(FrameError::Version(_)))) => {
                return self.shared.metrics.dropped("other_version");
            }
            Ok(Err(StreamError::Frame(_))) => return self.strike(Reason::Malformed),
            Ok(Err(error)) => return self.broken(&error),
            Ok(Ok(None)) | Err(_) => return self.broken(&StreamError::Slow),
        };
        let Some(Received {
            header, message, ..
        }) = self.decode(&bytes)
        else {
            return;
        };
        let Some(message) = message else {
            return self.shared.metrics.dropped("unknown_kind");
        };
        let kind = message.kind();
        if !kind.is_question() {
            return self.strike(Reason::Malformed);
        }
        self.shared.metrics.received(kind.plane, bytes.len());
        let is_registry = kind.rate == Rate::Registry;
        let is_push = matches!(message, Message::RegistryPush(_));
        if is_registry && !self.may_ask(is_push) {
            return;
        }
        let mut answer = Vec::new();
        let length = bytes.len();
        for message in self
            .receiver
            .message(&self.member.id, header, message, length)
        {
            answer.extend(self.shared.encode(&message).unwrap_or_default());
        }
        if is_registry {
            let mut table = self.shared.peer_table.lock();
            table.answered(&self.member.id, answer.len(), now());
        }
        self.shared.metrics.sent(kind.plane, answer.len());
        let _ = timeout(limits::REQUEST, write_all(&mut send, &answer)).await;
    }

    /// Whether a question of the registry is answered now. The other planes that answer have shares of
    /// their own.
    fn may_ask(&self, is_push: bool) -> bool {
        if !self.allows(Lane::Registry, 1) || !(is_push || self.allows(Lane::Questions, 1)) {
            return false;
        }
        // A push is a change, and answered in some bytes: however much its sender was answered before, it is taken.
        let may = is_push
            || self
                .shared
                .peer_table
                .lock()
                .may_answer(&self.member.id, now());
        if !may {
            self.shared.metrics.dropped("answer_withheld");
        }
        may
    }

    /// Takes a frame apart; damaged ones count against the sender, former generations are ignored.
    fn decode(&self, bytes: &[u8]) -> Option<Received> {
        let received = match wire::decode_with(bytes, &self.shared.kinds) {
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
        self.shared.count_left_out(&received);
        if received.header.generation != self.member.generation {
            self.shared.metrics.dropped("former_generation");
            return None;
        }
        Some(received)
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
