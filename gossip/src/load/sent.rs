//! What the other replicas know of this one's load, and since when.
//!
//! Pure. A replica that counts its own last milliseconds, which nobody else can, decides differently from everybody
//! else about the same prompt. So what it sent becomes its own view, too, at the moment at which it counts for the
//! others (`moment.rs`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::frame::SlotLoad;

/// Frames on their way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Sent {
    on_the_way: VecDeque<(Instant, Vec<SlotLoad>)>,
}

impl Sent {
    /// These slots were sent, and count when that time is over.
    pub(super) fn record(&mut self, slots: Vec<SlotLoad>, now: Instant, hold: Duration) {
        if slots.is_empty() {
            return;
        }
        if self.on_the_way.len() >= FRAMES_MAX
            && let Some((counts_from, _)) = self.on_the_way.front_mut()
        {
            *counts_from = now.min(*counts_from);
        }
        self.on_the_way.push_back((now + hold, slots));
    }

    /// What has become known by now, the oldest first.
    pub(super) fn arrived(&mut self, now: Instant) -> impl Iterator<Item = SlotLoad> {
        // Although the hold became shorter, nothing overtakes what was sent before.
        let due = self.on_the_way.iter().take_while(|(at, _)| *at <= now);
        let count = due.count();
        self.on_the_way.drain(..count).flat_map(|(_, slots)| slots)
    }

    /// When the next of it will be known.
    pub(super) fn next(&self) -> Option<Instant> {
        self.on_the_way.front().map(|(at, _)| *at)
    }

    /// Slots have other positions now. What was on its way is taken for known: it returns with the next full frame.
    pub(super) fn forget(&mut self) {
        self.on_the_way.clear();
    }
}

/// Frames on their way at most, one each 5 ms; the oldest of more is known at once.
const FRAMES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::frame::Load;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn slot(slot: u32, requests: u32) -> SlotLoad {
        let load = Load {
            requests,
            ..Load::default()
        };
        SlotLoad { slot, load }
    }

    #[test]
    fn what_was_sent_is_known_when_it_counts_and_in_order() {
        let start = tokio::time::Instant::now().into_std();
        let mut sent = Sent::default();
        sent.record(vec![slot(0, 1)], start, 5 * MS);
        sent.record(vec![slot(0, 2)], start, 2 * MS);
        assert_eq!(sent.arrived(start + 4 * MS).count(), 0, "none overtakes");
        assert_eq!(sent.next(), Some(start + 5 * MS));
        let all: Vec<_> = sent.arrived(start + 5 * MS).collect();
        assert_eq!(all, [slot(0, 1), slot(0, 2)]);
        assert_eq!(sent.next(), None);
    }

    #[test]
    fn memory_has_a_limit() {
        let start = tokio::time::Instant::now().into_std();
        let mut sent = Sent::default();
        let mut known = 0;
        for at in 0..100 {
            sent.record(vec![slot(0, at)], start, MS);
            known += sent.arrived(start).count();
        }
        assert_eq!(known, 100 - FRAMES_MAX);
        assert_eq!(sent.arrived(start + MS).count(), FRAMES_MAX);
    }
}
