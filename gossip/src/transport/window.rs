//! How much may be under way to one peer: CUBIC with a floor; and how long the way is at its best.
//!
//! CUBIC takes every loss for congestion, and on a path that loses every fifth packet whatever is sent
//! it soon lets two packets travel at a time; heartbeats then wait behind each other and healthy peers
//! look dead. What gossip sends is bounded by rounds, batches and budgets of its own, so a small window
//! is always safe to use.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::Connection;
use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};

use crate::recent_least::RecentLeast;

/// Bytes that may be under way whatever was lost: some 50 packets.
const FLOOR: u64 = 64 << 10;

/// Makes a window for each connection.
#[derive(Debug, Default)]
pub(super) struct Floored(Arc<CubicConfig>);

impl ControllerFactory for Floored {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Window {
            cubic: Cubic::new(self.0.clone(), now, current_mtu),
            round_trip: None,
        })
    }
}

/// The shortest time of late from here to the peer: half of a round trip. The smoothed one, which stands in before
/// anything was acknowledged, has what the peer's and this machine's other work added.
pub(super) fn shortest_way(connection: &Connection) -> Duration {
    shortest_round_trip(connection).unwrap_or_else(|| connection.rtt()) / 2
}

pub(super) fn shortest_round_trip(connection: &Connection) -> Option<Duration> {
    let state = connection.congestion_state().into_any();
    let window = state.downcast_ref::<Window>()?;
    window.round_trip.map(|least| least.get())
}

#[derive(Debug, Clone)]
struct Window {
    cubic: Cubic,
    /// `None` before anything was acknowledged.
    round_trip: Option<RecentLeast<Duration>>,
}

impl Controller for Window {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
        // A peer may be slow to acknowledge, which the smoothed time does not count.
        let time = now.saturating_duration_since(sent).min(rtt.get());
        let least = self
            .round_trip
            .get_or_insert_with(|| RecentLeast::new(time, now));
        least.add(time, now);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.cubic
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window().max(FLOOR)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
