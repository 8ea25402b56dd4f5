//! What is run, and the one source of chance in what is lost.

use super::split::Split;
use super::timed_engine::CacheSize;

/// The cluster and the traffic of a run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Router replicas.
    pub replicas: usize,
    /// Workers that compute prompts and answers.
    pub workers: usize,
    /// Prefill and decode workers beside them.
    pub split: Option<Split>,
    /// Tokens that one step of a worker may process.
    pub step_tokens: u32,
    /// Cache of each worker.
    pub cache: CacheSize,
    /// Longest time between load frames of a replica while something changes, in µs: rises go sooner.
    pub load_age_us: u64,
    /// So much further is the first replica from all others than they are from each other, in µs.
    pub slow_us: u64,
    /// Part of all gossip that is lost; 1: nothing arrives, nothing is repaired.
    pub loss: f64,
    /// Workers, the first ones, of whose KV events the first replica hears nothing.
    pub unheard_workers: usize,
    /// Factor on the workload's own rate.
    pub speed: f64,
    /// Limit of the first token: this, in µs, ...
    pub limit_us: u64,
    /// ... and so many µs for each token of the prompt.
    pub limit_token_us: u64,
    /// Limit of the mean time between the tokens of an answer, in µs.
    pub gap_limit_us: u64,
    /// Which of many rings: part of the workers' names.
    pub ring: u8,
    /// Of draws and of who gets a request.
    pub seed: u64,
}

impl Scenario {
    /// Workers of all kinds.
    pub fn all_workers(&self) -> usize {
        let split = self.split.as_ref();
        self.workers + split.map_or(0, |split| split.prefill_workers + split.decode_workers)
    }
}

/// A number from 0 to 1 that is always the same for one message and receiver.
pub(super) fn chance(seed: u64, from: usize, to: usize, number: u64) -> f64 {
    let mut bytes = [0; 32];
    for (place, part) in bytes
        .chunks_exact_mut(8)
        .zip([seed, from as u64, to as u64, number])
    {
        place.copy_from_slice(&part.to_le_bytes());
    }
    (xxhash_rust::xxh3::xxh3_64(&bytes) >> 11) as f64 / (1_u64 << 53) as f64
}
