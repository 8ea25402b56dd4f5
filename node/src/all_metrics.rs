//! Every metric of the router, registered in one place, in the order in which they are shown. Gossip registers its own.

use std::fmt::Write as _;
use std::sync::Arc;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::admission::metrics::AdmissionMetrics;
use crate::cache::CacheMetrics;
use crate::cluster::metrics::{ClusterMetrics, QuarantineMetrics};
use crate::discovery::{DiscoveryMetrics, PingMetrics};
use crate::kv_events::KvMetrics;
use crate::listener::FrontMetrics;
use crate::metrics::Form;
use crate::metrics::operator::OperatorMetrics;
use crate::metrics::process::ProcessMetrics;
use crate::metrics::refusals::RefusalMetrics;
use crate::proxy::metrics::{DetourMetrics, ProxyMetrics, RequestMetrics};
use crate::proxy::split::SplitMetrics;
use crate::readiness::ReadinessMetrics;
use crate::seats::TrafficMetrics;
use crate::tenants::metrics::TenantMetrics;
use crate::tls::TlsMetrics;
use crate::trace::TraceMetrics;
use crate::upstream::health_metrics::HealthMetrics;
use crate::upstream::metrics::{AnswerMetrics, AttemptMetrics, UpstreamMetrics, WorkerMetrics};
use crate::warmup::WarmupMetrics;

macro_rules! all_metrics {
    ($($(#[doc = $doc:literal])* $part:ident: $Type:ident,)*) => {
        /// Handles to all metrics of the router.
        #[derive(Debug)]
        pub struct AllMetrics {
            registry: Registry,
            $($(#[doc = $doc])* pub $part: $Type,)*
        }

        impl AllMetrics {
            /// Registers everything.
            pub fn new() -> Self {
                let mut registry = Registry::with_prefix("grapevine");
                $(let $part = $Type::register(&mut registry);)*
                Self { registry, $($part,)* }
            }

            /// Every row.
            #[cfg(test)]
            fn rows() -> impl Iterator<Item = &'static crate::metrics::Row> {
                [$($Type::ROWS),*].into_iter().flatten()
            }
        }
    };
}

all_metrics! {
    /// Warm-ups of joining workers.
    warmup: WarmupMetrics,
    /// TLS with clients, workers and replicas.
    tls: TlsMetrics,
    /// Health of workers.
    health: HealthMetrics,
    /// Response cache.
    cache: CacheMetrics,
    /// Traces.
    trace: TraceMetrics,
    /// Which requests were let in, and which wait.
    admission: AdmissionMetrics,
    /// Clients' keys and tenants.
    tenants: TenantMetrics,
    /// Requests and their pace.
    requests: RequestMetrics,
    /// Tries on workers.
    attempts: AttemptMetrics,
    /// Requests with which workers ended.
    marks: QuarantineMetrics,
    /// Searches and moves.
    detours: DetourMetrics,
    /// Requests that are divided.
    split: SplitMetrics,
    /// What workers' answers hold.
    answers: AnswerMetrics,
    /// Errors and limits.
    refusals: RefusalMetrics,
    /// What is under way at the data port.
    traffic: TrafficMetrics,
    /// Load of workers, and checks of them.
    workers: WorkerMetrics,
    /// The cluster as this replica sees it.
    cluster: ClusterMetrics,
    /// Sources of workers.
    discovery: DiscoveryMetrics,
    /// Workers that register by ZeroMQ.
    pings: PingMetrics,
    /// What is heard of workers' caches.
    kv_events: KvMetrics,
    /// Whether this replica takes traffic.
    readiness: ReadinessMetrics,
    /// The process.
    process: ProcessMetrics,
    /// Operators.
    operators: OperatorMetrics,
}

impl AllMetrics {
    /// All that is counted of workers.
    pub fn of_upstream(&self) -> UpstreamMetrics {
        UpstreamMetrics {
            health: self.health.clone(),
            attempts: self.attempts.clone(),
            answers: self.answers.clone(),
            workers: self.workers.clone(),
        }
    }

    /// All that requests count.
    pub fn of_proxy(&self) -> Arc<ProxyMetrics> {
        Arc::new(ProxyMetrics {
            requests: self.requests.clone(),
            detours: self.detours.clone(),
            split: self.split.clone(),
            attempts: self.attempts.clone(),
            answers: self.answers.clone(),
            traffic: self.traffic.clone(),
            refusals: self.refusals.clone(),
            marks: self.marks.clone(),
        })
    }

    /// All that connections count.
    pub fn of_front(&self) -> FrontMetrics {
        FrontMetrics {
            traffic: self.traffic.clone(),
            refusals: self.refusals.clone(),
            tls: self.tls.clone(),
        }
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
}

impl Default for AllMetrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{AttemptLabels, WorkerLabels};
    use crate::upstream::failure::ANSWERED;

    /// With their suffixes, as the table in `docs/metrics.md` gives them.
    fn registered() -> Vec<String> {
        let names = AllMetrics::rows().map(|row| {
            let unit = row.unit.map(|unit| format!("_{}", unit.to_lowercase()));
            let total = if row.kind.contains("Counter") {
                "_total"
            } else {
                ""
            };
            format!("grapevine_{}{}{total}", row.name, unit.unwrap_or_default())
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn the_table_of_metrics_lists_every_metric() {
        let table = include_str!("../../docs/metrics.md");
        let mut listed: Vec<String> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `grapevine_"))
            .filter_map(|line| line.split_once('`'))
            .filter(|(_, rest)| rest.matches('|').count() == 4)
            .map(|(name, _)| format!("grapevine_{name}"))
            .collect();
        listed.sort();
        assert_eq!(listed, registered());
    }

    #[test]
    fn rows_are_named_as_they_are_shown() {
        let encoded = AllMetrics::new().encode();
        let registered = registered();
        let shown = encoded.lines().filter_map(|line| {
            let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
            let total = if kind == "counter" { "_total" } else { "" };
            Some(format!("{name}{total}"))
        });
        let mut checked = 0;
        for name in shown {
            assert!(registered.contains(&name), "{name}");
            checked += 1;
        }
        assert!(checked > 30, "{checked} have a series from the start");
    }

    #[test]
    fn a_worker_that_left_leaves_no_series() {
        let metrics = AllMetrics::new();
        let worker: Arc<str> = "http://w:1".into();
        let labels = WorkerLabels::of(&worker);
        metrics.answers.cached_tokens.get_or_create(&labels).inc();
        metrics.workers.show(&worker, 1, 1.0);
        metrics.health.fill(&worker);
        let attempts = AttemptLabels {
            worker: Arc::clone(&worker),
            result: ANSWERED,
        };
        metrics.attempts.attempts.get_or_create(&attempts).inc();
        assert!(metrics.encode().contains("http://w:1"));
        metrics.of_upstream().forget(&worker);
        assert!(!metrics.encode().contains("http://w:1"));
    }

    /// The guide must not name metrics to look at, or alarm on, that are not there.
    #[test]
    fn the_operations_guide_names_metrics_that_exist() {
        let table = include_str!("../../docs/metrics.md");
        let gossip = include_str!("../../gossip/src/metrics.rs");
        let guide = include_str!("../OPERATIONS.md");
        let (_, alarms) = guide.split_once("## Alarms").expect("it has alarms");
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let names = alarms.split(|c: char| !is_name(c));
        let names = names.filter_map(|word| word.strip_prefix("grapevine_"));
        let mut checked = 0;
        for name in names {
            let known = match name.strip_prefix("gossip_") {
                Some(name) => gossip.contains(&format!("\"{}\"", name.trim_end_matches("_total"))),
                None => table.contains(&format!("`grapevine_{name}`")),
            };
            assert!(known, "grapevine_{name}");
            checked += 1;
        }
        assert!(checked > 20, "{checked} names");
    }
}
