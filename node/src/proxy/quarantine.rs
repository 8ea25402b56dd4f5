//! Bodies that no worker gets: two workers ended while they had such a request (see `deaths`).
//!
//! A mark is the length of a body and a hash of its path and bytes; it is told to the other replicas and forgotten
//! after `retry.quarantine`. Without marks a request costs one atomic load here, with marks a comparison of lengths;
//! only a body as long as a marked one is hashed.
//!
//! An innocent request may be marked, so an operator can lift a mark. That is a word of its own, which lies among the
//! marks, is told like them and lasts as long: the mark of a body without bytes, which is never made otherwise. It
//! holds against all marks with its hash that are older, also those that a replica tells that has not heard it.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grapevine_gossip::bulletin::{QUARANTINE_MAX, Quarantined};
use ring::digest;
use serde::Serialize;
use tokio::time::Instant;

/// Marks with less time left are not told: a word that takes its time must not make one younger.
const TOLD_WHILE_LEFT: Duration = Duration::from_secs(5);

/// A lifted mark and a younger one of the same body are told apart to within this: ages are rounded, and words travel.
const LIFTS_WITHIN: Duration = Duration::from_secs(1);
/// In place of a body's length: the mark is lifted.
const LIFTED: u64 = 0;

/// What is known of one body.
type BodyId = (u64, [u8; 16]);

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
    keep: Duration,
    /// When each was made, the oldest first.
    marks: Mutex<Vec<(BodyId, Instant)>>,
    count: AtomicUsize,
}

impl Quarantine {
    /// Without marks.
    pub fn new(keep: Duration) -> Self {
        Self {
            keep,
            marks: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// For how much longer this body is refused; `None` if it is not.
    pub fn holds(&self, path: &str, body: &[u8]) -> Option<Duration> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let length = body.len() as u64;
        if length == LIFTED {
            return None;
        }
        self.with(|marks| marks.iter().any(|((marked, _), _)| *marked == length))
            .then_some(())?;
        // Not under the lock: a body may be long.
        let id = id_of(path, body);
        self.with(|marks| {
            let (_, since) = marks.iter().find(|(marked, _)| *marked == id)?;
            Some(self.keep.saturating_sub(since.elapsed()))
        })
    }

    /// Marks a body. Gives its hash for the log, and whether a mark had to go for it; none where nothing is marked.
    pub fn mark(&self, path: &str, body: &[u8]) -> Option<(String, bool)> {
        if self.keep.is_zero() || body.is_empty() {
            return None;
        }
        let id = id_of(path, body);
        // It does it again: what was lifted counts no more.
        self.with(|marks| marks.retain(|(known, _)| *known != (LIFTED, id.1)));
        Some((hex(id.1), self.add(id, Instant::now())))
    }

    /// All marks that hold, the oldest first.
    pub fn list(&self) -> Vec<Mark> {
        let mark = |((length, hash), since): &(BodyId, Instant)| {
            (*length != LIFTED).then(|| Mark {
                hash: hex(*hash),
                body_bytes: *length,
                age_s: since.elapsed().as_secs(),
                left_s: self.keep.saturating_sub(since.elapsed()).as_secs(),
            })
        };
        self.with(|marks| marks.iter().filter_map(mark).collect())
    }

    /// Lifts the marks with this hash, or all; how many there were. The other replicas hear of it.
    pub fn lift(&self, hash: Option<&str>) -> usize {
        let chosen: Vec<[u8; 16]> = self.with(|marks| {
            let ids = marks.iter().map(|(id, _)| *id);
            let held = ids.filter(|(length, _)| *length != LIFTED);
            let is_meant = |found: &[u8; 16]| hash.is_none_or(|hash| hex(*found) == hash);
            held.map(|(_, hash)| hash).filter(is_meant).collect()
        });
        for hash in &chosen {
            self.hear_lifted(*hash, Instant::now());
        }
        chosen.len()
    }

    /// A mark was lifted at this time. Its place is taken by the word about it, so there is always room.
    fn hear_lifted(&self, hash: [u8; 16], at: Instant) {
        self.with(|marks| {
            marks.retain(|((_, known), since)| *known != hash || *since > at + LIFTS_WITHIN);
        });
        self.add((LIFTED, hash), at);
    }

    /// What the other replicas are to know.
    pub fn told(&self) -> Vec<Quarantined> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let told = |((length, hash), since): &(BodyId, Instant)| {
            let age = since.elapsed();
            (age + TOLD_WHILE_LEFT < self.keep).then_some(Quarantined {
                length: *length,
                hash: *hash,
                age,
            })
        };
        self.with(|marks| marks.iter().filter_map(told).collect())
    }

    /// Takes over what others tell. Gives how many of these marks are new here, and how many had to go for them.
    pub fn heard<'a>(&self, marks: impl Iterator<Item = &'a Quarantined>) -> (u64, u64) {
        let now = Instant::now();
        let (mut new, mut gone) = (0, 0);
        for mark in marks.filter(|mark| mark.age < self.keep) {
            let id = (mark.length, mark.hash);
            let since = now.checked_sub(mark.age).unwrap_or(now);
            let is_known = |(known, at): &(BodyId, Instant)| {
                *known == id && (mark.length != LIFTED || since <= *at + LIFTS_WITHIN)
            };
            let is_lifted = |(known, at): &(BodyId, Instant)| {
                *known == (LIFTED, mark.hash) && since <= *at + LIFTS_WITHIN
            };
            if self.with(|marks| marks.iter().any(|m| is_known(m) || is_lifted(m))) {
                continue;
            }
            if mark.length == LIFTED {
                self.hear_lifted(mark.hash, since);
                continue;
            }
            new += 1;
            gone += u64::from(self.add(id, since));
        }
        (new, gone)
    }

    /// Marks that hold now.
    pub fn count(&self) -> usize {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let holds = |((length, _), _): &&(BodyId, Instant)| *length != LIFTED;
        self.with(|marks| marks.iter().filter(holds).count())
    }

    /// True if the oldest mark had to go.
    fn add(&self, id: BodyId, since: Instant) -> bool {
        self.with(|marks| {
            marks.retain(|(known, _)| *known != id);
            let is_full = marks.len() >= QUARANTINE_MAX;
            if is_full {
                marks.remove(0);
            }
            let at = marks.partition_point(|(_, before)| *before <= since);
            marks.insert(at, (id, since));
            is_full
        })
    }

    /// Looks at, or changes, the marks that still hold.
    fn with<T>(&self, look: impl FnOnce(&mut Vec<(BodyId, Instant)>) -> T) -> T {
        // Each change is complete before anything could panic.
        let mut marks = self
            .marks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        marks.retain(|(_, since)| since.elapsed() < self.keep);
        let looked = look(&mut marks);
        self.count.store(marks.len(), Ordering::Relaxed);
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

    #[tokio::test(start_paused = true)]
    async fn a_mark_holds_for_its_body_and_its_time() {
        let quarantine = Quarantine::new(KEEP);
        assert_eq!(quarantine.holds("/a", b"deadly"), None);
        assert!(quarantine.mark("/a", b"deadly").is_some());
        assert_eq!(quarantine.holds("/a", b"deadly"), Some(KEEP));
        assert_eq!(quarantine.holds("/b", b"deadly"), None);
        assert_eq!(quarantine.holds("/a", b"dearly"), None);
        tokio::time::advance(KEEP - Duration::from_secs(1)).await;
        assert_eq!(
            quarantine.holds("/a", b"deadly"),
            Some(Duration::from_secs(1))
        );
        assert!(quarantine.told().is_empty(), "too late to tell");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(quarantine.holds("/a", b"deadly"), None);
        assert_eq!(quarantine.count(), 0);
        // No question, no mark; and the setting that is off.
        assert!(quarantine.mark("/a", b"").is_none());
        assert!(Quarantine::new(Duration::ZERO).mark("/a", b"x").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn marks_are_told_with_their_age_and_grow_no_younger() {
        let (here, there) = (Quarantine::new(KEEP), Quarantine::new(KEEP));
        here.mark("/a", b"deadly");
        tokio::time::advance(Duration::from_secs(60)).await;
        let told = here.told();
        assert_eq!(there.heard(told.iter()), (1, 0));
        assert_eq!(there.heard(told.iter()), (0, 0), "again");
        let left = KEEP - Duration::from_secs(60);
        assert_eq!(there.holds("/a", b"deadly"), Some(left));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(here.heard(there.told().iter()), (0, 0));
        let left = left - Duration::from_secs(30);
        assert_eq!(here.holds("/a", b"deadly"), Some(left));
        tokio::time::advance(left).await;
        assert_eq!(here.heard(told.iter()), (1, 0), "an old word of its age");
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_mark_goes_for_a_new_one() {
        let quarantine = Quarantine::new(KEEP);
        for number in 0..QUARANTINE_MAX {
            let (_, gone) = quarantine
                .mark("/a", &number.to_le_bytes())
                .expect("marked");
            assert!(!gone);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(quarantine.mark("/a", b"one more").map(|m| m.1), Some(true));
        assert_eq!(quarantine.count(), QUARANTINE_MAX);
        assert_eq!(quarantine.holds("/a", &0_usize.to_le_bytes()), None);
        assert!(quarantine.holds("/a", &1_usize.to_le_bytes()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lifted_mark_holds_nowhere_and_comes_back_from_nobody() {
        let (here, there) = (Quarantine::new(KEEP), Quarantine::new(KEEP));
        let (hash, _) = here.mark("/a", b"innocent").expect("marked");
        here.mark("/a", b"deadly");
        tokio::time::advance(Duration::from_secs(10)).await;
        let before = here.told();
        there.heard(before.iter());
        assert_eq!((there.count(), there.list().len()), (2, 2));
        assert_eq!(there.list()[0].hash, hash);
        assert_eq!((there.list()[0].body_bytes, there.list()[0].age_s), (8, 10));

        assert_eq!(here.lift(Some("00")), 0, "nobody has it");
        assert_eq!(here.lift(Some(&hash)), 1);
        assert_eq!(here.holds("/a", b"innocent"), None);
        assert!(here.holds("/a", b"deadly").is_some());
        assert_eq!((here.count(), here.list().len()), (1, 1));
        // The other one tells its mark once more before it hears.
        assert_eq!(here.heard(there.told().iter()), (0, 0));
        assert_eq!(here.count(), 1);
        assert_eq!(there.heard(here.told().iter()), (0, 0));
        assert_eq!(there.holds("/a", b"innocent"), None);
        assert_eq!(there.count(), 1);
        // Nor does it come back from one that was away.
        let third = Quarantine::new(KEEP);
        third.heard(there.told().iter());
        third.heard(before.iter());
        assert_eq!((third.count(), third.holds("/a", b"innocent")), (1, None));
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_workers_again_is_marked_again_everywhere() {
        let (here, there) = (Quarantine::new(KEEP), Quarantine::new(KEEP));
        here.mark("/a", b"deadly");
        assert_eq!(here.lift(None), 1);
        there.heard(here.told().iter());
        tokio::time::advance(LIFTS_WITHIN * 2).await;
        here.mark("/a", b"deadly");
        assert!(here.holds("/a", b"deadly").is_some());
        assert_eq!(there.heard(here.told().iter()), (1, 0));
        // The old word is told once more.
        here.heard(there.told().iter());
        assert!(here.holds("/a", b"deadly").is_some());
        assert!(there.holds("/a", b"deadly").is_some());
        // And lifted again.
        tokio::time::advance(LIFTS_WITHIN * 2).await;
        assert_eq!(there.lift(None), 1);
        here.heard(there.told().iter());
        assert_eq!(here.holds("/a", b"deadly"), None);
    }
}
