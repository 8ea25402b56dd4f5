//! The side channel on the wire: lines of JSON, one transfer a connection.
//!
//! A reader asks for blocks ([`Ask`]) and gets what they are ([`Answer`]), or why not. When its transfer time is over
//! it says that it has read them, or that it gives them up ([`End`]); only then are they free. Between real engines this
//! is NIXL's handshake, its read and its notification.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use super::shelf::Parcel;

/// Greatest line.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// The first line of a connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Hello {
    /// A reader asks for blocks.
    Ask(Ask),
    /// A prefill worker sends what nobody asked for.
    Parcel(String, Parcel),
}

/// A reader's question.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    /// `None`: whichever engine has the blocks.
    pub(super) engine_id: Option<String>,
    pub(super) key: String,
    /// Block ids that the reader was told; `None`: it was told none.
    pub(super) blocks: Option<Vec<u64>>,
    /// `host:port` of the reader's own side channel.
    pub(super) reader: String,
    /// The reader's own sizes.
    pub(super) tensor_parallel: u32,
    pub(super) data_parallel: u32,
    /// Those of the other side, as the reader was told; `None`: it was not.
    pub(super) told_tensor_parallel: Option<u32>,
    pub(super) told_data_parallel: Option<u32>,
    pub(super) told_rank: Option<u32>,
    pub(super) block_tokens: u32,
    /// Wait until the blocks are computed.
    pub(super) early: bool,
}

/// What the reader gets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The two fit; the next line says what the blocks are.
    Welcome,
    /// The blocks are here.
    Blocks {
        /// Number of blocks.
        count: u32,
        /// Prompt tokens in them.
        tokens: u32,
        /// Hash of the prompt that they were computed from.
        content: u64,
    },
    /// Why there are none.
    Refused(String),
}

/// How a transfer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Read,
    GivenUp,
}

/// A connection that carries lines.
pub(super) struct Lines(BufStream<TcpStream>);

impl Lines {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(BufStream::new(stream))
    }

    pub(super) async fn send(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.0.write_all(&line).await?;
        self.0.flush().await
    }

    /// The next line as it is, without its end.
    pub(super) async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        let mut limited = (&mut self.0).take(LINE_BYTES_MAX);
        if limited.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        Ok(serde_json::from_str(&self.line().await?)?)
    }

    /// Bytes as they are.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }
}
