//! A request whose prompt one worker computes and whose answer another one generates.
//!
//! Where a model has workers for prefill and workers for decode, a request that can be divided goes to a pair of them.
//! The engines hand the KV over to each other; what either of them has to be told for that is the business of the crate
//! `grapevine-transfer`. To its client it is one request: one id, one deadline, one place in admission, one budget of
//! retries, one line in the access log.
//!
//! | part | file |
//! |---|---|
//! | may this request be divided, and what if not | `division.rs` |
//! | could be divided, and one worker takes it all the same | `whole.rs` |
//! | the way to a pair, attempt by attempt | `plan.rs` |
//! | choosing a pair | `pair.rs` |
//! | sending both legs, in turn or at once | `sending.rs` |
//! | one leg: its bytes, its answer | `legs.rs` |
//! | a prompt that is computed, until a decode worker has it | `computed.rs` |
//! | what follows from the end of a leg | `outcomes.rs` |
//! | a transfer failed: whose fault is it | `blame.rs` |
//! | blocks that nobody fetched | `left.rs` |

mod blame;
mod computed;
mod division;
mod left;
mod legs;
mod metrics;
mod outcomes;
mod pair;
mod plan;
mod sending;
mod whole;

pub(super) use self::division::{Division, check_id};
pub use self::division::{Undivided, Way};
pub(super) use self::left::LeftBlocks;
pub use self::metrics::SplitMetrics;
pub(super) use self::plan::ToPair;
pub use self::whole::stays_whole;
