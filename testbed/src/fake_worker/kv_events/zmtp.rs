//! As much of ZMTP 3.0 as a publisher needs.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest frame of a subscriber: a topic, or a number.
const FRAME_BYTES_MAX: usize = 4_096;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A message as it is sent.
#[derive(Clone)]
pub(super) struct Frames(Vec<u8>);

impl Frames {
    pub(super) fn of(frames: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let more = if at + 1 < frames.len() { MORE } else { 0 };
            match u8::try_from(frame.len()) {
                Ok(length) => bytes.extend_from_slice(&[more, length]),
                Err(_) => {
                    bytes.push(more | LONG);
                    bytes.extend_from_slice(&(frame.len() as u64).to_be_bytes());
                }
            }
            bytes.extend_from_slice(frame);
        }
        Self(bytes)
    }

    /// A frame's header that promises an exbibyte.
    pub(super) fn oversize() -> Self {
        let mut bytes = vec![LONG];
        bytes.extend_from_slice(&(1_u64 << 60).to_be_bytes());
        Self(bytes)
    }

    pub(super) async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        stream.write_all(&self.0).await
    }
}

/// Greets, and says which socket this is.
pub(super) async fn shake_hands(stream: &mut TcpStream, kind: &str) -> io::Result<()> {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[10] < 3 {
        return Err(io::Error::other("no peer of ZMTP 3"));
    }
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(kind.len() as u32).to_be_bytes());
    body.extend_from_slice(kind.as_bytes());
    let header = [COMMAND, body.len() as u8];
    stream.write_all(&[&header[..], &body].concat()).await?;
    let (flags, _) = read_frame(stream).await?;
    if flags & COMMAND == 0 {
        return Err(io::Error::other("no READY"));
    }
    Ok(())
}

/// The frames of the next message; commands are passed over.
pub(super) async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    loop {
        let (flags, body) = read_frame(stream).await?;
        if flags & COMMAND != 0 {
            continue;
        }
        frames.push(body);
        if flags & MORE == 0 {
            return Ok(frames);
        }
    }
}

async fn read_frame(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let flags = stream.read_u8().await?;
    let length = match flags & LONG {
        0 => u64::from(stream.read_u8().await?),
        _ => stream.read_u64().await?,
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame that no subscriber sends"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((flags, body))
}
