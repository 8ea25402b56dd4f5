//! What a worker is in a split pair, and how fast its keys and values travel.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How keys and values travel, as vLLM's `kv_connector` and SGLang's disaggregation name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Connector {
    /// NIXL; decode reads what prefill has computed.
    Nixl,
    /// NIXL; prefill writes into what decode has registered.
    NixlPush,
    /// Mooncake, with its bootstrap server.
    Mooncake,
    /// MoRI-IO; decode reads.
    MoriioRead,
    /// MoRI-IO; prefill writes.
    MoriioWrite,
    /// P2pNcclConnector: the addresses are in the request id.
    P2pNccl,
    /// A store that all workers share.
    Store,
    /// SGLang: a room at a bootstrap server.
    Sglang,
}

/// Role of a worker (vLLM: `kv_role` producer, consumer and both).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Computes prompts.
    Prefill,
    /// Continues with the keys and values of another worker.
    Decode,
    /// Either.
    #[default]
    Both,
}

impl Role {
    /// It puts what it computes into a shared store.
    pub(in crate::fake_worker) fn gives(self) -> bool {
        self != Self::Decode
    }

    /// It reads from a shared store.
    pub(in crate::fake_worker) fn takes(self) -> bool {
        self != Self::Prefill
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        })
    }
}

/// A worker's part in split pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferConfig {
    /// Role. Default both.
    pub role: Role,
    /// How keys and values travel. Both workers of a pair must agree. Default NIXL.
    pub connector: Connector,
    /// Told to the other side, which refuses another value than its own. Default 1.
    pub tensor_parallel: u32,
    /// Keys and values of a token, in bytes. Default 131,072: Llama-3.1-8B in bfloat16.
    pub bytes_per_token: u64,
    /// Bytes a second at which a decode worker receives, in the engine's clock; above 0. Default 25e9 (200 Gbit/s).
    pub bytes_per_s: f64,
    /// Computed blocks that nobody read are freed after this time. Default 480 s, as
    /// `VLLM_NIXL_ABORT_REQUEST_TIMEOUT`.
    pub block_hold: Duration,
    /// A side channel of an unknown engine that does not answer is given up after this time. Default 10 s (measured).
    pub closed_side_channel: Duration,
    /// Port of the side channel, which is also the bootstrap server of Mooncake and of SGLang; 0, the default: any.
    pub side_channel_port: u16,
    /// `host:port` of a proxy that P2P NCCL and MoRI-IO ping. Default none.
    pub proxy: Option<String>,
    /// Time between two pings. Default 3 s, as vLLM.
    pub ping_every: Duration,
    /// Directory of the shared store. Default: the memory of this process.
    pub store: Option<PathBuf>,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            role: Role::Both,
            connector: Connector::Nixl,
            tensor_parallel: 1,
            bytes_per_token: 131_072,
            bytes_per_s: 25e9,
            block_hold: Duration::from_secs(480),
            closed_side_channel: Duration::from_secs(10),
            side_channel_port: 0,
            proxy: None,
            ping_every: Duration::from_secs(3),
            store: None,
        }
    }
}

impl TransferConfig {
    /// How long so many bytes take, in the engine's clock.
    pub(in crate::fake_worker) fn time(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_s).unwrap_or(Duration::MAX)
    }

    pub(in crate::fake_worker) fn check(&self) -> Result<(), &'static str> {
        if !(self.bytes_per_s.is_finite() && self.bytes_per_s > 0.0) {
            Err("bytes per second of a transfer must be above 0")
        } else if self.tensor_parallel == 0 {
            Err("tensor parallel size must be at least 1")
        } else if self.ping_every.is_zero() {
            Err("time between two pings must be above 0")
        } else {
            Ok(())
        }
    }
}
