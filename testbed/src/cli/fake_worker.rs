//! `grapevine fake-worker`. Flags have vLLM's names where it has them.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{StopSignal, StopSignals, announce};
use crate::fake_worker::{Config, EngineConfig, FakeWorker, StopMode};

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
    /// Tokens in a cache block
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Blocks in the KV cache
    #[arg(long, default_value_t = 16_384)]
    num_gpu_blocks: u32,
    /// Longest prompt plus answer in tokens, capped by the cache
    #[arg(long, default_value_t = 131_072)]
    max_model_len: u32,
    /// Sequences that run at once; more wait
    #[arg(long, default_value_t = 64)]
    max_num_seqs: u32,
    /// Tokens that one engine step may process
    #[arg(long, default_value_t = 2_048)]
    max_num_batched_tokens: u32,
    /// Waiting requests at which further ones get 503 [default: no limit]
    #[arg(long)]
    max_num_queued_reqs: Option<u32>,
    /// Waiting prompt tokens above which requests get 503 [default: no limit]
    #[arg(long)]
    max_num_queued_tokens: Option<u64>,
    /// Uncached prompt tokens computed per second
    #[arg(long, default_value_t = 10_000.0)]
    prefill_tokens_per_s: f64,
    /// Time of an engine step before anything is in it
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10ms")]
    step_base: Duration,
    /// Time that each decoding sequence adds to a step
    #[arg(long, value_parser = humantime::parse_duration, default_value = "200us")]
    step_per_sequence: Duration,
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
    /// Requests kept for GET /_control/log
    #[arg(long, default_value_t = 10_000)]
    log_entries: usize,
}

impl FakeWorkerArgs {
    fn config(self) -> Config {
        Config {
            listen: SocketAddr::from((self.host, self.port)),
            models: self.served_model_name,
            engine: EngineConfig {
                block_tokens: self.block_size,
                blocks: self.num_gpu_blocks,
                running_max: self.max_num_seqs,
                step_tokens_max: self.max_num_batched_tokens,
                queued_requests_max: self.max_num_queued_reqs,
                queued_tokens_max: self.max_num_queued_tokens,
                prefill_tokens_per_s: self.prefill_tokens_per_s,
                step_base: self.step_base,
                step_per_sequence: self.step_per_sequence,
            },
            speed: self.speed,
            model_len_max: self.max_model_len,
            answer_tokens: self.answer_tokens,
            keep_alive: self.keep_alive,
            sse_keep_alive: self.sse_keep_alive_interval,
            api_key: self.api_key,
            request_id_headers: self.enable_request_id_headers,
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
