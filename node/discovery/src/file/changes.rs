//! When files are read again: by what the file system shows of them. Pure.
//!
//! A change is read once the next look finds it unchanged, and what was read counts once a look after it finds the files as
//! they were before it. A file that is written in place may be complete by its grammar and still lack its end: half a YAML
//! list is a shorter list.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

/// What tells one content of a file from another, without reading it. Seen through links: Kubernetes swaps one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Seconds and nanoseconds of the last write.
    pub(super) written: (i64, i64),
    /// The same of the last change of the inode: `mv` and `cp -p` keep the other one.
    pub(super) changed: (i64, i64),
}

/// All files of a source, by path.
pub(super) type Stamps = BTreeMap<PathBuf, Stamp>;

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Read all files.
    Read,
    /// The files that were read are still there, unchanged.
    Unchanged,
    /// Look again soon: something changes just now.
    Unsettled,
}

/// What the last look saw.
#[derive(Debug, Default)]
enum Seen {
    /// There was none yet.
    #[default]
    Nothing,
    Files(Stamps),
    /// A file that is replaced by removing it first may be half there at the next look.
    Failure,
}

/// What was seen and read so far.
#[derive(Debug, Default)]
pub(super) struct Changes {
    seen: Seen,
    read: Option<Stamps>,
    /// When that was, or when the first look was: files that have not settled since are read all the same.
    waits_since: Option<Instant>,
    was_good: bool,
}

impl Changes {
    /// What to do after a look at `now`; the files are read at least every `reread`, those that never settle every other
    /// time.
    pub(super) fn look(&mut self, stamps: &Stamps, now: Instant, reread: Duration) -> Next {
        let is_settled = match &self.seen {
            Seen::Nothing => true,
            Seen::Files(seen) => seen == stamps,
            Seen::Failure => false,
        };
        self.seen = Seen::Files(stamps.clone());
        let waited = now.saturating_duration_since(*self.waits_since.get_or_insert(now));
        match &self.read {
            Some(read) if read == stamps && waited < reread => Next::Unchanged,
            Some(read) if read == stamps => Next::Read,
            _ if is_settled || waited >= 2 * reread => Next::Read,
            _ => Next::Unsettled,
        }
    }

    /// Reports that the files were read that were `before` at the look, whether all of them were good, and how they were
    /// `after` the reading, where that could be seen. False if something changes just now, so that what was read says
    /// nothing; of those that never settle it counts all the same, as at [`look`](Self::look).
    pub(super) fn read(
        &mut self,
        before: Stamps,
        after: Option<Stamps>,
        was_good: bool,
        now: Instant,
        reread: Duration,
    ) -> bool {
        let waits_since = self.waits_since.unwrap_or(now);
        let never_settles = now.saturating_duration_since(waits_since) >= 2 * reread;
        if after.as_ref() != Some(&before) && !never_settles {
            self.seen = after.map_or(Seen::Failure, Seen::Files);
            return false;
        }
        (self.read, self.waits_since) = (Some(before), Some(now));
        self.was_good = was_good;
        true
    }

    /// Whether the last files that were read were good.
    pub(super) fn was_good(&self) -> bool {
        self.was_good
    }

    /// Forgets what was read, after a look that failed.
    pub(super) fn forget(&mut self) {
        *self = Self {
            seen: Seen::Failure,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REREAD: Duration = Duration::from_secs(30);

    fn stamps(content: u64) -> Stamps {
        let stamp = Stamp {
            device: 1,
            inode: content,
            bytes: 10,
            written: (content as i64, 0),
            changed: (content as i64, 0),
        };
        Stamps::from([(PathBuf::from("w.json"), stamp)])
    }

    /// The files were read, and stayed as they were meanwhile.
    fn stood(changes: &mut Changes, content: u64, now: Instant) -> bool {
        let files = || stamps(content);
        changes.read(files(), Some(files()), true, now, REREAD)
    }

    /// The first reading, and each one that no change asked for, follow a single look.
    #[tokio::test(start_paused = true)]
    async fn what_changes_while_it_is_read_is_read_again_when_it_has_settled() {
        let now = Instant::now();
        let mut changes = Changes::default();
        let mut later = now;
        for (before, after) in [(1, 2), (3, 4)] {
            later += REREAD;
            assert_eq!(changes.look(&stamps(before), later, REREAD), Next::Read);
            let seen = Some(stamps(after));
            assert!(!changes.read(stamps(before), seen, true, later, REREAD));
            let last = after + 1;
            assert_eq!(changes.look(&stamps(last), later, REREAD), Next::Unsettled);
            assert_eq!(changes.look(&stamps(last), later, REREAD), Next::Read);
            assert!(stood(&mut changes, last, later));
            assert_eq!(changes.look(&stamps(last), later, REREAD), Next::Unchanged);
        }
        // Gone while it was read, and there again.
        later += REREAD;
        assert_eq!(changes.look(&stamps(5), later, REREAD), Next::Read);
        assert!(!changes.read(stamps(5), None, true, later, REREAD));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_read_when_it_has_settled() {
        let now = Instant::now();
        let mut changes = Changes::default();
        assert_eq!(changes.look(&stamps(1), now, REREAD), Next::Read, "first");
        assert!(stood(&mut changes, 1, now));
        assert_eq!(changes.look(&stamps(1), now, REREAD), Next::Unchanged);
        assert_eq!(changes.look(&stamps(2), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(3), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(3), now, REREAD), Next::Read);
        assert!(stood(&mut changes, 3, now));
        assert_eq!(changes.look(&stamps(3), now, REREAD), Next::Unchanged);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_back_after_a_failure_has_to_settle() {
        let now = Instant::now();
        let mut changes = Changes::default();
        changes.look(&stamps(1), now, REREAD);
        assert!(stood(&mut changes, 1, now));
        changes.forget();
        assert_eq!(changes.look(&stamps(2), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(3), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(3), now, REREAD), Next::Read);
    }

    #[tokio::test(start_paused = true)]
    async fn what_vanished_while_it_was_read_has_to_settle() {
        let now = Instant::now();
        let mut changes = Changes::default();
        changes.look(&stamps(1), now, REREAD);
        assert!(stood(&mut changes, 1, now));
        changes.look(&stamps(2), now, REREAD);
        assert_eq!(changes.look(&stamps(2), now, REREAD), Next::Read);
        assert!(!changes.read(stamps(2), None, false, now, REREAD));
        assert_eq!(changes.look(&stamps(3), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(4), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(4), now, REREAD), Next::Read);
    }

    /// A folder that was away may be there again before the files in it.
    #[tokio::test(start_paused = true)]
    async fn that_there_are_no_files_after_a_failure_has_to_settle_too() {
        let now = Instant::now();
        let mut changes = Changes::default();
        changes.look(&stamps(1), now, REREAD);
        assert!(stood(&mut changes, 1, now));
        changes.forget();
        assert_eq!(changes.look(&Stamps::new(), now, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&Stamps::new(), now, REREAD), Next::Read);
    }

    #[tokio::test(start_paused = true)]
    async fn files_are_read_again_even_when_nothing_shows_or_nothing_settles() {
        let now = Instant::now();
        let mut changes = Changes::default();
        changes.look(&stamps(1), now, REREAD);
        assert!(stood(&mut changes, 1, now));
        let later = now + REREAD;
        assert_eq!(changes.look(&stamps(1), later, REREAD), Next::Read);
        assert_eq!(changes.look(&stamps(2), later, REREAD), Next::Unsettled);
        assert_eq!(changes.look(&stamps(3), later, REREAD), Next::Unsettled);
        let later = later + REREAD;
        assert_eq!(changes.look(&stamps(4), later, REREAD), Next::Read);
        assert!(changes.read(stamps(4), Some(stamps(5)), true, later, REREAD));
        assert_eq!(changes.look(&stamps(4), later, REREAD), Next::Unchanged);
    }

    /// Else a replica would start without the source, and nobody would be told why.
    #[tokio::test(start_paused = true)]
    async fn files_that_never_settle_are_read_at_a_start_and_after_a_failure() {
        let mut now = Instant::now();
        let mut changes = Changes::default();
        for first in [1, 10] {
            let expected = if first == 1 {
                Next::Read
            } else {
                Next::Unsettled
            };
            assert_eq!(changes.look(&stamps(first), now, REREAD), expected);
            let seen = Some(stamps(first + 1));
            assert!(!changes.read(stamps(first), seen, true, now, REREAD));
            let next = changes.look(&stamps(first + 2), now, REREAD);
            assert_eq!(next, Next::Unsettled);
            now += 2 * REREAD;
            assert_eq!(changes.look(&stamps(first + 3), now, REREAD), Next::Read);
            let seen = Some(stamps(first + 4));
            assert!(changes.read(stamps(first + 3), seen, true, now, REREAD));
            changes.forget();
        }
    }
}
