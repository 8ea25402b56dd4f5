//! The replicated worker set: a map that any replica may write and that merges without a leader.
//!
//! Pure. `(worker id, source) -> (stamp, present | removed, writer, spec)`, a join-semilattice:
//! merging keeps the greatest entry of each key, so replicas that exchanged the same entries in
//! any order, any number of times, hold the same map.
//!
//! | # | rule | test |
//! |---|------|------|
//! | 1 | greatest by stamp, then removed over present, then writer, then description | `merge_order` |
//! | 2 | a worker is in the set while any source declares it present | `any_source_is_enough` |
//! | 3 | an admin removal masks every other source | `admin_removal_masks` |
//! | 4 | a later admin add lifts the mask | `admin_add_lifts_the_mask` |
//! | 5 | configuration read at start has stamp 0: anything explicit wins | `configuration_loses_to_anything_explicit` |
//! | 6 | a source retracts only what it declared; a replica's death retracts nothing | `a_source_retracts_only_itself` |
//! | 7 | the description comes from admin, else config, else the first provider by name | `admin_describes_first` |
//! | 8 | learned facts fill gaps, never make a worker present, end with its removal | `learned_facts_fill_gaps_only` |
//! | 9 | an entry on which nothing depends counts no more after 24 h of contact | `tombstones_live_by_contact` |
//! | 10 | a removal that masks something is never dropped | `a_masking_removal_stays` |
//! | 11 | the first replica to give up a tombstone makes the others give it up | `a_tombstone_is_given_up_together` |
//! | 12 | stamps from the future are merged; beyond 24 h they are left out, beyond 25 h their batch is | `far_future_is_left_out`, `far_future_is_quarantined_whole` |
//! | 13 | tables are bounded: own writes at 24,576 entries, merges at twice that | `the_map_is_bounded` |
//! | 14 | after too long alone only the own configuration survives; what was written here and is gone is named | `starting_over_keeps_configuration`, `starting_over_keeps_nothing_of_anothers_configuration`, `starting_over_names_what_was_written_here` |
//! | 15 | a warm-up ends at its time, within 10 min, without a message | `a_warm_up_ends_by_itself`, `it_takes_ten_minutes_at_most` |
//! | 16 | ending it earlier changes that record only: any later record beats it | `the_end_of_a_warm_up_overrides_nothing` |
//! | 17 | a source that repeats itself neither renews nor ends it | `a_source_that_repeats_itself_neither_renews_nor_ends_it` |
//! | 18 | an epoch only rises, whichever replica writes it | `an_epoch_only_rises`, `concurrent_writers_agree` |
//! | 19 | what only a later release can read is carried and counted, and makes no worker present | `what_a_later_release_said_is_carried` |
//! | 20 | labels never make a worker present, and end with its removal | `labels_make_no_worker_and_end_with_it` |
//! | 21 | a write of labels is laid over the known ones; of two at once the later is kept | `labels_are_laid_over_what_is_known`, `the_last_writer_of_labels_wins` |
//! | 22 | an administrator's drain makes no worker present, and ends with it | `a_drained_worker_leaves_with_its_sources`, `a_drain_makes_no_worker_present` |
//! | 23 | what was removed gives way, the oldest first: own writes find room | `what_was_removed_leaves_room_for_new_workers` |
//! | 24 | once the own clock is right again, what it stamped too far ahead goes, and later stamps are of now | `a_clock_that_was_far_ahead_begins_anew` |
//! | 25 | a start describes no worker of the cluster anew | `planes::registry::tests::a_start_describes_no_worker_of_the_cluster_anew`, `planes::registry::tests::nor_where_the_registry_comes_before_the_configuration` |
//!
//! Not here: which replicas are alive, which workers are healthy or loaded. None of it changes the set.

mod anew;
mod contact;
mod digest;
mod drain;
mod entry;
mod error;
mod joining;
mod labels;
mod restart;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod warming;

use std::cell::OnceCell;
use std::collections::btree_map::Entry as Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use contact::{Contact, ISOLATION_MAX, Reunion};
pub use digest::{BUCKETS, Digest, DigestError, Summary};
pub use entry::Entry;
pub use error::{ChangeError, RegistryError};
pub use restart::EPOCH_MAX;
pub(crate) use warming::Warmups;
pub use warming::{WARMING_MAX, Warming};

use crate::hlc::{Clock, Drift, Stamp};
use crate::replica::ReplicaId;
use crate::worker::{Labels, Source, State, WorkerId, WorkerSpec};

/// Own writes are refused when the map has this many entries (tombstones included).
///
/// 5,000 workers, each with what its source, it itself, its last start and its labels declare, and tombstones.
pub const ENTRIES_MAX: usize = 24_576;
/// New keys from peers are refused above this; more than [`ENTRIES_MAX`], so that writes made at
/// the limit on several replicas at once still reach everybody.
pub const MERGED_ENTRIES_MAX: usize = 2 * ENTRIES_MAX;
/// At most this many entries on which nothing depends are kept; the oldest are dropped first.
pub const UNUSED_MAX: usize = ENTRIES_MAX / 2;
/// So many of them are kept however many others there are: a removal must be remembered until everybody has it.
const UNUSED_MIN: usize = ENTRIES_MAX / 8;
/// Between the two they leave so much room for own writes.
const ROOM: usize = ENTRIES_MAX / 16;
/// How long an entry on which nothing depends is kept, in time with at least one live peer.
pub const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// For how much longer it is kept after that, no longer counted in digests, so that the first
/// replica to give it up informs the others instead of taking it back from them.
const PARTING: Duration = Duration::from_secs(60 * 60);

type Key = (WorkerId, Source);

/// A member of the worker set, as all its sources together describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its id on the ring.
    pub id: WorkerId,
    /// Its description. In a view, a warm-up that is over reads as active.
    pub spec: Arc<WorkerSpec>,
    /// Its warm-up, unless that was ended; in a view, or is over.
    pub warming: Option<Warming>,
    /// What is known of it beyond its description; no part of the ring.
    pub labels: Arc<Labels>,
    /// An administrator drains it, whatever its sources say; its state is then `Draining`, too.
    pub is_drained: bool,
    /// Nobody declared its models: those of the description are what it lists itself.
    pub models_are_learned: bool,
}

/// One replica's copy of the map, and the clock that stamps its own writes.
#[derive(Clone, Debug)]
pub struct Registry {
    replica: ReplicaId,
    clock: Clock,
    entries: BTreeMap<Key, Entry>,
    /// The workers of this replica's own configuration. Others' are in the map as well, and look the same there.
    configured: BTreeSet<WorkerId>,
    /// Sums over the entries, once somebody asked for them; emptied by every change.
    summary: OnceCell<Summary>,
}

/// What merging a batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Entries that changed our map.
    pub changed: usize,
    /// New keys refused because the map is full; replicas differ until something is removed.
    pub refused: usize,
    /// Starts of workers that lie more than a day ahead of our wall clock; none of them is taken.
    pub ahead: usize,
    /// Entries that are stamped more than a day ahead of our wall clock; none of them is taken.
    pub too_far: usize,
    /// Greatest lead of a stamp over our wall clock, if above the alarm limit.
    pub drift: Option<Duration>,
}

impl Merged {
    /// Whether nothing of the batch was left out.
    pub fn is_whole(&self) -> bool {
        self.refused == 0 && self.ahead == 0 && self.too_far == 0
    }
}

/// The one that took a worker out of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenOut {
    /// An administrator, whose removal masks every source.
    ByAdmin,
    /// Somebody's configuration, read again without it.
    ByReload,
}

impl Registry {
    /// An empty map; `replica` signs its own writes.
    pub fn new(replica: ReplicaId) -> Self {
        Self {
            replica,
            clock: Clock::default(),
            entries: BTreeMap::new(),
            configured: BTreeSet::new(),
            summary: OnceCell::new(),
        }
    }

    /// A worker from the configuration file as read at start. Returns the entry to push, or `None`
    /// if something explicit is known already, or the same.
    /// Errors: [`RegistryError::Full`].
    pub fn configure(
        &mut self,
        id: WorkerId,
        spec: WorkerSpec,
    ) -> Result<Option<Entry>, RegistryError> {
        let entry = Entry {
            id,
            source: Source::Config,
            stamp: Stamp::ZERO,
            writer: None,
            spec: Some(Arc::new(spec)),
            unused_ms: 0,
        };
        self.room_for(&entry.id, &entry.source)?;
        self.configured.insert(entry.id.clone());
        Ok(self.keep_greater(entry.clone()).then_some(entry))
    }

    /// `source` declares now that this worker exists. Returns the entry to push.
    ///
    /// An admin's declaration is always written anew, since it must win over a removal not yet received;
    /// the other sources repeat themselves all the time, so an equal repetition gives `None`.
    /// Errors: [`RegistryError::Full`].
    pub fn put(
        &mut self,
        id: WorkerId,
        source: Source,
        spec: WorkerSpec,
        now_ms: u64,
    ) -> Result<Option<Entry>, RegistryError> {
        self.room_for(&id, &source)?;
        if source == Source::Config {
            // It may be a repetition of what another replica's file has.
            self.configured.insert(id.clone());
        }
        let known = self.present(&id, &source);
        let is_repetition = source != Source::Admin
            && known.is_some_and(|known| {
                *known == spec || warming::differ_in_warmth_only(known, &spec)
            });
        Ok((!is_repetition).then(|| self.write(id, source, Some(Arc::new(spec)), now_ms)))
    }

    /// [`Registry::put_all`] of one that this replica answers for: written anew also where another replica wrote the same.
    /// Errors: [`RegistryError::Full`].
    pub fn hold(
        &mut self,
        id: WorkerId,
        source: Source,
        spec: WorkerSpec,
        now_ms: u64,
    ) -> Result<Vec<Entry>, RegistryError> {
        self.room_for(&id, &source)?;
        let mut written = self.start_anew(&id, now_ms);
        let entry = self.entries.get(&(id.clone(), source.clone()));
        let is_other = entry.is_some_and(|entry| entry.writer.as_ref() != Some(&self.replica));
        if is_other && self.present(&id, &source).is_some() {
            written.push(self.write(id, source, Some(Arc::new(spec)), now_ms));
            return Ok(written);
        }
        written.extend(self.put(id, source, spec, now_ms)?);
        Ok(written)
    }

    /// What one source declares of one worker.
    pub fn entry(&self, worker: &WorkerId, source: &Source) -> Option<&Entry> {
        self.entries.get(&(worker.clone(), source.clone()))
    }

    /// The sources that declare a worker, by precedence; none for one that an administrator removed.
    pub fn sources_of(&self, worker: &WorkerId) -> Vec<Source> {
        let of_worker = self.of_worker(worker);
        if effective(&of_worker).is_none() {
            return Vec::new();
        }
        let claiming = of_worker.iter().filter(|entry| claims(entry));
        claiming.map(|entry| entry.source.clone()).collect()
    }

    /// What one source declares of each worker, by id, tombstones included.
    pub fn of_source<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Entry> {
        self.entries().filter(move |entry| entry.source == *source)
    }

    /// [`Registry::put`] of many: all or none. What is noted of those that were not in the set ends.
    /// Errors: [`RegistryError::Full`].
    pub fn put_all(
        &mut self,
        source: &Source,
        workers: Vec<(WorkerId, WorkerSpec)>,
        now_ms: u64,
    ) -> Result<Vec<Entry>, RegistryError> {
        let keys = workers.iter().map(|(id, _)| (id.clone(), source.clone()));
        let new: BTreeSet<Key> = keys.filter(|key| !self.entries.contains_key(key)).collect();
        if self.entries.len() + new.len() > ENTRIES_MAX {
            return Err(RegistryError::Full);
        }
        let mut written = Vec::with_capacity(workers.len());
        for (id, spec) in workers {
            written.extend(self.start_anew(&id, now_ms));
            written.extend(self.put(id, source.clone(), spec, now_ms)?);
        }
        Ok(written)
    }

    /// Facts that this replica learned by asking the worker. Returns the entry to push, or `None`
    /// if they were known.
    /// Errors: [`RegistryError::UnknownWorker`] if the worker was removed meanwhile, [`RegistryError::Full`].
    pub fn learn(
        &mut self,
        id: WorkerId,
        facts: WorkerSpec,
        now_ms: u64,
    ) -> Result<Option<Entry>, RegistryError> {
        if self.is_worker(&id) {
            self.put(id, Source::Learned, facts, now_ms)
        } else {
            Err(RegistryError::UnknownWorker(id))
        }
    }

    /// `source` declares now that this worker is gone. Returns the entries to push: the tombstone, and
    /// the end of what was learned about the worker, of its labels and of its drain, if it left the set. Empty if a source other
    /// than admin had not declared that it exists.
    /// Errors: [`RegistryError::UnknownWorker`] if an admin removes what is not in the set.
    pub fn remove(
        &mut self,
        id: &WorkerId,
        source: Source,
        now_ms: u64,
    ) -> Result<Vec<Entry>, RegistryError> {
        if source == Source::Admin && !self.is_worker(id) {
            return Err(RegistryError::UnknownWorker(id.clone()));
        }
        if source == Source::Config {
            self.configured.remove(id);
        }
        if source != Source::Admin && self.present(id, &source).is_none() {
            return Ok(Vec::new());
        }
        let mut written = vec![self.write(id.clone(), source, None, now_ms)];
        if self.is_worker(id) {
            return Ok(written);
        }
        written.extend(self.end_notes(id, now_ms));
        Ok(written)
    }

    /// Ends what is noted beside the declarations of a worker that is not in the set.
    fn end_notes(&mut self, id: &WorkerId, now_ms: u64) -> Vec<Entry> {
        let notes = [Source::Learned, Source::Labels, Source::Drain];
        let noted = notes.map(|note| self.present(id, &note).is_some().then_some(note));
        let ended = noted.into_iter().flatten();
        ended
            .map(|note| self.write(id.clone(), note, None, now_ms))
            .collect()
    }

    /// A worker that comes into the set starts anew: whoever took it out may not have known of all that others noted of
    /// it. Returns the entries to push.
    fn start_anew(&mut self, id: &WorkerId, now_ms: u64) -> Vec<Entry> {
        match self.is_worker(id) {
            true => Vec::new(),
            false => self.end_notes(id, now_ms),
        }
    }

    /// Takes over what is greater in `entries`, from a push, a sync or a snapshot.
    /// Errors: [`RegistryError::Quarantine`] if any stamp is more than 25 h ahead of `now_ms` (Unix milliseconds); then
    /// nothing of the batch was merged.
    pub fn merge(&mut self, entries: Vec<Entry>, now_ms: u64) -> Result<Merged, RegistryError> {
        let mut merged = Merged::default();
        if let Some(latest) = entries.iter().max_by_key(|entry| entry.stamp) {
            match Drift::of(latest.stamp, now_ms) {
                Drift::Within => {}
                Drift::Alarm(lead) | Drift::TooFar(lead) => merged.drift = Some(lead),
                Drift::Quarantine(lead) => {
                    return Err(RegistryError::Quarantine {
                        id: latest.id.clone(),
                        lead,
                    });
                }
            }
        }
        for entry in entries {
            if restart::is_ahead(&entry, now_ms) {
                merged.ahead += 1;
                continue;
            }
            if Drift::is_too_far(entry.stamp, now_ms) {
                merged.too_far += 1;
                continue;
            }
            self.clock.observe(entry.stamp);
            if self
                .entries
                .contains_key(&(entry.id.clone(), entry.source.clone()))
            {
                merged.changed += usize::from(self.keep_greater(entry));
            } else if is_expired(&entry) {
                // Dropped here already, or never needed.
            } else if self.entries.len() >= MERGED_ENTRIES_MAX {
                merged.refused += 1;
            } else {
                merged.changed += usize::from(self.keep_greater(entry));
            }
        }
        Ok(merged)
    }

    /// The worker set, sorted by id.
    pub fn workers(&self) -> Vec<Worker> {
        let entries: Vec<&Entry> = self.entries.values().collect();
        entries
            .chunk_by(|a, b| a.id == b.id)
            .filter_map(|of_one| {
                let spec = effective(of_one)?;
                let said = of_one.iter().find(|entry| claims(entry))?;
                let is_drained = drain::is_drained(of_one);
                Some(Worker {
                    id: of_one[0].id.clone(),
                    spec,
                    warming: Warming::of(said).filter(|_| !is_drained),
                    labels: labels(of_one),
                    is_drained,
                    models_are_learned: said.spec.as_ref()?.models().is_empty(),
                })
            })
            .collect()
    }

    /// Who took a worker out of the set that the configuration may name; `None` if nobody did, or it is in the set.
    pub fn taken_out(&self, id: &WorkerId) -> Option<TakenOut> {
        let of_worker = self.of_worker(id);
        if effective(&of_worker).is_some() {
            return None;
        }
        let removed = |source| {
            let mut entries = of_worker.iter();
            entries.any(|entry| entry.source == source && entry.is_removed())
        };
        if removed(Source::Admin) {
            Some(TakenOut::ByAdmin)
        } else {
            removed(Source::Config).then_some(TakenOut::ByReload)
        }
    }

    /// All entries that count, in key order, tombstones included: what a snapshot holds.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| !is_expired(entry))
    }

    /// Sum over the map.
    pub fn digest(&self) -> Digest {
        self.sums().digest
    }

    /// The question of anti-entropy: sums by part of the map. Costs one pass over all entries after each change.
    pub fn summary(&self) -> Summary {
        self.sums().clone()
    }

    fn sums(&self) -> &Summary {
        self.summary.get_or_init(|| Summary::of(self.entries()))
    }

    /// The answer to a peer's summary: our entries in every part that differs, those that we have
    /// given up included, so that the peer does too.
    ///
    /// After the peer merged them, its own answer to *our* summary holds what we lack, so a sync
    /// is: summary out; summary and entries back; remaining entries out.
    pub fn differing(&self, theirs: &Summary) -> Vec<Entry> {
        let ours = self.sums();
        // The mostly asked question costs no look at the entries.
        if ours.buckets == theirs.buckets {
            return Vec::new();
        }
        digest::with_buckets(self.entries.values())
            .filter(|(_, bucket)| ours.buckets[*bucket] != theirs.buckets[*bucket])
            .map(|(entry, _)| entry.clone())
            .collect()
    }

    /// Lets unused entries age by `contact`, time with at least one live peer (see [`Contact`]; all time where there can be
    /// none), and drops those that are of no use to anybody. Returns how many ceased to count, or count again. Call it
    /// about once a second.
    pub fn advance(&mut self, contact: Duration) -> usize {
        let unused = self.unused_keys();
        let contact_ms = millis(contact);
        let mut changed = 0;
        let mut dropped = Vec::new();
        let mut kept = Vec::new();
        for (key, entry) in &mut self.entries {
            let counted = !is_expired(entry);
            if unused.binary_search(key).is_err() {
                entry.unused_ms = 0;
                changed += usize::from(!counted);
                continue;
            }
            entry.unused_ms = entry.unused_ms.saturating_add(contact_ms);
            changed += usize::from(counted && is_expired(entry));
            if entry.unused_ms >= millis(RETENTION + PARTING) {
                dropped.push(key.clone());
            } else {
                kept.push((entry.stamp, key.clone()));
            }
        }
        // By stamp, not by age: the same choice on every replica.
        kept.sort_unstable_by(|a, b| b.cmp(a));
        let used = self.entries.len() - unused.len();
        let surplus = kept.split_off(unused_max(used).min(kept.len()));
        dropped.extend(surplus.into_iter().map(|(_, key)| key));
        for key in dropped {
            let gone = self.entries.remove(&key);
            changed += usize::from(gone.is_some_and(|entry| !is_expired(&entry)));
        }
        if changed > 0 {
            self.summary.take();
        }
        changed
    }

    fn room_for(&self, id: &WorkerId, source: &Source) -> Result<(), RegistryError> {
        let is_new = !self.entries.contains_key(&(id.clone(), source.clone()));
        if is_new && self.entries.len() >= ENTRIES_MAX {
            Err(RegistryError::Full)
        } else {
            Ok(())
        }
    }

    fn write(
        &mut self,
        id: WorkerId,
        source: Source,
        spec: Option<Arc<WorkerSpec>>,
        now_ms: u64,
    ) -> Entry {
        let stamp = self.clock.tick(now_ms);
        let limited = |spec: Arc<WorkerSpec>| Arc::new(warming::limited((*spec).clone(), stamp));
        let spec = spec.map(limited);
        let writer = Some(self.replica.clone());
        let entry = Entry {
            id,
            source,
            stamp,
            writer,
            spec,
            unused_ms: 0,
        };
        self.keep_greater(entry.clone());
        entry
    }

    /// The join of one key. Returns whether the map changed.
    fn keep_greater(&mut self, entry: Entry) -> bool {
        self.summary.take();
        match self.entries.entry((entry.id.clone(), entry.source.clone())) {
            Cell::Vacant(cell) => {
                cell.insert(entry);
                true
            }
            Cell::Occupied(mut cell) => {
                let order = entry.order(cell.get());
                if order.is_gt() {
                    cell.insert(entry);
                    return true;
                }
                if order.is_lt() {
                    return false;
                }
                // Where others have given it up, so is it here: it counts no more.
                let kept = cell.get_mut();
                let counted = !is_expired(kept);
                kept.unused_ms = kept.unused_ms.max(entry.unused_ms);
                counted && is_expired(kept)
            }
        }
    }

    fn present(&self, id: &WorkerId, source: &Source) -> Option<&WorkerSpec> {
        self.entries
            .get(&(id.clone(), source.clone()))?
            .spec
            .as_deref()
    }

    fn of_worker(&self, id: &WorkerId) -> Vec<&Entry> {
        // `Admin` and `Drain` are the first and the last source that this release knows.
        let range = (id.clone(), Source::Admin)..=(id.clone(), Source::Drain);
        self.entries.range(range).map(|(_, entry)| entry).collect()
    }

    fn is_worker(&self, id: &WorkerId) -> bool {
        effective(&self.of_worker(id)).is_some()
    }

    /// Keys of entries without which the set would be the same, sorted: tombstones, except an
    /// admin's that masks something, and facts about, and starts of, workers that are not in the set.
    fn unused_keys(&self) -> Vec<Key> {
        let entries: Vec<&Entry> = self.entries.values().collect();
        let mut unused = Vec::new();
        for of_one in entries.chunk_by(|a, b| a.id == b.id) {
            let in_set = effective(of_one).is_some();
            let masks = |entry: &Entry| {
                entry.source == Source::Admin && of_one.iter().any(|other| claims(other))
            };
            let is_unused = |entry: &Entry| match entry.is_removed() {
                true => !masks(entry),
                false => !can_claim(entry) && !in_set,
            };
            let keys = of_one.iter().filter(|entry| is_unused(entry));
            unused.extend(keys.map(|entry| (entry.id.clone(), entry.source.clone())));
        }
        unused
    }
}

/// How many entries on which nothing depends are kept beside so many others. Only by numbers that are the same on every
/// replica, so that none takes back from another what it dropped itself.
fn unused_max(used: usize) -> usize {
    (ENTRIES_MAX - ROOM)
        .saturating_sub(used)
        .clamp(UNUSED_MIN, UNUSED_MAX)
}

/// Whether an entry declares that its worker exists.
fn claims(entry: &Entry) -> bool {
    !entry.is_removed() && can_claim(entry)
}

/// Whether an entry's source can declare that a worker exists. What a later release's can do is not known here.
fn can_claim(entry: &Entry) -> bool {
    !matches!(
        entry.source,
        Source::Learned | Source::Restart | Source::Labels | Source::Drain | Source::Later(_)
    )
}

/// The description that all entries of one worker, in order of their sources, amount to; `None`
/// if it is not in the set.
fn effective(of_one: &[&Entry]) -> Option<Arc<WorkerSpec>> {
    if of_one
        .iter()
        .any(|entry| entry.source == Source::Admin && entry.is_removed())
    {
        return None;
    }
    let said = of_one.iter().find(|entry| claims(entry))?.spec.as_ref()?;
    let of = |source| {
        let found = of_one.iter().find(|entry| entry.source == source);
        found.and_then(|entry| entry.spec.as_ref())
    };
    let mut whole = Arc::clone(said);
    if let Some(facts) = of(Source::Learned) {
        whole = Arc::new(whole.completed_by(facts));
    }
    if let Some(start) = of(Source::Restart) {
        whole = Arc::new(whole.not_before(start));
    }
    if drain::is_drained(of_one) {
        whole = Arc::new(whole.in_state(State::Draining));
    }
    Some(whole)
}

/// The labels that the entries of one worker hold.
fn labels(of_one: &[&Entry]) -> Arc<Labels> {
    let entry = of_one.iter().find(|entry| entry.source == Source::Labels);
    let spec = entry.and_then(|entry| entry.spec.as_ref());
    spec.map_or_else(Arc::default, |spec| Labels::read(spec.models()).into())
}

/// Whether an entry was of no use to anybody for so long that it counts no more.
fn is_expired(entry: &Entry) -> bool {
    entry.unused_ms >= millis(RETENTION)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
