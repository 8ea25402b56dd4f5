//! Who renews the lease of a worker: whether that is one process, or two that do not know of each other.
//!
//! Each `grapevine register` gives itself a name, and numbers its renewals. One that was started anew has another name,
//! and that is no news; a former one that comes back is. So is a renewal at another replica between two that came here,
//! if their numbers follow each other: it was not the same process, which goes to any replica. Pure: `now` is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Longest name of a process, in bytes. The admin port refuses a longer one.
pub const NAME_BYTES_MAX: usize = 64;

/// Who renews a lease, as it says itself.
#[derive(Debug, Clone, Copy)]
pub struct Renewer<'a> {
    /// A name that no other process has, of [`NAME_BYTES_MAX`] at most.
    pub name: &'a str,
    /// How many renewals it sent before, wherever; none if it does not count.
    pub number: Option<u64>,
}

/// The processes that renewed one lease here.
#[derive(Debug)]
pub(super) struct Processes {
    /// The one that renewed last, and when.
    last: (String, Instant),
    /// The number of that renewal.
    number: Option<u64>,
    /// The one before it, and when it renewed last.
    former: Option<(String, Instant)>,
    /// When two were last seen.
    two_at: Option<Instant>,
}

impl Processes {
    /// The first renewal.
    pub(super) fn first(by: Renewer<'_>, now: Instant) -> Self {
        Self {
            last: (by.name.to_owned(), now),
            number: by.number,
            former: None,
            two_at: None,
        }
    }

    /// A further renewal. `is_elsewhere`: another replica answers for the lease, so it was renewed there since. Returns
    /// whether two processes were seen that were not before.
    pub(super) fn renewed(
        &mut self,
        by: Renewer<'_>,
        is_elsewhere: bool,
        ttl: Duration,
        now: Instant,
    ) -> bool {
        let Renewer { name, number } = by;
        let is_young = |at: Instant| now.saturating_duration_since(at) <= ttl;
        let (last, at) = &self.last;
        let is_two = if last == name {
            let follows =
                number.is_some() && self.number.map(|last| last.wrapping_add(1)) == number;
            is_elsewhere && follows && is_young(*at)
        } else {
            let is_back = self.former.as_ref();
            is_back.is_some_and(|(former, at)| former == name && is_young(*at))
        };
        let were_two = self.are_two(ttl, now);
        if is_two {
            self.two_at = Some(now);
        }
        self.number = number;
        let before = std::mem::replace(&mut self.last, (name.to_owned(), now));
        if before.0 != name {
            self.former = Some(before);
        }
        is_two && !were_two
    }

    /// Whether two renewed it within the time of a lease.
    pub(super) fn are_two(&self, ttl: Duration, now: Instant) -> bool {
        self.two_at
            .is_some_and(|at| now.saturating_duration_since(at) <= ttl)
    }

    /// Whether nobody renewed it here for so long that it says nothing any more.
    pub(super) fn is_over(&self, ttl: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.last.1) > ttl * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    /// Renewals by name, second, and whether another replica had it since; returns the seconds at which two were news.
    fn news(renewals: &[(&str, u64, bool)]) -> Vec<u64> {
        let numbered = renewals.iter().zip(0..);
        news_of(numbered.map(|(&(name, second, is_elsewhere), n)| (name, n, second, is_elsewhere)))
    }

    /// The same with the number of each renewal.
    fn news_of<'a>(renewals: impl Iterator<Item = (&'a str, u64, u64, bool)>) -> Vec<u64> {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut processes: Option<Processes> = None;
        let mut news = Vec::new();
        for (name, number, second, is_elsewhere) in renewals {
            let now = at(second);
            let by = Renewer {
                name,
                number: Some(number),
            };
            match &mut processes {
                None => processes = Some(Processes::first(by, now)),
                Some(known) => {
                    if known.renewed(by, is_elsewhere, TTL, now) {
                        news.push(second);
                    }
                }
            }
        }
        news
    }

    #[test]
    fn one_that_is_started_anew_is_no_second_one() {
        assert!(
            news(&[
                ("a", 0, false),
                ("a", 5, false),
                ("b", 9, false),
                ("b", 14, false)
            ])
            .is_empty()
        );
        // Long after: somebody started it again.
        assert!(news(&[("a", 0, false), ("b", 10, false), ("a", 50, false)]).is_empty());
    }

    #[test]
    fn two_that_take_turns_are_news_once() {
        let turns = [
            ("a", 0, false),
            ("b", 2, false),
            ("a", 5, false),
            ("b", 7, false),
            ("a", 10, false),
        ];
        assert_eq!(news(&turns), [5]);
        // One of the two ended, and comes back later.
        let later = [
            ("a", 0, false),
            ("b", 2, false),
            ("a", 5, false),
            ("a", 40, false),
            ("b", 41, false),
            ("a", 45, false),
        ];
        assert_eq!(news(&later), [5, 45]);
    }

    #[test]
    fn a_renewal_elsewhere_between_two_here_is_another_process() {
        assert_eq!(
            news(&[("a", 0, false), ("a", 5, true), ("a", 10, true)]),
            [5]
        );
        // It went to another replica, and came back after that had gone.
        assert!(news(&[("a", 0, false), ("a", 40, true)]).is_empty());
    }

    #[test]
    fn one_that_goes_to_another_replica_and_comes_back_is_one() {
        let between_two = [("a", 0, 0, false), ("a", 2, 5, true), ("a", 4, 10, true)];
        assert!(news_of(between_two.into_iter()).is_empty());
    }
}
