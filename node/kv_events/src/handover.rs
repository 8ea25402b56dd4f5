//! What a replica that knows caches and texts tells one that starts.
//!
//! An engine's replay reaches back 10,000 messages by default, so one who starts late would know a part of most caches, and
//! of texts only those that were computed lately. What it is told instead is as of a [`Mark`] of the engine's stream; its
//! own subscription goes on behind that, after the engine has shown that it is the same process still
//! ([`Stream::behind`](crate::stream::Stream::behind)). So nothing that is told has to be true for ever.
//!
//! Questions go by [`Question`], a page at a time; a page is some frames of [`Piece`]s. Blocks take eight bytes each.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::{Decode, Encode};

use crate::{BlockHash, Tier};

/// Largest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 240 * 1024;
/// Memory that a frame may ask for when it is read.
const READ_BYTES_MAX: usize = 4 << 20;
/// Bytes of a page, beyond which nothing more is begun; an engine is not divided between two. So a page has some 80 frames at
/// most, and an answer of gossip may have 256.
pub const PAGE_BYTES: usize = 10 << 20;
/// Longest name of a worker, in bytes.
const WORKER_BYTES_MAX: usize = 4_096;

/// A block's name as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct Wire([u8; 8]);

impl From<BlockHash> for Wire {
    fn from(block: BlockHash) -> Self {
        Self(block.0.to_le_bytes())
    }
}

impl From<Wire> for BlockHash {
    fn from(block: Wire) -> Self {
        Self(u64::from_le_bytes(block.0))
    }
}

/// Some blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Blocks(Vec<Wire>);

impl Blocks {
    /// All of them.
    pub fn to_vec(&self) -> Vec<BlockHash> {
        self.0.iter().map(|block| (*block).into()).collect()
    }
}

impl From<&[BlockHash]> for Blocks {
    fn from(blocks: &[BlockHash]) -> Self {
        Self(blocks.iter().map(|block| (*block).into()).collect())
    }
}

/// A block, or none.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Parent(Option<Wire>);

impl Parent {
    /// The block.
    pub fn get(&self) -> Option<BlockHash> {
        self.0.map(Into::into)
    }
}

impl From<Option<BlockHash>> for Parent {
    fn from(block: Option<BlockHash>) -> Self {
        Self(block.map(Into::into))
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Question {
    /// Engines behind this one, by worker and rank; from the first one on.
    Engines(Option<(String, u32)>),
    /// Texts behind this run, by the blocks before it and its number; from the first one on.
    Texts(Option<(u32, u32)>),
}

/// An engine, as of a message of its stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Engine {
    /// Its worker.
    pub worker: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// Its number, as texts name their teachers.
    pub number: u32,
    /// The kind of engines that it belongs to, which compute hashes alike.
    pub kind: u32,
    /// Number and fingerprint of the message.
    pub mark: (u64, u64),
    /// All of its blocks are known.
    pub is_whole: bool,
    /// The cache group that is followed.
    pub group: Option<u32>,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// A run of blocks that texts consist of.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Run {
    /// The block before it.
    pub parent: Parent,
    /// Number of the engine that told of its first block.
    pub teacher: u32,
    /// When it was used last, by a count of uses.
    pub used: u64,
    /// Its blocks.
    pub blocks: Blocks,
    /// Texts whose answers end in it.
    pub names: Vec<Name>,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Name {
    /// Its name.
    pub name: u64,
    /// Blocks up to the end of the prompt.
    pub prompt_blocks: u32,
    /// The same with the answer.
    pub blocks: u32,
    /// It is a request's whole text.
    pub is_whole: bool,
    /// It has blocks that no text before it had.
    pub is_apart: bool,
    /// Number of the engine that told of it.
    pub teacher: u32,
}

/// One thing that is told.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Piece {
    /// An engine; what it holds follows.
    Engine(Engine),
    /// Blocks that the engine before holds in a tier, 0 to 2.
    Blocks(u8, Blocks),
    /// Blocks of it that were stored several times, by tier, and how many further times.
    Copies(Vec<(u8, Copied, u32)>),
    /// Two kinds of engines compute hashes in different ways.
    Apart(u32, u32),
    /// A run.
    Run(Run),
    /// The page ends; what is to be asked next, if there is more.
    Next(Option<Question>),
}

/// A block of which there are copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Copied(Wire);

impl Copied {
    /// The block.
    pub fn get(self) -> BlockHash {
        self.0.into()
    }
}

/// Not what a replica tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no pieces of a handover")]
pub struct BadFrame;

fn codec() -> Configuration<LittleEndian, Varint, Limit<READ_BYTES_MAX>> {
    bincode::config::standard().with_limit::<READ_BYTES_MAX>()
}

/// A question's bytes.
pub fn ask(question: &Question) -> Vec<u8> {
    bincode::encode_to_vec(question, codec()).expect("a question fits")
}

/// Reads a question.
/// Errors: it is none, or from a later release.
pub fn read_question(bytes: &[u8]) -> Result<Question, BadFrame> {
    let read = bincode::decode_from_slice(bytes, codec());
    read.map(|(question, _)| question).map_err(|_| BadFrame)
}

/// Reads the pieces of a frame.
/// Errors: they are none, too long, or from a later release.
pub fn read(frame: &[u8]) -> Result<Vec<Piece>, BadFrame> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(BadFrame);
    }
    let mut rest = frame;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, used) = bincode::decode_from_slice(rest, codec()).map_err(|_| BadFrame)?;
        let is_good = match &piece {
            Piece::Engine(engine) => engine.worker.len() <= WORKER_BYTES_MAX,
            Piece::Blocks(tier, _) => Tier::ALL.get(usize::from(*tier)).is_some(),
            Piece::Copies(copies) => copies
                .iter()
                .all(|(tier, ..)| Tier::ALL.get(usize::from(*tier)).is_some()),
            Piece::Apart(..) | Piece::Run(_) | Piece::Next(_) => true,
        };
        if !is_good {
            return Err(BadFrame);
        }
        pieces.push(piece);
        rest = &rest[used..];
    }
    Ok(pieces)
}

/// Blocks that go into one piece: small enough that frames become full.
const PIECE_BLOCKS: usize = 2_000;
/// Texts that end in a run and go into one piece, up to 30 bytes each.
const NAMES_MAX: usize = 500;
/// Blocks with copies that go into one piece, up to 14 bytes each.
const COPIES_MAX: usize = 1_000;

/// Frames of a page, as they are filled.
#[derive(Debug, Default)]
pub struct Page {
    frames: Vec<Vec<u8>>,
    bytes: usize,
}

impl Page {
    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a piece. One that fits no frame is left out.
    pub fn push(&mut self, piece: &Piece) {
        let bytes = bincode::encode_to_vec(piece, codec()).expect("memory takes it");
        if bytes.len() > FRAME_BYTES_MAX {
            return;
        }
        self.bytes += bytes.len();
        match self.frames.last_mut() {
            Some(frame) if frame.len() + bytes.len() <= FRAME_BYTES_MAX => frame.extend(bytes),
            _ => self.frames.push(bytes),
        }
    }

    /// Adds what the engine before holds in a tier.
    pub fn push_blocks(&mut self, tier: Tier, blocks: &[BlockHash]) {
        for some in blocks.chunks(PIECE_BLOCKS) {
            self.push(&Piece::Blocks(tier as u8, some.into()));
        }
    }

    /// Adds a run, in several pieces where it is long; its texts are in the last of them.
    pub fn push_run(&mut self, mut run: Run) {
        let blocks = run.blocks.to_vec();
        let mut names = std::mem::take(&mut run.names).into_iter().peekable();
        let mut some = blocks.chunks(PIECE_BLOCKS).peekable();
        while let Some(part) = some.next() {
            run.blocks = part.into();
            if some.peek().is_none() {
                run.names = names.by_ref().take(NAMES_MAX).collect();
            }
            self.push(&Piece::Run(run.clone()));
            run.parent = part.last().copied().into();
        }
        while names.peek().is_some() {
            run.blocks = Blocks::default();
            run.names = names.by_ref().take(NAMES_MAX).collect();
            self.push(&Piece::Run(run.clone()));
        }
    }

    /// Adds copies of blocks of the engine before.
    pub fn push_copies(&mut self, copies: &[(Tier, BlockHash, u32)]) {
        for some in copies.chunks(COPIES_MAX) {
            let wire = |(tier, block, more): &(Tier, BlockHash, u32)| {
                (*tier as u8, Copied((*block).into()), *more)
            };
            self.push(&Piece::Copies(some.iter().map(wire).collect()));
        }
    }

    /// The frames; `next` is what to ask for then.
    pub fn into_frames(mut self, next: Option<Question>) -> Vec<Vec<u8>> {
        self.push(&Piece::Next(next));
        self.frames
    }
}
