//! The handshake of replicas on top of the handshake of QUIC: names bound to certificates.
//!
//! The dialling side opens the first bi stream with HELLO (cluster, replica id, address; the frame's
//! header has its generation). The other side checks the id against the certificate, admits it, and
//! answers HELLO-ACK: its id, the highest generation that it has seen of the dialling id, and the replicas that
//! it is connected to. Ids and addresses of third replicas are hints for dialling, no more.

use std::net::SocketAddr;

use bytes::Bytes;
use quinn::{Connection, ConnectionError};
use tokio::time::timeout;

use super::loops::Dialling;
use super::stream::{read_frame, write_all};
use super::twins::Caller;
use super::{Close, Shared, limits, now, twins};
use crate::identity::{certificate_names, replica_name, replica_named};
use crate::peers::{Member, Reason};
use crate::replica::ReplicaId;
use crate::twin::TwinKept;
use crate::wire::{self, Hello, HelloAck, Message, PeerHint, Received};

/// Why a dialled address gave no connection. Messages are for operators.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("this is the replica itself")]
    Myself,
    #[error("no answer in {:?}; is a replica listening there?", limits::CONNECT)]
    Silent,
    #[error("it is not a Grapevine replica: {0}")]
    NotGrapevine(String),
    #[error("its certificate is not of this cluster: {0}")]
    Foreign(String),
    #[error("its certificate was revoked")]
    Revoked,
    #[error("its certificate is not valid now ({0}); compare the clocks, or issue it another one")]
    Ended(String),
    #[error("it refuses our certificate ({0}); both need certificates of the same authority")]
    Refused(String),
    #[error(
        "it refuses our certificate (it was revoked); if by mistake, issue this replica a new one with `grapevine ca issue`"
    )]
    OwnRevoked,
    #[error("it belongs to another cluster than `{0}`")]
    OtherCluster(String),
    #[error("it calls itself `{0}`, but its certificate does not name it")]
    WrongName(ReplicaId),
    #[error("another replica has its address now: {0}")]
    Another(String),
    #[error("another process runs under this replica's id `{0}`; ids must be unique in a cluster")]
    Duplicate(ReplicaId),
    #[error("{by} keeps another process under this replica's id instead, at {}", .kept.address)]
    Twin {
        /// The replica that refuses, as its certificate names it.
        by: ReplicaId,
        kept: TwinKept,
    },
    #[error("it has seen generation {seen} of this replica")]
    Outrun {
        /// The replica that says so, as its certificate names it.
        by: ReplicaId,
        seen: u64,
    },
    #[error("it reports again and again that it has seen a later generation of this replica")]
    Outruns {
        /// The replica that says so, as its certificate names it.
        by: ReplicaId,
    },
    #[error("it is cut off after refused messages, or the table of replicas is full")]
    NotAdmitted,
    #[error("it is about to end")]
    Leaving,
    #[error("it closed the connection: {0}")]
    Closed(String),
    #[error("cannot be dialled from here: {0}")]
    Local(String),
}

impl DialError {
    /// Label of the counter.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Myself => "self",
            Self::Silent => "silent",
            Self::NotGrapevine(_) => "not_grapevine",
            Self::Foreign(_) => "foreign_certificate",
            Self::Revoked => "revoked_certificate",
            Self::Ended(_) => "expired_certificate",
            Self::Refused(_) | Self::OwnRevoked => "own_certificate_refused",
            Self::OtherCluster(_) => "other_cluster",
            Self::WrongName(_) | Self::Another(_) => "wrong_name",
            Self::Duplicate(_) => "duplicate_id",
            Self::Twin { .. } => "twin",
            Self::Outrun { .. } => "outrun",
            Self::Outruns { .. } => "outruns",
            Self::NotAdmitted => "not_admitted",
            Self::Leaving | Self::Closed(_) => "closed",
            Self::Local(_) => "local",
        }
    }

    /// Whether somebody answers, and one of the two certificates is none for the other side.
    pub(super) fn is_unfit(&self) -> bool {
        matches!(
            self,
            Self::Foreign(_) | Self::Revoked | Self::Ended(_) | Self::Refused(_) | Self::OwnRevoked
        )
    }

    /// The replica that answered, and whose certificate proved it, although there is no connection.
    pub(super) fn answered_by(&self) -> Option<&ReplicaId> {
        match self {
            Self::Twin { by, .. } | Self::Outrun { by, .. } | Self::Outruns { by } => Some(by),
            _ => None,
        }
    }
}

/// A dialled connection whose HELLO was answered.
pub(super) struct Dialled {
    pub(super) connection: Connection,
    /// Our own of the HELLO: the peer reads nothing of another one on this connection.
    pub(super) generation: u64,
    pub(super) member: Member,
    pub(super) hints: Vec<PeerHint>,
}

/// An accepted connection whose HELLO was answered.
pub(super) struct Accepted {
    pub(super) member: Member,
    /// The one of its id that sent HELLO.
    pub(super) caller: Caller,
}

/// Dials an address and shakes hands, within [`limits::CONNECT`].
///
/// `expected` is checked by TLS already: the name dialled is `<replica>.<cluster>`. A seed, whose id
/// nobody knows, is dialled by the cluster's name.
pub(super) async fn dial(
    shared: &Shared,
    address: SocketAddr,
    expected: Option<&ReplicaId>,
) -> Result<Dialled, DialError> {
    if shared.leaving.is_cancelled() {
        // Those who dial end with the transport, in a moment.
        return std::future::pending().await;
    }
    let cluster = shared.identity.cluster();
    let name = expected.map_or_else(
        || cluster.to_string(),
        |id| replica_name(id.as_str(), cluster),
    );
    let attempt = async {
        let connecting = shared
            .endpoint
            .connect_with(shared.identity.client(), address, &name)
            .map_err(|error| DialError::Local(error.to_string()))?;
        // Until here anybody on the path can end the attempt, with any reason: it proves nothing.
        let connection = connecting.await.map_err(|error| match expected {
            Some(_) => another(&error).unwrap_or_else(|| explain(&error, shared)),
            None => explain(&error, shared),
        })?;
        match greet(shared, &connection, address).await {
            Ok(dialled) => Ok(dialled),
            Err(Some(error)) => {
                connection.close(Close::Done.code(), b"");
                Err(error)
            }
            // The stream broke: the connection knows why.
            Err(None) => {
                let error = connection.closed().await;
                if is_leaving(&connection) {
                    return Err(DialError::Leaving);
                }
                let refused = kept_instead(&connection).zip(proven(shared, &connection, expected));
                Err(refused.map_or_else(
                    || explain(&error, shared),
                    |(kept, by)| DialError::Twin { by, kept },
                ))
            }
        }
    };
    let result = timeout(limits::CONNECT, attempt)
        .await
        .unwrap_or(Err(DialError::Silent));
    shared.handshake(result.as_ref().map_or_else(DialError::label, |_| "dialled"));
    match &result {
        Ok(dialled) => shared.twins.lock().accepted(&dialled.member.id),
        Err(DialError::Twin { by, kept }) => shared.twins.lock().refused(by, *kept, now()),
        Err(_) => {}
    }
    result
}

/// Sends HELLO under our own generation and reads the answer: the peer's generation, and what it says.
async fn say_hello<'a>(
    shared: &'a Shared,
    connection: &Connection,
    own: u64,
) -> Result<(Dialling<'a>, u64, HelloAck), Option<DialError>> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(|_| None)?;
    let hello = Message::Hello(Hello {
        replica: shared.own.clone(),
        cluster: shared.identity.cluster().to_string(),
        gossip_addr: shared.address,
        version: shared.release.clone(),
        process: Some(shared.process),
    });
    let bytes = shared.encode_under(own, &hello).ok_or(None)?;
    let dialling = shared.loops.dialling(connection);
    write_all(&mut send, &bytes).await.map_err(|_| None)?;
    let answer = read_frame(&mut receive)
        .await
        .map_err(|_| None)?
        .ok_or(None)?;
    match wire::decode(&answer) {
        Ok(Received {
            header,
            message: Some(Message::HelloAck(ack)),
            ..
        }) => Ok((dialling, header.generation, ack)),
        Ok(_) => Err(Some(DialError::NotGrapevine("no HELLO-ACK".into()))),
        Err(error) => Err(Some(DialError::NotGrapevine(error.to_string()))),
    }
}

/// The dialling half; `Err(None)` if the connection ended meanwhile.
async fn greet(
    shared: &Shared,
    connection: &Connection,
    address: SocketAddr,
) -> Result<Dialled, Option<DialError>> {
    let own = shared.generation();
    let (dialling, generation, ack) = say_hello(shared, connection, own).await?;
    if !proves(shared, connection, &ack.replica) {
        return Err(Some(DialError::WrongName(ack.replica)));
    }
    if ack.replica == shared.own {
        if dialling.was_answered_here() {
            return Err(Some(DialError::Myself));
        }
        twins::meet(shared, generation, address);
        // Both started in the same millisecond: the one that dials goes on above the other.
        let is_tie = generation == own && twins::may_outrun(shared, &shared.own, own);
        return Err(Some(if is_tie {
            DialError::Outrun {
                by: ack.replica,
                seen: own,
            }
        } else {
            DialError::Duplicate(ack.replica)
        }));
    }
    let seen = ack.generation_seen;
    if seen > own {
        let may = twins::may_outrun(shared, &ack.replica, seen);
        let by = ack.replica;
        return Err(Some(if may {
            DialError::Outrun { by, seen }
        } else {
            DialError::Outruns { by }
        }));
    }
    // The first hint of an answer is the answering replica itself, as it wants to be dialled.
    let own_address = ack.hints.iter().find(|hint| hint.replica == ack.replica);
    let member = Member {
        address: own_address.map_or(address, |hint| hint.gossip_addr),
        id: ack.replica,
        generation,
    };
    make_place(shared, &member.id);
    shared
        .peer_table
        .lock()
        .admit(&member, now())
        .map_err(|_| Some(DialError::NotAdmitted))?;
    Ok(Dialled {
        connection: connection.clone(),
        generation: own,
        member,
        hints: ack.hints,
    })
}

/// The accepting half: reads HELLO on the first bi stream and answers it, or closes with a reason.
pub(super) async fn accept(shared: &Shared, connection: &Connection) -> Result<Accepted, Close> {
    let receive = async {
        let (send, mut receive) = connection.accept_bi().await.map_err(|_| Close::NoHello)?;
        let bytes = read_frame(&mut receive)
            .await
            .ok()
            .flatten()
            .ok_or(Close::NoHello)?;
        Ok((send, bytes))
    };
    let (mut send, bytes) = timeout(limits::CONNECT, receive)
        .await
        .unwrap_or(Err(Close::NoHello))?;
    let (generation, hello) = match wire::decode(&bytes) {
        Ok(Received {
            header,
            message: Some(Message::Hello(hello)),
            ..
        }) => (header.generation, hello),
        _ => return Err(Close::NoHello),
    };
    let from = connection.remote_address();
    if hello.cluster != **shared.identity.cluster() {
        if shared.log_limit.due(from, "other_cluster") {
            tracing::warn!(address = %from, theirs = hello.cluster, "refused a replica of another cluster");
        }
        return Err(Close::OtherCluster);
    }
    if !proves(shared, connection, &hello.replica) {
        if shared.log_limit.due(from, "wrong_name") {
            tracing::error!(address = %from, claimed = %hello.replica, "refused a replica whose certificate names another");
        }
        return Err(Close::WrongName);
    }
    let member = Member {
        id: hello.replica,
        generation,
        address: hello.gossip_addr,
    };
    let caller = Caller {
        address: from,
        process: hello.process,
    };
    let (seen, verdict) = admit(shared, connection, &member, caller).await?;
    match verdict {
        Err(Reason::Banned | Reason::TooMany) => return Err(Close::Banned),
        Err(Reason::Flood) => return Err(Close::Crowded),
        _ => {}
    }
    if shared.leaving.is_cancelled() {
        return Err(Close::Leaving);
    }
    let ack = Message::HelloAck(HelloAck {
        replica: shared.own.clone(),
        generation_seen: seen,
        hints: hints(shared),
    });
    let bytes = shared.encode(&ack).ok_or(Close::NoHello)?;
    // A peer that does not let us write would keep its place among the handshakes, where no limit of its own reaches it.
    timeout(limits::CONNECT, write_all(&mut send, &bytes))
        .await
        .map_err(|_| Close::NoHello)?
        .map_err(|_| Close::NoHello)?;
    if verdict.is_err() {
        // Let the answer arrive before the connection ends under it.
        let _ = timeout(limits::CONNECT, send.stopped()).await;
        return Err(Close::Outdated);
    }
    Ok(Accepted { member, caller })
}

/// Judges who sends HELLO: the highest generation of its id that was seen before, and whether it is let in. A refusal without
/// an answer is an error.
async fn admit(
    shared: &Shared,
    connection: &Connection,
    member: &Member,
    caller: Caller,
) -> Result<(u64, Result<(), Reason>), Close> {
    if member.id == shared.own {
        if !shared.loops.closes_with(connection) {
            twins::meet(shared, member.generation, caller.address);
        }
        return Ok((shared.generation(), Ok(())));
    }
    let greeted = shared.peer_table.lock().greeted(&member.id, now());
    if greeted.is_ok() {
        match twins::later_than(shared, member, caller).await {
            // The earlier generation of a process that ended may be beyond all clocks.
            twins::Later::No => {
                let unix_ms = shared.network.unix_ms();
                shared.peer_table.lock().disown(member, unix_ms, now());
            }
            // It comes again above the other one, and is the later of two.
            twins::Later::Tie => {
                let above = member.generation.saturating_add(1);
                return Ok((above, Err(Reason::Implausible)));
            }
            twins::Later::Silent => return Err(Close::Outdated),
            twins::Later::Alive(kept) => {
                twins::refuse(shared, &member.id, connection, kept);
                return Err(Close::Twin);
            }
        }
    }
    if greeted.is_ok() {
        make_place(shared, &member.id);
    }
    let mut table = shared.peer_table.lock();
    let seen = table.generation_seen(&member.id, now()).unwrap_or(0);
    let verdict = greeted.and_then(|()| table.admit(member, now()));
    Ok((seen, verdict))
}

/// Has a replica that was silent for long give way to one that proved itself and finds no place.
fn make_place(shared: &Shared, id: &ReplicaId) {
    if shared.peer_table.lock().has_place(id) {
        return;
    }
    let connected = shared.peers.lock().connected();
    let silent = shared
        .peer_table
        .lock()
        .make_place(|id| connected.contains(id), now());
    if let Some(silent) = silent {
        tracing::info!(replica = %silent, "no place for another replica; forgot one that was silent for long");
        shared.peers.lock().leave(&silent);
    }
}

/// This replica first, then those it is connected to: a replica that does not answer is not passed on.
fn hints(shared: &Shared) -> Vec<PeerHint> {
    let own = PeerHint {
        replica: shared.own.clone(),
        gossip_addr: shared.address,
    };
    std::iter::once(own)
        .chain(shared.peers.lock().hints())
        .take(wire::HINTS_MAX)
        .collect()
}

/// True if the certificate of the connection names `replica`.
fn proves(shared: &Shared, connection: &Connection, replica: &ReplicaId) -> bool {
    let cluster = shared.identity.cluster();
    super::credentials::chain(connection)
        .first()
        .is_some_and(|leaf| certificate_names(leaf, replica.as_str(), cluster))
}

/// The replica at the other end of a dialled connection: the one that was expected, whose name TLS checked, else the
/// one that the certificate names.
fn proven(
    shared: &Shared,
    connection: &Connection,
    expected: Option<&ReplicaId>,
) -> Option<ReplicaId> {
    let named = || {
        let chain = super::credentials::chain(connection);
        replica_named(chain.first()?, shared.identity.cluster())
    };
    expected.cloned().or_else(named)
}

/// Whether a certificate of this cluster's authority names another replica than the one that was dialled.
fn another(error: &ConnectionError) -> Option<DialError> {
    match error {
        ConnectionError::TransportError(found)
            if alert(found.code.into()) == Some(BAD_CERTIFICATE)
                && found.reason.contains("not valid for name") =>
        {
            Some(DialError::Another(found.reason.clone()))
        }
        _ => None,
    }
}

/// Whether a caller ended its handshake since our certificate is for another name than it dialled.
pub(super) fn looks_for_another(error: &ConnectionError) -> bool {
    match error {
        ConnectionError::ConnectionClosed(told) => {
            alert(told.error_code.into()) == Some(BAD_CERTIFICATE)
        }
        _ => false,
    }
}

/// What an ended connection shows about the other side. For operators: nothing of it is proven.
fn explain(error: &ConnectionError, shared: &Shared) -> DialError {
    match error {
        ConnectionError::TimedOut => DialError::Silent,
        ConnectionError::VersionMismatch => {
            DialError::NotGrapevine("another version of QUIC".into())
        }
        // Found by us, in what the other side presented.
        ConnectionError::TransportError(found) => match alert(found.code.into()) {
            Some(NO_APPLICATION_PROTOCOL) => {
                DialError::NotGrapevine("it does not speak grapevine/1".into())
            }
            Some(CERTIFICATE_REVOKED) => DialError::Revoked,
            Some(CERTIFICATE_EXPIRED) => DialError::Ended(found.reason.clone()),
            Some(_) => DialError::Foreign(found.reason.clone()),
            None => DialError::NotGrapevine(found.to_string()),
        },
        // Found by the other side, in what we presented.
        ConnectionError::ConnectionClosed(told) => match alert(told.error_code.into()) {
            Some(NO_APPLICATION_PROTOCOL) => {
                DialError::NotGrapevine("it does not speak grapevine/1".into())
            }
            Some(CERTIFICATE_REVOKED) => DialError::OwnRevoked,
            Some(CERTIFICATE_EXPIRED) => DialError::Refused(EXPIRED_THERE.into()),
            Some(_) => DialError::Refused(told.to_string()),
            None => DialError::Closed(told.to_string()),
        },
        ConnectionError::ApplicationClosed(told) => match Close::from_code(told.error_code) {
            Some(Close::OtherCluster) => {
                DialError::OtherCluster(shared.identity.cluster().to_string())
            }
            Some(Close::WrongName) => DialError::Refused("it does not name this replica".into()),
            Some(Close::Revoked) => DialError::OwnRevoked,
            Some(Close::Banned) => DialError::Closed(BANNED_THERE.into()),
            Some(close) => DialError::Closed(format!("{close:?}")),
            None => DialError::NotGrapevine(told.to_string()),
        },
        error => DialError::Closed(error.to_string()),
    }
}

/// The other process under this replica's id for whose sake the peer ended a connection that was dialled from here;
/// `None` while it is open, and if it ended otherwise.
pub(super) fn kept_instead(connection: &Connection) -> Option<TwinKept> {
    let reason = told(connection, Close::Twin)?;
    TwinKept::parse(std::str::from_utf8(&reason).ok()?)
}

/// Whether the peer ended a connection because it leaves.
pub(super) fn is_leaving(connection: &Connection) -> bool {
    told(connection, Close::Leaving).is_some()
}

/// What the peer said when it ended the connection for this reason; `None` if it is open, or ended otherwise.
fn told(connection: &Connection, why: Close) -> Option<Bytes> {
    let ConnectionError::ApplicationClosed(told) = connection.close_reason()? else {
        return None;
    };
    // Nobody can refuse a HELLO that was not sent. What comes before may be forged: everyone that sees the first packet can
    // seal an answer to it (RFC 9001, 5.2), until this side sends under the keys that the certificate stands for.
    let may_be_forged = connection.side().is_client() && connection.stats().frame_tx.stream == 0;
    (!may_be_forged && Close::from_code(told.error_code) == Some(why)).then_some(told.reason)
}

/// The TLS alert inside a QUIC error code.
fn alert(code: u64) -> Option<u64> {
    (0x100..0x200).contains(&code).then(|| code - 0x100)
}

/// Why a handshake with a caller failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// TLS refused a certificate, on either side.
    Certificate,
    /// TLS refused something else, such as the protocol.
    Tls,
    /// It timed out, or was given up: nothing was refused.
    Ended,
}

impl Broken {
    pub(super) fn of(error: &ConnectionError) -> Self {
        let alert = match error {
            ConnectionError::TransportError(found) => alert(found.code.into()),
            ConnectionError::ConnectionClosed(told) => alert(told.error_code.into()),
            _ => None,
        };
        match alert {
            Some(alert) if OF_CERTIFICATES.contains(&alert) => Self::Certificate,
            Some(_) => Self::Tls,
            None => Self::Ended,
        }
    }
}

/// From `bad_certificate` to `certificate_unknown`, `unknown_ca`, `access_denied`, `decrypt_error` (a signature that does
/// not hold) and `certificate_required` (RFC 8446, 6.2).
const OF_CERTIFICATES: [u64; 9] = [
    42,
    43,
    CERTIFICATE_REVOKED,
    CERTIFICATE_EXPIRED,
    46,
    48,
    49,
    51,
    116,
];
/// Also of a certificate for another name, which TLS finds when the authority is the right one.
const BAD_CERTIFICATE: u64 = 42;
const CERTIFICATE_REVOKED: u64 = 44;
/// Also for one that has not begun: TLS has one alert for both (RFC 8446, 6.2).
const CERTIFICATE_EXPIRED: u64 = 45;
const EXPIRED_THERE: &str =
    "by its clock it has expired or not begun: compare the clocks, or run `grapevine ca issue`";
/// What it cannot accept is mostly stamped by a clock that is wrong.
const BANNED_THERE: &str = "it takes nothing of this replica for a minute, after messages that it could not accept: compare the clocks";
const NO_APPLICATION_PROTOCOL: u64 = 120;

/// Logs a failed attempt once a minute, loudly if an operator must act.
pub(super) fn report(shared: &Shared, address: SocketAddr, name: &str, error: &DialError) {
    // Of twins the agent speaks, and who leaves has said so.
    let is_said = matches!(
        error,
        DialError::Myself | DialError::Duplicate(_) | DialError::Twin { .. } | DialError::Leaving
    );
    if is_said || !shared.log_limit.due(address, error.label()) {
        return;
    }
    tracing::warn!(%address, name, "no connection: {error}");
}

#[cfg(test)]
mod tests {
    use quinn::TransportErrorCode;
    use quinn_proto::TransportError;

    use super::*;

    #[test]
    fn only_what_tls_says_of_certificates_is_about_them() {
        let by_tls = |alert| {
            let code = TransportErrorCode::crypto(alert);
            ConnectionError::TransportError(TransportError {
                code,
                frame: None,
                reason: String::new(),
            })
        };
        for (error, expected) in [
            (by_tls(42), Broken::Certificate),
            (by_tls(48), Broken::Certificate),
            (by_tls(116), Broken::Certificate),
            (by_tls(120), Broken::Tls),
            (ConnectionError::TimedOut, Broken::Ended),
            (ConnectionError::Reset, Broken::Ended),
            (ConnectionError::LocallyClosed, Broken::Ended),
            (ConnectionError::VersionMismatch, Broken::Ended),
        ] {
            assert_eq!(Broken::of(&error), expected, "{error}");
        }
    }
}
