//! `grapevine fake-worker`. Flags have vLLM's names where it has them.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{StopSignal, StopSignals, announce};
use crate::fake_worker::{Config, EngineConfig, FakeWorker, StopMode};

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
    /// Start of the modelled process, in seconds since 1970 [default: now]
    #[arg(long)]
    process_start_time: Option<u64>,
    /// Requests kept for GET /_control/log
    #[arg(long, default_value_t = 10_000)]
    log_entries: usize,
}

impl FakeWorkerArgs {
    fn config(self) -> Config {
        let engine = match self.engine {
            Model::Small => EngineConfig::default(),
            Model::Llama8bH100 => EngineConfig::llama_8b_h100(),
        };
        let prefill = self.prefill_tokens_per_s;
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
            process_start_us: self.process_start_time.map(|s| s.saturating_mul(1_000_000)),
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
        announce(worker.addr())?;
        worker.terminate(match signals.next().await {
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
