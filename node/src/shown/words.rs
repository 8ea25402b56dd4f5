//! Numbers, names and times within sentences. Pure.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::clean;

/// Names that are listed in a sentence; more are counted.
pub const NAMED: usize = 4;

/// `a, b, c, d and 3 more`.
pub fn named<S: AsRef<str>>(names: &[S]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    let first = first.join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// `1 worker`, `2 workers`.
pub fn count(of: usize, what: &str) -> String {
    format!("{of} {what}{}", if of == 1 { "" } else { "s" })
}

/// Files that a replica reads again, by the names that it has for them.
pub fn files_in_words(files: &str) -> Cow<'_, str> {
    match files {
        "keys" => "keys of clients".into(),
        "listener" => "certificate of the data port".into(),
        "workers" => "certificates towards workers".into(),
        "worker_keys" => "keys of workers".into(),
        "gossip" => "certificates between replicas".into(),
        other => clean(other),
    }
}

/// A limit of a replica, by the name that its metrics have for it.
pub fn limit_in_words(limit: &str) -> Cow<'_, str> {
    match limit {
        "queue_full" => "requests that a full queue refused".into(),
        "queue_bytes" => "requests refused for the bytes of bodies that wait".into(),
        "queue_timeout" => "requests that waited too long".into(),
        "displaced" => "requests that gave way to others in a full queue".into(),
        other => Cow::Owned(clean(other).replace('_', " ")),
    }
}

/// The verb that belongs to so many: `is` or `are` and the like.
pub fn verb<'a>(of: usize, one: &'a str, many: &'a str) -> &'a str {
    if of == 1 { one } else { many }
}

/// The last second of the year 9999: no later one is shown.
const LATEST_S: u64 = 253_402_300_799;

/// A time in seconds since 1970 as a replica names it: whatever it says can be shown.
pub fn moment(unix_s: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s.min(LATEST_S))
}

/// Whole days from `now` until `end`; from that moment on -1 and less.
pub fn days_until(end: SystemTime, now: SystemTime) -> i64 {
    const DAY_S: u64 = 24 * 60 * 60;
    let days = |time: Duration| i64::try_from(time.as_secs() / DAY_S).unwrap_or(i64::MAX);
    match end.duration_since(now) {
        Ok(left) => days(left),
        Err(over) => -1 - days(over.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_and_then_counted() {
        assert_eq!(named::<&str>(&[]), "");
        assert_eq!(named(&["a", "b", "c", "d"]), "a, b, c, d");
        assert_eq!(named(&["a", "b", "c", "d", "e"]), "a, b, c, d and 1 more");
        assert_eq!(
            [0, 1, 2].map(|of| count(of, "day")),
            ["0 days", "1 day", "2 days"]
        );
    }

    #[test]
    fn a_day_ends_when_it_is_over() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let hours = |hours: u64| Duration::from_secs(3_600 * hours);
        for (end, expected) in [
            (now + hours(25), 1),
            (now + hours(1), 0),
            (now, 0),
            (now - hours(1), -1),
            (now - hours(25), -2),
        ] {
            assert_eq!(days_until(end, now), expected);
        }
    }
}
