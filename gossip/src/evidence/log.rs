//! The batches of this replica, numbered, kept for a while: one copy for all peers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Batch, LOG_BATCHES_MAX, Record};
use crate::config::EvidenceConfig;

/// Batch `n` is the same for every peer; the oldest give way.
#[derive(Debug)]
pub(crate) struct Log {
    batches: VecDeque<Arc<Batch>>,
    first: u64,
    /// Of all kept batches on the wire; in memory about as many.
    bytes: usize,
    bytes_max: usize,
}

impl Default for Log {
    fn default() -> Self {
        Self::new(EvidenceConfig::default().log_bytes)
    }
}

impl Log {
    /// An empty log that keeps so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            first: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// Number of the oldest batch that is kept, or of the next one if none is.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Number that the next batch gets.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.batches.len() as u64
    }

    /// Appends records in as many batches as they need.
    pub(crate) fn append(&mut self, records: Vec<Record>) {
        for records in super::pieces(records, Record::wire_len) {
            self.bytes += wire_len(&records);
            let number = self.next();
            self.batches.push_back(Arc::new(Batch { number, records }));
        }
        while self.bytes > self.bytes_max || self.batches.len() > LOG_BATCHES_MAX {
            let Some(oldest) = self.batches.pop_front() else {
                return;
            };
            self.bytes -= wire_len(&oldest.records);
            self.first += 1;
        }
    }

    /// The batch with this number, shared by all peers that it is sent to; `None` if it is not kept.
    pub(crate) fn get(&self, number: u64) -> Option<&Arc<Batch>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.batches.get(at)
    }

    /// Drops records that may not be sent any more; batches keep their numbers. Returns how many.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Record) -> bool) -> usize {
        let mut dropped = 0;
        for batch in &mut self.batches {
            if batch.records.iter().all(&keep) {
                continue;
            }
            // Copied only if it still waits for a peer: there it stays as it was.
            let records = &mut Arc::make_mut(batch).records;
            let before = records.len();
            records.retain(&keep);
            dropped += before - records.len();
        }
        let lens = self.batches.iter().map(|batch| wire_len(&batch.records));
        self.bytes = lens.sum();
        dropped
    }
}

fn wire_len(records: &[Record]) -> usize {
    records.iter().map(Record::wire_len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Evidence, LINKS_MAX};

    fn records(count: usize, links: usize) -> Vec<Record> {
        let record = |epoch| {
            Record::Evidence(Evidence {
                worker: "w".parse().expect("valid"),
                epoch,
                links: vec![1; links],
            })
        };
        (0..count as u64).map(record).collect()
    }

    #[test]
    fn batches_are_cut_by_records_and_by_bytes() {
        let mut log = Log::default();
        log.append(Vec::new());
        assert_eq!(log.next(), 0, "nothing to say is no batch");
        log.append(records(BATCH_RECORDS_MAX + 1, 1));
        assert_eq!(log.next(), 2);
        log.append(records(100, LINKS_MAX));
        for number in 0..log.next() {
            assert!(wire_len(&log.get(number).expect("kept").records) <= BATCH_BYTES_MAX);
        }
        assert!(log.get(log.next()).is_none());
    }

    #[test]
    fn the_oldest_batches_give_way_and_numbers_stay() {
        let mut log = Log::default();
        for _ in 0..LOG_BATCHES_MAX + 5 {
            log.append(records(1, 1));
        }
        assert_eq!((log.first(), log.next()), (5, LOG_BATCHES_MAX as u64 + 5));
        assert!(log.get(4).is_none() && log.get(5).is_some());
        log.append(records(1000, LINKS_MAX));
        assert!(log.bytes <= log.bytes_max);
        assert!(log.get(log.next() - 1).is_some());
    }

    #[test]
    fn dropped_records_leave_their_batch() {
        let mut log = Log::default();
        log.append(records(4, 1));
        assert_eq!(log.retain(|record| record.about().1 >= 3), 3);
        let kept = |log: &Log| log.get(0).map(|batch| batch.records.len());
        assert_eq!(kept(&log), Some(1));
        assert_eq!(log.bytes, wire_len(&records(1, 1)));
        log.retain(|_| false);
        assert_eq!((kept(&log), log.next(), log.bytes), (Some(0), 1, 0));
    }

    #[test]
    fn a_batch_that_waits_for_a_peer_does_not_change() {
        let mut log = Log::default();
        log.append(records(2, 1));
        let waiting = log.get(0).expect("kept").clone();
        log.retain(|record| record.about().1 == 1);
        assert_eq!(waiting.records.len(), 2);
        assert_eq!(log.get(0).expect("kept").records.len(), 1);
    }
}
