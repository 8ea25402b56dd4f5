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
use crate::metrics::export::ExportMetrics;
use crate::metrics::operator::OperatorMetrics;
use crate::metrics::process::{ProcessMetrics, SystemMetrics};
use crate::metrics::refusals::RefusalMetrics;
use crate::proxy::division::SplitMetrics;
use crate::proxy::metrics::{DetourMetrics, ProxyMetrics, RequestMetrics};
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
            /// Those whose names have no prefix, because every program has them.
            unprefixed: Registry,
            /// The process as the system sees it.
            pub system: SystemMetrics,
            $($(#[doc = $doc])* pub $part: $Type,)*
        }

        impl AllMetrics {
            /// Registers everything.
            pub fn new() -> Self {
                let mut registry = Registry::with_prefix("grapevine");
                $(let $part = $Type::register(&mut registry);)*
                let mut unprefixed = Registry::default();
                let system = SystemMetrics::register(&mut unprefixed);
                Self { registry, unprefixed, system, $($part,)* }
            }

            /// Every row whose name has the prefix.
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
    /// Metrics for a collector.
    export: ExportMetrics,
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
        let mut out = String::with_capacity(64 * 1024);
        let written = text::encode_registry(&mut out, &self.registry)
            .and_then(|()| text::encode(&mut out, &self.unprefixed));
        if let Err(error) = written {
            // Writing into a string cannot fail; say so in the output rather than panic in a scrape.
            let _ = write!(out, "\n# encoding failed: {error}\n");
        }
        out
    }
}

impl Default for AllMetrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use grapevine_placement::ClusterSettings;

    use super::*;
    use crate::cluster::pool_for_tests;
    use crate::config::KvEventsConfig;
    use crate::kv_events::{Caches, Source};
    use crate::metrics::AttemptLabels;
    use crate::upstream::failure::ANSWERED;

    /// With their suffixes, as the table in `docs/metrics.md` gives them.
    fn registered() -> Vec<String> {
        let with_prefix = AllMetrics::rows().map(|row| ("grapevine_", row));
        let without = SystemMetrics::ROWS.iter().map(|row| ("", row));
        let names = with_prefix.chain(without).map(|(prefix, row)| {
            let unit = row.unit.map(|unit| format!("_{}", unit.to_lowercase()));
            let total = if row.kind.contains("Counter") {
                "_total"
            } else {
                ""
            };
            format!("{prefix}{}{}{total}", row.name, unit.unwrap_or_default())
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
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split_once('`'))
            .filter(|(name, _)| name.starts_with("grapevine_") || name.starts_with("process_"))
            .filter(|(_, rest)| rest.matches('|').count() == 4)
            .map(|(name, _)| name.to_owned())
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
        metrics.workers.show(&worker, 1, 1.0);
        metrics.health.fill(&worker);
        metrics.answers.fill(&worker);
        let attempts = AttemptLabels {
            worker: Arc::clone(&worker),
            result: ANSWERED,
        };
        metrics.attempts.attempts.get_or_create(&attempts).inc();
        assert!(metrics.encode().contains("http://w:1"));
        metrics.of_upstream().forget(&worker);
        assert!(!metrics.encode().contains("http://w:1"));
    }

    /// Adapters come and go at a worker that stays.
    #[test]
    fn models_that_are_served_no_more_give_their_places_to_others() {
        let metrics = AllMetrics::new();
        let pool = pool_for_tests(&ClusterSettings::default(), &["w"]);
        let worker = &pool.members()[0].worker;
        let upstream = metrics.of_upstream();
        let usage = crate::http::sse::Usage {
            prompt_tokens: 10,
            ..Default::default()
        };
        let count = |model: &str| {
            let model = Arc::from(model);
            upstream.answers.count(worker, &model, &usage, None, false);
        };
        for number in 0..17 {
            count(&format!("former-{number}"));
        }
        let shown = |model: &str| metrics.encode().contains(&format!("model=\"{model}\""));
        assert!(shown("former-15") && !shown("former-16") && shown("other"));
        upstream.keep_models(worker, |model| model == "former-3");
        assert!(shown("former-3") && !shown("former-15") && shown("other"));
        count("present");
        assert!(shown("present"));
        let counted = worker.series.prompts.read();
        assert_eq!(counted, (18 * 10, 0, false), "nothing is lost");
    }

    /// Its tokens count where it is answered, which may be seconds later.
    #[test]
    fn a_prompt_is_looked_up_in_the_cache_of_its_prefill_worker_alone() {
        let metrics = AllMetrics::new();
        let pool = pool_for_tests(&ClusterSettings::default(), &["prefill", "decode"]);
        let [prefill, decode] = [0, 1].map(|at| &pool.members()[at].worker);
        let (answers, model) = (&metrics.answers, Arc::from("m"));
        let usage = |cached_tokens| crate::http::sse::Usage {
            prompt_tokens: 10,
            cached_tokens,
            ..Default::default()
        };
        answers.count_cached(prefill, &model, &usage(None), 0);
        answers.count_cached(prefill, &model, &usage(Some(9)), 0);
        answers.count(decode, &model, &usage(Some(10)), None, true);
        let counted = [prefill, decode].map(|worker| worker.series.prompts.read());
        assert_eq!(counted, [(20, 9, true), (0, 0, false)]);
        answers.count(decode, &model, &usage(Some(0)), None, false);
        assert_eq!(decode.series.prompts.read(), (10, 0, true));
    }

    /// Its last requests end after it has left, and count what it had no series of.
    #[test]
    fn what_ends_after_its_worker_brings_no_series_back() {
        let metrics = AllMetrics::new();
        let pool = pool_for_tests(&ClusterSettings::default(), &["gone"]);
        let worker = &pool.members()[0].worker;
        let upstream = metrics.of_upstream();
        let (asked, late) = (Arc::from("asked"), Arc::from("late"));
        let usage = crate::http::sse::Usage::default();
        upstream.attempts.count(worker, ANSWERED);
        upstream.answers.count(worker, &asked, &usage, None, false);
        let caches = Caches::new(&KvEventsConfig::default(), 0, metrics.kv_events.clone());
        let source = Source {
            rank: 0,
            events: "tcp://*:5557".parse().expect("an address"),
            replay: None,
            topic: String::new(),
        };
        caches.begin(worker, source);
        assert!(metrics.encode().contains("\"gone\""));

        upstream.leave(worker);
        // As by a scrape that began before.
        caches.show([worker]);
        upstream.attempts.count(worker, ANSWERED);
        upstream.attempts.count(worker, "closed");
        upstream.answers.count(worker, &asked, &usage, None, false);
        upstream.answers.count(worker, &late, &usage, None, false);
        upstream.answers.first_token(worker, 1.0);
        assert!(!metrics.encode().contains("\"gone\""));
    }

    const RULES: &str = include_str!("../../packaging/monitoring/rules.yml");
    const GUIDE: &str = include_str!("../OPERATIONS.md");

    /// Words of a text that are names of metrics, without what a histogram's samples have behind its name.
    fn named(text: &str) -> impl Iterator<Item = &str> {
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.split(move |c: char| !is_name(c));
        let words = words.filter(|w| w.starts_with("grapevine_") || w.starts_with("process_"));
        words.map(|word| word.trim_end_matches('_'))
    }

    fn is_known(name: &str) -> bool {
        let gossip = include_str!("../../gossip/src/metrics.rs");
        if let Some(name) = name.strip_prefix("grapevine_gossip_") {
            return gossip.contains(&format!("\"{}\"", name.trim_end_matches("_total")));
        }
        let base = name.trim_end_matches("_bucket");
        registered().iter().any(|known| known == base)
    }

    #[test]
    fn rules_board_and_the_page_of_migrating_name_metrics_that_exist() {
        let migrating = include_str!("../MIGRATING.md");
        let (_, migrating) = migrating.split_once("\n## Metrics\n").expect("its table");
        let board = include_str!("../../packaging/monitoring/grapevine-board.json");
        for (text, least) in [(RULES, 35), (board, 100), (migrating, 80)] {
            let mut checked = 0;
            for name in named(text) {
                assert!(is_known(name), "{name}");
                checked += 1;
            }
            assert!(checked >= least, "{checked} names");
        }
    }

    /// The anchor that a heading has.
    fn anchor(heading: &str) -> String {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let text = heading.to_lowercase();
        text.chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    }

    #[test]
    fn the_operations_guide_has_every_alarm() {
        let field = |line: &str, start: &str, end: char| {
            let (_, rest) = line.split_once(start)?;
            Some(rest.split(end).next()?.to_owned())
        };
        let (mut alarms, mut severities) = (Vec::new(), Vec::new());
        let headings = GUIDE.lines().filter_map(|line| line.strip_prefix("##"));
        let headings: Vec<String> = headings
            .map(|line| format!("#{}", anchor(line.trim_start_matches('#').trim())))
            .collect();
        for line in RULES.lines() {
            alarms.extend(field(line, "- alert: ", ' '));
            severities.extend(field(line, "labels: {severity: ", '}'));
            if let Some(runbook) = field(line, "runbook: 'node/OPERATIONS.md", '\'') {
                assert!(headings.contains(&runbook), "{runbook} is no heading");
            }
        }
        let runbooks = RULES.matches("runbook: 'node/OPERATIONS.md#").count();
        assert_eq!(runbooks, alarms.len(), "each has one");
        let expected = alarms.iter().zip(&severities);
        let expected: Vec<_> = expected.map(|(a, s)| format!("| `{a}` | {s} |")).collect();
        let (_, table) = GUIDE.split_once("## Alarms").expect("it has alarms");
        let rows: Vec<_> = table
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(rows.len(), expected.len());
        for (row, start) in rows.iter().zip(&expected) {
            assert!(row.starts_with(start), "{row} has to begin with {start}");
        }
    }

    /// The guide must not name metrics to look at that are not there.
    #[test]
    fn the_operations_guide_names_metrics_that_exist() {
        let is_name = |word: &&str| {
            word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                && (word.ends_with("_total") || word.starts_with("gossip_"))
        };
        // In code, without the prefix; labels may stand behind.
        let words = GUIDE.split('`').skip(1).step_by(2);
        let words = words.filter_map(|code| code.split(['{', ' ']).next());
        let mut checked = 0;
        for name in words.filter(is_name) {
            let name = name.trim_start_matches("grapevine_");
            assert!(is_known(&format!("grapevine_{name}")), "{name}");
            checked += 1;
        }
        assert!(checked > 20, "{checked} names");
    }
}
