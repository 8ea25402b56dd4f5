//! The promises of all scenarios, and the checks whether they held.

use std::collections::BTreeMap;

use super::excuse::Excuse;
use super::logs::Loud;
use super::record::{FailedRequest, Promise, ReplicaSample, Sample, Window};
use super::scenario::Terms;
use super::traffic::TrafficReport;
use super::trend::{self, Verdict};
use grapevine_bench::tally::share;

/// Failures that are described in a promise; all are counted.
const DESCRIBED: usize = 5;
/// Least agreement where only gossip has faults. It is below 1, because a busy machine makes probes late, and
/// two replicas may notice that at different times.
const AGREEMENT_MIN: f64 = 0.95;
/// After this time memory and open files of a process have warmed up.
const WARM_UP_MS: u64 = 600_000;
/// Least time after the warm-up that allows a verdict on growth per hour: a restarted process grows for
/// longer than others.
const SPAN_MIN_MS: u64 = 1_800_000;
/// Growth in an hour that counts as flat.
const RSS_PER_HOUR_MAX: f64 = 4.0 * 1_048_576.0;
const FILES_PER_HOUR_MAX: f64 = 20.0;

/// Status codes by which a cluster refuses requests under overload.
fn is_refusal(failure: &FailedRequest) -> bool {
    [
        "status_429",
        "status_503",
        "error_event_503",
        "error_event_429",
    ]
    .contains(&&*failure.kind)
}

/// A promise with its verdict.
pub(super) fn promise(text: impl Into<String>, held: bool, seen: impl Into<String>) -> Promise {
    Promise {
        text: text.into(),
        held,
        seen: seen.into(),
    }
}

/// No request failed but those that a fault excuses. One that was due and not sent would have failed, as far as anybody
/// can tell.
pub(super) fn requests(traffic: &TrafficReport, excuses: &[Excuse], terms: &Terms) -> Promise {
    let mut excused = 0;
    let mut refused = 0;
    let mut wrong = Vec::new();
    for failure in &traffic.failures {
        if excuses.iter().any(|excuse| excuse.covers(failure)) {
            excused += 1;
        } else if terms.may_refuse && is_refusal(failure) {
            refused += 1;
        } else {
            wrong.push(failure);
        }
    }
    let totals = &traffic.totals;
    let mut seen = format!(
        "{} of {} succeeded, {excused} excused, {} failed otherwise",
        totals.succeeded,
        totals.requests,
        wrong.len()
    );
    if refused > 0 {
        seen += &format!(", {refused} refused");
    }
    for failure in wrong.iter().take(DESCRIBED) {
        seen += "; ";
        seen += &describe(failure);
    }
    if traffic.failures_beyond > 0 {
        seen += &format!("; {} more were not looked at", traffic.failures_beyond);
    }
    if traffic.shed > 0 {
        seen += &format!(
            "; {} were due and not sent, because too many were in flight",
            traffic.shed
        );
    }
    let unseen = traffic.failures_beyond + traffic.shed;
    let unseen_matter = unseen > 0 && !terms.may_refuse;
    let held = wrong.is_empty() && !unseen_matter && totals.succeeded > 0;
    let text = if terms.may_refuse {
        "no request fails but those that are refused or that the fault excuses"
    } else {
        "no request fails but those that the fault excuses"
    };
    promise(text, held, seen)
}

fn describe(failure: &FailedRequest) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".to_owned());
    format!(
        "{} after {:.1} s, sent at {:.1} s ({}begun, replica {}, worker {})",
        failure.kind,
        (failure.failed_ms.saturating_sub(failure.sent_ms)) as f64 / 1_000.0,
        failure.sent_ms as f64 / 1_000.0,
        if failure.begun { "" } else { "not " },
        name(&failure.replica),
        name(&failure.worker)
    )
}

/// Every answer that ended without an error was whole: nothing was cut or ended without its last event.
pub(super) fn streams(traffic: &TrafficReport, excuses: &[Excuse]) -> Promise {
    let broken = |failure: &&FailedRequest| {
        ["cut", "no_done"].contains(&&*failure.kind)
            && !excuses.iter().any(|excuse| excuse.covers(failure))
    };
    let broken = traffic.failures.iter().filter(broken).count();
    promise(
        "no answer is cut or ends without its last event",
        broken == 0,
        format!("{broken} of {}", traffic.totals.requests),
    )
}

/// No replica's ring ever changed. A replica that is not ready does not count: its view is not complete.
pub(super) fn one_ring(samples: &[Sample]) -> Promise {
    let mut digests: BTreeMap<&str, u64> = BTreeMap::new();
    for replica in samples.iter().flat_map(|sample| &sample.replicas) {
        if let Some(seen) = replica.seen.as_ref().filter(|seen| seen.ready) {
            *digests.entry(&seen.ring).or_default() += 1;
        }
    }
    let seen = match digests.len() {
        1 => format!("one digest in {} looks", digests.values().sum::<u64>()),
        count => format!("{count} digests: {digests:?}"),
    };
    promise("no ring changes", digests.len() == 1, seen)
}

/// No replica that had found all others saw one of them as dead, and each has found them. One that gives no answer in
/// time says nothing.
pub(super) fn liveness(samples: &[Sample]) -> Promise {
    let mut looks = 0_u64;
    // Of each replica: when it has missed one, once it had found all.
    let mut missed: BTreeMap<&str, Option<Vec<String>>> = BTreeMap::new();
    for sample in samples {
        let others = sample.replicas.len() as u64 - 1;
        for replica in &sample.replicas {
            let Some(seen) = &replica.seen else { continue };
            looks += 1;
            let of_replica = missed.entry(&replica.name).or_default();
            match (seen.live_peers >= others, of_replica) {
                (true, missed) => drop(missed.get_or_insert_default()),
                (false, Some(missed)) => {
                    missed.push(format!("{:.1} s", sample.at_ms as f64 / 1_000.0));
                }
                (false, None) => {}
            }
        }
    }
    let wrong = |missed: &Option<Vec<String>>| missed.as_ref().is_none_or(|at| !at.is_empty());
    missed.retain(|_, missed| wrong(missed));
    let seen = match missed.is_empty() {
        true => format!("all of them in {looks} looks"),
        false => format!("of {looks} looks, these missed one (none: found never all): {missed:?}"),
    };
    let held = looks > 0 && missed.is_empty();
    promise(
        "every replica finds all others and sees none of them as dead",
        held,
        seen,
    )
}

/// Replicas chose the same worker, also under the fault, when load is left aside.
pub(super) fn agreement(samples: &[Sample]) -> Promise {
    let idle = || samples.iter().filter_map(|sample| sample.agreement_idle);
    let (asked, equal) = idle().fold((0, 0), |(asked, equal), one| {
        (asked + one.asked as u64, equal + one.equal as u64)
    });
    promise(
        format!(
            "throughout, replicas agree on {:.0} % of prompts (load left aside)",
            100.0 * AGREEMENT_MIN
        ),
        asked > 0 && share(equal, asked) >= AGREEMENT_MIN,
        format!("{:.1} % of {asked}", 100.0 * share(equal, asked)),
    )
}

/// Share of tokens from caches from `from_ms` to `until_ms`, against the share before. Caches must have been warm
/// from the beginning; windows count answers by their ends.
pub(super) fn hit_dip(windows: &[Window], from_ms: u64, until_ms: u64, dip_max: u32) -> Promise {
    let rate = |of: &dyn Fn(&&Window) -> bool| {
        let tokens = windows
            .iter()
            .filter(of)
            .fold((0, 0), |(hit, all), window| {
                (hit + window.cached_tokens, all + window.prompt_tokens)
            });
        100.0 * share(tokens.0, tokens.1)
    };
    let before = rate(&|w| w.until_ms() <= from_ms);
    let during = rate(&|w| w.at_ms >= from_ms && w.until_ms() <= until_ms);
    promise(
        format!(
            "the hit rate falls by at most {dip_max} point{}",
            if dip_max == 1 { "" } else { "s" }
        ),
        before - during <= f64::from(dip_max),
        format!("{before:.1} % before, {during:.1} % meanwhile"),
    )
}

/// Logs are quiet.
pub(super) fn quiet_logs(loud: &Loud) -> Promise {
    let mut seen = format!("{} such lines", loud.count);
    for line in loud.lines.iter().take(DESCRIBED) {
        seen += "; ";
        seen += line;
    }
    promise("no panic and no ERROR in any log", loud.count == 0, seen)
}

/// One figure of a process that may not keep growing.
struct Figure {
    text: &'static str,
    unit: &'static str,
    of: fn(&ReplicaSample) -> Option<f64>,
    /// In `unit`.
    scale: f64,
    per_hour_max: f64,
}

const FIGURES: [Figure; 2] = [
    Figure {
        text: "memory stays flat after 10 minutes",
        unit: "MiB",
        of: |replica| replica.rss_bytes.map(|bytes| bytes as f64),
        scale: 1_048_576.0,
        per_hour_max: RSS_PER_HOUR_MAX,
    },
    Figure {
        text: "open files stay flat after 10 minutes",
        unit: "files",
        of: |replica| replica.open_files.map(|files| files as f64),
        scale: 1.0,
        per_hour_max: FILES_PER_HOUR_MAX,
    },
];

/// Memory and open files over every replica's longest life.
pub(super) fn flat(samples: &[Sample]) -> Vec<Promise> {
    FIGURES.iter().map(|figure| figure.judge(samples)).collect()
}

impl Figure {
    fn judge(&self, samples: &[Sample]) -> Promise {
        let mut names: Vec<&str> = Vec::new();
        for replica in samples.iter().flat_map(|sample| &sample.replicas) {
            if !names.contains(&&*replica.name) {
                names.push(&replica.name);
            }
        }
        let mut grows = false;
        let mut seen = Vec::new();
        for name in names {
            let life = trend::longest_life(samples, name, self.of);
            let trend = trend::trend(&life, WARM_UP_MS);
            let Some(trend) = trend.filter(|trend| trend.span_ms >= SPAN_MIN_MS) else {
                seen.push(format!("{name}: no process ran long enough to tell"));
                continue;
            };
            let verdict = trend.against(self.per_hour_max);
            grows |= verdict == Verdict::Growing;
            let last = life.last().map_or(0.0, |(_, value)| *value);
            seen.push(format!(
                "{name}: {:.1} {}, {:+.2} an hour ({:+.2} to {:+.2}) over {} min{}",
                last / self.scale,
                self.unit,
                trend.per_hour / self.scale,
                trend.least / self.scale,
                trend.most / self.scale,
                trend.span_ms / 60_000,
                match verdict {
                    Verdict::Flat => "",
                    Verdict::Growing => ": it grows",
                    Verdict::Unclear => ": too noisy or too short to tell",
                }
            ));
        }
        promise(self.text, !grows, seen.join("; "))
    }
}

#[cfg(test)]
#[path = "promise_tests.rs"]
mod tests;
