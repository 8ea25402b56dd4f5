//! How much may be under way to one peer: CUBIC with a floor.
//!
//! CUBIC takes every loss for congestion, and on a path that loses every fifth packet whatever is sent
//! it soon lets two packets travel at a time; heartbeats then wait behind each other and healthy peers
//! look dead. What gossip sends is bounded by rounds, batches and budgets of its own, so a small window
//! is always safe to use.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};

/// Bytes that may be under way whatever was lost: some 50 packets.
const FLOOR: u64 = 64 << 10;

/// Makes a window for each connection.
#[derive(Debug, Default)]
pub(super) struct Floored(Arc<CubicConfig>);

impl ControllerFactory for Floored {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Window(Cubic::new(self.0.clone(), now, current_mtu)))
    }
}

#[derive(Debug, Clone)]
struct Window(Cubic);

impl Controller for Window {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.0
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.0.window().max(FLOOR)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
