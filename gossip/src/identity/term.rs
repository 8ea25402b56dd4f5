//! From when until when a certificate is accepted, and what an operator reads of it. Does not check certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// From when until when a certificate is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Not before.
    pub from: SystemTime,
    /// Not after.
    pub until: SystemTime,
}

impl Term {
    /// So many days from now, dated back 10 minutes: a replica whose clock is that much behind
    /// accepts it at once.
    pub fn days(days: u16) -> Self {
        let now = SystemTime::now();
        Self {
            from: now - BACKDATED,
            until: now + Duration::from_secs(u64::from(days) * DAY_S),
        }
    }

    /// Why the certificate is not accepted at a moment, if so.
    pub fn amiss(&self, now: SystemTime) -> Option<String> {
        if now > self.until {
            Some(expired(unix_s(self.until)))
        } else if now < self.from {
            Some(begins(unix_s(self.from), unix_s(now)))
        } else {
            None
        }
    }
}

/// A moment as people read it: `2027-01-31 00:00:00.0 UTC`.
pub fn date(at: SystemTime) -> String {
    date_of(unix_s(at))
}

pub(super) fn expired(until_s: u64) -> String {
    format!("it expired on {}", date_of(until_s))
}

pub(super) fn begins(from_s: u64, now_s: u64) -> String {
    format!(
        "it begins on {}, and this machine's clock says {}: set the clock",
        date_of(from_s),
        date_of(now_s)
    )
}

fn date_of(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).map_or_else(
        |_| "?".to_owned(),
        |time| format!("{} {} UTC", time.date(), time.time()),
    )
}

/// Seconds since 1970; 0 before.
pub(crate) fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// How far clocks may differ: more than the five minutes that a host without time service drifts in
/// weeks, less than anybody would notice at the other end.
pub(super) const BACKDATED: Duration = Duration::from_secs(10 * 60);
const DAY_S: u64 = 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_good_from_its_begin_to_its_end() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let term = Term {
            from: at(86_400),
            until: at(2 * 86_400),
        };
        for good in [86_400, 100_000, 2 * 86_400] {
            assert_eq!(term.amiss(at(good)), None);
        }
        let early = "it begins on 1970-01-02 0:00:00.0 UTC, and this machine's clock says 1970-01-01 23:59:59.0 UTC: set \
                     the clock";
        assert_eq!(term.amiss(at(86_399)).as_deref(), Some(early));
        let late = "it expired on 1970-01-03 0:00:00.0 UTC";
        assert_eq!(term.amiss(at(2 * 86_400 + 1)).as_deref(), Some(late));
        assert_eq!(date(at(1_800_000_000)), "2027-01-15 8:00:00.0 UTC");
    }
}
