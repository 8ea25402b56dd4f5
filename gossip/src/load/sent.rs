//! What the other replicas know of this one's load, and since when.
//!
//! Pure. A replica that counts its own last milliseconds, which nobody else can, decides differently from everybody
//! else about the same prompt. So what it sent becomes its own view, too, but not before the others can have it: a
//! frame is known one way after it left. One way is that of the middle peer, so that half of the peers have it by
//! then; a slow, cut-off or dead peer neither holds back the others' picture nor freezes this one's.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::frame::SlotLoad;

/// Frames on their way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Sent {
    one_way: Duration,
    on_the_way: VecDeque<(Instant, Vec<SlotLoad>)>,
}

impl Sent {
    /// Time from here to the middle peer; more than [`ONE_WAY_MAX`] counts as that.
    pub(super) fn set_one_way(&mut self, time: Duration) {
        self.one_way = time.min(ONE_WAY_MAX);
    }

    /// These slots were sent at this moment.
    pub(super) fn record(&mut self, slots: Vec<SlotLoad>, now: Instant) {
        if !slots.is_empty() {
            self.on_the_way.push_back((now + self.one_way, slots));
        }
    }

    /// What has become known by now, the oldest first.
    pub(super) fn arrived(&mut self, now: Instant) -> impl Iterator<Item = SlotLoad> {
        // Although the way became shorter, nothing overtakes what was sent before.
        let late = self.on_the_way.len().saturating_sub(FRAMES_MAX);
        let due = self.on_the_way.iter().take_while(|(at, _)| *at <= now);
        let count = due.count().max(late);
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

/// Longest way that is waited for: a quarter of a second old, load counts less for everybody.
const ONE_WAY_MAX: Duration = Duration::from_millis(250);
/// Frames on their way at most, one each 5 ms; the oldest of more are taken for known.
const FRAMES_MAX: usize = 64;

/// The middle of the ways to the peers: half of them are as near. None without peers.
pub fn middle(ways: &mut [Duration]) -> Option<Duration> {
    ways.sort_unstable();
    ways.get(ways.len().saturating_sub(1) / 2).copied()
}

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
    fn what_was_sent_is_known_one_way_later_and_in_order() {
        let start = tokio::time::Instant::now().into_std();
        let mut sent = Sent::default();
        sent.set_one_way(5 * MS);
        sent.record(vec![slot(0, 1)], start);
        sent.set_one_way(MS);
        sent.record(vec![slot(0, 2)], start + MS);
        assert_eq!(sent.arrived(start + 4 * MS).count(), 0, "none overtakes");
        assert_eq!(sent.next(), Some(start + 5 * MS));
        let all: Vec<_> = sent.arrived(start + 5 * MS).collect();
        assert_eq!(all, [slot(0, 1), slot(0, 2)]);
        assert_eq!(sent.next(), None);
    }

    #[test]
    fn memory_and_waiting_have_limits() {
        let start = tokio::time::Instant::now().into_std();
        let mut sent = Sent::default();
        sent.set_one_way(Duration::MAX);
        for at in 0..100 {
            sent.record(vec![slot(0, at)], start);
        }
        assert_eq!(sent.arrived(start).count(), 100 - FRAMES_MAX);
        assert_eq!(sent.arrived(start + ONE_WAY_MAX).count(), FRAMES_MAX);
    }

    #[test]
    fn a_slow_peer_does_not_move_the_middle() {
        for (ways, expected) in [
            (&[][..], None),
            (&[200], Some(200)),
            (&[200, 1], Some(1)),
            (&[3, 200, 1], Some(3)),
            (&[200, 200, 1, 2], Some(2)),
        ] {
            let mut ways: Vec<_> = ways.iter().map(|&ms| ms * MS).collect();
            assert_eq!(middle(&mut ways), expected.map(|ms: u32| ms * MS));
        }
    }
}
