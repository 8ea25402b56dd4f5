//! Connectors: how the blocks of a prompt come from one engine to the other.

use std::fmt;
use std::str::FromStr;

/// How the blocks of a prompt come from the prefill worker to the decode worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Connector {
    /// vLLM over NIXL: the decode worker pulls, or the prefill worker pushes.
    Nixl,
    /// vLLM over Mooncake's transfer engine.
    Mooncake,
    /// vLLM over AMD's MoRI-IO: the decode worker reads, or the prefill worker writes.
    MoriIo,
    /// vLLM over NCCL between two engines.
    P2pNccl,
    /// A store that both engines share: blocks are found by their hashes.
    Store,
    /// SGLang's own way, whatever moves the bytes there.
    Sglang,
}

/// A text that names no connector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no known KV connector: `{0}`; known are nixl, mooncake, moriio, p2p_nccl, store, sglang and vLLM's class names of these"
)]
pub struct UnknownConnector(pub String);

/// vLLM's class names, in its order of moving, then of storing.
const CLASSES: [(&str, Connector); 14] = [
    ("NixlConnector", Connector::Nixl),
    ("NixlPullConnector", Connector::Nixl),
    ("NixlPushConnector", Connector::Nixl),
    ("MooncakeConnector", Connector::Mooncake),
    ("MoRIIOConnector", Connector::MoriIo),
    ("P2pNcclConnector", Connector::P2pNccl),
    ("LMCacheConnectorV1", Connector::Store),
    ("LMCacheMPConnector", Connector::Store),
    ("MooncakeStoreConnector", Connector::Store),
    ("OffloadingConnector", Connector::Store),
    ("FlexKVConnectorV1", Connector::Store),
    ("HF3FSKVConnector", Connector::Store),
    ("SharedStorageConnector", Connector::Store),
    ("ExampleConnector", Connector::Store),
];

impl Connector {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Nixl,
        Self::Mooncake,
        Self::MoriIo,
        Self::P2pNccl,
        Self::Store,
        Self::Sglang,
    ];

    /// Its name in settings, labels and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nixl => "nixl",
            Self::Mooncake => "mooncake",
            Self::MoriIo => "moriio",
            Self::P2pNccl => "p2p_nccl",
            Self::Store => "store",
            Self::Sglang => "sglang",
        }
    }

    /// Whether the blocks that a prefill computed may go to another decode worker, when the first one never got the
    /// request.
    ///
    /// Not where the prefill leg named the decode worker: its engine has written there already, or will.
    pub fn survives_unsent_decode(self) -> bool {
        match self {
            Self::Nixl | Self::Mooncake | Self::Store | Self::Sglang => true,
            Self::MoriIo | Self::P2pNccl => false,
        }
    }
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Connector {
    type Err = UnknownConnector;

    fn from_str(text: &str) -> Result<Self, UnknownConnector> {
        let short = Self::ALL.into_iter().find(|c| c.as_str() == text);
        let class = || CLASSES.into_iter().find(|(class, _)| *class == text);
        short
            .or_else(|| class().map(|(_, connector)| connector))
            .ok_or_else(|| UnknownConnector(text.to_owned()))
    }
}

/// Who moves the blocks, where a connector can do it in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// NIXL: the decode worker fetches them.
    Pull,
    /// NIXL: the prefill worker brings them.
    Push,
    /// MoRI-IO: the decode worker fetches them.
    Read,
    /// MoRI-IO: the prefill worker brings them.
    Write,
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no known KV transfer mode: `{0}`; known are pull, push, read, write")]
pub struct UnknownMode(pub String);

impl Mode {
    /// Its name in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The connector that knows it.
    pub fn connector(self) -> Connector {
        match self {
            Self::Pull | Self::Push => Connector::Nixl,
            Self::Read | Self::Write => Connector::MoriIo,
        }
    }

    /// The mode that vLLM's class name says by itself.
    pub(crate) fn of_class(class: &str) -> Option<Self> {
        match class {
            "NixlPullConnector" => Some(Self::Pull),
            "NixlPushConnector" => Some(Self::Push),
            _ => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// In any case of letters: MoRI-IO's pings say READ and WRITE.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        [Self::Pull, Self::Push, Self::Read, Self::Write]
            .into_iter()
            .find(|mode| mode.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}
