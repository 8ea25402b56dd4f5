//! What the demo found, as a table for people and as JSON.

use std::fmt;

use serde::Serialize;

use super::agreement::Agreement;
use super::chaos::Damage;
use crate::replay;

/// One replay of the trace under one policy.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) policy: String,
    pub(super) replay: replay::Report,
    /// While the trace was running: pairs of replicas, each with its own view at that instant, were asked about
    /// requests right before these were sent.
    pub(super) agreement_under_load: Agreement,
    /// Afterwards, with nothing in flight.
    pub(super) agreement_quiet: Agreement,
    /// One for each replica.
    pub(super) digests: Vec<String>,
}

impl Round {
    fn hit_rate(&self) -> f64 {
        self.replay.worker_cache.unwrap_or_default().hit_rate()
    }

    fn digests_equal(&self) -> bool {
        self.digests.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Trace seconds per real second.
    pub(super) speed: f64,
    pub(super) prefix: Round,
    pub(super) random: Round,
    pub(super) replica_killed: Damage,
    /// Same prompt, same worker on the survivors, before and after the kill of the replica.
    pub(super) unmoved: Agreement,
    pub(super) worker_killed: Damage,
}

impl Report {
    /// The promises, and whether they held.
    pub(super) fn promises(&self) -> Vec<(&'static str, bool)> {
        let clean = |round: &Round| round.replay.summary.failures.is_empty();
        vec![
            (
                "no request of the trace failed",
                clean(&self.prefix) && clean(&self.random),
            ),
            (
                "all replicas hold the same ring",
                self.prefix.digests_equal() && self.random.digests_equal(),
            ),
            (
                "idle, all replicas choose the same worker",
                self.prefix.agreement_quiet.is_full(),
            ),
            (
                "more cache hits than by chance",
                self.prefix.hit_rate() > self.random.hit_rate(),
            ),
            (
                "a killed replica takes only its own requests along",
                self.replica_killed.held(),
            ),
            (
                "its death moves no prompt to another worker",
                self.unmoved.is_full(),
            ),
            (
                "a killed worker takes only answers that had begun along",
                self.worker_killed.held(),
            ),
        ]
    }

    pub(super) fn held(&self) -> bool {
        self.promises().iter().all(|(_, held)| *held)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        type Value = fn(&Round) -> String;
        let rows: [(&str, Value); 9] = [
            ("requests", |r| r.replay.summary.requests.to_string()),
            ("failed", |r| {
                (r.replay.summary.requests - r.replay.summary.succeeded).to_string()
            }),
            ("hit rate, workers' counters", |r| {
                format!("{:.1} %", 100.0 * r.hit_rate())
            }),
            ("TTFT p50", |r| {
                format!("{:.0} ms", r.replay.summary.ttft.p50_ms)
            }),
            ("TTFT p99", |r| {
                format!("{:.0} ms", r.replay.summary.ttft.p99_ms)
            }),
            ("latency p50", |r| {
                format!("{:.0} ms", r.replay.summary.latency.p50_ms)
            }),
            ("agreement under load", |r| {
                format!("{:.1} %", r.agreement_under_load.percent())
            }),
            ("agreement, idle", |r| {
                format!("{:.1} %", r.agreement_quiet.percent())
            }),
            ("ring digests", |r| {
                if r.digests_equal() {
                    format!("all {}", r.digests[0])
                } else {
                    r.digests.join(" ")
                }
            }),
        ];
        writeln!(
            f,
            "\n{:<30} {:>16} {:>16}",
            "", self.prefix.policy, self.random.policy
        )?;
        for (name, value) in rows {
            writeln!(
                f,
                "{name:<30} {:>16} {:>16}",
                value(&self.prefix),
                value(&self.random)
            )?;
        }
        writeln!(
            f,
            "(under load: two replicas asked about half of the requests right before these were sent; at {} times the \
             trace's speed queues change that much faster, while gossip takes as long as ever)",
            self.speed
        )?;
        for damage in [&self.replica_killed, &self.worker_killed] {
            writeln!(
                f,
                "\nkill -9 {}: {} of {} requests succeeded, slowest {:.0} ms",
                damage.victim, damage.succeeded, damage.requests, damage.latency_max_ms
            )?;
            for (kind, count) in &damage.failures {
                writeln!(f, "  {count} {kind}")?;
            }
            for failure in damage.inexcusable.iter().take(5) {
                writeln!(f, "  not excused: {failure}")?;
            }
        }
        writeln!(
            f,
            "  same worker before and after, on the survivors: {} of {} prompts",
            self.unmoved.equal, self.unmoved.asked
        )?;
        writeln!(f)?;
        for (promise, held) in self.promises() {
            writeln!(f, "{} {promise}", if held { "held  " } else { "BROKEN" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::CacheCounters;
    use grapevine_bench::tally::Summary;

    fn round(policy: &str, hit_tokens: u64, equal: usize) -> Round {
        let worker_cache = CacheCounters {
            queried_tokens: 100,
            hit_tokens,
        };
        Round {
            policy: policy.to_owned(),
            replay: replay::Report {
                asked: 0,
                agreed: 0,
                summary: Summary::default(),
                worker_cache: Some(worker_cache),
            },
            agreement_under_load: Agreement::default(),
            agreement_quiet: Agreement { asked: 10, equal },
            digests: vec!["a".into(), "a".into()],
        }
    }

    fn damage() -> Damage {
        Damage {
            victim: "x".into(),
            requests: 10,
            succeeded: 9,
            failures: [("cut".to_owned(), 1)].into(),
            inexcusable: Vec::new(),
            latency_max_ms: 1.0,
        }
    }

    fn good() -> Report {
        Report {
            speed: 1.0,
            prefix: round("prefix", 30, 10),
            random: round("random", 10, 2),
            replica_killed: damage(),
            unmoved: Agreement {
                asked: 10,
                equal: 10,
            },
            worker_killed: damage(),
        }
    }

    #[test]
    fn each_promise_can_be_broken() {
        assert!(good().held(), "{}", good());
        let breaks: [fn(&mut Report); 8] = [
            |r| r.random.replay.summary.failures = [("cut".to_owned(), 1)].into(),
            |r| r.prefix.digests[1] = "b".into(),
            |r| r.prefix.agreement_quiet.equal = 9,
            |r| r.random = round("random", 30, 2),
            |r| r.replica_killed.inexcusable = vec!["status_502".into()],
            |r| r.unmoved = Agreement::default(),
            |r| r.worker_killed.inexcusable = vec!["cut (not begun)".into()],
            |r| r.worker_killed.succeeded = 0,
        ];
        for (number, damage) in breaks.into_iter().enumerate() {
            let mut report = good();
            damage(&mut report);
            assert!(!report.held(), "break {number}");
            assert!(report.to_string().contains("BROKEN"));
        }
    }
}
