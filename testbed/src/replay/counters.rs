//! Prefix-cache counters that vLLM workers export: an independent check of a hit rate.

use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use serde::Serialize;
use tokio::task::JoinSet;

use grapevine_bench::client::{Client, Target};
use grapevine_bench::tally::share;

/// Limit of one scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sums of `vllm:prefix_cache_*_total`, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Prompt tokens looked up.
    pub queried_tokens: u64,
    /// Prompt tokens found.
    pub hit_tokens: u64,
}

impl CacheCounters {
    /// Sums over several workers, by their `/metrics`, which are read at the same time.
    pub async fn of_all(workers: &[Target]) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        let mut reads = JoinSet::new();
        for worker in workers {
            reads.spawn(Self::of(worker.clone()));
        }
        while let Some(one) = reads.join_next().await {
            let one = one.context("reading panicked")??;
            sum.queried_tokens += one.queried_tokens;
            sum.hit_tokens += one.hit_tokens;
        }
        Ok(sum)
    }

    async fn of(worker: Target) -> anyhow::Result<Self> {
        let client = Client::one(worker.clone());
        let page = client
            .text(Method::GET, "/metrics", "", SCRAPE_TIMEOUT)
            .await?;
        Self::parse(&page).with_context(|| {
            format!(
                "{} does not export vLLM's prefix cache counters",
                worker.authority()
            )
        })
    }

    /// What was counted after `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            queried_tokens: self.queried_tokens.saturating_sub(before.queried_tokens),
            hit_tokens: self.hit_tokens.saturating_sub(before.hit_tokens),
        }
    }

    /// Hits over queries, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        share(self.hit_tokens, self.queried_tokens)
    }

    fn parse(page: &str) -> Option<Self> {
        Some(Self {
            queried_tokens: sum(page, "vllm:prefix_cache_queries_total{")?,
            hit_tokens: sum(page, "vllm:prefix_cache_hits_total{")?,
        })
    }
}

/// Sum over all label sets (data-parallel engines have one each); `None` when there is no sample.
fn sum(page: &str, prefix: &str) -> Option<u64> {
    let samples = page.lines().filter(|line| line.starts_with(prefix));
    samples
        .map(|line| {
            line.rsplit(' ')
                .next()
                .and_then(|value| value.parse::<f64>().ok())
        })
        .map(|value| value.map(|value| value as u64))
        .reduce(|a, b| Some(a? + b?))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_all_engines_are_summed() {
        let page = "# TYPE vllm:prefix_cache_hits_total counter\n\
            vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} 10.0\n\
            vllm:prefix_cache_hits_total{engine=\"1\",model_name=\"m\"} 1.5e+01\n\
            vllm:prefix_cache_hits_created{engine=\"0\"} 1.79e+09\n\
            vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"} 100.0\n";
        let counters = CacheCounters::parse(page).expect("there");
        assert_eq!(
            (
                counters.hit_tokens,
                counters.queried_tokens,
                counters.hit_rate()
            ),
            (25, 100, 0.25)
        );
        assert_eq!(CacheCounters::parse("something else"), None);
    }
}
