//! What the worker saw: a bounded log of requests, and running totals, for tests.
//!
//! Times are microseconds since the Unix epoch, so that logs of several processes on one machine
//! can be compared ("the worker saw the close n ms after the client closed").

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// One request as the worker saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the request since start.
    pub seq: u64,
    /// `x-request-id` as received.
    pub request_id: Option<String>,
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers in order, names as received.
    pub headers: Vec<(String, String)>,
    /// Length of the body in bytes, after removal of chunk framing.
    pub body_bytes: u64,
    /// xxh3-64 of the body, hexadecimal.
    pub body_hash: String,
    /// When the request was complete.
    pub start_us: u64,
    /// When the first byte of the reply was handed to the kernel.
    pub first_byte_us: Option<u64>,
    /// When the client's close or reset was noticed, if it left before the end.
    pub client_gone_us: Option<u64>,
    /// When the exchange was over.
    pub end_us: Option<u64>,
    /// Status sent.
    pub status: Option<u16>,
    /// Prompt tokens of all sequences.
    pub prompt_tokens: u64,
    /// Prompt tokens that the prefix cache supplied.
    pub cached_tokens: u64,
    /// Prompt tokens that another worker or a shared store supplied.
    pub external_tokens: u64,
    /// Data-parallel rank that served it.
    pub rank: u32,
    /// Its part in a split pair; `None`: it was served alone.
    pub leg: Option<Leg>,
    /// Name under which the blocks of the pair are asked for.
    pub transfer_key: Option<String>,
    /// Why no blocks came.
    pub transfer_error: Option<String>,
    /// Answer tokens produced, also those that were not sent.
    pub tokens: u64,
    /// Of these, handed to the kernel, each as an event of a stream; 0 if a reset may have taken them back.
    pub streamed: u64,
    /// The whole reply was sent.
    pub complete: bool,
}

impl Entry {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(of, _)| of.eq_ignore_ascii_case(name))?;
        Some(value)
    }
}

/// Part of a request in a split pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// It computed the prompt for another worker.
    Prefill,
    /// It continued with the blocks of another worker.
    Decode,
}

/// Totals since start or the last reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Inference requests (`POST`) being served now.
    pub in_flight: u64,
    /// Greatest `in_flight`.
    pub in_flight_peak: u64,
    /// Inference requests received.
    pub requests: u64,
    /// Of those, replies sent whole.
    pub complete: u64,
    /// Of those, clients that left before the end.
    pub clients_gone: u64,
    /// Prompt tokens found in the prefix cache (as `vllm:prefix_cache_hits_total`).
    pub hit_tokens: u64,
    /// Prompt tokens looked up (as `vllm:prefix_cache_queries_total`).
    pub queried_tokens: u64,
    /// Requests by path; those for paths that the worker does not know are counted as `other`.
    pub paths: BTreeMap<String, u64>,
    /// Connections accepted.
    pub connections: u64,
}

struct State {
    entries: VecDeque<Entry>,
    first_seq: u64,
    stats: Stats,
}

pub(super) struct Ledger {
    state: Mutex<State>,
    entries_max: usize,
}

/// The open entry of one inference request. Dropping it ends the entry.
pub(super) struct Open {
    ledger: Arc<Ledger>,
    seq: u64,
    /// It is in flight.
    is_counted: AtomicBool,
}

impl Ledger {
    pub(super) fn new(entries_max: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                entries: VecDeque::new(),
                first_seq: 0,
                stats: Stats::default(),
            }),
            entries_max,
        })
    }

    pub(super) fn connection(&self) {
        self.state.lock().stats.connections += 1;
    }

    pub(super) fn path(&self, known: &str) {
        *self
            .state
            .lock()
            .stats
            .paths
            .entry(known.to_owned())
            .or_default() += 1;
    }

    /// Opens the entry of an inference request; `seq`, `start_us` are filled in here.
    pub(super) fn open(self: &Arc<Self>, mut entry: Entry) -> Open {
        let mut state = self.state.lock();
        if state.entries.len() >= self.entries_max && state.entries.pop_front().is_some() {
            state.first_seq += 1;
        }
        let seq = state.first_seq + state.entries.len() as u64;
        entry.seq = seq;
        entry.start_us = unix_us();
        state.entries.push_back(entry);
        state.stats.requests += 1;
        state.stats.in_flight += 1;
        state.stats.in_flight_peak = state.stats.in_flight_peak.max(state.stats.in_flight);
        drop(state);
        Open {
            ledger: Arc::clone(self),
            seq,
            is_counted: AtomicBool::new(true),
        }
    }

    /// Entries, oldest first.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.state.lock().entries.iter().cloned().collect()
    }

    pub(super) fn clear_entries(&self) {
        let mut state = self.state.lock();
        state.first_seq += state.entries.len() as u64;
        state.entries.clear();
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.state.lock().stats.in_flight
    }

    /// Totals; the caller adds the engine's own.
    pub(super) fn stats(&self) -> Stats {
        self.state.lock().stats.clone()
    }

    /// Zeroes the totals; what is in flight now stays counted.
    pub(super) fn clear_stats(&self) {
        let mut state = self.state.lock();
        let in_flight = state.stats.in_flight;
        state.stats = Stats {
            in_flight,
            in_flight_peak: in_flight,
            ..Stats::default()
        };
    }
}

impl Open {
    /// Changes the entry, if it is still in the log.
    pub(super) fn update(&self, change: impl FnOnce(&mut Entry)) {
        let mut state = self.ledger.state.lock();
        if let Some(at) = self.seq.checked_sub(state.first_seq)
            && let Some(entry) = state.entries.get_mut(at as usize)
        {
            change(entry);
        }
    }

    pub(super) fn first_byte(&self) {
        self.update(|entry| {
            entry.first_byte_us.get_or_insert_with(unix_us);
        });
    }

    /// It is in flight no more: its last byte goes out now. Counted later, a next request that this byte lets in would
    /// be seen beside it.
    pub(super) fn count_out(&self) {
        if self.is_counted.swap(false, Ordering::Relaxed) {
            self.ledger.state.lock().stats.in_flight -= 1;
        }
    }

    pub(super) fn complete(&self) {
        self.update(|entry| entry.complete = true);
        self.ledger.state.lock().stats.complete += 1;
    }

    pub(super) fn client_gone(&self) {
        self.update(|entry| entry.client_gone_us = Some(unix_us()));
        self.ledger.state.lock().stats.clients_gone += 1;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.update(|entry| entry.end_us = Some(unix_us()));
        self.count_out();
    }
}

/// Microseconds since the Unix epoch.
pub(super) fn unix_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_old_entries_take_no_updates() {
        let ledger = Ledger::new(2);
        let open: Vec<Open> = (0..3).map(|_| ledger.open(Entry::default())).collect();
        for entry in &open {
            entry.complete();
        }
        let seqs: Vec<(u64, bool)> = ledger
            .entries()
            .iter()
            .map(|e| (e.seq, e.complete))
            .collect();
        assert_eq!(seqs, [(1, true), (2, true)]);
        assert_eq!(ledger.stats().complete, 3);
    }

    #[test]
    fn in_flight_survives_a_reset_and_returns_to_zero() {
        let ledger = Ledger::new(10);
        let open = ledger.open(Entry::default());
        ledger.clear_stats();
        ledger.clear_entries();
        assert_eq!((ledger.stats().in_flight, ledger.stats().requests), (1, 0));
        drop(open);
        assert_eq!(ledger.in_flight(), 0);
    }
}
