//! Metrics of warm-ups and of the prompts that are kept for them.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::run::End;
use crate::metrics::{EventLabels, ResultLabels};

/// Handles, registered with the router's other metrics.
#[derive(Debug)]
pub struct WarmupMetrics {
    /// Warm-ups of this replica by how they ended.
    pub ended: Family<ResultLabels, Counter>,
    /// From the word that a worker is warming to the end of its warm-up.
    pub seconds: Histogram,
    /// Prompts sent to joining workers by result.
    pub prompts: Family<ResultLabels, Counter>,
    /// Hot prompts in memory.
    pub prompts_kept: Gauge,
    /// Their bytes.
    pub prompts_kept_bytes: Gauge,
    /// What became of prompts that were worth keeping.
    pub prompt_events: Family<EventLabels, Counter>,
}

impl WarmupMetrics {
    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            ended: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.01, 2.0, 17)),
            prompts: Family::default(),
            prompts_kept: Gauge::default(),
            prompts_kept_bytes: Gauge::default(),
            prompt_events: Family::default(),
        };
        // All of them from the start, so that the first of each is seen as a rise.
        for result in End::ALL.map(End::as_str) {
            let _zero = metrics.ended.get_or_create(&ResultLabels { result });
        }
        registry.register(
            "warm_ups",
            "Warm-ups of joining workers by this replica, by result",
            metrics.ended.clone(),
        );
        registry.register_with_unit(
            "warm_up",
            "Warm-up of a joining worker, from its registration",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register(
            "warm_up_prompts",
            "Prompts sent to joining workers, by result",
            metrics.prompts.clone(),
        );
        registry.register(
            "hot_prompts",
            "Hot prompts in memory for warm-ups",
            metrics.prompts_kept.clone(),
        );
        registry.register_with_unit(
            "hot_prompts",
            "Memory of hot prompts",
            Unit::Bytes,
            metrics.prompts_kept_bytes.clone(),
        );
        registry.register(
            "hot_prompt_events",
            "Hot prompts kept, or why not, and forgotten",
            metrics.prompt_events.clone(),
        );
        metrics
    }
}
