//! One connection to an engine by ZeroMQ: dialled, greeted, and then messages in and out.

use std::io;

use bytes::{Bytes, BytesMut};
use grapevine_kv_events::endpoint::Endpoint;
use grapevine_kv_events::stream::{Message, fingerprint};
use grapevine_zmtp::{Limits, Session, SocketType, Violation, encode_message};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

use super::metrics::Fault;
use crate::keep_alive::KeepAlive;
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
/// Nothing but this says that an engine has vanished: it may have no event for hours.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    after: Duration::from_secs(10),
    every: Duration::from_secs(5),
    times: 3,
};

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
pub(super) struct Connection<S = TcpStream> {
    stream: S,
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
        KEEP_ALIVE.set(&stream)?;
        Self::over(stream, socket_type).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Shakes hands over what was dialled.
    async fn over(stream: S, socket_type: SocketType) -> Result<Self, End> {
        let mut connection = Self {
            stream,
            session: Session::new(socket_type, LIMITS),
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
            // A message is handed on without a pause in which it could be dropped; answers to heartbeats go before each read.
            if let Some(message) = self.session.next(&mut self.buffer)? {
                return Ok(message);
            }
            self.flush().await?;
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

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const PIPE_BYTES: usize = 1_024;

    /// An engine at the other end, which has a message or a heartbeat of its own to send.
    async fn shaken_hands() -> (Connection<DuplexStream>, Connection<DuplexStream>) {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let ours = Connection::over(ours, SocketType::Dealer);
        let theirs = Connection::over(theirs, SocketType::Router);
        let (ours, theirs) = tokio::join!(ours, theirs);
        (ours.expect("hands shaken"), theirs.expect("hands shaken"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_behind_a_heartbeat_is_not_lost_while_the_answer_to_that_waits() {
        let (mut ours, mut theirs) = shaken_hands().await;
        // The engine does not read: nothing can be sent to it.
        ours.stream
            .write_all(&[0; PIPE_BYTES])
            .await
            .expect("there is room");
        let heartbeat = b"\x04\x09\x04PING\0\0ab";
        theirs.output.extend_from_slice(heartbeat);
        let message = [Bytes::from_static(b"of the engine")];
        theirs.send(&message).await.expect("it is open");
        // As in a select, where something else comes first: what is read is dropped with its future.
        let mut heard = None;
        for _ in 0..2 {
            tokio::select! {
                biased;
                next = ours.next() => heard = heard.or(next.ok()),
                () = std::future::ready(()) => {}
            }
        }
        assert_eq!(heard.as_deref(), Some(&message[..]));
        let mut sent = [0; PIPE_BYTES];
        theirs
            .stream
            .read_exact(&mut sent)
            .await
            .expect("all of it");
        tokio::select! {
            biased;
            next = ours.next() => panic!("nothing else was sent: {next:?}"),
            () = std::future::ready(()) => {}
        }
        let mut answer = [0; 9];
        theirs
            .stream
            .read_exact(&mut answer)
            .await
            .expect("an answer");
        assert_eq!(&answer, b"\x04\x07\x04PONGab");
    }
}
