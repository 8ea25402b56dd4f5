//! Records of this replica that wait for the next batch.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{HeatReport, Record};

/// Bounded by records and by links; the oldest records give way.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    records: VecDeque<Record>,
    links: usize,
    /// The latest report, whole, for every peer that comes.
    heat: Option<Arc<HeatReport>>,
}

/// What became of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It waits; so many older ones were dropped for it.
    Queued { dropped: usize },
    /// It breaks a limit.
    Malformed,
}

impl Pending {
    pub(crate) fn record(&mut self, record: Record) -> Recorded {
        if !record.is_valid() {
            return Recorded::Malformed;
        }
        self.links += record.links().len();
        self.records.push_back(record);
        let mut dropped = 0;
        while self.records.len() > RECORDS_MAX || self.links > QUEUED_LINKS_MAX {
            if let Some(oldest) = self.records.pop_front() {
                self.links -= oldest.links().len();
                dropped += 1;
            }
        }
        Recorded::Queued { dropped }
    }

    /// False if the report breaks a limit; then the former one stays.
    pub(crate) fn heat(&mut self, report: HeatReport) -> bool {
        let is_valid = report.is_valid();
        if is_valid {
            self.heat = Some(Arc::new(report));
        }
        is_valid
    }

    /// Everything queued since the last call, oldest first.
    pub(crate) fn take(&mut self) -> Vec<Record> {
        self.links = 0;
        std::mem::take(&mut self.records).into()
    }

    pub(crate) fn latest_heat(&self) -> Option<Arc<HeatReport>> {
        self.heat.clone()
    }
}

/// Records that wait for a batch: at 20 ms a batch, room for 200,000 a second.
const RECORDS_MAX: usize = 4096;
/// Links of all of them, 8 bytes each.
const QUEUED_LINKS_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Evidence, HEAT_COUNTS_MAX, LINKS_MAX};

    fn record(epoch: u64, links: usize) -> Record {
        Record::Evidence(Evidence {
            worker: "w".parse().expect("valid"),
            epoch,
            links: vec![7; links],
        })
    }

    fn epochs(pending: &mut Pending) -> Vec<u64> {
        pending
            .take()
            .iter()
            .map(|record| record.about().1)
            .collect()
    }

    #[test]
    fn the_oldest_give_way() {
        let mut pending = Pending::default();
        let dropped: usize = (0..RECORDS_MAX as u64 + 3)
            .map(|epoch| match pending.record(record(epoch, 1)) {
                Recorded::Queued { dropped } => dropped,
                Recorded::Malformed => panic!("valid"),
            })
            .sum();
        assert_eq!(dropped, 3);
        let left = epochs(&mut pending);
        assert_eq!((left.len(), left[0]), (RECORDS_MAX, 3));
        assert!(pending.take().is_empty());
    }

    #[test]
    fn links_are_bounded_too() {
        let mut pending = Pending::default();
        let fit = (QUEUED_LINKS_MAX / LINKS_MAX) as u64;
        for epoch in 0..fit + 1 {
            pending.record(record(epoch, LINKS_MAX));
        }
        assert_eq!(epochs(&mut pending)[0], 1);
        pending.record(record(9, LINKS_MAX));
        assert_eq!(epochs(&mut pending), [9], "taking makes room");
    }

    #[test]
    fn what_breaks_a_limit_is_not_told() {
        let mut pending = Pending::default();
        assert_eq!(pending.record(record(0, 0)), Recorded::Malformed);
        assert_eq!(
            pending.record(record(0, LINKS_MAX + 1)),
            Recorded::Malformed
        );
        let report = |counts| HeatReport {
            version: 1,
            counts,
            total: 1,
        };
        assert!(pending.heat(report(vec![(1, 5), (2, 5)])));
        assert!(!pending.heat(report(vec![(2, 5), (2, 5)])));
        assert!(!pending.heat(report(
            (0..=HEAT_COUNTS_MAX as u64).map(|h| (h, 1)).collect()
        )));
        assert_eq!(pending.latest_heat().map(|heat| heat.counts.len()), Some(2));
        assert!(pending.take().is_empty());
    }
}
