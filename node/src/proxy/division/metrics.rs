//! Metrics of requests that are divided.

use grapevine_transfer::body::Indivisible;

use super::blame::Fault;
use crate::metrics::{
    Counter, Family, Gauge, Histogram, ReasonLabels, ResultLabels, metrics, seconds,
};

metrics! {
    /// Requests of models whose prompts are computed apart.
    pub SplitMetrics {
        /// `pair`, or why one worker had all of it.
        ways: Family<ReasonLabels, Counter>,
            "split_requests", "Requests for models with prefill and decode workers, by the way that they took",
            ReasonLabels { reason } in WAYS.into_iter().chain(Indivisible::ALL.map(Indivisible::as_str));
        /// From the choice of the worker to the end of its answer.
        prefill_seconds: Histogram = seconds(0.001, 18),
            "prefill_leg" Seconds, "Time that a prefill worker took for a prompt";
        /// From the decode leg's beginning to its first token, for streams.
        transfer_seconds: Histogram = seconds(0.001, 18),
            "decode_leg_first_token" Seconds,
            "Time from the beginning of a decode leg to its first token, transfer included";
        /// By who is to blame.
        transfer_failures: Family<ResultLabels, Counter>,
            "transfer_failures", "Transfers of KV that failed, by the worker that is to blame",
            ResultLabels { result } in Fault::ALL.map(Fault::as_str);
        left: Counter, "prefill_blocks_left", "Prompts whose blocks were left on a prefill worker";
        left_uncounted: Counter,
            "prefill_blocks_left_uncounted", "The same beyond the number that is counted as load";
        held: Gauge, "prefill_blocks_held", "Prompts whose left blocks count as load of a prefill worker now";
    }
}

/// The ways that do not depend on what of a body keeps a request from being divided.
const WAYS: [&str; 11] = [
    "pair",
    "whole",
    "whole_short",
    "whole_sooner",
    "whole_no_pair",
    "alone_short",
    "alone_no_prefill",
    "not_generated",
    "messages",
    "invocations",
    "responses",
];

impl SplitMetrics {
    /// Counts a request by the way that it takes.
    pub(in crate::proxy) fn way(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.ways.get_or_create(&labels).inc();
    }

    /// Counts a transfer that failed.
    pub(in crate::proxy) fn transfer_failed(&self, blamed: &'static str) {
        let labels = ResultLabels { result: blamed };
        self.transfer_failures.get_or_create(&labels).inc();
    }
}
