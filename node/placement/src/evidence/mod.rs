//! Evidence: which worker holds, or soon holds, which prefix.
//!
//! Own decisions are known at once, others' by the records that replicas send each other. A [`PrefixIndex`] keeps them:
//! for each worker the marks of prompts that it took, least recently used last, up to what the worker's cache can
//! hold. A chain's mark stands for its whole prefix, because a worker's cache loses the tail of a chain first.
//! Nothing here is certain: workers evict as they like, so answers that report fewer cached tokens correct it.
//!
//! Invariants, each a test of that name: `memory_is_bounded`, `deeper_marks_stand_for_their_prefix`,
//! `evidence_of_another_epoch_is_dropped`, `old_evidence_is_not_believed`, `the_index_follows_a_plain_model`.

mod entry;
mod holders;
mod lengths;
mod prefix_index;
mod renewals;
mod table;

pub use prefix_index::{
    PrefixIndex, PrefixIndexCounters, PrefixIndexSettings, Recorded, Slot, Slots, is_far_below,
};
