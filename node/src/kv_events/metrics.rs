//! Metrics of KV events.

use std::sync::Arc;

use grapevine_kv_events::publisher::{Applied, Knowledge};
use grapevine_kv_events::stream::Cause;
use grapevine_kv_events::texts::Learned;
use grapevine_placement::named;

use crate::metrics::{
    Counter, EventLabels, Family, Gauge, Histogram, ReasonLabels, ResultLabels, StateLabels,
    WorkerLabels, metrics, seconds,
};

named! {
    /// Why a payload or a connection was not what it should be.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Fault {
        /// Nobody listens, or it may not be dialled.
        Unreachable = "unreachable",
        /// No ZeroMQ, or not as it should be.
        Violation = "violation",
        /// Beyond the limits of sizes.
        TooLarge = "too_large",
        /// Frames that are no message of events.
        Malformed = "malformed",
        /// A payload that is no batch of events.
        Unreadable = "unreadable",
        /// A subscription that brought nothing of what a replay had.
        Silent = "silent",
        /// The peer closed the connection.
        Closed = "closed",
    }
}

metrics! {
    /// What is heard of workers' caches.
    pub KvMetrics {
        events: Family<EventLabels, Counter>,
            "kv_events", "Blocks that workers stored or removed, by what became of them";
        messages: Family<ResultLabels, Counter>,
            "kv_event_messages", "Messages of KV events, by whether they were applied or had come before",
            ResultLabels { result } in [APPLIED, REPEATED];
        bytes: Counter, "kv_event_received" Bytes, "Bytes of KV events that were received";
        gaps: Counter, "kv_event_gaps", "Times that messages of a worker were missing";
        replays: Family<ResultLabels, Counter>,
            "kv_event_replays", "Replays that were asked of workers, by result",
            ResultLabels { result } in [COMPLETE, FAILED];
        forgotten: Family<ReasonLabels, Counter>,
            "kv_caches_forgotten", "Times that all that was known of an engine's cache was forgotten, by reason",
            ReasonLabels { reason } in [Cause::Restart.as_str(), Cause::Gap.as_str(), Fault::Unreadable.as_str(), LEFT];
        handovers: Family<ResultLabels, Counter>,
            "kv_handovers", "Starts of this replica, by whether a peer gave it what it knows of caches",
            ResultLabels { result } in [TAKEN, NOBODY, FAILED];
        faults: Family<ReasonLabels, Counter>,
            "kv_event_faults", "Connections and messages of KV events that were not as they should be, by reason",
            ReasonLabels { reason } in Fault::ALL.map(Fault::as_str);
        engines: Family<StateLabels, Gauge>,
            "kv_engines", "Engines that publish KV events, by what is known of their caches";
        blocks: Family<WorkerLabels, Gauge>, "kv_blocks", "Blocks that a worker is known to hold";
        index_blocks: Gauge, "kv_index_blocks", "Blocks in the index: those that workers are known to hold, and those of former workers until they are swept";
        index_bytes: Gauge, "kv_index_size" Bytes, "Memory of the index of blocks";
        texts: Gauge, "kv_texts", "Texts of which it is known which blocks they became";
        text_blocks: Gauge, "kv_text_blocks", "Blocks of these texts";
        learned: Family<ResultLabels, Counter>,
            "kv_text_blocks_learned",
            "Blocks that came with a text's name, by what was known of the text";
        decisions: Family<ResultLabels, Counter>,
            "kv_decisions",
            "Placements on workers that publish KV events, by what was believed of their caches: events, or evidence",
            ResultLabels { result } in [EVENTS, EVIDENCE];
        predictions: Family<ResultLabels, Counter>,
            "kv_predictions",
            "Answers that report cached tokens, by whether they are those that the events had said (exact: within a block)",
            ResultLabels { result } in [EXACT, OVER, UNDER];
        predicted: Counter, "kv_predicted_tokens", "Cached tokens that events had said of these";
        missed: Counter, "kv_prediction_error_tokens", "Sum of the differences to what the answers reported";
        disbelieved: Counter,
            "kv_engines_disbelieved", "Times that an engine was not believed any more because of its answers";
        /// By the worker's clock and this machine's.
        age: Histogram = seconds(0.001, 14),
            "kv_event_age" Seconds, "Time from an engine's events to their place in the index here";
    }
    then KvMetrics::begin
}

/// Results of messages, as labels.
pub(super) const APPLIED: &str = "applied";
pub(super) const REPEATED: &str = "repeated";
/// Results of replays, as labels.
pub(super) const COMPLETE: &str = "complete";
pub(super) const FAILED: &str = "failed";
/// Results of handovers, as labels; also [`FAILED`].
pub(super) const TAKEN: &str = "taken";
pub(super) const NOBODY: &str = "nobody";
/// What was believed, as labels.
pub(super) const EVENTS: &str = "events";
pub(super) const EVIDENCE: &str = "evidence";
/// Results of predictions, as labels.
pub(super) const EXACT: &str = "exact";
pub(super) const OVER: &str = "over";
pub(super) const UNDER: &str = "under";
/// Reason of an engine's end, as a label.
pub(super) const LEFT: &str = "left";
/// State of an engine of which something may be missing.
pub(super) const STALE: &str = "stale";

impl KvMetrics {
    /// There from the start, so that nothing is a zero and not a gap.
    fn begin(&self) {
        self.count(&Applied::default());
        self.show_engines([0; Knowledge::ALL.len()], 0);
        use Learned::{Agrees, Contradicts, Followed, Unrooted};
        for learned in [Followed, Agrees, Contradicts, Unrooted] {
            self.learned(learned, 0);
        }
    }

    pub(super) fn decided(&self, result: &'static str) {
        self.decisions.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn predicted(&self, result: &'static str, expected: u32, cached: u32) {
        self.predictions
            .get_or_create(&ResultLabels { result })
            .inc();
        self.predicted.inc_by(expected.into());
        self.missed.inc_by(expected.abs_diff(cached).into());
    }

    pub(super) fn learned(&self, learned: Learned, blocks: u64) {
        let result = match learned {
            Learned::Followed => "followed",
            Learned::Agrees => "agrees",
            Learned::Contradicts => "contradicts",
            Learned::Unrooted => "unrooted",
        };
        let of = self.learned.get_or_create(&ResultLabels { result });
        of.inc_by(blocks);
    }

    pub(super) fn count(&self, applied: &Applied) {
        for (event, blocks) in [
            ("stored", applied.stored),
            ("removed", applied.removed),
            ("cleared", applied.cleared),
            ("refused", applied.refused),
            ("other_group", applied.other_groups),
            ("unknown", applied.unknown),
        ] {
            let events = self.events.get_or_create(&EventLabels { event });
            events.inc_by(blocks);
        }
    }

    pub(super) fn message(&self, result: &'static str, times: u64) {
        let messages = self.messages.get_or_create(&ResultLabels { result });
        messages.inc_by(times);
    }

    pub(super) fn replay(&self, result: &'static str) {
        self.replays.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn handed_over(&self, result: &'static str) {
        self.handovers.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn forgot(&self, reason: &'static str) {
        self.forgotten.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(super) fn fault(&self, fault: Fault) {
        let reason = fault.as_str();
        self.faults.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// By what is known; `stale`: of how many something may be missing.
    pub(super) fn show_engines(&self, known: [i64; Knowledge::ALL.len()], stale: i64) {
        let states = Knowledge::ALL.map(Knowledge::as_str);
        for (state, count) in states.into_iter().zip(known).chain([(STALE, stale)]) {
            self.engines
                .get_or_create(&StateLabels { state })
                .set(count);
        }
    }

    /// Forgets the series of a worker that left.
    pub(super) fn forget(&self, worker: &Arc<str>) {
        self.blocks.remove(&WorkerLabels::of(worker));
    }
}
