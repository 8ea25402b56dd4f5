//! Whole messages on streams, each with a length limit and a time limit.

use quinn::{Connection, ReadError, ReadExactError, RecvStream, SendStream, VarInt};
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
    #[error("reset by its sender")]
    Reset,
    #[error("longer than {0} bytes")]
    TooLong(usize),
    #[error("more than its sender may send now")]
    Refused,
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

/// Reads a stream to its end, at most `limit` bytes. `may_come` is asked for each part as it comes, whether the stream will be
/// whole or not; it ends the reading.
pub(super) async fn read_all(
    stream: &mut RecvStream,
    limit: usize,
    mut may_come: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, StreamError> {
    let read = async {
        let (mut parts, mut length) = (Vec::new(), 0);
        // In any order: what comes behind a gap counts, too.
        while let Some(part) = stream.read_chunk(limit + 1, false).await.map_err(broken)? {
            let at = usize::try_from(part.offset).unwrap_or(usize::MAX);
            length = length.max(at.saturating_add(part.bytes.len()));
            if length > limit {
                return Err(StreamError::TooLong(limit));
            }
            if !may_come(part.bytes.len()) {
                return Err(StreamError::Refused);
            }
            parts.push((at, part.bytes));
        }
        let mut bytes = vec![0; length];
        for (at, part) in parts {
            bytes[at..at + part.len()].copy_from_slice(&part);
        }
        Ok(bytes)
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
    read_frame_while(stream, |_| true).await
}

/// The same; `may_come` as for [`read_all`].
pub(super) async fn read_frame_while(
    stream: &mut RecvStream,
    mut may_come: impl FnMut(usize) -> bool,
) -> Result<Option<Vec<u8>>, StreamError> {
    let mut bytes = vec![0; HEADER_BYTES];
    match stream.read_exact(&mut bytes).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(ReadExactError::FinishedEarly(_)) => return Err(StreamError::Ended),
        Err(ReadExactError::ReadError(error)) => return Err(broken(error)),
    }
    if !may_come(HEADER_BYTES) {
        return Err(StreamError::Refused);
    }
    let length = HEADER_BYTES + Header::read(&bytes)?.rest_len();
    let mut filled = HEADER_BYTES;
    while filled < length {
        // No more memory than came, and a step: a header may announce what never comes.
        if filled == bytes.len() {
            bytes.resize(length.min(filled + STEP_BYTES), 0);
        }
        let came = stream.read(&mut bytes[filled..]).await.map_err(broken)?;
        let came = came.ok_or(StreamError::Ended)?;
        if !may_come(came) {
            return Err(StreamError::Refused);
        }
        filled += came;
    }
    Ok(Some(bytes))
}

fn broken(error: ReadError) -> StreamError {
    match error {
        ReadError::Reset(_) => StreamError::Reset,
        _ => StreamError::Ended,
    }
}

/// Taken at once for a frame that is still to come.
const STEP_BYTES: usize = 16 << 10;
