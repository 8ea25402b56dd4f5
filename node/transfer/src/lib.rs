//! Prefill and decode apart: what each leg of a divided request gets, for each KV connector. Pure: no IO, no clock; the
//! one random number of a pair is an argument.
//!
//! A request that is divided becomes two. The prefill leg computes the prompt and one token; the decode leg is the
//! client's own request, which finds the prompt's blocks at the prefill worker. How it finds them differs by connector,
//! and each connector is a module:
//!
//! - `nixl`: the prefill answer names the blocks and the decode leg repeats it (pull), or the prefill worker writes them
//!   to the decode worker, which needs its address only (push);
//! - `mooncake`: both legs name one transfer, the decode leg the prefill's engine and bootstrap server;
//! - `moriio`: both legs name one transfer; the addresses are in the request id, too;
//! - `p2p_nccl`: the addresses are in the request id only;
//! - `sglang`: both legs name one room at the prefill's bootstrap server;
//! - a shared store: nothing is said; the blocks are found by their hashes.
//!
//! [`Half`] is what is known of a worker, read from its [`label`]s; [`pair`] says whether two can work together;
//! [`begin`] gives what is sent first, [`decode_leg`] what is sent after the prefill's answer; [`body`] writes the
//! bodies; [`learned`] says what an answer teaches about the prefill worker. [`ping`](mod@ping) reads how vLLM's engines register.
//!
//! This crate does not choose workers, send anything, or retry.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod answer;
pub mod body;
mod connector;
mod dialect;
mod half;
mod ids;
pub mod label;
mod leg;
mod mooncake;
mod moriio;
mod nixl;
mod object;
mod p2p_nccl;
mod pairing;
pub mod ping;
mod sglang;
mod store;

pub use address::{ZMQ_FORMS, is_zmq_address};
pub use answer::BadAnswer;
pub use connector::{Connector, Mode, UnknownConnector, UnknownMode};
pub use dialect::Dialect;
pub use half::{Half, LabelError, check};
pub use ids::{Ids, names_peers};
pub use leg::{Begin, Leg, Missing};
pub use pairing::{Mismatch, PairRules, pair};

/// What is sent first to a pair.
/// Errors: [`Missing`]: a label without which the decode worker would not find the blocks. Nothing should be sent to
/// this pair.
pub fn begin(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Result<Begin, Missing> {
    match prefill.connector() {
        Connector::Nixl => Ok(nixl::begin(prefill, decode, ids)),
        Connector::Mooncake => mooncake::begin(prefill, ids),
        Connector::MoriIo => moriio::begin(prefill, decode, ids),
        Connector::P2pNccl => Ok(p2p_nccl::begin(prefill, decode, ids)),
        Connector::Store => Ok(store::begin(prefill)),
        Connector::Sglang => Ok(sglang::begin(prefill, decode, ids)),
    }
}

/// The decode leg that follows [`Begin::PrefillFirst`]; `answer` is the body of the prefill's 200 answer, and `ids` are
/// those that the prefill leg was made of.
///
/// It may be asked for again, with another decode worker, where [`Connector::survives_unsent_decode`].
/// Errors: [`BadAnswer`]: with this answer the decode worker would compute the prompt again in silence, or fail.
pub fn decode_leg(
    prefill: &Half,
    decode: &Half,
    ids: &Ids<'_>,
    answer: &[u8],
) -> Result<Leg, BadAnswer> {
    match prefill.connector() {
        Connector::Nixl => nixl::decode_leg(prefill, decode, ids, answer),
        Connector::Mooncake => mooncake::decode_leg(prefill, decode, ids),
        Connector::MoriIo => moriio::decode_leg(prefill, decode, ids, answer),
        Connector::P2pNccl => p2p_nccl::decode_leg(prefill, decode, ids, answer),
        Connector::Store => Ok(store::decode_leg(decode)),
        Connector::Sglang => Ok(sglang::decode_leg(prefill, decode, ids)),
    }
}

/// The labels that a prefill's 200 answer teaches and that are not known yet or known otherwise; names of [`label`].
///
/// Empty for an answer that cannot be read: there is nothing to learn from it.
pub fn learned(prefill: &Half, answer: &[u8]) -> Vec<(String, String)> {
    match prefill.connector() {
        Connector::Nixl => nixl::learned(prefill, answer),
        _ => Vec::new(),
    }
}
