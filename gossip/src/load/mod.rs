//! The load plane: how loaded every worker is across the whole cluster.
//!
//! Pure but for atomics. Each replica tells the others, in absolute values, what it has in flight on
//! each worker; nobody adds up increments, so a lost frame is healed by the next one.
//!
//! - [`LoadFrame`]: what travels. Slots are positions in the sorted roster of workers, whose digest
//!   the frame carries.
//! - [`LoadBoard`]: one [`LoadCell`] of atomics per worker, shared with the data path, which reads
//!   and writes it without a lock.
//! - [`LoadPlane`]: owned by the agent: collects own changes into frames, takes the frames of others,
//!   writes their damped sums to the board.
//! - `told.rs`: which of the own numbers the others know by now. Decisions are made on those: exact own
//!   counts, which nobody else has, would part the replicas.

mod board;
mod credit;
mod frame;
mod plane;
#[cfg(test)]
mod tests;
mod told;

pub use board::{LoadBoard, LoadCell, OthersLoad};
pub use frame::{Coverage, Load, LoadFrame, SlotLoad};
pub use plane::{
    Applied, FULL_INTERVAL, HEARTBEAT_INTERVAL, IDLE_HEARTBEAT_INTERVAL, LoadPlane, RISE_INTERVAL,
    SENDER_FORGET_AFTER, SENDER_SILENT_AFTER, SENDERS_MAX,
};
pub use told::middle;
