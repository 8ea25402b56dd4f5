//! Counter: the marks of this replica's requests, with decay, in bounded memory.
//!
//! A request counts along its chain for as long as the marks are warm, and at the first few that are not. So memory
//! goes to prefixes that many requests share, not to the tails of each, and heat goes down a chain a few marks in a few
//! requests: a prefix of thousands of tokens is known to be hot after some tens of requests.

use std::time::Duration;

use super::{HeatReport, REPORT_LINKS_MAX};
use crate::{key::Key, mark_map::MarkMap, ratio::Ratio};

/// How heat is counted and reported. Cluster-wide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeatSettings {
    /// A prefix is hot when it carries more than this part of a worker's fair share of its model's requests.
    ///
    /// Higher: fewer copies of shared prefixes, more load on their homes. Lower: the reverse. 0 switches heat off.
    pub share: Ratio,
    /// Time in which a count loses half of its value. Longer: steadier sets, slower to follow a change of traffic.
    pub half_life: Duration,
}

impl Default for HeatSettings {
    fn default() -> Self {
        Self {
            share: Ratio::constant(0.5),
            half_life: Duration::from_secs(60),
        }
    }
}

/// Marks counted at once.
const LINKS_MAX: usize = 4_096;
/// Requests that make a mark warm: its children are counted from then on.
const WARM: f64 = 3.0;
/// Marks of a request that are counted behind the warm ones, while there is room for so many: so the whole of a long
/// prefix is warm after some tens of requests.
const STRIDE: usize = 8;
/// Part of all requests that a mark needs to be reported: far below any pool's hot share, so that sums are complete.
const REPORT_SHARE: f64 = 1.0 / 2_048.0;
/// A reported count stays as it is until the count has moved away from it by this part.
const HYSTERESIS: f64 = 0.125;
/// Units of a reported count per request.
const UNITS: f64 = 16.0;

/// Counts of one replica.
#[derive(Clone, Debug)]
pub struct HeatCounter {
    half_life: Duration,
    /// Walked through in any order: each count decays by itself, and reports are sorted.
    counts: MarkMap<f64>,
    total: f64,
    decayed_at: Duration,
    last_report: HeatReport,
}

impl HeatCounter {
    /// Counts nothing yet.
    pub fn new(settings: &HeatSettings) -> Self {
        Self {
            half_life: settings.half_life.max(Duration::from_secs(1)),
            counts: MarkMap::default(),
            total: 0.0,
            decayed_at: Duration::ZERO,
            last_report: HeatReport::default(),
        }
    }

    /// Counts a request that this replica placed. Retries of a request are not counted again.
    pub fn count(&mut self, key: &Key) {
        self.total += 1.0;
        let chain = std::iter::once(key.model()).chain(key.marks().iter().map(|mark| mark.hash));
        // Where marks are many, each has the place of one request only.
        let most = if self.counts.len() < LINKS_MAX / 2 {
            STRIDE
        } else {
            1
        };
        let mut cold = 0;
        for link in chain {
            let count = if let Some(count) = self.counts.get_mut(&link) {
                *count += 1.0;
                *count
            } else {
                // Full of colder marks until the next decay: a new one waits.
                if self.counts.len() < LINKS_MAX {
                    self.counts.insert(link, 1.0);
                }
                1.0
            };
            cold += usize::from(count < WARM && link != key.model());
            if cold == most {
                return;
            }
        }
    }

    /// Decays to `now` (time since any fixed start) and returns what to send; the same report while little changed.
    ///
    /// Call about once a second. The replica's own hot set must use this report, too, never the counts behind it.
    pub fn report(&mut self, now: Duration) -> &HeatReport {
        let elapsed = now.saturating_sub(self.decayed_at);
        let keep = (-elapsed.as_secs_f64() / self.half_life.as_secs_f64()).exp2();
        self.decayed_at = now;
        self.total *= keep;
        self.counts.retain(|_, count| {
            *count *= keep;
            *count >= 0.5
        });
        if self.counts.len() == LINKS_MAX {
            // A flood of prompts that are seen once: make room, the warm ones stay.
            self.counts.retain(|_, count| *count >= WARM / 2.0);
        }
        let next = self.next_report();
        if next.counts != self.last_report.counts || next.total != self.last_report.total {
            self.last_report = HeatReport {
                version: self.last_report.version + 1,
                ..next
            };
        }
        &self.last_report
    }

    /// The last report.
    pub fn last_report(&self) -> &HeatReport {
        &self.last_report
    }

    fn next_report(&self) -> HeatReport {
        let least = (self.total * REPORT_SHARE).max(WARM);
        let mut warm: Vec<_> = self
            .counts
            .iter()
            .filter(|&(_, &count)| count >= least)
            .map(|(&link, &count)| (link, count))
            .collect();
        warm.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        warm.truncate(REPORT_LINKS_MAX);
        warm.sort_unstable_by_key(|&(link, _)| link);
        let reported = |link: u64| {
            let at = self
                .last_report
                .counts
                .binary_search_by_key(&link, |&(link, _)| link);
            at.map_or(0, |at| self.last_report.counts[at].1)
        };
        HeatReport {
            version: 0,
            counts: warm
                .into_iter()
                .map(|(link, count)| (link, steady(reported(link), count)))
                .collect(),
            total: steady(self.last_report.total, self.total),
        }
    }
}

/// The reported count, or the true one where they have moved apart.
fn steady(reported: u32, count: f64) -> u32 {
    let (before, units) = (f64::from(reported), count * UNITS);
    if (units - before).abs() <= before * HYSTERESIS {
        return reported;
    }
    units.min(f64::from(u32::MAX)).round() as u32
}
