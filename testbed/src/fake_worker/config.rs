//! Configuration of a fake worker.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::kv_events::KvEventsConfig;
use super::transfer::TransferConfig;
use crate::engine::EngineConfig;

/// Greatest data parallel size.
const RANKS_MAX: u32 = 64;

/// Configuration of the model. [`Config::default`] is vLLM's default behaviour with a mid-size GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Address to listen on. Default 127.0.0.1, port 0: any free port.
    pub listen: SocketAddr,
    /// Served model names, the first is the canonical one; must not be empty. Default `fake-model`.
    pub models: Vec<String>,
    /// The modelled engine.
    pub engine: EngineConfig,
    /// Virtual seconds that pass in a real second, above 0. Default 1. Scales the engine only:
    /// protocol times (idle close, keep-alive comments, drain) stay real.
    pub speed: f64,
    /// Longest prompt plus answer in tokens; capped by the size of the cache. Default 131,072.
    pub model_len_max: u32,
    /// Answer length when the request sets no `max_tokens`. Default 64 tokens.
    pub answer_tokens: u32,
    /// An idle keep-alive connection is closed after this time. Default 5 s, as uvicorn.
    pub keep_alive: Duration,
    /// Send `: keep-alive` on a stream that was silent for this long; `None`, vLLM's default: never
    /// (vLLM: `--sse-keep-alive-interval`).
    pub sse_keep_alive: Option<Duration>,
    /// Bearer token that `/v1` paths ask for (vLLM: `--api-key`). Default none.
    pub api_key: Option<String>,
    /// Echo `x-request-id`, or a new id, in replies (vLLM: `--enable-request-id-headers`). Default off.
    pub request_id_headers: bool,
    /// Serve `/sleep`, `/wake_up` and `/is_sleeping` (vLLM: `VLLM_SERVER_DEV_MODE=1`). Default off: they are 404.
    pub dev_mode: bool,
    /// Start of the modelled process in microseconds since 1970; `None`, the default: now.
    pub process_start_us: Option<u64>,
    /// Engines behind one address, each with a cache of its own (vLLM: `--data-parallel-size`). At least 1, the
    /// default.
    pub data_parallel: u32,
    /// The worker's part in split pairs. Default: none, every request is computed here alone.
    pub transfer: Option<TransferConfig>,
    /// KV events, published on ports of their own (vLLM: `--kv-events-config`). Default: none.
    pub kv_events: Option<KvEventsConfig>,
    /// Requests that the log keeps; older ones are forgotten. Default 10,000.
    pub log_entries_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            models: vec!["fake-model".into()],
            engine: EngineConfig::default(),
            speed: 1.0,
            model_len_max: 131_072,
            answer_tokens: 64,
            keep_alive: Duration::from_secs(5),
            sse_keep_alive: None,
            api_key: None,
            request_id_headers: false,
            dev_mode: false,
            process_start_us: None,
            data_parallel: 1,
            transfer: None,
            kv_events: None,
            log_entries_max: 10_000,
        }
    }
}

impl Config {
    /// Longest prompt plus answer that the engine can hold.
    pub(super) fn model_len(&self) -> u32 {
        let cache = self.engine.blocks.saturating_mul(self.engine.block_tokens);
        self.model_len_max.min(cache)
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.models.is_empty() {
            Err("at least one model name is needed")
        } else if !(self.speed.is_finite() && self.speed > 0.0) {
            Err("speed must be above 0")
        } else if !(self.engine.step_per_context_token_ns >= 0.0
            && self.engine.attention_pair_ns >= 0.0)
        {
            Err("times of context and attention must be at least 0")
        } else if self.engine.prefill_tokens_per_s.is_nan()
            || self.engine.prefill_tokens_per_s < 1.0
        {
            Err("prefill rate must be at least 1 token/s")
        } else if self.engine.block_tokens == 0
            || self.engine.blocks == 0
            || self.engine.running_max == 0
        {
            Err("block size, blocks and running slots must be at least 1")
        } else if !(1..=RANKS_MAX).contains(&self.data_parallel) {
            Err("data parallel size must be 1 to 64")
        } else {
            self.transfer.as_ref().map_or(Ok(()), TransferConfig::check)
        }
    }
}

/// How the worker behaves on SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// vLLM's default (`--shutdown-timeout 0`): the port refuses connections, idle connections are
    /// closed, open requests hang without a byte or an end until their clients leave.
    Hang,
    /// vLLM with `--shutdown-timeout`: open requests go on and `/health` stays 200 while every new
    /// request gets 500, until all connections are gone or the time is over.
    Drain(Duration),
    /// All connections are cut at once, as by `kill -9`.
    Exit,
}
