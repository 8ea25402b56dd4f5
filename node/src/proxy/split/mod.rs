//! A request whose prompt one worker computes and whose answer another one generates.
//!
//! Where a model has workers for prefill and workers for decode, a request that can be divided goes to a pair of them.
//! The engines hand the KV over to each other; what either of them has to be told for that is the business of the crate
//! `grapevine-transfer`. To its client it is one request: one id, one deadline, one place in admission, one budget of
//! retries, one line in the access log.
//!
//! What can be said of a division without sending anything is in [`division`](super::division).
//!
//! | part | file |
//! |---|---|
//! | the way to a pair, attempt by attempt | `plan.rs` |
//! | choosing a pair | `pair.rs` |
//! | sending both legs, in turn or at once | `sending.rs` |
//! | one leg: its bytes, its answer | `legs.rs` |
//! | a prompt that is computed, until a decode worker has it | `computed.rs` |
//! | what follows from the end of a leg | `outcomes.rs` |
//! | what failed transfers show together | `evidence.rs` |

mod computed;
mod evidence;
mod legs;
mod outcomes;
mod pair;
mod plan;
mod sending;

pub(super) use self::plan::ToPair;
