//! Workers that are found by themselves: in files, by DNS, in Kubernetes.
//!
//! Every source reports the same thing, again and again: a full [`Picture`] of the workers that it sees now, or that it
//! cannot see (`feed.rs`). What follows from pictures is decided in one place, `rule/`, which is pure: each replica
//! watches by itself, compares its picture with the replicated worker set, and tells the others where the two differ
//! ([`Statement`]). No list of events is ever applied, so a lost event is healed by the next picture.
//!
//! | # | law of the rule | test in `rule/tests.rs` |
//! |---|---|---|
//! | 1 | a worker that any replica sees for the first time is added | `a_new_worker_is_added_at_once` |
//! | 2 | a replica that sees nothing, or saw it too long ago, adds, changes and removes nothing | `a_blind_replica_writes_nothing` |
//! | 3 | a worker that no seeing replica sees takes no new prompts at once, and is removed after a hold | `what_nobody_sees_is_drained_then_removed` |
//! | 4 | one that returns within the hold keeps its place on the ring | `a_return_within_the_hold_removes_nothing` |
//! | 5 | while one seeing replica still sees it, it stays; the majority decides after a longer time | `one_that_still_sees_it_holds_it_for_a_while` |
//! | 6 | what was removed returns if it appears anew, or if most still see it | `a_stale_picture_brings_nothing_back`; `rule/stale_tests.rs` |
//! | 7 | a picture that became empty is believed later | `an_empty_picture_is_believed_late` |
//! | 8 | of two descriptions the newer one stands at once, and the more frequent one in the end | `the_newer_description_stands`, `no_war_over_descriptions` |
//! | 9 | readiness changes the state of a worker, never the set | `readiness_moves_no_ring` |
//! | 10 | a worker has no place on the ring before it was ready for the first time | `who_was_never_ready_has_no_place` |
//! | 11 | declared labels are added where they are missing; another value is replaced by a new declaration only | `what_was_learned_and_what_is_declared_do_not_replace_each_other` |
//! | 12 | who was lost without leaving may see every worker, for as long as one that says so holds it | `neither_side_of_a_cut_takes_out_what_the_other_may_see` in `rule/cut_tests.rs` |

pub mod dns;
mod feed;
pub mod file;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod label;
mod picture;
mod rule;
#[cfg(test)]
mod watched;

pub use feed::{Feed, Sight, Watcher, feed};
pub use picture::{Found, Picture, PictureError, WORKERS_MAX};
pub use rule::{
    Believed, Counts, Entries, Objection, PeerStatement, Rule, Settings, Statement, Step, What,
    WorkerSet, source_hash, worker_hash,
};
