//! What every source shows now: for the other replicas, and for operators.

use std::collections::BTreeMap;

use grapevine_discovery::{Counts, Sight, Statement, source_hash};
use grapevine_gossip::peer_state::Sighting;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::sightings;

/// All sources of this replica; each writes its own row.
#[derive(Debug, Default)]
pub struct Board(Mutex<BTreeMap<String, Row>>);

#[derive(Debug)]
struct Row {
    statement: Statement,
    counts: Counts,
    sight: Sight,
    is_fresh: bool,
    refused: usize,
}

/// A source that this replica gets no workers from.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct LostSource {
    /// Its name, as workers show it.
    pub source: String,
    /// `broken`: it cannot be seen; `empty`: it shows none of the workers that it had.
    pub how: &'static str,
}

/// One source, as this replica sees it: a row of `GET /discovery`.
#[derive(Debug, Serialize)]
pub struct SourceView {
    /// Its name, as workers show it.
    pub source: String,
    /// Whether its picture may be acted on.
    pub up: bool,
    /// Seconds since it was last known to be true; null before the first picture.
    pub age_s: Option<u64>,
    /// Why it cannot be seen.
    pub failure: Option<String>,
    /// Failures since the start.
    pub failures: u64,
    /// In the registry by this source.
    pub registered: usize,
    /// In this replica's picture.
    pub seen: usize,
    /// Of these, ready.
    pub ready: usize,
    /// Registered and seen by nobody.
    pub missing: usize,
    /// Seen by some replicas and not by others.
    pub contested: usize,
    /// Seen, and not allowed here (`workers.allow`): the log names each.
    pub refused: usize,
}

impl Board {
    /// What is sent to the other replicas.
    pub fn sightings(&self) -> Vec<Sighting> {
        let rows = self.0.lock();
        let of_row =
            |(name, row): (&String, &Row)| sightings::encode(source_hash(name), &row.statement);
        rows.iter().flat_map(of_row).collect()
    }

    /// Sources that show nothing, or cannot be seen, by name.
    pub fn lost(&self) -> Vec<LostSource> {
        let rows = self.0.lock();
        let lost = rows.iter().filter_map(|(name, row)| {
            let is_emptied = row.is_fresh && row.counts.seen == 0 && row.counts.registered > 0;
            let how = match row.sight.failure {
                Some(_) if !row.is_fresh => "broken",
                _ if is_emptied => "empty",
                _ => return None,
            };
            let source = name.clone();
            Some(LostSource { source, how })
        });
        lost.collect()
    }

    /// All sources, by name.
    pub fn describe(&self, now: Instant) -> Vec<SourceView> {
        let rows = self.0.lock();
        let view = |(name, row): (&String, &Row)| SourceView {
            source: name.clone(),
            up: row.is_fresh,
            age_s: row
                .sight
                .seen
                .map(|seen| now.saturating_duration_since(seen).as_secs()),
            failure: row.sight.failure.clone(),
            failures: row.sight.failures,
            registered: row.counts.registered,
            seen: row.counts.seen,
            ready: row.counts.ready,
            missing: row.counts.missing,
            contested: row.counts.contested,
            refused: row.refused,
        };
        rows.iter().map(view).collect()
    }

    /// Replaces the row of one source.
    pub(super) fn show(
        &self,
        name: &str,
        statement: Statement,
        counts: Counts,
        (sight, is_fresh): (Sight, bool),
        refused: usize,
    ) {
        let row = Row {
            statement,
            counts,
            sight,
            is_fresh,
            refused,
        };
        self.0.lock().insert(name.to_owned(), row);
    }

    /// Whether there is a row of this source.
    pub(super) fn shows(&self, name: &str) -> bool {
        self.0.lock().contains_key(name)
    }
}
