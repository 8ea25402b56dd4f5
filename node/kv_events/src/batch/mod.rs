//! A message's payload: the events of one step of an engine.
//!
//! A batch is an array `[time, events, rank]`, of which the last may be missing. An event is a map with a key `type`
//! (vLLM from 0.24 on), or an array that begins with its type's name (up to 0.22). Fields that later releases add are
//! passed over.

mod event;
mod reader;

use self::reader::Reader;
use crate::texts::TextName;
use crate::{BlockHash, Tier};

/// What a batch may have at most. A real one has a step's blocks: 64 and 2,048 tokens, in vLLM's default setting.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the payload. Default 4 MiB.
    pub payload_bytes: usize,
    /// Events. Default 65,536: an eviction is an event for each block.
    pub events: usize,
    /// Hashes of all events together. Default 65,536.
    pub hashes: usize,
    /// Tokens of all events together. Default 1,048,576.
    pub tokens: usize,
    /// Bytes of a text. Default 256.
    pub text_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 4 << 20,
            events: 1 << 16,
            hashes: 1 << 16,
            tokens: 1 << 20,
            text_bytes: 256,
        }
    }
}

/// Why a payload is not taken. What it would have said is lost: the publisher's contents are not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBatch {
    /// It ends too early, or what stands somewhere is not what belongs there.
    #[error("no batch of KV events")]
    Malformed,
    /// More of something than [`Limits`] allow.
    #[error("more {0} than the limit")]
    TooMany(&'static str),
}

/// The events of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// When the engine made it, in seconds since 1970 by its own clock.
    pub time: f64,
    /// In the order in which they happened.
    pub events: Vec<Event>,
    /// Data-parallel rank, where the engine says it.
    pub rank: Option<u32>,
    /// Events of a type that is not known here. They are passed over.
    pub unknown_events: usize,
}

/// One change of an engine's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks entered it.
    Stored(Stored),
    /// Blocks left it.
    Removed(Removed),
    /// Everything left it.
    Cleared,
}

/// Blocks that entered a cache; each is the next one's parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Names of the blocks, at least one in what vLLM sends.
    pub hashes: Vec<BlockHash>,
    /// The block before the first one; none for the beginning of a prompt.
    pub parent: Option<BlockHash>,
    /// Tokens of all blocks, one after the other.
    pub tokens: Vec<u32>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Where they lie.
    pub tier: Tier,
    /// The LoRA adapter that they were computed with, by name where the release says it.
    pub lora: Option<Lora>,
    /// Cache group, 0 where nothing is said. Models with attention of several kinds have one for each.
    pub group: u32,
    /// The text of the request that they were computed for, where its session id names it.
    pub text: Option<TextName>,
    /// Whether it is a group whose blocks are of use only with all blocks before them: full attention, also where nothing
    /// is said.
    pub is_full_attention: bool,
}

/// Which adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lora {
    /// Its name.
    Name(String),
    /// Its number in that process; up to vLLM 0.11 nothing else is said.
    Number(u64),
}

/// Blocks that left a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Their names.
    pub hashes: Vec<BlockHash>,
    /// From where.
    pub tier: Tier,
    /// Cache group, 0 where nothing is said.
    pub group: u32,
}

impl Batch {
    /// Reads a payload.
    ///
    /// At most `limits` are allocated, and not more than the payload can hold; nesting is passed over without recursion.
    /// Errors: [`BadBatch`]
    pub fn read(payload: &[u8], limits: &Limits) -> Result<Self, BadBatch> {
        if payload.len() > limits.payload_bytes {
            return Err(BadBatch::TooMany("bytes"));
        }
        let mut reader = Reader::new(payload);
        let fields = reader.array()?;
        if fields < 2 {
            return Err(BadBatch::Malformed);
        }
        let time = reader.number()?;
        let mut room = event::Room::of(limits);
        let (events, unknown_events) = event::read_all(&mut reader, &mut room)?;
        let mut rank = None;
        for at in 2..fields {
            if at == 2 {
                rank = reader.optional_u32()?;
            } else {
                reader.skip()?;
            }
        }
        if !reader.is_at_end() {
            return Err(BadBatch::Malformed);
        }
        Ok(Self {
            time,
            events,
            rank,
            unknown_events,
        })
    }
}
