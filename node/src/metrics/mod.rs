//! Names, help and labels of every metric of the router itself; gossip registers its own.
//!
//! One struct of typed handles, built once and passed in. Labels come from enums, registered workers and
//! served models, never from requests, so the number of series is bounded by the registry.

mod exposition;
mod labels;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::admission::metrics::AdmissionMetrics;
use crate::api::error::ErrorKind;
use crate::cache::CacheMetrics;
use crate::listener::Counts;
use crate::tenants::metrics::TenantMetrics;
use crate::tls::TlsMetrics;
use crate::trace::TraceMetrics;
use crate::upstream::metrics::HealthMetrics;
use crate::warmup::WarmupMetrics;

pub use exposition::Form;
pub use labels::{
    AgreementLabels, AttemptLabels, ClaimLabels, EndpointLabels, ErrorLabels, EventLabels,
    LimitLabels, ModelLabels, PortLabels, ReasonLabels, RequestLabels, ResultLabels, WorkerLabels,
};

type Seconds = Histogram;
type FloatGauge = Gauge<f64, AtomicU64>;

fn seconds(start: f64) -> Seconds {
    Histogram::new(exponential_buckets(start, 2.0, 18))
}

/// Handles to all metrics of the router.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests by endpoint and outcome; each is counted once, at its end.
    pub requests: Family<RequestLabels, Counter>,
    /// From the request's head to the last byte of the answer.
    pub request_seconds: Family<EndpointLabels, Seconds, fn() -> Seconds>,
    /// From the request's head to the first event, or to the whole of a short answer.
    pub first_token_seconds: Family<ModelLabels, Seconds, fn() -> Seconds>,
    /// Mean time between two tokens of a stream; one observation a stream.
    pub inter_token_seconds: Family<ModelLabels, Seconds, fn() -> Seconds>,
    /// Longest pause between two events of a stream; one observation a stream.
    pub stream_pause_seconds: Family<ModelLabels, Seconds, fn() -> Seconds>,
    /// Time of one decision, hashing of the key included.
    pub decision_seconds: Seconds,
    /// Choices by reason.
    pub placements: Family<ReasonLabels, Counter>,
    /// Attempts by worker and result.
    pub attempts: Family<AttemptLabels, Counter>,
    /// Retries.
    pub retries: Counter,
    /// Requests with which workers ended, by what came of it.
    pub queries_of_death: Family<ResultLabels, Counter>,
    /// Requests that no worker gets, at the moment.
    pub quarantined: Gauge,
    /// Streams whose worker broke off where failover was wanted, by what came of it.
    pub failovers: Family<ResultLabels, Counter>,
    /// Responses that had to be found, by how they were.
    pub response_searches: Family<ResultLabels, Counter>,
    /// Prompt tokens that workers reported.
    pub prompt_tokens: Family<WorkerLabels, Counter>,
    /// Of these, tokens that came from the worker's prefix cache.
    pub cached_tokens: Family<WorkerLabels, Counter>,
    /// Prompt tokens that were expected in the worker's cache, of requests whose worker told what was there.
    pub expected_tokens: Family<WorkerLabels, Counter>,
    /// Tokens generated, as workers reported them.
    pub completion_tokens: Family<WorkerLabels, Counter>,
    /// Events relayed in streams.
    pub stream_events: Counter,
    /// Errors that the router itself answered with.
    pub errors: Family<ErrorLabels, Counter>,
    /// Times a limit was reached.
    pub limits_reached: Family<LimitLabels, Counter>,
    /// Requests in progress on this replica.
    pub requests_active: Gauge,
    /// Client connections open.
    pub connections: Gauge,
    /// PROXY headers of balancers, and what came in place of them.
    pub proxy_headers: Family<ResultLabels, Counter>,
    /// Idle connections that were closed for others.
    pub connections_shed: Family<PortLabels, Counter>,
    /// Requests in flight by worker, from this replica.
    pub worker_in_flight: Family<WorkerLabels, Gauge>,
    /// Requests in flight by worker, over the whole cluster, as placement counts them.
    pub worker_in_flight_cluster: Family<WorkerLabels, FloatGauge>,
    /// Health checks that this replica made.
    pub probes: Family<ResultLabels, Counter>,
    /// Claims of other replicas about workers, as they were last read.
    pub health_claims: Family<ClaimLabels, Gauge>,
    /// Workers in the registry.
    pub workers: Gauge,
    /// Digest of all rings, as a number; equal on replicas that agree.
    pub ring_digest: Gauge,
    /// What this replica remembers of caches: entries.
    pub sketch_entries: Gauge,
    /// What happened to entries.
    pub sketch_events: Family<EventLabels, Counter>,
    /// Prefixes that are counted as warm over the whole cluster.
    pub hot_prefixes: Gauge,
    /// Digest of the counts of warm prefixes, as a number.
    pub heat_digest: Gauge,
    /// Live replicas, this one included.
    pub replicas_live: Gauge,
    /// Of these, replicas with this one's ring digest and settings, itself included.
    pub replicas_agreeing: Gauge,
    /// Live replicas whose cluster settings differ from this one's.
    pub settings_differing: Gauge,
    /// Requests of this replica that were compared with what a peer would decide.
    pub agreement_samples: Family<AgreementLabels, Counter>,
    /// Share of the latest comparisons that named the same worker; not a number before the first.
    pub agreement_ratio: FloatGauge,
    /// Tokens that peers' choices would have cost more than this replica's, where they differed.
    pub agreement_cost: Counter,
    /// 1 once this replica takes traffic.
    pub ready: Gauge,
    /// What keeps it from that: 1 while it is missing.
    pub not_ready: Family<ReasonLabels, Gauge>,
    /// Workers that share their series with others.
    pub workers_without_series: Gauge,
    /// Fleets that were made of the registry, with their rings.
    pub fleets: Counter,
    /// Log lines that were dropped because standard error was not read.
    pub log_lines_dropped: Counter,
    /// Resident memory of the process, in bytes.
    pub memory: Gauge,
    /// Of it, what the process's data take, in bytes.
    pub memory_live: Gauge,
    /// Seconds by which this process's timers were late.
    pub timer_lag: Counter<f64, AtomicU64>,
    /// Readings of the configuration at SIGHUP.
    pub config_reloads: Family<ResultLabels, Counter>,
    /// Requests that the admin and Prometheus ports refused, by reason.
    pub admin_refusals: Family<ReasonLabels, Counter>,
    /// Warm-ups of joining workers.
    pub warmup: WarmupMetrics,
    /// TLS with clients and workers.
    pub tls: TlsMetrics,
    /// Health of workers.
    pub health: HealthMetrics,
    /// Response cache.
    pub cache: CacheMetrics,
    /// Traces.
    pub trace: TraceMetrics,
    /// Who was let in, and who waits.
    pub admission: AdmissionMetrics,
    /// Clients' keys and tenants.
    pub tenants: TenantMetrics,
}

impl Metrics {
    /// Registers everything.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("grapevine");
        let mut metrics = Self {
            warmup: WarmupMetrics::register(&mut registry),
            tls: TlsMetrics::register(&mut registry),
            health: HealthMetrics::register(&mut registry),
            cache: CacheMetrics::register(&mut registry),
            trace: TraceMetrics::register(&mut registry),
            admission: AdmissionMetrics::register(&mut registry),
            tenants: TenantMetrics::register(&mut registry),
            registry,
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(|| seconds(0.001)),
            first_token_seconds: Family::new_with_constructor(|| seconds(0.001)),
            inter_token_seconds: Family::new_with_constructor(|| seconds(0.000_1)),
            stream_pause_seconds: Family::new_with_constructor(|| seconds(0.001)),
            decision_seconds: seconds(0.000_001),
            response_searches: Family::default(),
            placements: Family::default(),
            attempts: Family::default(),
            retries: Counter::default(),
            queries_of_death: Family::default(),
            quarantined: Gauge::default(),
            failovers: Family::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            expected_tokens: Family::default(),
            completion_tokens: Family::default(),
            stream_events: Counter::default(),
            errors: Family::default(),
            limits_reached: Family::default(),
            requests_active: Gauge::default(),
            connections: Gauge::default(),
            proxy_headers: Family::default(),
            connections_shed: Family::default(),
            worker_in_flight: Family::default(),
            worker_in_flight_cluster: Family::default(),
            probes: Family::default(),
            health_claims: Family::default(),
            workers: Gauge::default(),
            ring_digest: Gauge::default(),
            sketch_entries: Gauge::default(),
            sketch_events: Family::default(),
            hot_prefixes: Gauge::default(),
            heat_digest: Gauge::default(),
            replicas_live: Gauge::default(),
            replicas_agreeing: Gauge::default(),
            settings_differing: Gauge::default(),
            agreement_samples: Family::default(),
            agreement_ratio: FloatGauge::default(),
            agreement_cost: Counter::default(),
            ready: Gauge::default(),
            not_ready: Family::default(),
            workers_without_series: Gauge::default(),
            fleets: Counter::default(),
            log_lines_dropped: Counter::default(),
            memory: Gauge::default(),
            memory_live: Gauge::default(),
            timer_lag: Counter::default(),
            config_reloads: Family::default(),
            admin_refusals: Family::default(),
        };
        metrics.agreement_ratio.set(f64::NAN);
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register(
            "requests",
            "Requests by endpoint and outcome",
            self.requests.clone(),
        );
        r.register_with_unit(
            "request",
            "From the head of a request to the last byte of its answer",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        r.register_with_unit(
            "first_token",
            "From the head of a request to its first token",
            Unit::Seconds,
            self.first_token_seconds.clone(),
        );
        r.register_with_unit(
            "inter_token",
            "Mean time between two tokens of a stream",
            Unit::Seconds,
            self.inter_token_seconds.clone(),
        );
        r.register_with_unit(
            "stream_pause",
            "Longest pause between two events of a stream",
            Unit::Seconds,
            self.stream_pause_seconds.clone(),
        );
        r.register_with_unit(
            "decision",
            "One placement decision, key included",
            Unit::Seconds,
            self.decision_seconds.clone(),
        );
        r.register(
            "placements",
            "Choices of a worker by reason",
            self.placements.clone(),
        );
        r.register(
            "attempts",
            "Attempts by worker and result",
            self.attempts.clone(),
        );
        r.register("retries", "Attempts after the first", self.retries.clone());
        r.register(
            "queries_of_death",
            "Requests with which workers ended, by what came of it",
            self.queries_of_death.clone(),
        );
        r.register(
            "quarantined",
            "Requests that no worker gets, for a time",
            self.quarantined.clone(),
        );
        r.register(
            "response_searches",
            "Requests about a response that one worker holds, by how that worker was found",
            self.response_searches.clone(),
        );
        r.register(
            "failovers",
            "Streams whose worker broke off where failover was wanted, by result",
            self.failovers.clone(),
        );
        r.register(
            "prompt_tokens",
            "Prompt tokens reported by workers",
            self.prompt_tokens.clone(),
        );
        r.register(
            "cached_tokens",
            "Prompt tokens that came from a worker's prefix cache",
            self.cached_tokens.clone(),
        );
        r.register(
            "expected_tokens",
            "Prompt tokens that were expected in a worker's prefix cache",
            self.expected_tokens.clone(),
        );
        r.register(
            "completion_tokens",
            "Generated tokens reported by workers",
            self.completion_tokens.clone(),
        );
        r.register(
            "stream_events",
            "Events relayed in streams",
            self.stream_events.clone(),
        );
        r.register(
            "errors",
            "Errors that the router itself answered with",
            self.errors.clone(),
        );
        r.register(
            "limits_reached",
            "Times a limit was reached",
            self.limits_reached.clone(),
        );
        r.register(
            "requests_active",
            "Requests in progress on this replica",
            self.requests_active.clone(),
        );
        r.register(
            "proxy_headers",
            "PROXY headers of connections by what they were",
            self.proxy_headers.clone(),
        );
        r.register(
            "connections",
            "Open connections of clients",
            self.connections.clone(),
        );
        r.register(
            "connections_shed",
            "Idle connections that were closed for others, longest idle first",
            self.connections_shed.clone(),
        );
        r.register(
            "worker_in_flight",
            "Requests in flight from this replica",
            self.worker_in_flight.clone(),
        );
        r.register(
            "worker_in_flight_cluster",
            "Requests in flight from all replicas, damped by age",
            self.worker_in_flight_cluster.clone(),
        );
        r.register(
            "probes",
            "Health checks that this replica made, by result",
            self.probes.clone(),
        );
        r.register(
            "health_claims",
            "What other replicas claim of workers, by whether it is believed",
            self.health_claims.clone(),
        );
        r.register("workers", "Workers in the registry", self.workers.clone());
        r.register(
            "ring_digest",
            "Digest of all rings; equal on replicas that agree",
            self.ring_digest.clone(),
        );
        r.register(
            "sketch_entries",
            "Prefixes that workers are expected to hold",
            self.sketch_entries.clone(),
        );
        r.register(
            "sketch_events",
            "Entries that were forgotten or refused, and answers that corrected",
            self.sketch_events.clone(),
        );
        r.register(
            "hot_prefixes",
            "Prefixes that are counted as warm over the whole cluster",
            self.hot_prefixes.clone(),
        );
        r.register(
            "heat_digest",
            "Digest of the counts of warm prefixes",
            self.heat_digest.clone(),
        );
        r.register(
            "replicas_live",
            "Live replicas, this one included",
            self.replicas_live.clone(),
        );
        r.register(
            "replicas_agreeing",
            "Live replicas with this one's ring digest and settings, itself included",
            self.replicas_agreeing.clone(),
        );
        r.register(
            "settings_differing",
            "Live replicas whose [cluster] settings differ from this one's",
            self.settings_differing.clone(),
        );
        r.register(
            "agreement_samples",
            "Requests compared with what a peer would decide, by result, and whether any of the prompt was known",
            self.agreement_samples.clone(),
        );
        r.register(
            "agreement_ratio",
            "Share of the latest comparisons that named the same worker",
            self.agreement_ratio.clone(),
        );
        r.register(
            "agreement_cost_tokens",
            "Tokens that peers' choices would have cost more, as this replica reckons, summed over all that differed",
            self.agreement_cost.clone(),
        );
        r.register(
            "workers_without_series",
            "Workers above `metrics.worker_series`: they share the label `other`",
            self.workers_without_series.clone(),
        );
        r.register(
            "fleets",
            "Fleets made of the registry, with their rings; workers that come together are in one",
            self.fleets.clone(),
        );
        r.register(
            "ready",
            "1 when this replica takes traffic",
            self.ready.clone(),
        );
        r.register(
            "not_ready",
            "1 while this is missing and this replica takes no traffic",
            self.not_ready.clone(),
        );
        r.register(
            "log_lines_dropped",
            "Log lines dropped because standard error was not read",
            self.log_lines_dropped.clone(),
        );
        r.register_with_unit(
            "memory",
            "Resident memory of this process",
            Unit::Bytes,
            self.memory.clone(),
        );
        r.register_with_unit(
            "memory_live",
            "Memory in use by this process's data, as its allocator counts",
            Unit::Bytes,
            self.memory_live.clone(),
        );
        r.register_with_unit(
            "timer_lag",
            "Time by which this process's timers were late",
            Unit::Seconds,
            self.timer_lag.clone(),
        );
        r.register(
            "config_reloads",
            "Readings of the configuration at SIGHUP",
            self.config_reloads.clone(),
        );
        r.register(
            "admin_refusals",
            "Requests that the admin and Prometheus ports refused",
            self.admin_refusals.clone(),
        );
    }

    /// For parts that register metrics of their own.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Everything in OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut out = String::with_capacity(16 * 1024);
        if let Err(error) = text::encode(&mut out, &self.registry) {
            // Writing into a string cannot fail; say so in the output rather than panic in a scrape.
            let _ = write!(out, "\n# encoding failed: {error}\n");
        }
        out
    }

    /// Everything, in the form that a scraper asked for.
    pub fn written(&self, form: Form) -> String {
        form.of(self.encode())
    }

    /// Counts the time of one decision.
    pub fn decided(&self, elapsed: std::time::Duration) {
        self.decision_seconds.observe(elapsed.as_secs_f64());
    }

    /// Counts an error that the router itself answers with.
    pub fn own_error(&self, kind: ErrorKind) {
        let code = kind.code();
        self.errors.get_or_create(&ErrorLabels { code }).inc();
    }

    /// Counts what a connection's PROXY header was.
    pub fn proxy_header(&self, result: &'static str) {
        self.proxy_headers
            .get_or_create(&ResultLabels { result })
            .inc();
    }

    /// Counts a request with which workers ended.
    pub fn query_of_death(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.queries_of_death.get_or_create(&labels).inc();
    }

    /// Counts that a limit was reached.
    pub fn limit_reached(&self, limit: &'static str) {
        self.limits_reached
            .get_or_create(&LimitLabels { limit })
            .inc();
    }

    /// What the places of a port count; `limit`: the name under which it is counted that they are all taken.
    pub fn seats(&self, port: &'static str, limit: &'static str) -> Counts {
        let shed = self.connections_shed.get_or_create(&PortLabels { port });
        Counts {
            full: self
                .limits_reached
                .get_or_create(&LimitLabels { limit })
                .clone(),
            shed: shed.clone(),
        }
    }

    /// Forgets the series of a worker that left the registry.
    pub fn forget_worker(&self, worker: &Arc<str>) {
        let labels = WorkerLabels {
            worker: Arc::clone(worker),
        };
        self.prompt_tokens.remove(&labels);
        self.cached_tokens.remove(&labels);
        self.expected_tokens.remove(&labels);
        self.completion_tokens.remove(&labels);
        self.worker_in_flight.remove(&labels);
        self.worker_in_flight_cluster.remove(&labels);
        self.health.forget(worker);
        for result in crate::proxy::ATTEMPT_RESULTS {
            self.attempts.remove(&AttemptLabels {
                worker: Arc::clone(worker),
                result,
            });
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
