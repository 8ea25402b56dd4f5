//! When to remind of certificates that end. Pure: times are arguments.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

/// How near an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// At most 30 days.
    Month,
    /// At most 14 days.
    Fortnight,
    /// At most 7 days.
    Week,
    /// At most a day.
    Day,
    /// It has ended.
    Expired,
}

impl Urgency {
    /// `None` while there is more than a month.
    pub(crate) fn of(end: SystemTime, now: SystemTime) -> Option<Self> {
        let left = end.duration_since(now).unwrap_or_default();
        if left.is_zero() {
            return Some(Self::Expired);
        }
        let steps = [
            (1, Self::Day),
            (7, Self::Week),
            (14, Self::Fortnight),
            (30, Self::Month),
        ];
        let step = steps.into_iter().find(|(days, _)| left <= DAY * *days);
        step.map(|(_, urgency)| urgency)
    }
}

/// Remembers what was logged about which certificate: a line when it comes nearer its end (30, 14, 7 and 1
/// days, the end itself), and one each day in the last week and after.
#[derive(Debug, Default)]
pub(crate) struct Reminders {
    logged: HashMap<String, Logged>,
}

#[derive(Debug, Clone, Copy)]
struct Logged {
    end: SystemTime,
    urgency: Urgency,
    at: SystemTime,
}

impl Reminders {
    /// How urgent a line about `subject` is that is due now, if one is. Another end is another
    /// certificate. Remembers at most [`SUBJECTS`] peers; the rest is not reminded of.
    pub(crate) fn due(
        &mut self,
        subject: &str,
        end: SystemTime,
        now: SystemTime,
    ) -> Option<Urgency> {
        let Some(urgency) = Urgency::of(end, now) else {
            self.logged.remove(subject);
            return None;
        };
        let is_silent = self.logged.get(subject).is_some_and(|logged| {
            // A clock that was set back is no reason to be silent for ever.
            let lately = now.duration_since(logged.at).is_ok_and(|since| since < DAY);
            logged.end == end && logged.urgency >= urgency && (lately || urgency < Urgency::Week)
        });
        // What this replica stands on has its line however many peers were seen.
        let is_own = [OWN, AUTHORITY].contains(&subject);
        let is_full =
            !is_own && self.logged.len() >= SUBJECTS && !self.logged.contains_key(subject);
        if is_silent || is_full {
            return None;
        }
        let logged = Logged {
            end,
            urgency,
            at: now,
        };
        self.logged.insert(subject.to_owned(), logged);
        Some(urgency)
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The name of this replica among subjects.
pub(crate) const OWN: &str = "";
/// The name of its authority.
pub(crate) const AUTHORITY: &str = "\n";
/// Peers, beside this replica and its authority.
const SUBJECTS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Days with a line among 40 hourly-checked days around the end, as days left.
    #[test]
    fn a_line_at_each_step_and_each_day_of_the_last_week() {
        let start = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let end = start + DAY * 40;
        let mut reminders = Reminders::default();
        let mut logged = Vec::new();
        for hour in 0..42 * 24 {
            let now = start + Duration::from_secs(3600) * hour;
            if let Some(urgency) = reminders.due("r1", end, now) {
                logged.push((40 - i64::from(hour) / 24, urgency));
            }
        }
        let days: Vec<i64> = logged.iter().map(|(days, _)| *days).collect();
        assert_eq!(days, [30, 14, 7, 6, 5, 4, 3, 2, 1, 0, -1]);
        assert_eq!(logged[8].1, Urgency::Day);
        assert_eq!(logged[9].1, Urgency::Expired);
    }

    #[test]
    fn a_new_certificate_is_another_matter() {
        let now = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let mut reminders = Reminders::default();
        assert_eq!(reminders.due("r1", now + DAY * 5, now), Some(Urgency::Week));
        assert_eq!(reminders.due("r1", now + DAY * 5, now), None);
        assert_eq!(reminders.due("r1", now + DAY * 90, now), None);
        assert_eq!(reminders.due("r1", now + DAY * 5, now), Some(Urgency::Week));
        assert_eq!(reminders.due("r1", now + DAY * 6, now), Some(Urgency::Week));
        assert_eq!(reminders.due("r2", now - DAY, now), Some(Urgency::Expired));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let mut reminders = Reminders::default();
        let due = (0..2 * SUBJECTS).filter(|number| {
            let subject = format!("r{number}");
            reminders.due(&subject, now + DAY, now).is_some()
        });
        assert_eq!(due.count(), SUBJECTS);
        for own in [OWN, AUTHORITY] {
            assert_eq!(reminders.due(own, now + DAY, now), Some(Urgency::Day));
        }
        assert_eq!(reminders.logged.len(), SUBJECTS + 2);
    }
}
