//! What is learned of texts: which blocks they became, who taught it, and what is handed over.
//!
//! `engine.rs` is an engine as the tests need one; `learned.rs` is what its events teach, `room.rs` what is kept within the
//! limits, `handover.rs` what another one takes over, `laws.rs` what holds whatever is stored and lost.

mod engine;
mod handover;
mod laws;
mod learned;
mod room;
