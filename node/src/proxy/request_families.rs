//! The families of metrics that requests count in, by labels.

use grapevine_placement::Reason;

use crate::metrics::{
    Counter, Family, GapHistogram, Histogram, ModelEndpointLabels, ModelLabels, ReasonLabels,
    RequestLabels, TracedHistograms, buckets, metrics, seconds,
};

metrics! {
    /// Requests and their pace, by labels.
    pub RequestFamilies {
        /// Each is counted once, at its end.
        requests: Family<RequestLabels, Counter>,
            "requests", "Requests by endpoint, model, outcome and class of the status";
        request_seconds: TracedHistograms<ModelEndpointLabels> = Family::new_with_constructor(buckets::request),
            "request" Seconds, "From the head of a request to the last byte of its answer";
        /// Of streams: a plain answer shows no token before its last.
        first_token_seconds: TracedHistograms<ModelLabels> = Family::new_with_constructor(buckets::first_token),
            "first_token" Seconds, "From the head of a request to the first event of its stream";
        /// Each gap of each stream, added at its end.
        inter_token_seconds: Family<ModelLabels, GapHistogram>,
            "inter_token" Seconds, "Time between two tokens of a stream, an event taken for one";
        /// One observation a stream.
        time_per_output_token_seconds: TracedHistograms<ModelLabels> = Family::new_with_constructor(buckets::per_token),
            "time_per_output_token" Seconds, "Mean time for a token of a stream after its first one";
        /// One observation a stream.
        stream_pause_seconds: TracedHistograms<ModelLabels> = Family::new_with_constructor(buckets::pause),
            "stream_pause" Seconds, "Longest pause between two events of a stream";
        /// What the router adds before the worker.
        preparation_seconds: Histogram = seconds(0.000_05, 20),
            "preparation" Seconds,
            "From the head of a request to the choice of its worker, without waits in queues; reads its body";
        decision_seconds: Histogram = seconds(0.000_001, 18),
            "decision" Seconds, "The first placement decision of a request, key included";
        placements: Family<ReasonLabels, Counter>, "placements", "Choices of a worker by reason",
            ReasonLabels { reason } in Reason::ALL.map(Reason::as_str);
    }
}
