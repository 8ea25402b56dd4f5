//! Slow start of a worker whose cache is cold, or that returns from an ejection.

use std::time::Duration;

/// Share of the mean requests in flight that a worker may have, 0 to 1, `age` after its start; `None` once the ramp
/// `over` which it starts is over.
///
/// The square of the part that has passed, so a quarter at half time: each request computes its whole prompt on a
/// cold worker, and what was computed makes the next one cheaper. Replicas that learned of the start at the same
/// moment allow the same.
pub fn slow_start(age: Duration, over: Duration) -> Option<f64> {
    (age < over).then(|| {
        let passed = age.as_secs_f64() / over.as_secs_f64();
        passed * passed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_at_half_time() {
        let over = Duration::from_secs(20);
        let share = |seconds| slow_start(Duration::from_secs(seconds), over);
        assert_eq!(share(0), Some(0.0));
        assert_eq!(share(10), Some(0.25));
        assert_eq!(share(20), None);
        assert_eq!(slow_start(Duration::ZERO, Duration::ZERO), None, "off");
        assert!((0..20).map(share).is_sorted());
    }
}
