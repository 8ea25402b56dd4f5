//! Penalty of a worker that fails: what failed goes on counting as load for a while.
//!
//! A worker that fails at once has nothing in flight, looks idle, and attracts what it will fail next. So a failed
//! request counts as if it were still running, and fades; after linkerd's load biaser, which records a failure as a
//! slow answer. Every policy that looks at load then leaves such a worker, before its breaker opens.

use std::time::Duration;

use crate::load::Load;

/// Load below which a penalty is over, in requests.
const NEGLIGIBLE: f64 = 0.01;

/// Load of failed requests, fading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Penalty {
    load: Load,
    at: Duration,
}

impl Penalty {
    /// A request that weighed `load` failed.
    pub fn add(&mut self, load: Load, now: Duration, half_life: Duration) {
        self.load = self.load(now, half_life) + load;
        self.at = now;
    }

    /// What is to be added to the worker's load. Halves in each half-life; nothing where that is zero.
    pub fn load(&self, now: Duration, half_life: Duration) -> Load {
        // It only fades: what is nothing now is nothing later.
        if half_life.is_zero() || self.load.requests < NEGLIGIBLE {
            return Load::default();
        }
        let age = now.saturating_sub(self.at).as_secs_f64() / half_life.as_secs_f64();
        let faded = self.load.scaled(0.5_f64.powf(age));
        if faded.requests < NEGLIGIBLE {
            return Load::default();
        }
        faded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_weigh_and_fade() {
        let half_life = Duration::from_secs(2);
        let failed = Load {
            requests: 1.0,
            prefill_tokens: 100.0,
            context_tokens: 400.0,
        };
        let at = |seconds| Duration::from_secs(seconds);
        let mut penalty = Penalty::default();
        assert_eq!(penalty.load(at(5), half_life), Load::default());
        penalty.add(failed, at(10), half_life);
        assert_eq!(penalty.load(at(10), half_life), failed);
        assert_eq!(penalty.load(at(12), half_life), failed.scaled(0.5));
        penalty.add(failed, at(12), half_life);
        assert_eq!(penalty.load(at(14), half_life), failed.scaled(0.75));
        assert_eq!(penalty.load(at(60), half_life), Load::default());
        assert_eq!(penalty.load(at(12), Duration::ZERO), Load::default());
    }
}
