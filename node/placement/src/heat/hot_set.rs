//! Hot set: the sum of all replicas' reports, and how many workers a prefix needs.

use super::HeatReport;
use crate::canonical::{Canonical, Digest};
use crate::serial::Serial;

/// Requests of a model, in units of reports, below which nothing is hot: shares of a handful are noise.
const TRAFFIC_MIN: u64 = 32 * 16;

/// Counts of all replicas together. Equal reports in any order make equal sets.
#[derive(Clone, Debug)]
pub struct HotSet {
    /// Sorted by link.
    counts: Vec<(u64, u64)>,
    pub(crate) serial: Serial,
}

impl Default for HotSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl PartialEq for HotSet {
    fn eq(&self, other: &Self) -> bool {
        self.counts == other.counts
    }
}

impl Eq for HotSet {}

impl HotSet {
    /// Nothing is hot.
    pub const EMPTY: Self = Self {
        counts: Vec::new(),
        serial: Serial::NONE,
    };

    /// Sums the newest report of each live replica, this one's own included.
    pub fn sum<'a>(reports: impl IntoIterator<Item = &'a HeatReport>) -> Self {
        let mut all: Vec<(u64, u64)> = reports
            .into_iter()
            .flat_map(|report| &report.counts)
            .map(|&(link, count)| (link, count.into()))
            .collect();
        all.sort_unstable();
        let mut counts: Vec<(u64, u64)> = Vec::new();
        for (link, count) in all {
            match counts.last_mut() {
                Some(last) if last.0 == link => last.1 += count,
                _ => counts.push((link, count)),
            }
        }
        Self {
            counts,
            serial: Serial::next(),
        }
    }

    /// CRC-32 of links and counts: equal digests, equal sets.
    pub fn digest(&self) -> Digest {
        self.counts
            .iter()
            .fold(
                Canonical::new("grapevine heat 1"),
                |bytes, &(link, count)| bytes.number(link).number(count),
            )
            .digest()
    }

    /// Number of links with a count.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether no link has a count.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Workers that share a prefix: a power of two above its load in fair shares over `share`, at most `workers`.
    /// `None`: the prefix is cool, one worker carries it.
    pub(crate) fn width(&self, model: u64, link: u64, workers: usize, share: f64) -> Option<usize> {
        let all = self.count(model);
        if all < TRAFFIC_MIN || share <= 0.0 {
            return None;
        }
        let fair_shares = self.count(link) as f64 * workers as f64 / all as f64;
        if fair_shares <= share {
            return None;
        }
        // At most the workers of one ring, so it fits.
        let wanted = (fair_shares / share).ceil().min(workers as f64) as usize;
        Some(wanted.next_power_of_two().min(workers))
    }

    /// Requests that carried a link lately, in sixteenths; 0 for what no replica reports.
    pub fn count(&self, link: u64) -> u64 {
        let at = self.counts.binary_search_by_key(&link, |&(link, _)| link);
        at.map_or(0, |at| self.counts[at].1)
    }
}
