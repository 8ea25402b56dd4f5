//! The data port: accepts connections, with TLS or without, and serves HTTP/1.1 and HTTP/2 on them.
//!
//! One tracked task per connection, on the lane that it was given to. Limits: connections (a place before the accept, and the longest idle leaves for
//! who comes: `seats`), first byte, head, idle time, streams, bytes that wait in the kernel.

#[cfg(test)]
mod channel_body;
mod door;
pub mod framing;
pub mod http1;
pub mod http1_guard;
mod http2;
mod peek;
mod proxied;
mod sniff;
pub mod tls;
pub mod waits;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

pub use self::door::Door;
use self::framing::HeadLimits;
use self::http1::{ConnectionError, Ended, Wire};
use self::proxied::HeaderError;
use self::sniff::{Opening, Protocol};
use self::tls::ListenerTls;
use self::waits::Waits;
use crate::config::{LimitConfig, TimeoutConfig};
use crate::descriptors;
use crate::http::client_body::ClientBody;
use crate::http::client_io::{ClientIo, ClientSocket, Gone};
use crate::http::forwarded::Peer;
use crate::keep_alive;
use crate::lanes::Lanes;
use crate::live::Live;
use crate::log_limit::LogLimit;
use crate::metrics::refusals::RefusalMetrics;
use crate::proxy::response::ResponseBody;
use crate::proxy::{ClientLeft, Proxy};
use crate::seats::{Counts, Goodbye, Seat, SeatLimits, Seats, TrafficMetrics};
use crate::shutdown::{Cutoff, Phase};
use crate::tls::TlsMetrics;

/// Nobody waits in the queue if nobody came for so long.
const LAST_CALL_PAUSE: Duration = Duration::from_millis(20);
/// For how long connections that wait in the queue are accepted when the port is about to close.
const LAST_CALL: Duration = Duration::from_millis(500);
/// Bytes of an answer that may wait unsent in the kernel. It would otherwise keep up to 4 MiB for each client that
/// does not read; what is on its way to a client that does is not limited by this.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Connections that may wait to be accepted; the system may take fewer (`net.core.somaxconn`). With the usual 128, a
/// thousand clients that come over from a replica that died would meet a full queue, and wait for a second or more.
const BACKLOG: u32 = 4096;

/// Listens on an address. Needs a runtime.
/// Errors: the system's, such as `AddrInUse`.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted replica takes its port at once, although connections of its last life still linger there.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What connections count.
#[derive(Debug, Clone)]
pub struct FrontMetrics {
    /// What is under way.
    pub traffic: TrafficMetrics,
    /// Errors and limits.
    pub refusals: RefusalMetrics,
    /// Handshakes.
    pub tls: TlsMetrics,
}

/// What every connection is served with.
#[derive(Debug)]
pub struct Front {
    /// Handles the requests.
    pub proxy: Arc<Proxy>,
    /// TLS, where clients are to speak it.
    pub tls: Option<Arc<ListenerTls>>,
    /// Time limits.
    pub timeouts: Live<TimeoutConfig>,
    /// Sizes and counts.
    pub limits: Live<LimitConfig>,
    /// Balancers whose connections begin with a PROXY header.
    pub balancers: Vec<IpNet>,
    /// Proxies whose word about a request's origin counts.
    pub trusted_proxies: Vec<IpNet>,
    /// Where to count.
    pub metrics: FrontMetrics,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Keeps clients that speak the wrong protocol from filling the log.
    pub misled: LogLimit,
}

/// The places of the data port.
///
/// `proxies`: whose connections are those of many clients, or of whom the PROXY header names.
pub fn seats(limits: &LimitConfig, proxies: Vec<IpNet>, metrics: &FrontMetrics) -> Arc<Seats> {
    let limits = SeatLimits {
        capacity: descriptors::connections_for(limits.connections),
        share_percent: limits.address_share_percent,
        per_address: limits.connections_per_address.map(NonZeroU32::get),
        proxies,
    };
    let (refusals, traffic) = (&metrics.refusals, &metrics.traffic);
    Seats::new(limits, Counts::of(refusals, traffic, "data", "connections"))
}

/// Accepts until the replica stops accepting, and what waits in the queue then; connections are served on `lanes`.
pub async fn run(door: Door, front: Arc<Front>, lanes: Arc<Lanes>, tracker: TaskTracker) {
    let seated = |(stream, peer, seat)| {
        let front = Arc::clone(&front);
        lanes.give(stream, &tracker, move |stream| {
            serve(stream, peer, seat, front)
        });
    };
    loop {
        tokio::select! {
            () = front.phase.draining() => break,
            next = door.next() => seated(next),
        }
    }
    // Clients that have connected by now expect an answer: closing the socket would reset all that wait in its queue.
    let last_call = async {
        while let Ok(next) = timeout(LAST_CALL_PAUSE, door.next()).await {
            seated(next);
        }
    };
    let _ = timeout(LAST_CALL, last_call).await;
}

async fn serve(stream: io::Result<TcpStream>, peer: SocketAddr, seat: Seat, front: Arc<Front>) {
    let _open = Open::counted(&front.metrics.traffic);
    let served = match stream {
        Ok(stream) => serve_connection(stream, peer, &seat, &front).await,
        Err(error) => Err(error.into()),
    };
    if seat.progress().has_stalled() {
        front.metrics.refusals.limit_reached("write_stall");
    }
    if let Err(error) = served {
        tracing::debug!(%peer, error = &*error, "connection ended");
    }
}

/// An open connection; counted out however it ends.
struct Open<'a>(&'a TrafficMetrics);

impl<'a> Open<'a> {
    fn counted(traffic: &'a TrafficMetrics) -> Self {
        traffic.connections.inc();
        Self(traffic)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// Sets what is set of each client's socket.
fn prepare(stream: &TcpStream, write_stall: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    // A system that does not know it takes longer to give a vanished client up.
    let _ = keep_alive::OF_REQUESTS.set_for_unacknowledged(stream, write_stall);
    Ok(())
}

async fn serve_connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    seat: &Seat,
    front: &Arc<Front>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    prepare(&stream, front.timeouts.look().write_stall)?;
    let peer = if proxied::is_balancer(peer, &front.balancers) {
        // On the heap: few connections need the room.
        let client = sniff::until_last_call(proxied_for(&mut stream, peer, front), &front.phase);
        let Some(Some(client)) = Box::pin(seat.unless_told(client)).await else {
            return Ok(());
        };
        let client = client?;
        if !seat.belongs_to(client.ip()) {
            front
                .metrics
                .refusals
                .limit_reached("connections_per_address");
            return Ok(());
        }
        client
    } else {
        peer
    };
    let opening = sniff::opening(&stream, front.timeouts.look().first_byte);
    let Some(Some(opening)) = seat
        .unless_told(sniff::until_last_call(opening, &front.phase))
        .await
    else {
        return Ok(());
    };
    if matches!(&opening, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
        front.metrics.refusals.limit_reached("first_byte");
    }
    let opening = opening?;
    let client = peer.ip();
    let peer = Peer::new(client, &front.trusted_proxies);
    let write_stall = front.timeouts.look().write_stall;
    match (&front.tls, opening) {
        (None, Opening::Plain(protocol)) => {
            let (io, socket) = ClientIo::new(stream, write_stall, seat.progress().clone());
            serve_http(protocol, io, socket, peer, seat, front).await
        }
        (Some(tls), Opening::Tls) => {
            let (io, socket) = ClientIo::new(stream, write_stall, seat.progress().clone());
            // On the heap: the task of a connection without TLS must not have the room that one with it needs.
            let shaken = Box::pin(seat.unless_told(shake_hands(tls, io, client, front)));
            let Some(shaken) = shaken.await else {
                return Ok(());
            };
            let (io, protocol) = shaken?;
            serve_http(protocol, Box::new(io), socket, peer, seat, front).await
        }
        // Counted before the connection is closed: who saw it close finds it counted.
        (_, Opening::Proxied) => {
            front.metrics.traffic.proxy_header("unasked");
            if front.misled.allows_line() {
                tracing::warn!(
                    "a connection began with a PROXY header, and its address is not in listen.proxy_protocol_from"
                );
            }
            Ok(())
        }
        (tls, _) => {
            misled(tls.is_some(), front);
            Ok(())
        }
    }
}

/// The client behind a balancer's connection.
async fn proxied_for(
    stream: &mut TcpStream,
    balancer: SocketAddr,
    front: &Front,
) -> Result<SocketAddr, HeaderError> {
    let within = front.timeouts.look().first_byte;
    let client = proxied::client_of(stream, within).await;
    let result = match &client {
        Ok(Some(_)) => Some("proxied"),
        Ok(None) => Some("own"),
        Err(error) => error.as_str(),
    };
    if let Some(result) = result {
        front.metrics.traffic.proxy_header(result);
    }
    match client {
        Ok(client) => Ok(client.unwrap_or(balancer)),
        Err(error) => {
            if error.as_str().is_some() && front.misled.allows_line() {
                tracing::warn!(%balancer, %error, "a connection of a balancer was closed");
            }
            Err(error)
        }
    }
}

async fn shake_hands(
    tls: &ListenerTls,
    io: ClientIo,
    client: IpAddr,
    front: &Front,
) -> io::Result<(TlsStream<ClientIo>, Protocol)> {
    let within = front.timeouts.look().tls_handshake;
    let shaken = tls.accept(io, within).await;
    let result = match &shaken {
        Ok(_) => "ok",
        Err(error) if error.kind() == io::ErrorKind::TimedOut => "late",
        Err(_) => "failed",
    };
    front.metrics.tls.handshake(result);
    if let Err(error) = &shaken
        && tls::is_about_certificate(error)
        && front.misled.allows_line()
    {
        tracing::warn!(%client, %error, "the certificate of a client was refused");
    }
    shaken
}

/// A client that spoke the wrong protocol: counted, and said in the log from time to time.
fn misled(with_tls: bool, front: &Front) {
    let (result, what) = if with_tls {
        (
            "not_tls",
            "a client spoke plain HTTP to the data port, which has TLS: use https://",
        )
    } else {
        (
            "unexpected_tls",
            "a client spoke TLS to the data port, which has none: use http://, or set --ssl-certfile and \
             --ssl-keyfile",
        )
    };
    front.metrics.tls.handshake(result);
    if front.misled.allows_line() {
        tracing::warn!("{what}");
    }
}

async fn serve_http<Io>(
    protocol: Protocol,
    io: Io,
    socket: ClientSocket,
    peer: Peer,
    seat: &Seat,
    front: &Arc<Front>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = match protocol {
        Protocol::Http2 => Box::pin(http2::serve(io, peer, seat, front))
            .await
            .map_err(Into::into),
        Protocol::Http1 => {
            let served = serve_http1(io, socket.clone(), peer, seat, front).await;
            if let Err(ConnectionError::CutShort(_)) = served {
                socket.reset();
                return served.map_err(Into::into);
            }
            served.map_err(Into::into)
        }
    };
    if seat.is_wanted() {
        return served;
    }
    tokio::select! {
        () = socket.linger() => {}
        () = front.phase.closed() => {}
    }
    served
}

async fn serve_http1<Io>(
    io: Io,
    socket: ClientSocket,
    peer: Peer,
    seat: &Seat,
    front: &Arc<Front>,
) -> Result<(), ConnectionError>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let progress = seat.progress();
    let service = |mut request: Request<ClientBody>| {
        let client = peer.client(request.headers(), &front.trusted_proxies);
        peer.rewrite(request.headers_mut());
        let gone = Gone::watch(socket.clone(), progress.begin());
        let cutoff = Cutoff::of_connection(&front.phase);
        let (head, body) = request.into_parts();
        let short = seat.must_turn_away();
        let refusal = short.and_then(|short| front.proxy.turn_away(&head, short));
        let head = Box::new(head);
        async move {
            if let Some(refusal) = refusal {
                return Ok(refusal);
            }
            let response = front
                .proxy
                .serve(head, body, None, client, gone, cutoff)
                .await?;
            if let ResponseBody::Tunnel(_) = response.body() {
                progress.switch();
            }
            Ok::<_, ClientLeft>(response)
        }
    };
    let (head, waits) = {
        let (limits, timeouts) = (front.limits.look(), front.timeouts.look());
        let head = HeadLimits {
            bytes: limits.header_bytes.as_usize(),
            lines: limits.headers as usize,
        };
        let waits = Waits {
            header: timeouts.header,
            keep_alive: timeouts.keep_alive,
        };
        (head, waits)
    };
    let wire = Wire::shared(io, head);
    let ended = {
        let served = http1::serve(&wire, waits, &front.metrics.refusals, service);
        drive_http1(pin!(served), &wire, seat, front).await
    };
    if http1::lock(&wire).is_cut_short() {
        return Err(ConnectionError::CutShort(ended.err().map(Box::new)));
    }
    let ended = ended?;
    if let Ended::Switched(ResponseBody::Tunnel(Some(tunnel))) = ended
        && let Some(client) = Wire::into_io(wire)
    {
        // On the heap: the task of a connection without a tunnel must not have its room.
        Box::pin(tunnel.run(client, &front.phase, &front.metrics.refusals)).await;
    }
    Ok(())
}

/// Serves HTTP/1 to the end of the connection, or of the replica, or until the protocol changes.
async fn drive_http1<Io>(
    mut connection: Pin<&mut impl Future<Output = Result<Ended<ResponseBody>, ConnectionError>>>,
    wire: &http1::Shared<Io>,
    seat: &Seat,
    front: &Front,
) -> Result<Ended<ResponseBody>, ConnectionError> {
    tokio::select! {
        // In this order: a request may be waiting in the socket of which nothing was read yet.
        biased;
        result = connection.as_mut() => return result,
        () = front.phase.draining() => http1::lock(wire).leave(),
        () = seat.progress().told_to_leave() => {
            http1::lock(wire).make_room();
            match Box::pin(seat.goodbye(connection.as_mut())).await {
                Goodbye::Ended(ended) => return ended,
                Goodbye::Idle => return Ok(Ended::Closed),
                Goodbye::Busy => {}
            }
        }
    }
    tokio::select! {
        result = connection.as_mut() => return result,
        // The answer is asked for more when the connection is polled again, which is when it gives its last word.
        () = front.phase.cutting() => {}
    }
    tokio::select! {
        result = connection => result,
        () = front.phase.closed() => Ok(Ended::Closed),
    }
}
