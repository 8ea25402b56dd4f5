//! Prefix index: what each worker's cache is expected to hold, by own decisions and others' records.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use super::{
    entry::IndexEntry,
    renewals::Renewals,
    table::{ROOT, Table},
};
use crate::{
    key::{Key, Link, MARKS_MAX, added_tokens},
    policy::Candidate,
};

/// Limits of a prefix index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixIndexSettings {
    /// Entries in all, over all workers. Default 200,000, about 15 MB.
    ///
    /// Higher: more memory. Lower: long conversations are forgotten while workers still hold them.
    pub entries_max: u32,
    /// Tokens that a worker's cache holds, host tier included, unless the worker reports another size. Default
    /// 1,000,000.
    ///
    /// Too high: placements on what was evicted, until answers correct it. Too low: repeated prefill.
    pub cache_tokens: u64,
    /// Evidence not renewed for so long is not believed. Default 20 minutes.
    pub age_max: Duration,
    /// Evidence not renewed for so long is not believed against what the worker says of its cache
    /// ([`Candidate::told`]). Default 2 seconds.
    ///
    /// What was just sent to a worker waits there, is computed, and then published. Too short: prompts that wait
    /// are sent to a second worker. Too long: placements on what was evicted; simulated, agents with small caches
    /// wait two to three times as long at 10 seconds.
    pub told_after: Duration,
}

impl Default for PrefixIndexSettings {
    fn default() -> Self {
        Self {
            entries_max: 200_000,
            cache_tokens: 1_000_000,
            age_max: Duration::from_secs(1_200),
            told_after: Duration::from_secs(2),
        }
    }
}

/// A worker's row in a [`PrefixIndex`]; valid until [`PrefixIndex::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

/// The slots of a pool's workers, in the order of its candidates, and the way back: a prompt has few holders among many
/// workers. No two of them are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    slots: Vec<Slot>,
    /// By the number of a slot: which candidate has it.
    candidates: Vec<Option<NonZeroU32>>,
}

impl Slots {
    /// The slot of a candidate.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn of(&self, candidate: usize) -> Slot {
        self.slots[candidate]
    }

    fn candidate(&self, slot: u32) -> Option<usize> {
        let one_more = self.candidates.get(slot as usize).copied().flatten()?;
        Some(one_more.get() as usize - 1)
    }
}

impl FromIterator<Slot> for Slots {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let slots: Vec<Slot> = slots.into_iter().collect();
        let most = slots.iter().map(|slot| slot.0 as usize + 1).max();
        let mut candidates = vec![None; most.unwrap_or(0)];
        for (one_more, slot) in (1..).zip(&slots) {
            candidates[slot.0 as usize] = NonZeroU32::new(one_more);
        }
        Self { slots, candidates }
    }
}

/// Times that something happened. Monotone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixIndexCounters {
    /// Entries forgotten because a worker's cache is taken to be full.
    pub evicted: u64,
    /// Entries forgotten because the prefix index was full.
    pub crowded_out: u64,
    /// Entries removed because they were older than the age limit.
    pub expired: u64,
    /// Records refused: about another epoch of the worker than the one that it is in, longer than a record may be, or
    /// with marks that no key has.
    pub refused: u64,
    /// Records that did not renew all that comes before them in their chains: with others they asked for more work than a
    /// second is given, and what they left out was renewed within that second.
    pub spared: u64,
    /// Answers that reported far fewer cached tokens than expected.
    pub corrected: u64,
}

/// What recording a placement found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Marks that were not known there, or not lately: what other replicas need to receive.
    pub news: Vec<u64>,
    /// Those of them that were not known there at all: what is untrue where the worker did not compute the prompt.
    pub unknown: Vec<u64>,
    /// What comes before the news in the chain; where there are none, the deepest mark, when it was not used within the
    /// second. Others renew it, too, and all before it, so that what is in use leaves no prefix index sooner than the
    /// worker's cache.
    pub lead: Option<u64>,
    /// Use of the deepest mark that was known there; for [`PrefixIndex::correct`].
    last_used: Option<u64>,
    /// The last mark, and how many there are; for [`PrefixIndex::retract`].
    end: Option<u64>,
    length: usize,
}

impl Recorded {
    /// The marks to send to other replicas, in the order of the chain; none when they know them all.
    pub fn marks_to_send(&self) -> Vec<u64> {
        self.lead.iter().chain(&self.news).copied().collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct WorkerCache {
    epoch: u64,
    /// Tokens that its cache holds, as it reported itself.
    reported: Option<u64>,
}

/// Known marks are sent again after this part of the age limit, so that others do not forget what is in use.
const RENEW_SHARE: u32 = 4;
/// Whether an answer reports so few cached tokens that what was expected cannot have been there: less than three quarters,
/// and at least so many `tokens` less, since blocks are whole.
pub fn is_far_below(expected_tokens: u32, cached_tokens: u32, tokens: u32) -> bool {
    const SHARE: f64 = 0.75;
    cached_tokens.saturating_add(tokens) <= expected_tokens
        && f64::from(cached_tokens) <= f64::from(expected_tokens) * SHARE
}

/// So many tokens fewer than expected are no error of the estimate.
const FAR_TOKENS: u32 = 512;
/// At most so many of the marks that a correction forgot are sent.
const GONE_SENT_MAX: usize = 16;

/// Expected contents of all workers' caches. Bounded in entries.
///
/// Times are durations since any fixed start, the same for all calls.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    settings: PrefixIndexSettings,
    table: Table,
    slots: BTreeMap<String, Slot>,
    workers: Vec<WorkerCache>,
    vacant: Vec<Slot>,
    records: u64,
    renewals: Renewals,
    counters: PrefixIndexCounters,
}

impl PrefixIndex {
    /// Knows nothing yet.
    pub fn new(settings: PrefixIndexSettings) -> Self {
        Self {
            settings,
            table: Table::default(),
            slots: BTreeMap::new(),
            workers: Vec::new(),
            vacant: Vec::new(),
            records: 0,
            renewals: Renewals::default(),
            counters: PrefixIndexCounters::default(),
        }
    }

    /// The worker's slot, made when it has none. Another epoch empties it: a restarted worker has an empty cache. The
    /// first that becomes known does not, since 0 says that it is not known.
    pub fn slot(&mut self, worker: &str, epoch: u64) -> Slot {
        let Some(&slot) = self.slots.get(worker) else {
            let fresh = WorkerCache {
                epoch,
                reported: None,
            };
            let slot = self.vacant.pop().unwrap_or_else(|| {
                self.table.add_list();
                self.workers.push(fresh);
                Slot(u32::try_from(self.workers.len() - 1).expect("fewer workers than that"))
            });
            // A request that still held the former worker's slot may have recorded here.
            self.clear(slot);
            self.workers[slot.0 as usize] = fresh;
            self.slots.insert(worker.to_owned(), slot);
            return slot;
        };
        let known = &mut self.workers[slot.0 as usize].epoch;
        if epoch == 0 || epoch == *known {
            return slot;
        }
        let before = std::mem::replace(known, epoch);
        if before > 0 {
            self.clear(slot);
        }
        slot
    }

    /// The worker left: its slot is free for another.
    pub fn forget(&mut self, worker: &str) {
        if let Some(slot) = self.slots.remove(worker) {
            self.clear(slot);
            self.vacant.push(slot);
        }
    }

    /// Another process is the worker now than in this epoch, whose start may not be known: its cache is empty. Not where
    /// the worker is known to live in a later one: then what is recorded is the new one's.
    pub fn replaced(&mut self, worker: &str, epoch: u64) {
        let slot = self.slots.get(worker).copied();
        if let Some(slot) = slot.filter(|slot| self.workers[slot.0 as usize].epoch <= epoch) {
            self.clear(slot);
        }
    }

    /// Tokens that this worker's cache holds, as it reports itself; until another process is the worker.
    pub fn set_capacity(&mut self, slot: Slot, tokens: u64) {
        self.workers[slot.0 as usize].reported = Some(tokens);
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often limits were reached.
    pub fn counters(&self) -> PrefixIndexCounters {
        self.counters
    }

    /// Fills in what the candidates, whose slots are `slots`, are known to hold of a prompt; nothing else was filled in
    /// there before. What a candidate says itself ([`Candidate::told`]) goes before evidence about the same part of the
    /// prompt, unless the evidence is so young that the worker may still be at it.
    ///
    /// O(marks + their holders), and a look at each candidate for what it says. A candidate without a slot holds nothing.
    pub fn fill(&self, key: &Key, slots: &Slots, now: Duration, candidates: &mut [Candidate]) {
        let oldest = seconds(now.saturating_sub(self.settings.age_max));
        let young = seconds(now.saturating_sub(self.settings.told_after));
        let mut unknown = candidates.len();
        let whole = key.marks().last().map(|mark| mark.tokens);
        // From the deep end: the first mark found on a worker is all that matters there.
        for mark in key.marks().iter().rev() {
            for entry in self.table.holders(mark.hash) {
                let candidate = slots.candidate(entry.slot);
                let Some(candidate) = candidate.and_then(|at| candidates.get_mut(at)) else {
                    continue;
                };
                let told = candidate.told.map_or(0, |told| told.until_tokens);
                let oldest = if mark.tokens <= told { young } else { oldest };
                if candidate.held_tokens == 0 && entry.second >= oldest {
                    candidate.held_tokens = mark.tokens;
                    if Some(mark.tokens) == whole {
                        candidate.whole_ago = Some(self.records - entry.used);
                    }
                    unknown -= 1;
                }
            }
            if unknown == 0 {
                break;
            }
        }
        for candidate in candidates {
            if let Some(told) = candidate.told {
                candidate.held_tokens = candidate.held_tokens.max(told.held_tokens);
            }
        }
    }

    /// Fills in how large the candidates' caches are, and how much is known to be in them: for policies that look at
    /// whole caches.
    ///
    /// # Panics
    /// If there are fewer slots than candidates.
    pub fn fill_caches(&self, slots: &Slots, candidates: &mut [Candidate]) {
        for (index, candidate) in candidates.iter_mut().enumerate() {
            let slot = slots.of(index).0;
            candidate.known_tokens = self.table.tokens(slot);
            candidate.kv_tokens = self.workers[slot as usize].reported;
        }
    }

    /// These marks of a prompt went to a worker: those that heat alone does not show ([`crate::Decision::marks`]).
    pub fn record(&mut self, slot: Slot, marks: &[Link], now: Duration) -> Recorded {
        self.records += 1;
        let mut recorded = Recorded {
            end: marks.last().map(|mark| mark.hash),
            length: marks.len(),
            ..Recorded::default()
        };
        let renew = seconds(now.saturating_sub(self.settings.age_max / RENEW_SHARE));
        // The mark before the first that is news.
        let mut before = None;
        // The tail first, so that it is also forgotten first.
        for (at, mark) in marks.iter().enumerate().rev() {
            let parent = at.checked_sub(1).map_or(ROOT, |before| marks[before].hash);
            let known = self.touch(slot, (mark.hash, parent), now, false);
            if known.is_none() {
                recorded.unknown.push(mark.hash);
            }
            if known.is_none_or(|(second, _)| second < renew) {
                recorded.news.push(mark.hash);
                before = at.checked_sub(1).map(|at| marks[at].hash);
            }
            if let (Some((second, used)), None) = (known, recorded.last_used) {
                recorded.last_used = Some(used);
                recorded.lead = (second < seconds(now)).then_some(mark.hash);
            }
        }
        if !recorded.news.is_empty() {
            recorded.lead = before;
        }
        recorded.news.reverse();
        recorded.unknown.reverse();
        self.fit(slot);
        recorded
    }

    /// Another replica reports that a worker holds these marks, in the order of their chain. What comes before the
    /// first of them in the chain was used with them: it leaves no replica's prefix index sooner than the sender's.
    ///
    /// Only in the epoch that the worker is in by [`PrefixIndex::slot`]: a replica that reports another one could empty
    /// the row, and have all true reports refused from then on. Epoch 0, not known when they went there, is believed.
    pub fn learn(&mut self, worker: &str, epoch: u64, marks: &[u64], now: Duration) {
        let slot = self.slot_in(worker, epoch);
        let Some(slot) = slot.filter(|_| is_of_a_key(marks)) else {
            self.counters.refused += 1;
            return;
        };
        self.records += 1;
        for (at, &mark) in marks.iter().enumerate().rev() {
            let parent = at.checked_sub(1).map_or(ROOT, |before| marks[before]);
            self.touch(slot, (mark, parent), now, true);
        }
        if let Some(&first) = marks.first() {
            self.renew_before(slot, first, seconds(now));
        }
        self.fit(slot);
    }

    /// Renews what comes before a mark in its chain, from the deep end, as [`PrefixIndex::record`] does.
    fn renew_before(&mut self, slot: Slot, mark: u64, second: u32) {
        let entry = self.table.get(slot.0, mark);
        let mut parent = entry.map_or(ROOT, |entry| entry.parent);
        for _ in 0..MARKS_MAX {
            let Some(entry) = self.table.renew(slot.0, parent, second, self.records) else {
                return;
            };
            if !self.renewals.go_on(second, entry.renewed) {
                self.counters.spared += 1;
                return;
            }
            parent = entry.parent;
        }
    }

    /// A request ended before the worker computed it: what was new with it is not there. Where another request was sent there
    /// with it since, that one computes it, or takes it back when it ends so, too. Answers what others should take back.
    /// Not of an epoch that is not the worker's; epoch 0, not known when they went there, is believed.
    ///
    /// `recorded` is what [`PrefixIndex::record`] answered for that request.
    pub fn retract(&mut self, worker: &str, epoch: u64, recorded: &Recorded) -> Vec<u64> {
        let mut gone = Vec::new();
        let Some(slot) = self.slot_in(worker, epoch) else {
            return gone;
        };
        let mut give_up = |mark: u64| {
            let (parent, is_gone) = self.table.give_up(slot.0, mark)?;
            if is_gone {
                gone.push(mark);
            }
            Some(parent)
        };
        let mut next = recorded.end;
        for &mark in recorded.unknown.iter().rev() {
            next = give_up(mark);
        }
        // What was known, from the deep end: the rest of the chain.
        for _ in recorded.unknown.len()..recorded.length {
            let Some(parent) = next.and_then(&mut give_up) else {
                break;
            };
            next = Some(parent);
        }
        gone
    }

    /// Another replica reports that a request ended before the worker computed it: these marks, which were new with it, are
    /// not there, unless an own request went there with them, too. Answers records of those: within a second of the other
    /// one's, nobody was told of it, and only this replica would know them. Nothing is said of others. Not of an epoch that
    /// is not the worker's; epoch 0, not known when they went there, is believed.
    pub fn take_back(&mut self, worker: &str, epoch: u64, marks: &[u64]) -> Vec<Vec<u64>> {
        let Some(slot) = self.slot_in(worker, epoch) else {
            return Vec::new();
        };
        let marks = marks.iter().take(MARKS_MAX);
        records(marks.filter_map(|&mark| self.table.untell(slot.0, mark).copied()))
    }

    /// The epoch that a worker is in by [`PrefixIndex::slot`]; 0 where none is known.
    pub fn epoch_of(&self, worker: &str) -> u64 {
        let slot = self.slots.get(worker);
        slot.map_or(0, |slot| self.workers[slot.0 as usize].epoch)
    }

    /// The slot of a worker, if it is known to be in this epoch.
    fn slot_in(&self, worker: &str, epoch: u64) -> Option<Slot> {
        let slot = *self.slots.get(worker)?;
        let is_its = epoch == 0 || epoch == self.workers[slot.0 as usize].epoch;
        is_its.then_some(slot)
    }

    /// Another replica reports that a worker does not hold these any more, nor what was used there before all of them.
    /// Not of an epoch that is not the worker's; epoch 0, not known when they went there, is believed.
    pub fn unlearn(&mut self, worker: &str, epoch: u64, marks: &[u64]) {
        let Some(slot) = self.slot_in(worker, epoch) else {
            return;
        };
        let marks = marks.iter().take(MARKS_MAX);
        let removed = marks.filter_map(|&mark| self.table.remove(slot.0, mark));
        // One of them may have been used again since.
        if let Some(used) = removed.map(|entry| entry.used).min() {
            self.forget_until(slot, used);
        }
    }

    /// Forgets what was used no later than by this record.
    fn forget_until(&mut self, slot: Slot, used: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        while self
            .table
            .oldest(slot.0)
            .is_some_and(|entry| entry.used <= used)
        {
            gone.extend(self.table.pop_oldest(slot.0));
        }
        gone
    }

    /// An answer reported its cached tokens. Far fewer than expected: what this worker used before that chain is gone,
    /// too, and is forgotten here. Answers the marks that others should forget, at most one record of them.
    ///
    /// `recorded` is what [`PrefixIndex::record`] answered for that request.
    pub fn correct(
        &mut self,
        slot: Slot,
        recorded: &Recorded,
        expected_tokens: u32,
        cached_tokens: u32,
    ) -> Vec<u64> {
        let Some(last_used) = recorded.last_used else {
            return Vec::new();
        };
        if !is_far_below(expected_tokens, cached_tokens, FAR_TOKENS) {
            return Vec::new();
        }
        self.counters.corrected += 1;
        let gone = self.forget_until(slot, last_used);
        // The newest of them show the others how far to forget.
        gone[gone.len().saturating_sub(GONE_SENT_MAX)..].to_vec()
    }

    /// What is known of a worker, in records for a replica that starts: it takes them for new, as records have no age. So what
    /// is nearer to its end than to its last use is left out, of which the two would differ for longer if it was sent.
    pub fn snapshot(&self, worker: &str, now: Duration) -> Option<(u64, Vec<Vec<u64>>)> {
        let slot = self.slots.get(worker)?;
        let oldest = seconds(now.saturating_sub(self.settings.age_max / 2));
        // Oldest first, so that learning them restores the order of use.
        let newest_first = self.table.newest_first(slot.0);
        let fit: Vec<_> = newest_first
            .take_while(|entry| entry.second >= oldest)
            .copied()
            .collect();
        let records = records(fit.into_iter().rev());
        Some((self.workers[slot.0 as usize].epoch, records))
    }

    fn touch(
        &mut self,
        slot: Slot,
        link: (u64, u64),
        now: Duration,
        is_told: bool,
    ) -> Option<(u32, u64)> {
        if self.table.len() >= self.settings.entries_max as usize
            && self.table.get(slot.0, link.0).is_none()
        {
            // The fullest list pays: a busy worker must not push out all that is known of quiet ones.
            if let Some(fullest) = self.table.fullest() {
                self.table.pop_oldest(fullest);
                self.counters.crowded_out += 1;
            }
        }
        let time = (seconds(now), self.records);
        let before = self.table.touch(slot.0, link, time, is_told);
        before.map(|entry| (entry.second, entry.used))
    }

    /// Forgets what the worker's cache has no room for, and what is too old.
    fn fit(&mut self, slot: Slot) {
        let reported = self.workers[slot.0 as usize].reported;
        let capacity = reported.unwrap_or(self.settings.cache_tokens);
        while self.table.tokens(slot.0) > capacity {
            self.table.pop_oldest(slot.0);
            self.counters.evicted += 1;
        }
    }

    /// Removes evidence past the age limit; call now and then, it only returns memory.
    pub fn expire(&mut self, now: Duration) {
        let oldest = seconds(now.saturating_sub(self.settings.age_max));
        for slot in 0..self.workers.len() {
            let slot = u32::try_from(slot).expect("made from u32");
            while self
                .table
                .oldest(slot)
                .is_some_and(|entry| entry.second < oldest)
            {
                self.table.pop_oldest(slot);
                self.counters.expired += 1;
            }
        }
    }

    /// Nothing is known of the process that is the worker now: neither what its cache holds, nor how large it is.
    fn clear(&mut self, slot: Slot) {
        while self.table.pop_oldest(slot.0).is_some() {}
        self.workers[slot.0 as usize].reported = None;
    }
}

/// Whether a key may have these marks. One that adds no tokens takes no room in any cache, so nothing would ever evict it.
fn is_of_a_key(marks: &[u64]) -> bool {
    marks.len() <= MARKS_MAX && marks.iter().all(|&mark| added_tokens(mark) > 0)
}

/// Records of a worker's entries. A chain's tail comes before its head: as far as they lie together they go in one record,
/// after the mark that they follow.
fn records(entries: impl Iterator<Item = IndexEntry>) -> Vec<Vec<u64>> {
    let mut records: Vec<Vec<u64>> = Vec::new();
    let mut run: Vec<u64> = Vec::new();
    let mut parent = ROOT;
    for entry in entries {
        let follows = entry.mark == parent && run.len() + 1 < MARKS_MAX;
        if !follows && !run.is_empty() {
            records.push(chain(parent, std::mem::take(&mut run)));
        }
        run.push(entry.mark);
        parent = entry.parent;
    }
    if !run.is_empty() {
        records.push(chain(parent, run));
    }
    records
}

/// A record of a run of marks, the tail first, after the mark that they follow.
fn chain(parent: u64, mut run: Vec<u64>) -> Vec<u64> {
    if parent != ROOT {
        run.push(parent);
    }
    run.reverse();
    run
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::renewals::RENEWALS_MAX;

    const NOW: Duration = Duration::from_secs(100);

    /// As many marks as a chain may have, of 16 tokens each.
    fn chain(number: u64) -> Vec<u64> {
        let marks = number * MARKS_MAX as u64..(number + 1) * MARKS_MAX as u64;
        marks.map(|mark| mark << 8 | 1).collect()
    }

    /// What a sender may send in a second by its bytes asks for twenty million renewals.
    #[test]
    fn a_flood_of_short_records_renews_no_more_than_a_second_is_given() {
        const RECORDS: u32 = 95_000;
        for chains in [1, 100] {
            let mut index = PrefixIndex::new(PrefixIndexSettings::default());
            index.slot("a", 1);
            let chains: Vec<Vec<u64>> = (0..chains).map(chain).collect();
            for chain in &chains {
                index.learn("a", 1, chain, NOW);
            }
            let ends = chains.iter().map(|chain| &chain[MARKS_MAX - 1..]);
            for end in ends.clone().cycle().take(RECORDS as usize) {
                index.learn("a", 1, end, NOW);
            }
            let entries = u32::try_from(index.len()).expect("there are few");
            let made = index.renewals.made;
            assert!(made <= RENEWALS_MAX + entries + RECORDS, "{made}");
            assert!(index.counters().spared > 0);
            // Another second, another limit.
            let later = NOW + Duration::from_secs(1);
            for end in ends.clone().chain(ends) {
                index.learn("a", 1, end, later);
            }
            assert_eq!(
                index.renewals.made as usize,
                2 * chains.len() * (MARKS_MAX - 1)
            );
        }
    }
}
