//! Size and speed of the engine model.

use std::time::Duration;

/// Size and speed of the modelled engine. Times are those of the modelled GPU, before the worker's
/// `speed` factor.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Tokens in a cache block, at least 1. Default 16, as vLLM on CUDA.
    pub block_tokens: u32,
    /// Blocks in the KV cache. Default 16,384, which is 262,144 tokens.
    pub blocks: u32,
    /// Sequences that run at once; more wait. Default 64 (vLLM: `--max-num-seqs`).
    pub running_max: u32,
    /// Tokens that one step may process. Default 2,048 (vLLM: `--max-num-batched-tokens`).
    pub step_tokens_max: u32,
    /// Waiting requests at which further ones are refused; `None`, vLLM's default: no limit
    /// (vLLM: `--max-num-queued-reqs`).
    pub queued_requests_max: Option<u32>,
    /// Waiting prompt tokens above which a request is refused; `None`: no limit
    /// (vLLM: `--max-num-queued-tokens`).
    pub queued_tokens_max: Option<u64>,
    /// Uncached prompt tokens computed per second. Default 10,000.
    pub prefill_tokens_per_s: f64,
    /// Time of a step before anything is in it. Default 10 ms.
    pub step_base: Duration,
    /// Time that each decoding sequence adds to a step. Default 0.2 ms.
    pub step_per_sequence: Duration,
    /// Nanoseconds that each token of context of a decoding sequence adds to a step: its keys and
    /// values are read. At least 0, default 0.
    pub step_per_context_token_ns: f64,
    /// Nanoseconds that each pair of a computed prompt token and a token before it adds to a step:
    /// attention. At least 0, default 0.
    pub attention_pair_ns: f64,
    /// Blocks of a host tier behind the cache: it keeps a copy of every computed block, as an offloading connector does,
    /// and a hit there is copied back instead of computed. Default 0: no tier.
    pub host_blocks: u32,
    /// Nanoseconds to copy the keys and values of a token back from the host. At least 0, default 0.
    pub host_token_ns: f64,
}

impl EngineConfig {
    /// Llama-3.1-8B in bfloat16 on an H100 SXM, the model of `replay --virtual`. **A model, not a measurement.**
    ///
    /// A roofline from NVIDIA's data sheet (989 TFLOP/s dense, 3.35 TB/s): 16.1 GFLOP of matrices a token at two thirds
    /// of the peak (24 µs); 524,288 FLOP a pair of token and context at the rate that FlashAttention-3 reports for
    /// causal attention, about 650 TFLOP/s (0.8 ns); 131,072 bytes of keys and values a context token at 2.7 TB/s
    /// (48 ns); 16 GB of weights and the launch of a step (6.5 ms). The host tier is read over PCIe 5 at about 50 GB/s
    /// (2.6 µs a token). Sequences and tokens of a step are vLLM's `max_num_seqs` and `max_num_batched_tokens` for
    /// online serving on this class of accelerator.
    pub fn llama_8b_h100() -> Self {
        Self {
            block_tokens: 16,
            blocks: 25_000,
            running_max: 256,
            step_tokens_max: 8_192,
            queued_requests_max: None,
            queued_tokens_max: None,
            prefill_tokens_per_s: 1e6 / 24.0,
            step_base: Duration::from_micros(6_500),
            step_per_sequence: Duration::from_micros(20),
            step_per_context_token_ns: 48.0,
            attention_pair_ns: 0.8,
            host_blocks: 0,
            host_token_ns: 2_600.0,
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            blocks: 16_384,
            running_max: 64,
            step_tokens_max: 2_048,
            queued_requests_max: None,
            queued_tokens_max: None,
            prefill_tokens_per_s: 10_000.0,
            step_base: Duration::from_millis(10),
            step_per_sequence: Duration::from_micros(200),
            step_per_context_token_ns: 0.0,
            attention_pair_ns: 0.0,
            host_blocks: 0,
            host_token_ns: 0.0,
        }
    }
}
