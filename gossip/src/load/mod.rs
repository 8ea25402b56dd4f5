//! The load plane: how loaded every worker is across the whole cluster.
//!
//! Pure but for atomics. Each replica sends the others, in absolute values, what it has in flight on
//! each worker; nobody adds up increments, so a lost frame is healed by the next one.
//!
//! - [`LoadFrame`]: what travels. Slots are positions in the sorted list of workers, whose digest
//!   the frame carries.
//! - [`LoadBoard`]: one [`LoadCell`] of atomics per worker, shared with the data path, which reads
//!   and writes it without a lock.
//! - [`LoadPlane`]: owned by the agent: collects own changes into frames, takes the frames of others,
//!   writes their damped sums to the board.
//! - `planes/load.rs`: the same among the planes of an agent: when frames go out, what becomes of those that come.
//! - `moment.rs`: when a frame counts: at the same moment for all who have it.
//! - `sender.rs`: what is known of one other replica, and which of its frames do not count yet.
//! - `past.rs`: what counted a moment ago, for peers that ask about a decision that they have made.
//! - `sent.rs`: which of the own numbers the others know by now. Decisions are made on those: exact own
//!   counts, which nobody else has, would part the replicas.

mod board;
mod common;
mod frame;
mod moment;
mod past;
mod plane;
mod sender;
mod sent;
#[cfg(test)]
mod tests;
mod trust_cap;

pub use board::{LoadBoard, LoadCell, SENDER_SILENT_AFTER};
pub use common::{Common, OthersLoad};
pub use frame::{Coverage, EARLIER_MAX, Earlier, Load, LoadFrame, Moment, SlotLoad};
pub use past::Past;
pub use plane::{
    Applied, FULL_INTERVAL, HEARTBEAT_INTERVAL, IDLE_HEARTBEAT_INTERVAL, LoadPlane, RISE_INTERVAL,
    SENDER_FORGET_AFTER, SENDERS_MAX,
};
