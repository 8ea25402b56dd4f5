//! Bodies that no worker gets: two workers ended while they had such a request (see `deaths`).
//!
//! A mark is the length of a body and a hash of its path and bytes; the replica that made it sends it to the others, no
//! replica passes on what another sent, and it is forgotten after `retry.quarantine`. Of each sender the latest
//! [`OF_ONE_SENDER_MAX`] marks are held, so that one that makes them up does not crowd out those of others. Without marks a
//! request costs one atomic load before each attempt, with marks a comparison of lengths; only a body as long as a marked
//! one is hashed, once.
//!
//! An innocent request may be marked, so an operator can lift a mark. That is an entry of its own among the marks,
//! sent like them by the replica that was asked, and lasts as long: the mark of a body without bytes, which is never
//! made otherwise. It holds against all older marks with its hash, also those of a replica that has not received it.
//! Whoever is asked lifts marks of all replicas, so the share of one sender is not for its lifts: they have as many
//! places as all marks, beside them.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::live::Live;
use grapevine_gossip::ReplicaId;
use grapevine_gossip::peer_state::{QUARANTINE_MAX, Quarantined};
use parking_lot::Mutex;
use ring::digest;
use serde::Serialize;
use tokio::time::Instant;

/// Marks with less time left are not sent: a slow message must not make one younger.
const SENT_WHILE_LEFT: Duration = Duration::from_secs(5);

/// A lifted mark and a younger one of the same body differ by at least this: ages are rounded, and messages take time.
const LIFTS_WITHIN: Duration = Duration::from_secs(1);
/// Most marks that are held of those that one other replica sends.
const OF_ONE_SENDER_MAX: usize = 64;
/// In place of a body's length: the mark is lifted.
const LIFTED: u64 = 0;

/// A body: its length in bytes, and a hash of its path and bytes.
pub type BodyId = (u64, [u8; 16]);

/// What one request's body is known by. It is asked for before each attempt, and a body may be long: its hash is made
/// when it is first wanted, and kept.
#[derive(Debug, Default)]
pub struct KnownBy(OnceLock<BodyId>);

impl KnownBy {
    /// Of this path and body: always the same for one request.
    pub fn id(&self, path: &str, body: &[u8]) -> BodyId {
        *self.0.get_or_init(|| id_of(path, body))
    }
}

/// A mark, or an entry that lifts older ones with its hash.
#[derive(Debug)]
struct QuarantineEntry {
    id: BodyId,
    /// When it was made.
    since: Instant,
    /// The replica that sent it; none if it was made here.
    sender: Option<ReplicaId>,
}

impl QuarantineEntry {
    fn is_mark(&self) -> bool {
        self.id.0 != LIFTED
    }
}

/// All entries that hold, the oldest first: at most [`QUARANTINE_MAX`] marks, and as many that lift some.
#[derive(Debug, Default)]
struct QuarantineEntries(Vec<QuarantineEntry>);

impl QuarantineEntries {
    fn iter(&self) -> std::slice::Iter<'_, QuarantineEntry> {
        self.0.iter()
    }

    /// Takes it over in place of an earlier one about the same. Gives whether the oldest of its kind had to go for it;
    /// none if there is no room for one as old as this.
    fn add(&mut self, entry: QuarantineEntry) -> Option<bool> {
        self.0.retain(|known| known.id != entry.id);
        let is_alike = |known: &QuarantineEntry| known.is_mark() == entry.is_mark();
        let is_full = self.iter().filter(|known| is_alike(known)).count() >= QUARANTINE_MAX;
        if is_full {
            let oldest = self.0.iter().position(is_alike)?;
            // Else what is sent again and again would push out, and be pushed out, each time.
            if entry.since <= self.0[oldest].since {
                return None;
            }
            self.0.remove(oldest);
        }
        let at = self.0.partition_point(|known| known.since <= entry.since);
        self.0.insert(at, entry);
        Some(is_full)
    }

    /// A mark was lifted at this time.
    fn lift(&mut self, hash: [u8; 16], at: Instant, sender: Option<ReplicaId>) {
        self.0
            .retain(|known| known.id.1 != hash || known.since > at + LIFTS_WITHIN);
        self.add(QuarantineEntry {
            id: (LIFTED, hash),
            since: at,
            sender,
        });
    }

    /// Nothing new: it is known, or lifted by an entry that is no older.
    fn covers(&self, id: BodyId, since: Instant) -> bool {
        let is_no_newer = |known: &QuarantineEntry| since <= known.since + LIFTS_WITHIN;
        self.iter().any(|known| match known.id == id {
            true => known.is_mark() || is_no_newer(known),
            false => known.id == (LIFTED, id.1) && is_no_newer(known),
        })
    }

    /// Forgets the oldest marks of one sender, until there is a place for another; how many.
    fn make_room_for(&mut self, sender: &ReplicaId) -> u64 {
        let is_of_it =
            |entry: &QuarantineEntry| entry.is_mark() && entry.sender.as_ref() == Some(sender);
        let held = self.iter().filter(|entry| is_of_it(entry)).count();
        let mut too_many = (held + 1).saturating_sub(OF_ONE_SENDER_MAX);
        let gone = too_many as u64;
        self.0.retain(|entry| {
            let goes = too_many > 0 && is_of_it(entry);
            too_many -= usize::from(goes);
            !goes
        });
        gone
    }
}

/// A mark, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// Of path and body, 32 hexadecimal digits: the `body` of the log line.
    pub hash: String,
    /// Length of the body, in bytes.
    pub body_bytes: u64,
    /// Since it was made, in whole seconds.
    pub age_s: u64,
    /// For how much longer it holds, in whole seconds.
    pub left_s: u64,
}

/// All marks that this replica holds.
#[derive(Debug)]
pub struct Quarantine {
    /// For how long a mark holds; zero: there are none.
    keep: Live<Duration>,
    entries: Mutex<QuarantineEntries>,
    /// How many entries there are.
    count: AtomicUsize,
    /// How many of them are marks.
    marks: AtomicUsize,
}

impl Quarantine {
    /// Without marks.
    pub fn new(keep: Live<Duration>) -> Self {
        Self {
            keep,
            entries: Mutex::default(),
            count: AtomicUsize::new(0),
            marks: AtomicUsize::new(0),
        }
    }

    fn keep(&self) -> Duration {
        **self.keep.look()
    }

    /// For how much longer this body is refused; `None` if it is not. `known`: always the same for the same body.
    pub fn holds(&self, path: &str, body: &[u8], known: &KnownBy) -> Option<Duration> {
        if self.marks.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let length = body.len() as u64;
        if length == LIFTED {
            return None;
        }
        self.with(|entries| entries.iter().any(|entry| entry.id.0 == length))
            .then_some(())?;
        // Not under the lock: a body may be long.
        let id = known.id(path, body);
        self.with(|entries| {
            let mark = entries.iter().find(|entry| entry.id == id)?;
            Some(self.keep().saturating_sub(mark.since.elapsed()))
        })
    }

    /// Marks a body. Gives its hash for the log, and whether a mark had to go for it; none where nothing is marked.
    /// `known` as in [`Self::holds`].
    pub fn mark(&self, path: &str, body: &[u8], known: &KnownBy) -> Option<(String, bool)> {
        if self.keep().is_zero() || body.is_empty() {
            return None;
        }
        let id = known.id(path, body);
        let displaced = self.with(|entries| {
            // It does it again: what was lifted counts no more.
            entries.0.retain(|known| known.id != (LIFTED, id.1));
            entries.add(QuarantineEntry {
                id,
                since: Instant::now(),
                sender: None,
            })
        });
        Some((hex(id.1), displaced.unwrap_or_default()))
    }

    /// All marks that hold, the oldest first.
    pub fn list(&self) -> Vec<Mark> {
        let mark = |entry: &QuarantineEntry| Mark {
            hash: hex(entry.id.1),
            body_bytes: entry.id.0,
            age_s: entry.since.elapsed().as_secs(),
            left_s: self.keep().saturating_sub(entry.since.elapsed()).as_secs(),
        };
        self.with(|entries| entries.iter().filter(|w| w.is_mark()).map(mark).collect())
    }

    /// Lifts the marks with this hash, or all; how many there were. This is sent to the other replicas.
    pub fn lift(&self, hash: Option<&str>) -> usize {
        self.with(|entries| {
            let marks = entries.iter().filter(|entry| entry.is_mark());
            let hashes = marks.map(|entry| entry.id.1);
            let is_meant = |found: &[u8; 16]| hash.is_none_or(|hash| hex(*found) == hash);
            let chosen: Vec<[u8; 16]> = hashes.filter(is_meant).collect();
            for hash in &chosen {
                // It is the latest, so there is always room.
                entries.lift(*hash, Instant::now(), None);
            }
            chosen.len()
        })
    }

    /// What to send to the other replicas: what was marked or lifted here.
    pub fn to_send(&self) -> Vec<Quarantined> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let to_send = |entry: &QuarantineEntry| {
            let age = entry.since.elapsed();
            let is_due = entry.sender.is_none() && age + SENT_WHILE_LEFT < self.keep();
            is_due.then_some(Quarantined {
                length: entry.id.0,
                hash: entry.id.1,
                age,
            })
        };
        self.with(|entries| entries.iter().filter_map(to_send).collect())
    }

    /// Takes over the latest marks that another replica sends, and what it lifts. Gives how many of these marks are new
    /// here, and how many had to go for them.
    pub fn receive(&self, sender: &ReplicaId, received: &[Quarantined]) -> (u64, u64) {
        if received.is_empty() {
            return (0, 0);
        }
        let now = Instant::now();
        let fresh = received.iter().filter(|entry| entry.age < self.keep());
        let mut fresh: Vec<&Quarantined> = fresh.collect();
        fresh.sort_by_key(|entry| Reverse(entry.age));
        // More than are held of it would take turns.
        let is_mark = |entry: &&Quarantined| entry.length != LIFTED;
        let marks = fresh.iter().filter(|entry| is_mark(entry)).count();
        let mut too_old = marks.saturating_sub(OF_ONE_SENDER_MAX);
        fresh.retain(|entry| {
            let goes = too_old > 0 && is_mark(entry);
            too_old -= usize::from(goes);
            !goes
        });
        self.with(|entries| {
            let (mut new, mut gone) = (0, 0);
            for entry in fresh {
                let id = (entry.length, entry.hash);
                let since = now.checked_sub(entry.age).unwrap_or(now);
                if entries.covers(id, since) {
                    continue;
                }
                let from = Some(sender.clone());
                if !is_mark(&entry) {
                    entries.lift(entry.hash, since, from);
                    continue;
                }
                gone += entries.make_room_for(sender);
                let mark = QuarantineEntry {
                    id,
                    since,
                    sender: from,
                };
                if let Some(displaced) = entries.add(mark) {
                    new += 1;
                    gone += u64::from(displaced);
                }
            }
            (new, gone)
        })
    }

    /// Marks that hold now.
    pub fn count(&self) -> usize {
        if self.marks.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.with(|entries| entries.iter().filter(|entry| entry.is_mark()).count())
    }

    /// Looks at, or changes, the entries that still hold.
    fn with<T>(&self, look: impl FnOnce(&mut QuarantineEntries) -> T) -> T {
        // Each change is complete before anything could panic.
        let mut entries = self.entries.lock();
        let (now, keep) = (Instant::now(), self.keep());
        // They lie in the order of their age.
        let ended = |entry: &QuarantineEntry| now.saturating_duration_since(entry.since) >= keep;
        let expired = entries.0.partition_point(ended);
        entries.0.drain(..expired);
        let looked = look(&mut entries);
        self.count.store(entries.0.len(), Ordering::Relaxed);
        let marks = entries.iter().filter(|entry| entry.is_mark()).count();
        self.marks.store(marks, Ordering::Relaxed);
        looked
    }
}

fn hex(hash: [u8; 16]) -> String {
    let mut text = String::with_capacity(32);
    for byte in hash {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The path belongs to it: the same bytes elsewhere are another question.
fn id_of(path: &str, body: &[u8]) -> BodyId {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&(path.len() as u64).to_le_bytes());
    context.update(path.as_bytes());
    context.update(body);
    let mut hash = [0; 16];
    hash.copy_from_slice(&context.finish().as_ref()[..16]);
    (body.len() as u64, hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(600);

    fn replica(number: usize) -> ReplicaId {
        format!("r{number}").parse().expect("an id")
    }

    impl Quarantine {
        fn refuses(&self, path: &str, body: &[u8]) -> Option<Duration> {
            self.holds(path, body, &KnownBy::default())
        }

        fn marks(&self, path: &str, body: &[u8]) -> Option<(String, bool)> {
            self.mark(path, body, &KnownBy::default())
        }

        /// Receives all that another one sends, whose number this is.
        fn receives(&self, number: usize, other: &Quarantine) -> (u64, u64) {
            self.receive(&replica(number), &other.to_send())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_holds_for_its_body_and_its_time() {
        let quarantine = Quarantine::new(KEEP.into());
        assert_eq!(quarantine.refuses("/a", b"deadly"), None);
        assert!(quarantine.marks("/a", b"deadly").is_some());
        assert_eq!(quarantine.refuses("/a", b"deadly"), Some(KEEP));
        assert_eq!(quarantine.refuses("/b", b"deadly"), None);
        assert_eq!(quarantine.refuses("/a", b"dearly"), None);
        tokio::time::advance(KEEP - Duration::from_secs(1)).await;
        assert_eq!(
            quarantine.refuses("/a", b"deadly"),
            Some(Duration::from_secs(1))
        );
        assert!(quarantine.to_send().is_empty(), "too late to send");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(quarantine.refuses("/a", b"deadly"), None);
        assert_eq!(quarantine.count(), 0);
        // No question, no mark; and the setting that is off.
        assert!(quarantine.marks("/a", b"").is_none());
        assert!(
            Quarantine::new(Duration::ZERO.into())
                .marks("/a", b"x")
                .is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn marks_are_sent_with_their_age_and_grow_no_younger() {
        let (here, there) = (Quarantine::new(KEEP.into()), Quarantine::new(KEEP.into()));
        here.marks("/a", b"deadly");
        tokio::time::advance(Duration::from_secs(60)).await;
        let sent = here.to_send();
        assert_eq!(there.receive(&replica(1), &sent), (1, 0));
        assert_eq!(there.receive(&replica(1), &sent), (0, 0), "again");
        assert!(there.to_send().is_empty(), "it is another's to send");
        let left = KEEP - Duration::from_secs(60);
        assert_eq!(there.refuses("/a", b"deadly"), Some(left));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(there.receives(1, &here), (0, 0));
        let left = left - Duration::from_secs(30);
        assert_eq!(there.refuses("/a", b"deadly"), Some(left));
        tokio::time::advance(left).await;
        assert_eq!(
            here.receive(&replica(2), &sent),
            (1, 0),
            "an old entry of its age"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_makes_up_marks_crowds_out_nobody_elses() {
        let (here, honest, liar) = (
            Quarantine::new(KEEP.into()),
            Quarantine::new(KEEP.into()),
            Quarantine::new(KEEP.into()),
        );
        here.marks("/a", b"own");
        honest.marks("/a", b"deadly");
        assert_eq!(here.receives(1, &honest), (1, 0));
        let share = OF_ONE_SENDER_MAX as u64;
        for round in 0..20_usize {
            tokio::time::advance(Duration::from_millis(10)).await;
            for number in 0..OF_ONE_SENDER_MAX {
                liar.marks("/a", format!("{round} {number}").as_bytes());
            }
            let gone = if round == 0 { 0 } else { share };
            assert_eq!(here.receives(2, &liar), (share, gone), "{round}");
            assert_eq!(here.receives(2, &liar), (0, 0), "sent again: {round}");
            assert_eq!(here.count(), 2 + OF_ONE_SENDER_MAX);
        }
        assert!(liar.to_send().len() > OF_ONE_SENDER_MAX);
        assert!(here.refuses("/a", b"own").is_some() && here.refuses("/a", b"deadly").is_some());
        assert!(here.refuses("/a", b"19 0").is_some(), "the latest are held");
        assert!(here.refuses("/a", b"18 0").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn many_tellers_do_not_take_turns_in_a_full_table() {
        let here = Quarantine::new(KEEP.into());
        let senders: Vec<Quarantine> = (0..6).map(|_| Quarantine::new(KEEP.into())).collect();
        for (number, sender) in senders.iter().enumerate() {
            for mark in 0..OF_ONE_SENDER_MAX {
                tokio::time::advance(Duration::from_millis(1)).await;
                sender.marks("/a", format!("{number} {mark}").as_bytes());
            }
        }
        let hear = || senders.iter().enumerate().map(|(n, t)| here.receives(n, t));
        let all = (6 * OF_ONE_SENDER_MAX) as u64;
        let new: u64 = hear().map(|(new, _)| new).sum();
        assert_eq!(
            (new, here.count()),
            (all, QUARANTINE_MAX),
            "each as it is heard first"
        );
        assert!(hear().all(|heard| heard == (0, 0)));
        assert!(here.refuses("/a", b"0 0").is_none() && here.refuses("/a", b"5 0").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_mark_goes_for_a_new_one() {
        let quarantine = Quarantine::new(KEEP.into());
        for number in 0..QUARANTINE_MAX {
            let (_, gone) = quarantine
                .marks("/a", &number.to_le_bytes())
                .expect("marked");
            assert!(!gone);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(quarantine.marks("/a", b"one more").map(|m| m.1), Some(true));
        assert_eq!(quarantine.count(), QUARANTINE_MAX);
        assert_eq!(quarantine.refuses("/a", &0_usize.to_le_bytes()), None);
        assert!(quarantine.refuses("/a", &1_usize.to_le_bytes()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lifted_mark_holds_nowhere_and_comes_back_from_nobody() {
        let (here, there) = (Quarantine::new(KEEP.into()), Quarantine::new(KEEP.into()));
        let (hash, _) = here.marks("/a", b"innocent").expect("marked");
        here.marks("/a", b"deadly");
        tokio::time::advance(Duration::from_secs(10)).await;
        let before = here.to_send();
        there.receives(1, &here);
        assert_eq!((there.count(), there.list().len()), (2, 2));
        assert_eq!(there.list()[0].hash, hash);
        assert_eq!((there.list()[0].body_bytes, there.list()[0].age_s), (8, 10));

        assert_eq!(here.lift(Some("00")), 0, "nobody has it");
        assert_eq!(here.lift(Some(&hash)), 1);
        assert_eq!(here.refuses("/a", b"innocent"), None);
        assert!(here.refuses("/a", b"deadly").is_some());
        assert_eq!((here.count(), here.list().len()), (1, 1));
        // A entry that was on its way comes late.
        assert_eq!(here.receive(&replica(1), &before), (0, 0));
        assert_eq!(here.count(), 1);
        assert_eq!(there.receives(1, &here), (0, 0));
        assert_eq!(there.refuses("/a", b"innocent"), None);
        assert_eq!(there.count(), 1);
        // Nor does it come back from one that was away.
        let third = Quarantine::new(KEEP.into());
        third.receives(1, &here);
        third.receive(&replica(1), &before);
        assert_eq!((third.count(), third.refuses("/a", b"innocent")), (1, None));
    }

    #[tokio::test(start_paused = true)]
    async fn all_marks_that_one_replica_lifts_are_lifted_on_the_others() {
        let [asked, maker, other] = [(); 3].map(|()| Quarantine::new(KEEP.into()));
        for number in 0..50 {
            tokio::time::advance(Duration::from_millis(1)).await;
            asked.marks("/a", format!("asked {number}").as_bytes());
            maker.marks("/a", format!("maker {number}").as_bytes());
        }
        asked.receives(2, &maker);
        maker.receives(1, &asked);
        let before = maker.to_send();
        tokio::time::advance(LIFTS_WITHIN * 2).await;
        assert_eq!(asked.lift(None), 100);
        assert_eq!(maker.receives(1, &asked), (0, 0));
        other.receives(1, &asked);
        other.receive(&replica(2), &before);
        assert_eq!([&asked, &maker, &other].map(Quarantine::count), [0; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_makes_up_lifts_crowds_out_no_marks() {
        let [here, liar] = [(); 2].map(|()| Quarantine::new(KEEP.into()));
        for number in 0..QUARANTINE_MAX {
            here.marks("/a", &number.to_le_bytes());
        }
        for round in 0..2 {
            tokio::time::advance(LIFTS_WITHIN * 2).await;
            for number in 0..QUARANTINE_MAX {
                liar.marks("/a", format!("{round} {number}").as_bytes());
            }
            assert_eq!(liar.lift(None), QUARANTINE_MAX);
            here.receives(1, &liar);
            assert_eq!(here.count(), QUARANTINE_MAX, "{round}");
        }
        let entries = here.with(|entries| entries.0.len());
        assert_eq!(entries, 2 * QUARANTINE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_workers_again_is_marked_again_everywhere() {
        let (here, there) = (Quarantine::new(KEEP.into()), Quarantine::new(KEEP.into()));
        here.marks("/a", b"deadly");
        assert_eq!(here.lift(None), 1);
        there.receives(1, &here);
        tokio::time::advance(LIFTS_WITHIN * 2).await;
        here.marks("/a", b"deadly");
        assert!(here.refuses("/a", b"deadly").is_some());
        assert_eq!(there.receives(1, &here), (1, 0));
        // The old entry is sent once more.
        here.receives(2, &there);
        assert!(here.refuses("/a", b"deadly").is_some());
        assert!(there.refuses("/a", b"deadly").is_some());
        // And lifted again, by the one that only received it.
        tokio::time::advance(LIFTS_WITHIN * 2).await;
        assert_eq!(there.lift(None), 1);
        here.receives(2, &there);
        assert_eq!(here.refuses("/a", b"deadly"), None);
    }
}
