//! One worker's connection: ZeroMQ's session over a socket, and a limit on how often it may speak.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use grapevine_transfer::ping::{BadPing, PING_BYTES_MAX, Ping};
use grapevine_zmtp::{Limits, Session, SocketType, Violation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::{PingResult, Pings, Register};

/// A ping is one frame; a socket that asks puts an empty one in front.
const LIMITS: Limits = Limits {
    message_bytes: PING_BYTES_MAX,
    frames: 2,
};
/// Room for what one read brings.
const READ_BYTES: usize = 4096;
/// How long the handshake may take, and each write.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long a worker may be silent that pings every three seconds. Its ZeroMQ connects again by itself.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Messages of one connection in a second; then it is not read from for what is left of that second.
const MESSAGES_A_SECOND: u32 = 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer closed it")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the handshake did not end, or nothing came any more")]
    Silent,
}

impl<R: Register> Pings<R> {
    /// Serves one connection to its end, which it counts and reports.
    pub(super) async fn serve(&self, mut stream: TcpStream, peer: SocketAddr) {
        let Err(end) = self.hear(&mut stream).await;
        let result = match end {
            End::Closed | End::Io(_) => return,
            End::Violation(Violation::TooLarge) => PingResult::TooLarge,
            End::Violation(_) => PingResult::Violation,
            End::Silent => PingResult::Silent,
        };
        self.count(result);
        if self.log.allows_line() {
            tracing::warn!(%peer, reason = %end, "a connection for pings was closed");
        }
    }

    async fn hear(&self, stream: &mut TcpStream) -> Result<Infallible, End> {
        let mut session = Session::new(SocketType::Router, LIMITS);
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        let mut pace = Pace::new();
        // When it opened, or sent its last message: single bytes are no sign of life.
        let mut alive = Instant::now();
        loop {
            let output = session.take_output();
            if !output.is_empty() {
                within(HANDSHAKE_MAX, stream.write_all(&output)).await?;
            }
            let patience = if session.is_ready() {
                SILENCE_MAX
            } else {
                HANDSHAKE_MAX
            };
            let patience = patience.saturating_sub(alive.elapsed());
            buffer.reserve(READ_BYTES);
            // No more than there is room for: what is left of a message is bounded by the session.
            let mut room = (&mut *stream).take(READ_BYTES as u64);
            if within(patience, room.read_buf(&mut buffer)).await? == 0 {
                return Err(End::Closed);
            }
            while let Some(message) = session.next(&mut buffer)? {
                if pace.is_too_fast(Instant::now()) {
                    self.count(PingResult::TooOften);
                    pace.wait().await;
                }
                self.take(message).await;
                alive = Instant::now();
            }
        }
    }

    async fn take(&self, message: Vec<Bytes>) {
        let payload = message.last().map_or(&[][..], |frame| frame);
        let result = match Ping::read(payload) {
            Ok(ping) => self.register(ping).await,
            Err(BadPing::UnknownType) => PingResult::UnknownType,
            Err(error) => {
                if self.log.allows_line() {
                    tracing::warn!(%error, "a ping cannot be read");
                }
                PingResult::Malformed
            }
        };
        self.count(result);
    }

    async fn register(&self, ping: Ping) -> PingResult {
        let url = ping.url.clone();
        match self.register.register(ping).await {
            Ok(()) => PingResult::Renewed,
            Err(error) => {
                if self.log.allows_line() {
                    tracing::warn!(url, %error, "a worker that pings cannot be registered");
                }
                PingResult::Refused
            }
        }
    }
}

async fn within<T>(limit: Duration, io: impl Future<Output = io::Result<T>>) -> Result<T, End> {
    match timeout(limit, io).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(End::Silent),
    }
}

/// How many messages came in this second.
struct Pace {
    since: Instant,
    messages: u32,
}

impl Pace {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            messages: 0,
        }
    }

    /// Counts a message; whether it is beyond what one second may bring.
    fn is_too_fast(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.messages) = (now, 0);
        }
        self.messages += 1;
        self.messages > MESSAGES_A_SECOND
    }

    /// Returns when the second is over; the message that waited is the first of the next.
    async fn wait(&mut self) {
        let next = self.since + Duration::from_secs(1);
        sleep_until(next).await;
        (self.since, self.messages) = (next, 1);
    }
}
