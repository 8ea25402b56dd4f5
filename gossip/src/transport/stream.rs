//! Whole messages on streams, each with a length limit and a time limit.

use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::time::timeout;

use super::limits;
use crate::frame::{self, HEADER_BYTES, Header};

/// Why a message was not written or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("not finished in time")]
    Slow,
    #[error("connection or stream ended")]
    Ended,
    #[error("longer than {0} bytes")]
    TooLong(usize),
    #[error(transparent)]
    Frame(#[from] frame::FrameError),
}

/// Writes one message on a uni stream of its own.
pub(super) async fn send_uni(connection: &Connection, bytes: &[u8]) -> Result<(), StreamError> {
    let write = async {
        let mut stream = connection
            .open_uni()
            .await
            .map_err(|_| StreamError::Ended)?;
        write_all(&mut stream, bytes).await
    };
    timeout(limits::STREAM, write)
        .await
        .unwrap_or(Err(StreamError::Slow))
}

/// Writes bytes and ends the stream; resets it if it is given up before.
pub(super) async fn write_all(stream: &mut SendStream, bytes: &[u8]) -> Result<(), StreamError> {
    let mut writing = Writing {
        stream,
        is_whole: false,
    };
    let written = writing.stream.write_all(bytes).await;
    written.map_err(|_| StreamError::Ended)?;
    writing.is_whole = true;
    writing.stream.finish().map_err(|_| StreamError::Ended)
}

/// A message that is being written. quinn finishes a stream that is dropped, and the reader would take the part that came
/// for a damaged message.
struct Writing<'a> {
    stream: &'a mut SendStream,
    is_whole: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            // It fails where the connection or the stream has ended.
            let _ = self.stream.reset(VarInt::from_u32(0));
        }
    }
}

/// Reads a stream to its end, at most `limit` bytes.
pub(super) async fn read_all(
    stream: &mut RecvStream,
    limit: usize,
) -> Result<Vec<u8>, StreamError> {
    let read = async {
        stream
            .read_to_end(limit)
            .await
            .map_err(|error| match error {
                quinn::ReadToEndError::TooLong => StreamError::TooLong(limit),
                quinn::ReadToEndError::Read(_) => StreamError::Ended,
            })
    };
    let result = timeout(limits::STREAM, read)
        .await
        .unwrap_or(Err(StreamError::Slow));
    if result.is_err() {
        let _ = stream.stop(VarInt::from_u32(0));
    }
    result
}

/// Reads the next frame of a stream that carries several; `None` at its end.
pub(super) async fn read_frame(stream: &mut RecvStream) -> Result<Option<Vec<u8>>, StreamError> {
    let mut bytes = vec![0; HEADER_BYTES];
    match stream.read_exact(&mut bytes).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(_) => return Err(StreamError::Ended),
    }
    // The header is judged before anything is allocated for what it announces.
    let rest = Header::read(&bytes)?.rest_len();
    bytes.resize(HEADER_BYTES + rest, 0);
    stream
        .read_exact(&mut bytes[HEADER_BYTES..])
        .await
        .map_err(|_| StreamError::Ended)?;
    Ok(Some(bytes))
}
