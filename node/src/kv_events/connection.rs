//! One connection to an engine by ZeroMQ: dialled, greeted, and then messages in and out.

use std::io;

use bytes::{Bytes, BytesMut};
use grapevine_kv_events::endpoint::Endpoint;
use grapevine_kv_events::stream::{Message, fingerprint};
use grapevine_zmtp::{Limits, Session, SocketType, Violation, encode_message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

use super::metrics::Fault;
use crate::upstream::Worker;

/// Largest message: a payload of [`PAYLOAD_BYTES_MAX`], its topic and its number.
const LIMITS: Limits = Limits {
    message_bytes: PAYLOAD_BYTES_MAX + 1_024,
    frames: 8,
};
/// Largest payload. A step of 16,384 tokens with hashes of 32 bytes has about 120 KiB.
pub(super) const PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Room for what one read brings.
const READ_BYTES: usize = 64 << 10;
/// How long dialling may take, the handshake, and each write.
const STEP_MAX: Duration = Duration::from_secs(5);
/// A connection of which nothing is heard is looked at after this time, at so many times, and then given up.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

/// Why a connection ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error("the peer closed it")]
    Closed,
    #[error("it broke: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the handshake took too long, or a write")]
    Slow,
    #[error("it brought nothing, while a replay had messages")]
    Silent,
}

impl End {
    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Unreachable(_) => Fault::Unreachable,
            Self::Closed | Self::Io(_) => Fault::Closed,
            Self::Violation(Violation::TooLarge) => Fault::TooLarge,
            Self::Violation(_) | Self::Slow => Fault::Violation,
            Self::Silent => Fault::Silent,
        }
    }
}

/// A connection after the handshake.
pub(super) struct Connection {
    stream: TcpStream,
    session: Session,
    buffer: BytesMut,
    /// What is still to be sent, such as answers to heartbeats.
    output: BytesMut,
}

impl Connection {
    /// Dials one of a worker's endpoints and shakes hands.
    pub(super) async fn open(
        worker: &Worker,
        endpoint: &Endpoint,
        socket_type: SocketType,
    ) -> Result<Self, End> {
        let own = worker.address.url.host();
        let host = endpoint.host.as_deref().unwrap_or(own);
        let dialled = worker.connector.dial_plain(host, endpoint.port, STEP_MAX);
        let stream = dialled.await.map_err(End::Unreachable)?;
        keep_alive(&stream)?;
        let session = Session::new(socket_type, LIMITS);
        let mut connection = Self {
            stream,
            session,
            buffer: BytesMut::with_capacity(READ_BYTES),
            output: BytesMut::new(),
        };
        timeout(STEP_MAX, connection.shake_hands())
            .await
            .map_err(|_| End::Slow)??;
        Ok(connection)
    }

    async fn shake_hands(&mut self) -> Result<(), End> {
        // A message that came with the handshake is of a publisher that does not know of our topic.
        while !self.session.is_ready() {
            self.flush().await?;
            self.read().await?;
            let _ = self.session.next(&mut self.buffer)?;
        }
        self.flush().await
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, frames: &[Bytes]) -> Result<(), End> {
        encode_message(frames, &mut self.output);
        timeout(STEP_MAX, self.flush())
            .await
            .map_err(|_| End::Slow)?
    }

    /// The next message. May be dropped at any time without loss.
    pub(super) async fn next(&mut self) -> Result<Vec<Bytes>, End> {
        loop {
            let message = self.session.next(&mut self.buffer)?;
            self.flush().await?;
            if let Some(message) = message {
                return Ok(message);
            }
            self.read().await?;
        }
    }

    /// Sends what there is to be sent; what was not sent stays.
    async fn flush(&mut self) -> Result<(), End> {
        self.output.unsplit(self.session.take_output());
        while !self.output.is_empty() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), End> {
        self.buffer.reserve(READ_BYTES);
        // No more than there is room for: what is left of a message is bounded by the session.
        let mut room = (&mut self.stream).take(READ_BYTES as u64);
        if room.read_buf(&mut self.buffer).await? == 0 {
            return Err(End::Closed);
        }
        Ok(())
    }
}

/// A host that vanished without a word is noticed, though nothing is ever sent to it.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (time, interval, retries) = KEEP_ALIVE;
    let settings = socket2::TcpKeepalive::new()
        .with_time(time)
        .with_interval(interval)
        .with_retries(retries);
    socket2::SockRef::from(stream).set_tcp_keepalive(&settings)
}

/// Reads `[..., topic, number, payload]`; the topic may be missing, in replays of early releases.
pub(super) fn read_message(frames: &[Bytes]) -> Option<Message<Bytes>> {
    let [.., number, payload] = frames else {
        return None;
    };
    let number = <[u8; 8]>::try_from(&number[..]).ok()?;
    Some(Message {
        sequence: u64::from_be_bytes(number),
        fingerprint: fingerprint(payload),
        bytes: payload.len(),
        // A copy of its own: what waits is to hold its bytes, and not the buffer that it was read into.
        payload: Bytes::copy_from_slice(payload),
    })
}
