//! Metrics of warm-ups and of the prompts that are kept for them.

use super::run::End;
use crate::metrics::{
    Counter, EventLabels, Family, Gauge, Histogram, ResultLabels, metrics, seconds,
};

metrics! {
    /// Warm-ups.
    pub WarmupMetrics {
        ended: Family<ResultLabels, Counter>,
            "warm_ups", "Warm-ups of joining workers by this replica, by result",
            ResultLabels { result } in End::ALL.map(End::as_str);
        seconds: Histogram = seconds(0.01, 17),
            "warm_up" Seconds, "Warm-up of a joining worker, from its registration";
        prompts: Family<ResultLabels, Counter>,
            "warm_up_prompts", "Prompts for joining workers, by result",
            ResultLabels { result } in PROMPT_RESULTS;
        prompts_kept: Gauge, "hot_prompts", "Hot prompts in memory for warm-ups";
        prompts_kept_bytes: Gauge, "hot_prompts" Bytes, "Memory of hot prompts";
        prompt_events: Family<EventLabels, Counter>,
            "hot_prompt_events", "Hot prompts kept, or why not, and forgotten",
            EventLabels { event } in PROMPT_EVENTS;
    }
}

/// What may become of a prompt for a joining worker.
const PROMPT_RESULTS: [&str; 7] = [
    "warmed",
    "held",
    "refused",
    "back_pressure",
    "late",
    "unreachable",
    "panicked",
];
/// What may become of a prompt whose prefix is hot.
const PROMPT_EVENTS: [&str; 7] = [
    "kept",
    "kept_for_a_colder",
    "kept_already",
    "no_room",
    "too_large",
    "unreadable",
    "cooled",
];
