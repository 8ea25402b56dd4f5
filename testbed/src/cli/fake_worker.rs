//! `grapevine fake-worker`. Flags have vLLM's names where it has them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use serde_json::json;

use super::{StopSignal, StopSignals, announce, print_json};
use crate::fake_worker::{
    Config, Connector, EngineConfig, FakeWorker, KvEventsConfig, Role, StopMode, TransferConfig,
};

/// Engines that can be modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Model {
    /// 10,000 prompt tokens a second, a token each 10 ms, times without regard to context
    Small,
    /// Llama-3.1-8B on an H100, as `replay --virtual` models it
    #[value(name = "llama-8b-h100")]
    Llama8bH100,
}

/// Arguments of `fake-worker`.
#[derive(Debug, Args)]
pub struct FakeWorkerArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port; 0 chooses a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Model names, the first is the canonical one
    #[arg(long, num_args = 1.., default_value = "fake-model")]
    served_model_name: Vec<String>,
    /// Virtual seconds that pass in a real second (engine only)
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// The modelled engine; the options that follow change parts of it
    #[arg(long, value_enum, default_value = "small")]
    engine: Model,
    /// Tokens in a cache block [default: 16]
    #[arg(long)]
    block_size: Option<u32>,
    /// Blocks in the KV cache [default: 16384, of llama-8b-h100 25000]
    #[arg(long)]
    num_gpu_blocks: Option<u32>,
    /// Longest prompt plus answer in tokens, capped by the cache
    #[arg(long, default_value_t = 131_072)]
    max_model_len: u32,
    /// Sequences that run at once; more wait [default: 64, of llama-8b-h100 256]
    #[arg(long)]
    max_num_seqs: Option<u32>,
    /// Tokens that one engine step may process [default: 2048, of llama-8b-h100 8192]
    #[arg(long)]
    max_num_batched_tokens: Option<u32>,
    /// Waiting requests at which further ones get 503 [default: no limit]
    #[arg(long)]
    max_num_queued_reqs: Option<u32>,
    /// Waiting prompt tokens above which requests get 503 [default: no limit]
    #[arg(long)]
    max_num_queued_tokens: Option<u64>,
    /// Uncached prompt tokens computed per second [default: 10000, of llama-8b-h100 41667]
    #[arg(long)]
    prefill_tokens_per_s: Option<f64>,
    /// Time of an engine step without its sequences [default: 10ms, of llama-8b-h100 6.5ms]
    #[arg(long, value_parser = humantime::parse_duration)]
    step_base: Option<Duration>,
    /// Time that each decoding sequence adds to a step [default: 200us, of llama-8b-h100 20us]
    #[arg(long, value_parser = humantime::parse_duration)]
    step_per_sequence: Option<Duration>,
    /// Answer length in tokens when a request sets no max_tokens
    #[arg(long, default_value_t = 64)]
    answer_tokens: u32,
    /// Idle keep-alive connections are closed after this time
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5s")]
    keep_alive: Duration,
    /// Send a comment on streams that were silent for this long [default: never]
    #[arg(long, value_parser = humantime::parse_duration)]
    sse_keep_alive_interval: Option<Duration>,
    /// Seconds to drain after SIGTERM; with 0 open requests hang until their clients leave
    #[arg(long, default_value_t = 0)]
    shutdown_timeout: u64,
    /// Cut everything at SIGTERM, unlike vLLM
    #[arg(long, conflicts_with = "shutdown_timeout")]
    exit_on_sigterm: bool,
    /// Bearer token that /v1 asks for
    #[arg(long)]
    api_key: Option<String>,
    /// Echo x-request-id in replies
    #[arg(long)]
    enable_request_id_headers: bool,
    /// Serve /sleep, /wake_up and /is_sleeping, as vLLM with VLLM_SERVER_DEV_MODE=1
    #[arg(long)]
    dev_mode: bool,
    /// Engines behind the address, each with a cache of its own
    #[arg(long, default_value_t = 1)]
    data_parallel_size: u32,
    /// Publish KV events on free ports, which GET /kv_event_sources names
    #[arg(long)]
    kv_events: bool,
    #[command(flatten)]
    transfer: TransferArgs,
    /// Start of the modelled process, in seconds since 1970 [default: now]
    #[arg(long)]
    process_start_time: Option<u64>,
    /// Requests kept for GET /_control/log
    #[arg(long, default_value_t = 10_000)]
    log_entries: usize,
}

/// The worker's part in split pairs: prefill on one worker, decode on another.
#[derive(Debug, Args)]
struct TransferArgs {
    /// Role in split pairs [default: both, with --kv-connector]
    #[arg(long, value_enum, requires = "kv_connector")]
    role: Option<Role>,
    /// How keys and values travel between workers; without it the worker computes everything alone
    #[arg(long, value_enum)]
    kv_connector: Option<Connector>,
    /// Tensor parallel size that the other side must know
    #[arg(long, default_value_t = 1)]
    tensor_parallel_size: u32,
    /// Bytes of keys and values of a token [default: 131072]
    #[arg(long)]
    kv_bytes_per_token: Option<u64>,
    /// Bytes a second at which keys and values arrive, in the engine's clock [default: 25e9]
    #[arg(long)]
    transfer_bytes_per_s: Option<f64>,
    /// Computed blocks that nobody reads are freed after this time
    #[arg(long, value_parser = humantime::parse_duration, default_value = "480s")]
    block_hold: Duration,
    /// An unknown side channel that does not answer is given up after this time
    #[arg(long, default_value_t = 10.0)]
    closed_side_channel_s: f64,
    /// Port of the side channel, which is also the bootstrap server; 0 chooses a free one
    #[arg(long, default_value_t = 0)]
    side_channel_port: u16,
    /// Proxy that P2P NCCL and MoRI-IO ping every three seconds, HOST:PORT
    #[arg(long, requires = "kv_connector")]
    proxy: Option<String>,
    /// Directory of the shared store [default: memory of this process]
    #[arg(long)]
    store: Option<PathBuf>,
}

impl TransferArgs {
    fn config(self) -> Option<TransferConfig> {
        let ours = TransferConfig::default();
        let closed = Duration::try_from_secs_f64(self.closed_side_channel_s);
        Some(TransferConfig {
            role: self.role.unwrap_or_default(),
            connector: self.kv_connector?,
            tensor_parallel: self.tensor_parallel_size,
            bytes_per_token: self.kv_bytes_per_token.unwrap_or(ours.bytes_per_token),
            bytes_per_s: self.transfer_bytes_per_s.unwrap_or(ours.bytes_per_s),
            block_hold: self.block_hold,
            closed_side_channel: closed.unwrap_or(ours.closed_side_channel),
            side_channel_port: self.side_channel_port,
            proxy: self.proxy,
            store: self.store,
            ..ours
        })
    }
}

impl FakeWorkerArgs {
    fn config(self) -> Config {
        let engine = match self.engine {
            Model::Small => EngineConfig::default(),
            Model::Llama8bH100 => EngineConfig::llama_8b_h100(),
        };
        let prefill = self.prefill_tokens_per_s;
        let transfer = self.transfer.config();
        Config {
            listen: SocketAddr::from((self.host, self.port)),
            models: self.served_model_name,
            engine: EngineConfig {
                block_tokens: self.block_size.unwrap_or(engine.block_tokens),
                blocks: self.num_gpu_blocks.unwrap_or(engine.blocks),
                running_max: self.max_num_seqs.unwrap_or(engine.running_max),
                step_tokens_max: self
                    .max_num_batched_tokens
                    .unwrap_or(engine.step_tokens_max),
                queued_requests_max: self.max_num_queued_reqs,
                queued_tokens_max: self.max_num_queued_tokens,
                prefill_tokens_per_s: prefill.unwrap_or(engine.prefill_tokens_per_s),
                step_base: self.step_base.unwrap_or(engine.step_base),
                step_per_sequence: self.step_per_sequence.unwrap_or(engine.step_per_sequence),
                ..engine
            },
            speed: self.speed,
            model_len_max: self.max_model_len,
            answer_tokens: self.answer_tokens,
            keep_alive: self.keep_alive,
            sse_keep_alive: self.sse_keep_alive_interval,
            api_key: self.api_key,
            request_id_headers: self.enable_request_id_headers,
            dev_mode: self.dev_mode,
            process_start_us: self.process_start_time.map(|s| s.saturating_mul(1_000_000)),
            data_parallel: self.data_parallel_size,
            transfer,
            kv_events: self.kv_events.then(KvEventsConfig::default),
            log_entries_max: self.log_entries,
        }
    }

    /// Serves until stopped: SIGTERM as configured, SIGINT or a second signal at once.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = StopSignals::new()?;
        let stop = match self.shutdown_timeout {
            _ if self.exit_on_sigterm => StopMode::Exit,
            0 => StopMode::Hang,
            seconds => StopMode::Drain(Duration::from_secs(seconds)),
        };
        let mut worker = FakeWorker::start(self.config()).await?;
        match worker.side_channel() {
            None => announce(worker.addr())?,
            Some(side) => print_json(&json!({
                "event": "listening", "http": worker.addr().to_string(), "side_channel": side.to_string(),
            }))?,
        }
        let signal = tokio::select! {
            signal = signals.next() => signal,
            // It was told by a request or a fault: there is no port any more that a signal could close.
            () = worker.stopped() => return Ok(ExitCode::SUCCESS),
        };
        worker.terminate(match signal {
            StopSignal::Term => stop,
            StopSignal::Int => StopMode::Exit,
        });
        tokio::select! {
            () = worker.stopped() => {}
            _ = signals.next() => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: FakeWorkerArgs,
    }

    fn config(line: &str) -> Result<Config, clap::Error> {
        let words = std::iter::once("fake-worker").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args.config())
    }

    #[test]
    fn a_split_needs_a_connector() {
        let alone = config("--data-parallel-size 2").expect("valid");
        assert_eq!((alone.data_parallel, alone.transfer), (2, None));
        assert!(config("--role prefill").is_err());
        assert!(config("--kv-connector pigeon").is_err());
    }

    #[test]
    fn options_of_a_split() {
        let line = "--kv-connector nixl-push --role decode --tensor-parallel-size 2 --block-hold 90s \
                    --closed-side-channel-s 0.5 --transfer-bytes-per-s 5e10 --proxy 127.0.0.1:30001";
        let transfer = config(line).expect("valid").transfer;
        assert_eq!(
            transfer,
            Some(TransferConfig {
                connector: Connector::NixlPush,
                role: Role::Decode,
                tensor_parallel: 2,
                block_hold: Duration::from_secs(90),
                closed_side_channel: Duration::from_millis(500),
                bytes_per_s: 5e10,
                proxy: Some("127.0.0.1:30001".into()),
                ..TransferConfig::default()
            })
        );
        let all = "nixl nixl-push mooncake moriio-read moriio-write p2p-nccl store sglang";
        for connector in all.split(' ') {
            let line = format!("--kv-connector {connector}");
            let transfer = config(&line).expect("valid").transfer;
            assert_eq!(transfer.map(|transfer| transfer.role), Some(Role::Both));
        }
    }
}
