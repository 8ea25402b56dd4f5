//! Load: what is in flight on a worker over the whole cluster, damped by its age.
//!
//! A replica knows its own counts exactly and others' by frames that are milliseconds to seconds old.
//! In simulation, frames two seconds old counted in full send every replica to the worker that was
//! idle two seconds ago, worse than no exchange at all; counted half (a quarter from one second on)
//! most of that loss comes back.

use std::{
    ops::{Add, AddAssign},
    time::Duration,
};

/// What is in flight on one worker. Sums over replicas, so fractions are normal.
///
/// Each number is finite and 0 or more: it is a sum of counts times factors of this module.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests in flight.
    pub requests: f64,
    /// Prompt tokens that still have to be computed: prompts in flight without a first byte, less
    /// what was expected to be cached ([`crate::Decision::prefill_tokens`]).
    pub prefill_tokens: f64,
    /// Prompt tokens of all requests in flight.
    pub context_tokens: f64,
}

impl Load {
    /// All three numbers times `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            requests: self.requests * factor,
            prefill_tokens: self.prefill_tokens * factor,
            context_tokens: self.context_tokens * factor,
        }
    }
}

impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            prefill_tokens: self.prefill_tokens + other.prefill_tokens,
            context_tokens: self.context_tokens + other.context_tokens,
        }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Frames of a sender older than this count for nothing.
pub const AGE_MAX: Duration = Duration::from_secs(2);

/// Share of its value that load of this age counts, 0 to 1.
///
/// 1 up to 100 ms, then falling in straight lines to 1/2 at 500 ms and 1/4 at 1 s, which holds until
/// [`AGE_MAX`]; from there 0. `age` is the time since the sender's last frame, not since the number last changed.
pub fn damp(age: Duration) -> f64 {
    const LINE: [(f64, f64); 3] = [(0.1, 1.0), (0.5, 0.5), (1.0, 0.25)];
    if age >= AGE_MAX {
        return 0.0;
    }
    let seconds = age.as_secs_f64();
    if seconds <= LINE[0].0 {
        return LINE[0].1;
    }
    for [(from, high), (to, low)] in [[LINE[0], LINE[1]], [LINE[1], LINE[2]]] {
        if seconds < to {
            return high + (low - high) * (seconds - from) / (to - from);
        }
    }
    LINE[2].1
}

/// Factor for the own counts when some live replicas send nothing: they probably carry what we carry.
///
/// `live` and `heard` include this replica; `heard` are those with a frame younger than [`AGE_MAX`].
/// 1 when all send or when alone.
pub fn own_scale(live: u32, heard: u32) -> f64 {
    let heard = heard.max(1);
    f64::from(live.max(heard)) / f64::from(heard)
}

/// What one replica knows of the cluster's load at a moment: how to put the numbers of a worker together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Picture {
    own_scale: f64,
    replicas: f64,
    is_alone: bool,
}

/// One worker's load, for preference and for safety.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Common knowledge: what every replica can know by now. Preference is decided on it, so that all replicas prefer
    /// the same worker.
    pub common: Load,
    /// Requests in flight, this replica's own exactly and the others' as they reported them: for limits that are a
    /// worker's own.
    pub exact_requests: f64,
    /// Requests in flight if every replica has as many that no other knows of as this one has; not below the common
    /// ones. Of many equal prompts at once each replica gets its part, and none learns of the others' in time.
    pub surge_requests: f64,
}

impl Picture {
    /// `live` and `heard` as in [`own_scale`]; `heard` of 1: no other replica's counts are used.
    pub fn new(live: u32, heard: u32) -> Self {
        Self {
            own_scale: own_scale(live, heard),
            replicas: f64::from(live.max(heard).max(1)),
            is_alone: heard <= 1,
        }
    }

    /// Whether this replica receives from no other: only then do its own tokens count, and not its requests alone.
    pub const fn is_alone(self) -> bool {
        self.is_alone
    }

    /// A worker's load: this replica's `own` exactly, the part of it that the others know by now, and the `others'`
    /// own, damped, with their requests as they `reported` them. A replica that receives from no other has none to agree with: it counts its own exactly and nothing
    /// else.
    pub fn see(self, own: Load, known: Load, others: Load, reported: f64) -> Seen {
        let (known, others, reported) = if self.is_alone {
            (own, Load::default(), 0.0)
        } else {
            (known, others, reported)
        };
        let known_by_all = known.scaled(self.own_scale);
        let common = known_by_all + others;
        let unheard = own.requests - known.requests;
        let exact = known_by_all.requests + reported + unheard;
        Seen {
            common,
            exact_requests: exact.max(own.requests),
            surge_requests: common.requests + self.replicas * unheard.max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_load_counts_less() {
        let table = [
            (0, 1.0),
            (100, 1.0),
            (300, 0.75),
            (500, 0.5),
            (750, 0.375),
            (1_000, 0.25),
            (1_999, 0.25),
            (2_000, 0.0),
        ];
        for (millis, share) in table {
            let got = damp(Duration::from_millis(millis));
            assert!(
                (got - share).abs() < 1e-9,
                "{millis} ms: {got}, not {share}"
            );
        }
    }

    #[test]
    fn damping_never_rises_with_age() {
        let shares: Vec<_> = (0..2_500)
            .map(|millis| damp(Duration::from_millis(millis)))
            .collect();
        assert!(shares.is_sorted_by(|young, old| young >= old));
    }

    fn requests(requests: f64) -> Load {
        Load {
            requests,
            ..Load::default()
        }
    }

    #[test]
    fn preference_is_on_what_all_know_and_safety_on_what_is_exact() {
        // Replicas live and heard; own, of that known, others' requests; common, exact, in a surge.
        type Row = ([u32; 2], [f64; 3], [f64; 3]);
        let table: [Row; 6] = [
            ([3, 3], [5.0, 5.0, 4.0], [9.0, 9.0, 9.0]),
            ([3, 3], [5.0, 2.0, 4.0], [6.0, 9.0, 15.0]),
            // They ended, and no other replica knows it.
            ([3, 3], [1.0, 5.0, 4.0], [9.0, 5.0, 9.0]),
            // One of three sends nothing: it probably carries what we carry.
            ([3, 2], [4.0, 4.0, 2.0], [8.0, 8.0, 8.0]),
            // Alone there is no replica to agree with.
            ([1, 1], [5.0, 2.0, 4.0], [5.0, 5.0, 5.0]),
            ([3, 1], [5.0, 0.0, 0.0], [15.0, 15.0, 15.0]),
        ];
        for ([live, heard], [own, known, others], [common, exact, surge]) in table {
            let picture = Picture::new(live, heard);
            let seen = picture.see(requests(own), requests(known), requests(others), others);
            let got = [
                seen.common.requests,
                seen.exact_requests,
                seen.surge_requests,
            ];
            assert_eq!(got, [common, exact, surge], "{live} live, {heard} heard");
        }
    }

    /// A worker's own limit holds while news is late: what is preferred is another question.
    #[test]
    fn late_news_makes_room_nowhere() {
        let picture = Picture::new(3, 3);
        let (own, others) = (requests(0.0), requests(2.0));
        for damped in [1.0, 0.9, 0.25] {
            let seen = picture.see(own, own, others.scaled(damped), others.requests);
            assert_eq!(seen.exact_requests, 2.0);
            assert_eq!(seen.common.requests, 2.0 * damped);
        }
    }

    #[test]
    fn own_counts_stand_for_the_unheard() {
        for (live, heard, scale) in [
            (1, 1, 1.0),
            (3, 3, 1.0),
            (3, 1, 3.0),
            (4, 2, 2.0),
            (1, 3, 1.0),
            (0, 0, 1.0),
        ] {
            assert!(
                (own_scale(live, heard) - scale).abs() < f64::EPSILON,
                "{live} live, {heard} heard"
            );
        }
    }
}
