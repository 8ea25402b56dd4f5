//! What a worker's engine says of itself in its metrics: the size of its cache, when it started, and whether it works.
//!
//! vLLM exports its cache configuration as labels of `vllm:cache_config_info` (one sample for each engine of a
//! data-parallel worker) and, where the client library can, `process_start_time_seconds`.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::str::FromStr;

use grapevine_transfer::label::AWAKE;

/// Largest answer to `/metrics` that is read, in bytes.
pub(super) const METRICS_BYTES_MAX: usize = 1 << 20;

/// Series that nothing but the engine's own steps changes. Those of requests also count what the HTTP server does
/// while the engine stands still, such as to refuse or to give up.
const MOVED_BY_ENGINE: [&str; 6] = [
    "generation_tokens_total",
    "prompt_tokens_total",
    "iteration_tokens_total_count",
    "prefix_cache_queries_total",
    "kv_cache_usage_perc",
    "num_requests_running",
];

/// Whether an engine sleeps, as vLLM says it in a gauge for each state, of which the present one is 1. None is where its
/// scheduler alone was told to stand (`/sleep?level=0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SleepState {
    /// None of its gauges is 1.
    Paused,
    /// It computes.
    Awake,
    /// Its weights are in the memory of the host, and its cache is empty.
    WeightsOffloaded,
    /// It has neither.
    DiscardAll,
}

impl SleepState {
    const GAUGES: [Self; 3] = [Self::Awake, Self::WeightsOffloaded, Self::DiscardAll];

    /// vLLM's word, or ours where it has none.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Awake => AWAKE,
            Self::WeightsOffloaded => "weights_offloaded",
            Self::DiscardAll => "discard_all",
        }
    }

    /// What a sample says: that its state is the present one, or nothing but that there are such gauges.
    fn of(sample: &str) -> Option<Self> {
        let (labels, value) = sample.rsplit_once(' ')?;
        let state = label(labels, "sleep_state")?;
        let is_present = value.trim().parse::<f64>() == Ok(1.0);
        let mut gauges = Self::GAUGES.into_iter();
        let known = gauges.find(|known| known.as_str() == state)?;
        Some(if is_present { known } else { Self::Paused })
    }
}

/// The gauge of it.
const SLEEP_STATE: &str = "engine_sleep_state";

/// Facts from one scrape; what the worker does not say is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineMetrics {
    /// Tokens that the key-value cache holds, over all engines or of the one asked for.
    pub cache_tokens: Option<u64>,
    /// Seconds since 1970 at which the process started.
    pub started: Option<u64>,
    /// Tokens of one block of its cache.
    pub block_size: Option<u32>,
    /// Number of data-parallel engines behind the address, where it shows several, counted from 0. One that shows a
    /// single engine may be one rank of many that have addresses of their own.
    pub ranks: Option<u32>,
    /// Whether its engine sleeps, or any of several.
    pub sleep: Option<SleepState>,
    /// A hash over the series that only the engine moves: another one is a sign of life.
    pub activity: Option<u64>,
}

impl EngineMetrics {
    /// Reads metrics in Prometheus text format. `rank`: only this data-parallel engine's cache counts.
    pub fn parse(metrics: &str, rank: Option<u32>) -> Self {
        let mut facts = Self::default();
        let mut moved = DefaultHasher::new();
        let mut engines = BTreeSet::new();
        for line in metrics.lines() {
            if let Some(rest) = line.strip_prefix("vllm:cache_config_info{") {
                let labels = rest.rsplit_once('}').map_or(rest, |(labels, _)| labels);
                engines.extend(number::<u32>(labels, "engine"));
                if !is_of(labels, rank) {
                    continue;
                }
                facts.block_size = number(labels, "block_size")
                    .filter(|size| *size > 0)
                    .or(facts.block_size);
                if let Some(tokens) = cache_tokens(labels) {
                    facts.cache_tokens =
                        Some(facts.cache_tokens.unwrap_or(0).saturating_add(tokens));
                }
            } else if let Some(rest) = line.strip_prefix("process_start_time_seconds ") {
                let seconds = rest.trim().parse().ok().filter(|s: &f64| *s >= 1.0);
                // Rounded down; far below 2^53.
                facts.started = seconds.map(|seconds| seconds as u64);
            } else if let Some((name, rest)) = series(line)
                && is_of(rest, rank)
            {
                if MOVED_BY_ENGINE.contains(&name) {
                    moved.write(line.as_bytes());
                    facts.activity = Some(moved.finish());
                } else if name == SLEEP_STATE {
                    facts.sleep = facts.sleep.max(SleepState::of(rest));
                }
            }
        }
        facts.ranks = contiguous(&engines).filter(|ranks| *ranks > 1);
        facts
    }
}

/// How many they are, if they are 0 and the following ones.
fn contiguous(engines: &BTreeSet<u32>) -> Option<u32> {
    let count = u32::try_from(engines.len()).ok()?;
    (engines.last().copied()?.checked_add(1)? == count).then_some(count)
}

/// Name and rest of a sample of vLLM's.
fn series(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("vllm:")?.split_once(['{', ' '])
}

/// Whether labels are those of this data-parallel engine.
fn is_of(labels: &str, rank: Option<u32>) -> bool {
    let Some(rank) = rank else { return true };
    let engine: Option<u32> = number(labels, "engine");
    engine.is_none_or(|engine| engine == rank)
}

/// The engine's own sum where it gives one, else blocks times their size.
fn cache_tokens(labels: &str) -> Option<u64> {
    let number = |name| number::<u64>(labels, name);
    number("kv_cache_size_tokens")
        .or_else(|| number("num_gpu_blocks")?.checked_mul(number("block_size")?))
        .filter(|&tokens| tokens > 0)
}

fn number<T: FromStr>(labels: &str, name: &str) -> Option<T> {
    label(labels, name)?.parse().ok()
}

/// The value of a label; names are followed by `="` and preceded by the start or a comma.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, next) = after.split_once('"')?;
        if key.trim_start_matches(',') == name {
            return Some(value);
        }
        rest = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_an_engine() {
        let table = [
            (
                "vllm:cache_config_info{block_size=\"32\",engine=\"0\",kv_cache_size_tokens=\"32768\",num_gpu_blocks=\"9\"} 1.0\nprocess_start_time_seconds 1.79523507915e+09\n",
                None,
                EngineMetrics {
                    cache_tokens: Some(32_768),
                    started: Some(1_795_235_079),
                    block_size: Some(32),
                    ..EngineMetrics::default()
                },
            ),
            (
                // Releases that do not give the sum.
                "vllm:cache_config_info{user_block_size=\"1\",block_size=\"16\",num_gpu_blocks=\"1000\"} 1.0",
                None,
                EngineMetrics {
                    cache_tokens: Some(16_000),
                    block_size: Some(16),
                    ..EngineMetrics::default()
                },
            ),
            (
                "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"5\"} 1.0\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"7\"} 1.0",
                None,
                EngineMetrics {
                    cache_tokens: Some(12),
                    ranks: Some(2),
                    ..EngineMetrics::default()
                },
            ),
            (
                "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"5\"} 1.0\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"7\"} 1.0",
                Some(1),
                EngineMetrics {
                    cache_tokens: Some(7),
                    ranks: Some(2),
                    ..EngineMetrics::default()
                },
            ),
            (
                // One rank of several that have addresses of their own.
                "vllm:cache_config_info{block_size=\"16\",engine=\"3\",kv_cache_size_tokens=\"5\"} 1.0",
                None,
                EngineMetrics {
                    cache_tokens: Some(5),
                    block_size: Some(16),
                    ..EngineMetrics::default()
                },
            ),
            (
                "vllm:cache_config_info{num_gpu_blocks=\"None\",block_size=\"None\"} 1.0\nvllm:cache_config_info{num_gpu_blocks=\"\nprocess_start_time_seconds NaN",
                None,
                EngineMetrics::default(),
            ),
            (
                // More than there is.
                "vllm:cache_config_info{kv_cache_size_tokens=\"18446744073709551615\"} 1.0\nvllm:cache_config_info{kv_cache_size_tokens=\"9\"} 1.0",
                None,
                EngineMetrics {
                    cache_tokens: Some(u64::MAX),
                    ..EngineMetrics::default()
                },
            ),
            ("", None, EngineMetrics::default()),
        ];
        for (text, rank, expected) in table {
            assert_eq!(EngineMetrics::parse(text, rank), expected, "{text}");
        }
    }

    /// As vLLM 0.32 writes it.
    #[test]
    fn an_engine_says_whether_it_sleeps() {
        let of = |engine: u32, present: &str| -> String {
            let line = |state: &str| {
                let value = if state == present { "1.0" } else { "0.0" };
                format!(
                    "vllm:engine_sleep_state{{engine=\"{engine}\",model_name=\"m\",sleep_state=\"{state}\"}} {value}\n"
                )
            };
            ["awake", "weights_offloaded", "discard_all"]
                .map(line)
                .concat()
        };
        let says = |text: &str, rank| EngineMetrics::parse(text, rank).sleep;
        for state in SleepState::GAUGES {
            assert_eq!(says(&of(0, state.as_str()), None), Some(state));
        }
        let two = of(0, "awake") + &of(1, "discard_all");
        assert_eq!(says(&two, None), Some(SleepState::DiscardAll));
        assert_eq!(says(&two, Some(0)), Some(SleepState::Awake));
        // Told to stand: none of them is 1.
        assert_eq!(says(&of(0, "none"), None), Some(SleepState::Paused));
        for none in ["", "vllm:engine_sleep_state 1.0\n"] {
            assert_eq!(says(none, None), None, "{none}");
        }
    }

    #[test]
    fn activity_is_what_only_the_engine_moves() {
        const STILL: &str = "# HELP vllm:generation_tokens_total Number of generation tokens processed.\n\
            vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 40.0\n\
            vllm:generation_tokens_total{engine=\"1\",model_name=\"m\"} 7.0\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0\n\
            vllm:admission_rejections_total{model_name=\"m\",reason=\"max_num_queued_reqs\"} 0.0\n\
            vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"m\"} 3.0\n\
            http_requests_total{handler=\"/metrics\",method=\"GET\",status=\"2xx\"} 9.0\n";
        let of = |text: &str, rank| EngineMetrics::parse(text, rank).activity;
        let still = of(STILL, None);
        assert!(still.is_some());
        // What is changed, and whether that is a sign of the whole worker, and of its first engine.
        for (from, to, whole, first) in [
            ("} 9.0", "} 10.0", false, false),
            ("} 3.0", "} 4.0", false, false),
            ("queued_reqs\"} 0.0", "queued_reqs\"} 1.0", false, false),
            ("} 40.0", "} 41.0", true, true),
            ("} 7.0", "} 8.0", true, false),
            ("} 1.0", "} 2.0", true, true),
        ] {
            let text = STILL.replace(from, to);
            assert_ne!(text, STILL);
            assert_eq!(of(&text, None) != still, whole, "{to}");
            let moved = of(&text, Some(0)) != of(STILL, Some(0));
            assert_eq!(moved, first, "{to} of engine 0");
        }
        assert_eq!(of("process_start_time_seconds 1.0\n", None), None);
    }
}
