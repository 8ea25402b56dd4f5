//! `/metrics` with vLLM's names, help texts and labels (those that a router or a person reads).

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::worker::Worker;

/// Content type of the exposition.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

struct Page {
    text: String,
    model: String,
}

impl Page {
    /// A metric with one sample for each of `extra`, which are further labels (`reason="x"`).
    fn metric(&mut self, kind: &str, name: &str, help: &str, samples: &[(&str, f64)]) {
        let text = &mut self.text;
        let written = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}")
            .and_then(|()| {
                samples.iter().try_for_each(|(extra, value)| {
                    let model = &self.model;
                    writeln!(
                        text,
                        "vllm:{name}{{engine=\"0\",model_name=\"{model}\"{extra}}} {value:?}"
                    )
                })
            });
        written.expect("writing to a string does not fail");
    }

    /// This metric comes from the client library, not from vLLM: no prefix, no labels, and a number as Python
    /// writes it.
    fn process_start(&mut self, us: u64) {
        let name = "process_start_time_seconds";
        let seconds = format!("{:e}", (us as f64 / 1e6 * 100.0).round() / 100.0);
        let seconds = seconds.replace('e', "e+0");
        let help = "Start time of the process since unix epoch in seconds.";
        writeln!(
            self.text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {seconds}"
        )
        .expect("writing to a string does not fail");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric("gauge", name, help, &[("", value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric("counter", name, help, &[("", value as f64)]);
    }
}

/// The whole page.
pub(super) fn render(worker: &Worker) -> String {
    let gauges = worker.pacer.gauges();
    let counters = worker.pacer.counters();
    let engine = &worker.config.engine;
    let model = worker.config.models.first().cloned().unwrap_or_default();
    let mut page = Page {
        text: String::with_capacity(6_000),
        model: model.replace('\\', "\\\\").replace('"', "\\\""),
    };
    page.process_start(worker.process_start_us());
    page.gauge(
        "num_requests_running",
        "Number of requests in model execution batches.",
        gauges.running as f64,
    );
    page.gauge(
        "num_requests_waiting",
        "Number of requests waiting to be processed.",
        gauges.waiting as f64,
    );
    page.metric(
        "gauge",
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        &[
            (",reason=\"capacity\"", gauges.waiting as f64),
            (",reason=\"deferred\"", 0.0),
        ],
    );
    page.gauge(
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        gauges.cache_usage,
    );
    page.counter(
        "prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        counters.queried_tokens,
    );
    page.counter(
        "prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        counters.hit_tokens,
    );
    page.counter(
        "prompt_tokens_total",
        "Number of prefill tokens processed.",
        counters.prompt_tokens,
    );
    page.counter(
        "prompt_tokens_cached_total",
        "Number of cached prompt tokens (local + external).",
        counters.hit_tokens,
    );
    page.counter(
        "generation_tokens_total",
        "Number of generation tokens processed.",
        counters.generated_tokens,
    );
    let finished = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as f64;
    page.metric(
        "counter",
        "request_success_total",
        "Count of successfully processed requests.",
        &[
            (
                ",finished_reason=\"stop\"",
                finished(&worker.finished_by_stop),
            ),
            (
                ",finished_reason=\"length\"",
                finished(&worker.finished_by_length),
            ),
            // vLLM does not count clients that left (measured).
            (",finished_reason=\"abort\"", 0.0),
            (",finished_reason=\"error\"", 0.0),
        ],
    );
    page.metric(
        "counter",
        "admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        &[
            (
                ",reason=\"max_num_queued_reqs\"",
                counters.refused_requests as f64,
            ),
            (
                ",reason=\"max_num_queued_tokens\"",
                counters.refused_tokens as f64,
            ),
        ],
    );
    let capacity = u64::from(engine.blocks) * u64::from(engine.block_tokens);
    let info = format!(
        ",block_size=\"{}\",enable_prefix_caching=\"True\",kv_cache_size_tokens=\"{capacity}\",num_gpu_blocks=\"{}\",prefix_caching_hash_algo=\"sha256_cbor\"",
        engine.block_tokens, engine.blocks
    );
    page.metric(
        "gauge",
        "cache_config_info",
        "Information of the LLMEngine CacheConfig",
        &[(&info, 1.0)],
    );
    page.text
}
