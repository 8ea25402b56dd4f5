//! Which batches of one sender arrived, and which are missing.
//!
//! Batches travel on streams of their own, so they may overtake each other; a number that is skipped
//! is a gap only after a while. Batches are used when they arrive, in whatever order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{GAP_PATIENCE, Gap, LOG_BATCHES_MAX, PULL_BATCHES_MAX};

/// Numbers below `base` are not wanted, those from `next` on not yet known of.
#[derive(Debug)]
pub(crate) struct Sequence {
    base: u64,
    next: u64,
    /// Missing numbers, and since when; at most as many as a sender keeps.
    missing: BTreeMap<u64, Instant>,
    /// Since when `base` is the number that happened to come first: those before it may have been overtaken.
    guessed: Option<Instant>,
}

/// What an arrived batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The next one, or a later one.
    New,
    /// One that was missing.
    Late,
    /// It came before, was given up, or is older than our interest.
    Duplicate,
}

impl Sequence {
    pub(crate) fn starting_at(base: u64) -> Self {
        Self {
            base,
            next: base,
            missing: BTreeMap::new(),
            guessed: None,
        }
    }

    /// Starts with the first number that came, of a sender that may have begun earlier.
    pub(crate) fn guessed_at(first: u64, now: Instant) -> Self {
        Self {
            guessed: Some(now),
            ..Self::starting_at(first)
        }
    }

    /// Takes note of an arrived batch; also returns how many others are lost by that.
    pub(crate) fn arrive(&mut self, number: u64, now: Instant) -> (Arrival, u64) {
        if number >= self.next {
            let lost = self.skip_to(number, now);
            self.next = number + 1;
            return (Arrival::New, lost);
        }
        if number < self.base && self.may_be_overtaken(now) {
            // Whoever sent it has sent all that follow.
            self.reach_back(number, now);
        }
        match self.missing.remove(&number) {
            Some(_) => (Arrival::Late, 0),
            None => (Arrival::Duplicate, 0),
        }
    }

    /// The sender has sent everything below `next`, and keeps what is not below `first`. Returns how
    /// many batches are lost by that.
    pub(crate) fn mark(&mut self, first: u64, next: u64, now: Instant) -> u64 {
        let skipped = if next > self.next {
            self.skip_to(next, now)
        } else {
            0
        };
        let kept = self.missing.split_off(&first);
        let gone = std::mem::replace(&mut self.missing, kept);
        skipped + gone.len() as u64
    }

    /// Wants batches from an earlier number on, unless that is too far back to be had.
    pub(crate) fn reach_back(&mut self, base: u64, now: Instant) {
        let room = LOG_BATCHES_MAX - self.missing.len();
        if base < self.base && self.base - base <= room as u64 {
            self.missing.extend((base..self.base).map(|n| (n, now)));
            self.base = base;
        }
    }

    fn may_be_overtaken(&self, now: Instant) -> bool {
        let is_young = |since| now.saturating_duration_since(since) < GAP_PATIENCE;
        self.guessed.is_some_and(is_young)
    }

    /// What to ask the sender for: missing for longer than batches overtake each other.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<Gap> {
        let overdue = self
            .missing
            .iter()
            .filter(|(_, since)| now.saturating_duration_since(**since) >= OVERTAKEN_FOR)
            .map(|(number, _)| *number)
            .take(PULL_BATCHES_MAX);
        let mut gaps: Vec<Gap> = Vec::new();
        for number in overdue {
            match gaps.last_mut() {
                Some(gap) if gap.end == number => gap.end += 1,
                _ => gaps.push(Gap {
                    start: number,
                    end: number + 1,
                }),
            }
        }
        gaps
    }

    /// Gives up what is missing for too long; returns how many batches.
    pub(crate) fn give_up(&mut self, now: Instant) -> u64 {
        let before = self.missing.len();
        self.missing
            .retain(|_, since| now.saturating_duration_since(*since) < GAP_PATIENCE);
        (before - self.missing.len()) as u64
    }

    /// Everything below this number arrived or was given up.
    pub(crate) fn complete_below(&self) -> u64 {
        let first_missing = self.missing.first_key_value().map(|(number, _)| *number);
        first_missing.unwrap_or(self.next)
    }

    /// True for numbers that the sender is known to have used.
    pub(crate) fn knows_of(&self, number: u64) -> bool {
        number < self.next
    }

    fn skip_to(&mut self, next: u64, now: Instant) -> u64 {
        let from = self.next.max(next.saturating_sub(LOG_BATCHES_MAX as u64));
        let mut lost = from - self.next;
        self.missing.extend((from..next).map(|n| (n, now)));
        while self.missing.len() > LOG_BATCHES_MAX {
            self.missing.pop_first();
            lost += 1;
        }
        self.next = next;
        lost
    }
}

/// A skipped number is asked for after this long.
const OVERTAKEN_FOR: Duration = Duration::from_millis(150);
