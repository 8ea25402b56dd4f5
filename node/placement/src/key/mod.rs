//! Key: request text → chain of links → where its prefix lives.
//!
//! Canonical text is model, tenant salt, tools, then the messages in order. It is hashed in links: one
//! every 256 bytes of a section (tools, a message, a text) and one at the section's end, each over the
//! link before it. Two requests share links exactly as far as they share text, so a link names a prefix.
//! No tokenizer is needed, and nothing here depends on how the caller cuts text into calls.
//!
//! Lengths are hashed at a section's end, not at its start as for other fields: two prompts of different
//! length must share the links of their common beginning. The end link has its own kind, so nothing is lost.
//!
//! Invariants, each a test of that name: `chain_is_independent_of_split`, `histories_only_grow_share_links`,
//! `fields_do_not_run_into_each_other`, `models_and_tenants_have_their_own_keys`.

use std::num::{NonZeroU8, NonZeroU32};

mod builder;
mod marks;
mod parts;

pub use builder::KeyBuilder;
pub use marks::{MARKS_MAX, added_tokens};
pub use parts::{KeyParts, KeyPartsError};

use crate::hash::HashAlgorithm;

/// How text becomes a key. Cluster-wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySettings {
    /// Hash of the links. Default xxh3.
    pub hash: HashAlgorithm,
    /// Seed of every chain. Default 0.
    pub seed: u64,
    /// Leading bytes that key a text without message structure, rounded up to whole links of 256.
    ///
    /// Default 8,192. Larger: texts that share a long instruction spread better; smaller: texts that differ
    /// early in a long document stay together.
    pub text_key_bytes: NonZeroU32,
    /// Bytes of text per token, for estimates before a tokenizer has run. Default 4.
    pub bytes_per_token: NonZeroU8,
}

impl Default for KeySettings {
    fn default() -> Self {
        Self {
            hash: HashAlgorithm::default(),
            seed: 0,
            text_key_bytes: const { NonZeroU32::new(8_192).expect("not zero") },
            bytes_per_token: const { NonZeroU8::new(4).expect("not zero") },
        }
    }
}

/// One link of the chain: a prefix of the request, by hash and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Hash of everything up to here.
    pub hash: u64,
    /// Estimated tokens up to here.
    pub tokens: u32,
}

/// What placement knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    links: Vec<Link>,
    marks: Vec<Link>,
    model: u64,
    group: Option<Link>,
    home: u64,
    session: Option<u64>,
    /// The user, or in place of one the prompt's opening.
    user: Option<u64>,
    stable_tokens: u32,
    prompt_tokens: u32,
    leaves_nothing: bool,
}

impl Key {
    /// Position on the ring: the explicit session if given, else the end of the first user message
    /// (stable for all later turns, because histories only grow), else the text's first bytes.
    pub fn home(&self) -> u64 {
        self.home
    }

    /// Key of the explicit session, if the client named one.
    pub fn session(&self) -> Option<u64> {
        self.session
    }

    /// Key of policy `consistent_hash`: session, else user, else the prefix: the first user message's, or the text's,
    /// first 1,024 bytes with all before them, in whole chunks of 256; [`Key::home`] where they are fewer than 256.
    ///
    /// Not the whole message: templates with the question at their end belong together.
    pub fn consistent(&self) -> u64 {
        self.session.or(self.user).unwrap_or(self.home)
    }

    /// End of tools and leading system messages: what a group of conversations shares.
    pub fn group(&self) -> Option<Link> {
        self.group
    }

    /// The chain, from the first link to the last.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Links at which contents and heat are tracked: about one every 512 tokens (128 in the first 2,048), and the
    /// ends of messages. At most [`MARKS_MAX`].
    ///
    /// Which links are marks depends on the prefix alone, so prompts share marks as far as they share text. The low
    /// byte of a mark's hash says how many tokens it adds to the mark before it ([`added_tokens`]).
    pub fn marks(&self) -> &[Link] {
        &self.marks
    }

    /// Its request leaves nothing in a worker's cache: it has no marks, is no evidence, and does not count for heat.
    pub fn leaves_nothing(&self) -> bool {
        self.leaves_nothing
    }

    /// Stands for all requests to the model, whatever the tenant: what shares of traffic are measured against.
    pub fn model(&self) -> u64 {
        self.model
    }

    /// Estimated tokens of the whole prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Estimated tokens that an earlier request with the same key can have left in a cache.
    ///
    /// Never more than [`Key::prompt_tokens`].
    pub fn stable_tokens(&self) -> u32 {
        self.stable_tokens
    }

    /// The link vector, to build the next key without allocating ([`KeyBuilder::reusing`]).
    pub fn into_links(self) -> Vec<Link> {
        self.links
    }
}
