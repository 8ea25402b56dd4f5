//! Probe results of one worker, with hysteresis.

use std::num::NonZeroU32;

/// Settings of a [`ProbeState`]. Names are vllm-router's (`--health-*-threshold`). Local to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Failed probes in a row after which a worker is unhealthy. Default 3.
    pub failure_threshold: NonZeroU32,
    /// Good probes in a row after which an unhealthy worker is healthy again. Default 2.
    pub success_threshold: NonZeroU32,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            failure_threshold: const { NonZeroU32::new(3).expect("not zero") },
            success_threshold: const { NonZeroU32::new(2).expect("not zero") },
        }
    }
}

named! {
    /// What probes say of a worker.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Health {
        /// Not probed yet, or not often enough: used like a healthy worker.
        Unknown = "unknown",
        /// Answers.
        Healthy = "healthy",
        /// Does not answer.
        Unhealthy = "unhealthy",
    }
}

/// Probe results of one worker, with hysteresis. Starts unknown; the first good probe makes it healthy.
#[derive(Clone, Debug)]
pub struct ProbeState {
    settings: ProbeSettings,
    health: Health,
    /// Results in a row that speak against `health`.
    against: u32,
}

impl ProbeState {
    /// An unknown worker.
    pub fn new(settings: ProbeSettings) -> Self {
        Self {
            settings,
            health: Health::Unknown,
            against: 0,
        }
    }

    /// Other settings from now on. What was counted stays.
    pub fn change(&mut self, settings: ProbeSettings) {
        self.settings = settings;
    }

    /// What the probes say so far.
    pub fn health(&self) -> Health {
        self.health
    }

    /// Records one probe; the new health where it changed.
    pub fn record(&mut self, answered: bool) -> Option<Health> {
        let (threshold, next) = match (self.health, answered) {
            (Health::Healthy, true) | (Health::Unhealthy, false) => {
                self.against = 0;
                return None;
            }
            (Health::Unknown, true) => (1, Health::Healthy),
            (Health::Unhealthy, true) => (self.settings.success_threshold.get(), Health::Healthy),
            (Health::Unknown | Health::Healthy, false) => {
                (self.settings.failure_threshold.get(), Health::Unhealthy)
            }
        };
        self.against += 1;
        if self.against < threshold {
            return None;
        }
        self.against = 0;
        self.health = next;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_have_hysteresis() {
        use Health::{Healthy, Unhealthy, Unknown};
        // Probe results, and the health after each, with thresholds 3 and 2.
        let table: [(&str, &[(bool, Health)]); 4] = [
            ("first answer", &[(true, Healthy)]),
            (
                "never answered",
                &[(false, Unknown), (false, Unknown), (false, Unhealthy)],
            ),
            (
                "an answer between",
                &[
                    (true, Healthy),
                    (false, Healthy),
                    (false, Healthy),
                    (true, Healthy),
                    (false, Healthy),
                ],
            ),
            (
                "back only after two",
                &[
                    (false, Unknown),
                    (false, Unknown),
                    (false, Unhealthy),
                    (true, Unhealthy),
                    (false, Unhealthy),
                    (true, Unhealthy),
                    (true, Healthy),
                ],
            ),
        ];
        for (name, results) in table {
            let mut probes = ProbeState::new(ProbeSettings::default());
            for (step, &(answered, health)) in results.iter().enumerate() {
                let before = probes.health();
                let changed = probes.record(answered);
                assert_eq!(probes.health(), health, "{name}, step {step}");
                assert_eq!(
                    changed,
                    (before != health).then_some(health),
                    "{name}, step {step}: what record tells"
                );
            }
        }
    }
}
