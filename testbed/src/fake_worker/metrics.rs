//! `/metrics` with vLLM's names, help texts and labels (those that a router or a person reads).

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::transfer::Connector;
use super::worker::{AWAKE, Rank, Transfer, Worker};
use crate::engine::{Counters, EngineConfig, Gauges};

/// Content type of the exposition.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// What one engine adds to the page.
struct Engine<'a> {
    gauges: Gauges,
    counters: Counters,
    rank: &'a Rank,
}

struct Page<'a> {
    text: String,
    model: String,
    /// By rank.
    engines: Vec<Engine<'a>>,
}

impl<'a> Page<'a> {
    /// A metric with the samples of each engine, which are further labels (`,reason="x"`) and a value.
    fn metric<const N: usize>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        samples: impl Fn(&Engine<'a>) -> [(&'static str, f64); N],
    ) {
        self.head(kind, name, help);
        for (rank, engine) in self.engines.iter().enumerate() {
            for (extra, value) in samples(engine) {
                sample(&mut self.text, &self.model, name, rank, extra, value);
            }
        }
    }

    fn head(&mut self, kind: &str, name: &str, help: &str) {
        writeln!(
            self.text,
            "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}"
        )
        .expect("writing to a string does not fail");
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

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Engine<'a>) -> f64) {
        self.metric("gauge", name, help, |engine| [("", value(engine))]);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Counters) -> u64) {
        self.metric("counter", name, help, |engine| {
            [("", value(&engine.counters) as f64)]
        });
    }

    /// A histogram of which readers look at sum and count alone.
    fn totals(&mut self, name: &str, help: &str, of: impl Fn(&Engine<'a>) -> (u64, f64)) {
        self.head("histogram", name, help);
        for (rank, engine) in self.engines.iter().enumerate() {
            let (count, sum) = of(engine);
            let parts = [
                ("bucket", ",le=\"+Inf\"", count as f64),
                ("count", "", count as f64),
                ("sum", "", sum),
            ];
            for (part, extra, value) in parts {
                let name = format!("{name}_{part}");
                sample(&mut self.text, &self.model, &name, rank, extra, value);
            }
        }
    }
}

fn sample(text: &mut String, model: &str, name: &str, rank: usize, extra: &str, value: f64) {
    writeln!(
        text,
        "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\"{extra}}} {value:?}"
    )
    .expect("writing to a string does not fail");
}

/// The whole page.
pub(super) fn render(worker: &Worker) -> String {
    let model = worker.config.models.first().cloned().unwrap_or_default();
    let engines = worker.ranks.iter().map(|rank| Engine {
        gauges: rank.pacer.gauges(),
        counters: rank.pacer.counters(),
        rank,
    });
    let mut page = Page {
        text: String::with_capacity(6_000 * worker.ranks.len()),
        model: model.replace('\\', "\\\\").replace('"', "\\\""),
        engines: engines.collect(),
    };
    page.process_start(worker.process_start_us());
    load(&mut page);
    sleep_state(&mut page, worker.sleep_gauge());
    tokens(&mut page);
    outcomes(&mut page);
    if let Some(transfer) = &worker.transfer {
        transfers(&mut page);
        if matches!(
            transfer.config.connector,
            Connector::Nixl | Connector::NixlPush
        ) {
            nixl(&mut page, transfer);
        }
    }
    cache_config(&mut page, &worker.config.engine);
    page.text
}

fn load(page: &mut Page<'_>) {
    page.gauge(
        "num_requests_running",
        "Number of requests in model execution batches.",
        |engine| engine.gauges.running as f64,
    );
    page.gauge(
        "num_requests_waiting",
        "Number of requests waiting to be processed.",
        |engine| (engine.gauges.waiting + engine.gauges.deferred) as f64,
    );
    page.metric(
        "gauge",
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        |engine| {
            [
                (",reason=\"capacity\"", engine.gauges.waiting as f64),
                (",reason=\"deferred\"", engine.gauges.deferred as f64),
            ]
        },
    );
    page.gauge(
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        |engine| engine.gauges.cache_usage,
    );
}

fn sleep_state(page: &mut Page<'_>, present: Option<&str>) {
    let is = |state: &str| f64::from(u8::from(present == Some(state)));
    page.metric(
        "gauge",
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 \
         means sleep level 1; discard_all = 1 means sleep level 2.",
        |_| {
            [
                (",sleep_state=\"awake\"", is(AWAKE)),
                (",sleep_state=\"weights_offloaded\"", is("weights_offloaded")),
                (",sleep_state=\"discard_all\"", is("discard_all")),
            ]
        },
    );
}

fn tokens(page: &mut Page<'_>) {
    page.counter(
        "prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        |counters| counters.queried_tokens,
    );
    page.counter(
        "prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        |counters| counters.hit_tokens,
    );
    page.counter(
        "prompt_tokens_total",
        "Number of prefill tokens processed.",
        |counters| counters.prompt_tokens,
    );
    page.counter(
        "prompt_tokens_cached_total",
        "Number of cached prompt tokens (local + external).",
        |counters| counters.hit_tokens + counters.external_tokens,
    );
    page.counter(
        "generation_tokens_total",
        "Number of generation tokens processed.",
        |counters| counters.generated_tokens,
    );
}

fn outcomes(page: &mut Page<'_>) {
    let finished = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    page.metric(
        "counter",
        "request_success_total",
        "Count of successfully processed requests.",
        |engine| {
            [
                (
                    ",finished_reason=\"stop\"",
                    finished(&engine.rank.finished_by_stop),
                ),
                (
                    ",finished_reason=\"length\"",
                    finished(&engine.rank.finished_by_length),
                ),
                // vLLM does not count clients that left (measured).
                (",finished_reason=\"abort\"", 0.0),
                (",finished_reason=\"error\"", 0.0),
            ]
        },
    );
    page.metric(
        "counter",
        "admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        |engine| {
            let counters = &engine.counters;
            [
                (
                    ",reason=\"max_num_queued_reqs\"",
                    counters.refused_requests as f64,
                ),
                (
                    ",reason=\"max_num_queued_tokens\"",
                    counters.refused_tokens as f64,
                ),
            ]
        },
    );
}

/// Where prompts came from (captured: `pd/nixl_flow.json`).
fn transfers(page: &mut Page<'_>) {
    page.counter(
        "external_prefix_cache_queries_total",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.",
        |counters| counters.queried_tokens - counters.hit_tokens,
    );
    page.counter(
        "external_prefix_cache_hits_total",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
        |counters| counters.external_tokens,
    );
    page.metric(
        "counter",
        "prompt_tokens_by_source_total",
        "Number of prompt tokens by source.",
        |engine| {
            let counters = &engine.counters;
            let elsewhere = counters.hit_tokens + counters.external_tokens;
            let computed = counters.queried_tokens.saturating_sub(elsewhere);
            [
                (",source=\"local_compute\"", computed as f64),
                (",source=\"local_cache_hit\"", counters.hit_tokens as f64),
                (
                    ",source=\"external_kv_transfer\"",
                    counters.external_tokens as f64,
                ),
            ]
        },
    );
    page.metric(
        "counter",
        "prompt_tokens_cached_by_source_total",
        "Number of cached prompt tokens by source.",
        |engine| {
            [
                (",source=\"device\"", engine.counters.hit_tokens as f64),
                (",source=\"p2p\"", engine.counters.external_tokens as f64),
            ]
        },
    );
}

fn nixl(page: &mut Page<'_>, transfer: &Transfer) {
    page.totals(
        "nixl_xfer_time_seconds",
        "Histogram of transfer duration for NIXL KV Cache transfers.",
        |engine| {
            let received = *engine.rank.received();
            (received.count, received.seconds)
        },
    );
    page.totals(
        "nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        |engine| {
            let received = *engine.rank.received();
            (received.count, received.bytes as f64)
        },
    );
    page.metric(
        "counter",
        "nixl_num_failed_transfers_total",
        "Number of failed NIXL KV Cache transfers.",
        |engine| [("", engine.rank.received().failed as f64)],
    );
    let expired = transfer.shelf.expired();
    page.metric(
        "counter",
        "nixl_num_kv_expired_reqs_total",
        "Number of requests that had their KV expire.",
        |_| [("", expired as f64)],
    );
}

fn cache_config(page: &mut Page<'_>, engine: &EngineConfig) {
    let name = "cache_config_info";
    page.head("gauge", name, "Information of the LLMEngine CacheConfig");
    let capacity = u64::from(engine.blocks) * u64::from(engine.block_tokens);
    let info = format!(
        ",block_size=\"{}\",enable_prefix_caching=\"True\",kv_cache_size_tokens=\"{capacity}\",num_gpu_blocks=\"{}\",prefix_caching_hash_algo=\"sha256_cbor\"",
        engine.block_tokens, engine.blocks
    );
    for rank in 0..page.engines.len() {
        sample(&mut page.text, &page.model, name, rank, &info, 1.0);
    }
}
