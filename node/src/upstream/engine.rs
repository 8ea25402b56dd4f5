//! What a worker's engine says of itself in its metrics: the size of its cache, and when it started.
//!
//! vLLM exports its cache configuration as labels of `vllm:cache_config_info` (one sample for each engine of a
//! data-parallel worker) and, where the client library can, `process_start_time_seconds`.

/// Facts from one scrape; what the worker does not say is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineFacts {
    /// Tokens that the key-value cache holds, over all engines or of the one asked for.
    pub cache_tokens: Option<u64>,
    /// Seconds since 1970 at which the process started.
    pub started: Option<u64>,
}

impl EngineFacts {
    /// Reads metrics in Prometheus text format. `rank`: only this data-parallel engine's cache counts.
    pub fn parse(metrics: &str, rank: Option<u32>) -> Self {
        let mut facts = Self::default();
        for line in metrics.lines() {
            if let Some(rest) = line.strip_prefix("vllm:cache_config_info{") {
                let labels = rest.rsplit_once('}').map_or(rest, |(labels, _)| labels);
                let engine = label(labels, "engine").and_then(|engine| engine.parse().ok());
                if rank.is_none_or(|rank| engine.is_none_or(|engine: u32| engine == rank))
                    && let Some(tokens) = cache_tokens(labels)
                {
                    facts.cache_tokens = Some(facts.cache_tokens.unwrap_or(0) + tokens);
                }
            } else if let Some(rest) = line.strip_prefix("process_start_time_seconds ") {
                let seconds = rest.trim().parse().ok().filter(|s: &f64| *s >= 1.0);
                // Rounded down; far below 2^53.
                facts.started = seconds.map(|seconds| seconds as u64);
            }
        }
        facts
    }
}

/// The engine's own sum where it gives one, else blocks times their size.
fn cache_tokens(labels: &str) -> Option<u64> {
    let number = |name| label(labels, name).and_then(|value| value.parse::<u64>().ok());
    number("kv_cache_size_tokens")
        .or_else(|| number("num_gpu_blocks")?.checked_mul(number("block_size")?))
        .filter(|&tokens| tokens > 0)
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
                EngineFacts {
                    cache_tokens: Some(32_768),
                    started: Some(1_795_235_079),
                },
            ),
            (
                // Releases that do not give the sum.
                "vllm:cache_config_info{user_block_size=\"1\",block_size=\"16\",num_gpu_blocks=\"1000\"} 1.0",
                None,
                EngineFacts {
                    cache_tokens: Some(16_000),
                    started: None,
                },
            ),
            (
                "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"5\"} 1.0\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"7\"} 1.0",
                None,
                EngineFacts {
                    cache_tokens: Some(12),
                    started: None,
                },
            ),
            (
                "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"5\"} 1.0\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"7\"} 1.0",
                Some(1),
                EngineFacts {
                    cache_tokens: Some(7),
                    started: None,
                },
            ),
            (
                "vllm:cache_config_info{num_gpu_blocks=\"None\",block_size=\"16\"} 1.0\nvllm:cache_config_info{num_gpu_blocks=\"\nprocess_start_time_seconds NaN",
                None,
                EngineFacts::default(),
            ),
            ("", None, EngineFacts::default()),
        ];
        for (text, rank, expected) in table {
            assert_eq!(EngineFacts::parse(text, rank), expected, "{text}");
        }
    }
}
