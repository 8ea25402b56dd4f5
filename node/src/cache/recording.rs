//! An answer that is taken down while it passes, to be kept if it turns out whole.
//!
//! Its pieces are copied into one buffer: each is a slice of a read buffer that it would keep alive, and that nobody counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use grapevine_placement::named;
use http::{StatusCode, response};

use super::ResponseCache;
use super::answer::{Answer, Keepable, keepable};
use super::key::CacheKey;

/// What a piece costs besides its bytes.
const PIECE_BYTES: u64 = 32;

named! {
    /// What became of an answer that might have been kept, as a metric label.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Fate {
        Kept = "kept",
        /// Its head says that it is for this client only, or for now, or it is an error.
        Refused = "refused",
        /// It is longer than `cache.entry_bytes`.
        TooLong = "too_long",
        /// Too many answers are taken down at once.
        NoRoom = "no_room",
        /// It is more than all that its tenant may have in the cache.
        TenantFull = "tenant_full",
        /// It broke off, was given up, or its client left.
        Unfinished = "unfinished",
    }
}

/// One answer, as far as it has passed. Dropped without [`Recording::keep`], it is forgotten.
#[derive(Debug)]
pub struct Recording {
    cache: Arc<ResponseCache>,
    key: CacheKey,
    tenant: Box<[u8]>,
    head: Option<Keepable>,
    body: Vec<u8>,
    /// Where each piece ends.
    ends: Vec<usize>,
    bytes: u64,
    /// None while it may still be kept.
    fate: Option<Fate>,
}

impl Recording {
    pub(super) fn new(cache: Arc<ResponseCache>, key: CacheKey, tenant: Box<[u8]>) -> Self {
        Self {
            cache,
            key,
            tenant,
            head: None,
            body: Vec::new(),
            ends: Vec::new(),
            bytes: 0,
            fate: None,
        }
    }

    /// The answer begins with this head.
    pub fn begin(&mut self, head: &response::Parts) {
        self.head = keepable(head);
        if self.head.is_some() {
            return;
        }
        // An error is no newer answer.
        if head.status == StatusCode::OK {
            self.cache.outdate(&self.key);
        }
        self.give_up(Fate::Refused);
    }

    /// The next piece of its body passes.
    pub fn add(&mut self, piece: &Bytes) {
        if self.fate.is_some() || piece.is_empty() {
            return;
        }
        let more = piece.len() as u64 + PIECE_BYTES;
        self.bytes += more;
        let taken = self.cache.recorded_bytes.fetch_add(more, Ordering::Relaxed) + more;
        let fate = if self.bytes > self.cache.config.look().entry_bytes.0 {
            Fate::TooLong
        } else if taken > self.cache.config.look().bytes.0 {
            Fate::NoRoom
        } else {
            self.body.extend_from_slice(piece);
            self.ends.push(self.body.len());
            return;
        };
        self.cache.outdate(&self.key);
        self.give_up(fate);
    }

    /// The answer was whole.
    pub fn keep(mut self) {
        let Some(head) = self.head.take().filter(|_| self.fate.is_none()) else {
            return;
        };
        let tenant = std::mem::take(&mut self.tenant);
        let body = std::mem::take(&mut self.body);
        let answer = Answer::new(head, body, &self.ends, tenant);
        let fate = answer.map_or(Fate::Unfinished, |answer| {
            self.cache.insert(self.key, answer)
        });
        self.give_up(fate);
    }

    /// Lets go of what it holds.
    fn give_up(&mut self, fate: Fate) {
        self.fate = Some(fate);
        (self.body, self.ends) = (Vec::new(), Vec::new());
        let bytes = std::mem::take(&mut self.bytes);
        self.cache
            .recorded_bytes
            .fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let fate = self.fate.unwrap_or(Fate::Unfinished);
        self.give_up(fate);
        self.cache.metrics.answer(fate.as_str());
    }
}
