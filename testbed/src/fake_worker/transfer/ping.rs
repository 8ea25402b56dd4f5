//! Pings to a proxy, as P2pNcclConnector and MoRI-IO register: a DEALER socket of ZeroMQ whose identity is the engine's
//! own address, and one frame of MessagePack every three seconds. Nothing is acknowledged.
//!
//! The part of ZMTP 3.0 (<https://rfc.zeromq.org/spec/23/>) that this takes: the greeting without security, READY,
//! and short frames.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::config::{Connector, Role, TransferConfig};

/// After this time a connection that broke is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fake_worker) struct Ping {
    proxy: String,
    every: Duration,
    identity: String,
    frame: Vec<u8>,
}

impl Ping {
    /// `None` if this worker does not ping: another connector, no proxy, or a role of its own.
    pub(in crate::fake_worker) fn new(
        config: &TransferConfig,
        http: SocketAddr,
        side_channel: SocketAddr,
        data_parallel: u32,
    ) -> Option<Self> {
        let mode = match config.connector {
            Connector::P2pNccl => None,
            Connector::MoriioRead => Some("READ"),
            Connector::MoriioWrite => Some("WRITE"),
            _ => return None,
        };
        let kind = match config.role {
            Role::Prefill => "P",
            Role::Decode => "D",
            Role::Both => return None,
        };
        let (host, port) = (side_channel.ip(), side_channel.port());
        let address = match mode {
            None => side_channel.to_string(),
            Some(_) => format!("host:{host},handshake:{port},notify:{port}"),
        };
        let mut fields = vec![
            ("type", Field::Text(kind.to_owned())),
            ("http_address", Field::Text(http.to_string())),
            ("zmq_address", Field::Text(address.clone())),
        ];
        if let Some(mode) = mode {
            fields.push(("transfer_mode", Field::Text(mode.to_owned())));
            fields.push(("tp_size", Field::Number(config.tensor_parallel)));
            fields.push(("dp_size", Field::Number(data_parallel)));
        }
        Some(Self {
            proxy: config.proxy.clone()?,
            every: config.ping_every,
            identity: address,
            frame: packed(&fields),
        })
    }

    /// Pings for ever.
    pub(in crate::fake_worker) async fn run(self) {
        let mut due = interval(self.every);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match self.connected().await {
                Ok(stream) => {
                    if let Err(e) = self.ping(stream, &mut due).await {
                        tracing::debug!("the proxy {} left: {e}", self.proxy);
                    }
                }
                Err(e) => tracing::debug!("no proxy at {}: {e}", self.proxy),
            }
            sleep(AGAIN).await;
        }
    }

    async fn connected(&self) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.proxy).await?;
        stream.write_all(&greeting()).await?;
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs).await?;
        if theirs[0] != 0xff || theirs[10] < 3 {
            return Err(std::io::Error::other("no peer of ZMTP 3"));
        }
        stream.write_all(&ready(&self.identity)).await?;
        Ok(stream)
    }

    async fn ping(
        &self,
        mut stream: TcpStream,
        due: &mut tokio::time::Interval,
    ) -> std::io::Result<()> {
        let (mut read, mut write) = stream.split();
        let mut ignored = [0; 256];
        loop {
            tokio::select! {
                _ = due.tick() => {
                    let length = u8::try_from(self.frame.len()).map_err(std::io::Error::other)?;
                    write.write_all(&[&[0, length], &self.frame[..]].concat()).await?;
                }
                // Its READY, and nothing else that matters.
                read = read.read(&mut ignored) => if read? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                },
            }
        }
    }
}

/// Signature, version 3.0, mechanism NULL, and zeros up to 64 bytes.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// The command READY with the two properties of a DEALER that has an identity.
fn ready(identity: &str) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", "DEALER"), ("Identity", identity)] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    // 4: a command, shorter than 256 bytes.
    let mut frame = vec![4, body.len() as u8];
    frame.append(&mut body);
    frame
}

enum Field {
    Text(String),
    Number(u32),
}

/// A map in MessagePack, of fewer than 16 fields, with texts of fewer than 256 bytes.
fn packed(fields: &[(&str, Field)]) -> Vec<u8> {
    let mut bytes = vec![0x80 | fields.len() as u8];
    let text = |text: &str, bytes: &mut Vec<u8>| {
        match text.len() {
            length @ 0..32 => bytes.push(0xa0 | length as u8),
            length => bytes.extend_from_slice(&[0xd9, length as u8]),
        }
        bytes.extend_from_slice(text.as_bytes());
    };
    for (name, value) in fields {
        text(name, &mut bytes);
        match value {
            Field::Text(value) => text(value, &mut bytes),
            Field::Number(value @ 0..128) => bytes.push(*value as u8),
            Field::Number(value) => {
                bytes.push(0xce);
                bytes.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
    bytes
}
