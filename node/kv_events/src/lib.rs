//! What vLLM's workers say of their KV caches. Pure: no IO, no clock, no randomness.
//!
//! ```text
//! payload ──▶ batch ──▶ events ──▶ publisher ──▶ index: block → publishers
//! sequence number ──▶ stream ──▶ apply, forget, ask for a replay
//! ```
//!
//! - [`batch`] reads a message's payload into events, in both shapes that vLLM has had;
//! - [`stream`] puts the messages of one publisher into order, and says what is known after loss, repeats and restarts;
//! - [`publisher`] turns events into what an engine holds: tiers, groups, second copies;
//! - [`index`] holds it, for all publishers, and answers how much of a chain of blocks each of them has;
//! - [`endpoint`] reads where an engine publishes;
//! - [`hash`] recomputes vLLM's block hashes from tokens;
//! - [`texts`] learns which blocks a text became, from the session ids that come back with them;
//! - [`likeness`] says which engines compute block hashes alike;
//! - [`handover`] is what one who knows all of this tells one who starts.
//!
//! A *publisher* is one engine: a worker, or one data-parallel rank of it. This crate does not connect to anything, and
//! does not choose workers.
//!
//! vLLM: `vllm/distributed/kv_events.py`, `vllm/v1/core/kv_cache_utils.py`, releases 0.11 to 0.33.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod batch;
pub mod endpoint;
pub mod handover;
pub mod hash;
pub mod index;
pub mod likeness;
pub mod publisher;
pub mod stream;
pub mod texts;

/// A block's name: the last 8 bytes of its hash, as vLLM publishes it, big-endian.
///
/// It stands for the block's tokens and all before them, not for the model: blocks of two models may have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// Of a hash that is published whole (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`); none below 8 bytes.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        bytes
            .last_chunk()
            .map(|last| Self(u64::from_be_bytes(*last)))
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// `GPU`, also where nothing is said: used at once.
    Gpu,
    /// `CPU`: copied to the GPU before it is used.
    Host,
    /// `STORAGE`, and every medium with another name: read from there.
    Storage,
}

impl Tier {
    /// All of them, the fastest first.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Host, Self::Storage];

    /// Its name in metrics and in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Host => "host",
            Self::Storage => "storage",
        }
    }

    /// Of vLLM's word, or LMCache's, which has small letters.
    fn of(medium: Option<&str>) -> Self {
        match medium {
            None => Self::Gpu,
            Some(gpu) if gpu.eq_ignore_ascii_case("GPU") => Self::Gpu,
            Some(cpu) if cpu.eq_ignore_ascii_case("CPU") => Self::Host,
            Some(_) => Self::Storage,
        }
    }
}
