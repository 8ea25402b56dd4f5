//! vLLM's block hashes, recomputed from tokens.
//!
//! `h[i] = H(encode(h[i-1], tokens of block i, extra keys or nothing))`, where `h[-1] = H(encode(seed))`. Only whole blocks
//! have a hash. [`Algorithm`] says what `H` and `encode` are; the seed is `PYTHONHASHSEED` where it is set, else what
//! [`default_seed`] says.
//!
//! Not recomputed: blocks with images or prompt embeddings, and extra keys without tags (before vLLM 0.30, where a seed has
//! to be set for hashes to be known at all).

mod cbor;
mod pickle;

use xxhash_rust::xxh3::xxh3_128;

use crate::BlockHash;

/// vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `sha256`, the default: of Python's pickle.
    Sha256,
    /// `sha256_cbor`: of canonical CBOR.
    Sha256Cbor,
    /// `xxhash`: XXH3 with 128 bits, of Python's pickle.
    Xxhash,
    /// `xxhash_cbor`.
    XxhashCbor,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Sha256,
        Self::Sha256Cbor,
        Self::Xxhash,
        Self::XxhashCbor,
    ];

    /// vLLM's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
        }
    }

    fn is_cbor(self) -> bool {
        matches!(self, Self::Sha256Cbor | Self::XxhashCbor)
    }

    fn is_cryptographic(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha256Cbor)
    }

    fn digest(self, bytes: &[u8]) -> Digest {
        if self.is_cryptographic() {
            let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
            Digest::of(digest.as_ref())
        } else {
            Digest::of(&xxh3_128(bytes).to_be_bytes())
        }
    }
}

/// The seed of a worker without `PYTHONHASHSEED`, by the release `(major, minor)` of its vLLM: a fixed one from 0.30 on for
/// algorithms of cryptography; none where each process draws its own.
pub fn default_seed(algorithm: Algorithm, release: (u32, u32)) -> Option<&'static str> {
    (algorithm.is_cryptographic() && release >= (0, 30)).then_some("vllm-none-hash")
}

/// A whole hash: 32 bytes, or 16 of XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    bytes: [u8; 32],
    length: usize,
}

impl Digest {
    fn of(digest: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Self {
            bytes,
            length: digest.len(),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The block's name in events.
    pub fn block(&self) -> BlockHash {
        BlockHash::of_bytes(self.as_bytes()).expect("a digest has 16 bytes at least")
    }
}

/// What a block's hash depends on besides tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// A LoRA adapter, on every block: its name and its path on the worker.
    Lora {
        /// Name.
        name: &'a str,
        /// Path.
        path: &'a str,
    },
    /// The request's `cache_salt`, on its first block.
    CacheSalt(&'a str),
}

impl<'a> ExtraKey<'a> {
    /// The texts of the tuple that stands for it.
    fn texts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (texts, count) = match *self {
            Self::Lora { name, path } => (["lora", name, path], 3),
            Self::CacheSalt(salt) => (["cache_salt", salt, ""], 2),
        };
        texts.into_iter().take(count)
    }
}

/// Computes hashes of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    algorithm: Algorithm,
    root: Digest,
}

impl Hasher {
    /// Of a worker with this algorithm and seed.
    pub fn new(algorithm: Algorithm, seed: &str) -> Self {
        let mut encoded = Vec::with_capacity(64);
        if algorithm.is_cbor() {
            cbor::text(&mut encoded, seed);
        } else {
            pickle::seed(&mut encoded, seed);
        }
        let root = algorithm.digest(&encoded);
        Self { algorithm, root }
    }

    /// The parent of every first block.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// The hash of one block; the extra keys in vLLM's order: LoRA, then salt.
    pub fn block(&self, parent: &Digest, tokens: &[u32], extra: &[ExtraKey<'_>]) -> Digest {
        let mut encoded = Vec::with_capacity(64 + 5 * tokens.len());
        if self.algorithm.is_cbor() {
            cbor::block(&mut encoded, parent.as_bytes(), tokens, extra);
        } else {
            pickle::block(&mut encoded, parent.as_bytes(), tokens, extra);
        }
        self.algorithm.digest(&encoded)
    }

    /// The names of a prompt's whole blocks of `block_tokens` tokens (at least 1), with what every block depends on, and
    /// what the first one does besides.
    pub fn chain(
        &self,
        tokens: &[u32],
        block_tokens: usize,
        lora: Option<ExtraKey<'_>>,
        salt: Option<ExtraKey<'_>>,
    ) -> Vec<BlockHash> {
        let mut parent = self.root;
        let mut blocks = Vec::with_capacity(tokens.len() / block_tokens.max(1));
        for tokens in tokens.chunks_exact(block_tokens.max(1)) {
            let salt = salt.filter(|_| blocks.is_empty());
            let extra: Vec<_> = lora.into_iter().chain(salt).collect();
            parent = self.block(&parent, tokens, &extra);
            blocks.push(parent.block());
        }
        blocks
    }
}
