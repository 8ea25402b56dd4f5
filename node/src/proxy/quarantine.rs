//! Bodies that no worker gets: two workers ended while they had such a request (see `deaths`).
//!
//! A mark is the length of a body and a hash of its path and bytes; it is told to the other replicas and forgotten
//! after `retry.quarantine`. Without marks a request costs one atomic load here, with marks a comparison of lengths;
//! only a body as long as a marked one is hashed.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grapevine_gossip::bulletin::{QUARANTINE_MAX, Quarantined};
use ring::digest;
use tokio::time::Instant;

/// Marks with less time left are not told: a word that takes its time must not make one younger.
const TOLD_WHILE_LEFT: Duration = Duration::from_secs(5);

/// What is known of one body.
type BodyId = (u64, [u8; 16]);

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
        let mut hash = String::new();
        for byte in id.1 {
            let _ = write!(hash, "{byte:02x}");
        }
        Some((hash, self.add(id, Instant::now())))
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
            if self.with(|marks| marks.iter().any(|(known, _)| *known == id)) {
                continue;
            }
            new += 1;
            gone += u64::from(self.add(id, now.checked_sub(mark.age).unwrap_or(now)));
        }
        (new, gone)
    }

    /// Marks that hold now.
    pub fn count(&self) -> usize {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.with(|marks| marks.len())
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
}
