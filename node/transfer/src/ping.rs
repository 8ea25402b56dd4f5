//! Pings: how vLLM's engines with P2P NCCL and MoRI-IO register themselves at a router, every three seconds.
//!
//! A ping is one MessagePack map. P2P NCCL says `type` (`P` or `D`), `http_address` and `zmq_address`; MoRI-IO adds
//! `transfer_mode` (`READ` or `WRITE`), `tp_size` and `dp_size`, and its `zmq_address` is
//! `host:<ip>,handshake:<port>,notify:<port>`. MoRI-IO of earlier releases says the same in other words: `type` is
//! `register`, then `role`, `request_address` (a URL), `handshake_port` and `notify_port`.
//!
//! Whoever reaches the router's port can send one, so every text is checked before it becomes part of a request id or
//! an address.

use std::fmt;

use serde::Deserialize;

use crate::address::{is_plain, is_zmq_address};
use crate::connector::{Connector, Mode};
use crate::label;

/// Greatest size of a ping in bytes. Real ones have about 200; MoRI-IO's name a host for each node, too.
pub const PING_BYTES_MAX: usize = 8192;
/// Greatest number of ranks of any kind.
const RANKS_MAX: u32 = 1024;
/// Depth of lists in maps that is read. Pings have one map, and a list in it.
const DEPTH_MAX: usize = 8;

/// Which half of requests a worker registers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Prefill, `P`.
    Prefill,
    /// Decode, `D`.
    Decode,
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Which half it takes.
    pub side: Side,
    /// Where its requests go: a URL without path, and `@rank` behind it if it named one.
    pub url: String,
    /// What it says beyond that, by names of [`label`](mod@label).
    pub labels: Vec<(&'static str, String)>,
}

/// Why a ping is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPing {
    /// It is no MessagePack map with values of the expected types.
    #[error("no MessagePack map of a ping's form")]
    Malformed,
    /// Its type is neither `P` nor `D`.
    #[error("a type that is neither P nor D")]
    UnknownType,
    /// It lacks a field, or has a value out of range.
    #[error("`{0}` is missing or out of range")]
    Field(&'static str),
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    role: Option<&'a str>,
    http_address: Option<&'a str>,
    request_address: Option<&'a str>,
    zmq_address: Option<&'a str>,
    #[serde(borrow)]
    handshake_port: Option<Port<'a>>,
    #[serde(borrow)]
    notify_port: Option<Port<'a>>,
    transfer_mode: Option<&'a str>,
    tp_size: Option<u32>,
    dp_size: Option<u32>,
}

/// As engines have it in their settings: a number, or its digits.
#[derive(Deserialize)]
#[serde(untagged)]
enum Port<'a> {
    Number(u16),
    Digits(&'a str),
}

impl fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(port) => port.fmt(f),
            Self::Digits(digits) => digits.fmt(f),
        }
    }
}

impl Ping {
    /// Reads a ping.
    /// Errors: [`BadPing`]; the sender is to be left alone, a later release may say more.
    pub fn read(payload: &[u8]) -> Result<Self, BadPing> {
        let wire = Wire::read(payload)?;
        // First: who is neither may have other fields.
        let side = wire.side()?;
        let mode = wire.mode()?;
        let address = wire.address()?;
        let connector = match mode {
            None if !address.starts_with("host:") => Connector::P2pNccl,
            _ => Connector::MoriIo,
        };
        let mut labels = vec![
            (label::CONNECTOR, connector.to_string()),
            (label::ADDRESS, address),
        ];
        labels.extend(mode.map(|mode| (label::MODE, mode.to_string())));
        for (name, size, field) in [
            (label::TP_SIZE, wire.tp_size, "tp_size"),
            (label::DP_SIZE, wire.dp_size, "dp_size"),
        ] {
            match size {
                Some(size @ 1..=RANKS_MAX) => labels.push((name, size.to_string())),
                Some(_) => return Err(BadPing::Field(field)),
                None => {}
            }
        }
        Ok(Self {
            side,
            url: wire.url()?,
            labels,
        })
    }
}

impl<'a> Wire<'a> {
    fn read(payload: &'a [u8]) -> Result<Self, BadPing> {
        // A list would be read as the fields in their order.
        let is_map = matches!(payload.first(), Some(0x80..=0x8f | 0xde | 0xdf));
        if !is_map || payload.len() > PING_BYTES_MAX {
            return Err(BadPing::Malformed);
        }
        let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
        reader.set_max_depth(DEPTH_MAX);
        Self::deserialize(&mut reader).map_err(|_| BadPing::Malformed)
    }

    fn side(&self) -> Result<Side, BadPing> {
        let side = match self.kind {
            Some("register") => self.role,
            kind => kind,
        };
        match side {
            Some("P") => Ok(Side::Prefill),
            Some("D") => Ok(Side::Decode),
            _ => Err(BadPing::UnknownType),
        }
    }

    fn mode(&self) -> Result<Option<Mode>, BadPing> {
        let Some(text) = self.transfer_mode else {
            return Ok(None);
        };
        let mode = text.parse::<Mode>().ok();
        let mode = mode.filter(|mode| mode.connector() == Connector::MoriIo);
        mode.map(Some).ok_or(BadPing::Field("transfer_mode"))
    }

    fn url(&self) -> Result<String, BadPing> {
        let named = self.http_address.or(self.request_address);
        let named = named.filter(|text| is_plain(text));
        let named = named.ok_or(BadPing::Field("http_address"))?;
        let (scheme, rest) = named.split_once("://").unwrap_or(("http", named));
        // A request's address has a path.
        let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
        let (_, port) = authority
            .rsplit_once(':')
            .ok_or(BadPing::Field("http_address"))?;
        if port.is_empty() || authority.starts_with(':') {
            return Err(BadPing::Field("http_address"));
        }
        Ok(format!("{scheme}://{authority}"))
    }

    /// What it calls its ZMQ side.
    fn address(&self) -> Result<String, BadPing> {
        if let Some(address) = self.zmq_address {
            return is_zmq_address(address)
                .then(|| address.to_owned())
                .ok_or(BadPing::Field("zmq_address"));
        }
        let ports = self.handshake_port.as_ref().zip(self.notify_port.as_ref());
        let (handshake, notify) = ports.ok_or(BadPing::Field("zmq_address"))?;
        let url = self.url()?;
        let (_, authority) = url.split_once("://").unwrap_or(("", &url));
        let (host, _) = authority.rsplit_once(':').unwrap_or((authority, ""));
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let address = format!("host:{bare},handshake:{handshake},notify:{notify}");
        is_zmq_address(&address)
            .then_some(address)
            .ok_or(BadPing::Field("handshake_port"))
    }
}
