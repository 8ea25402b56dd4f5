//! A plane with a mistake in it.

use std::time::Instant;

use crate::running::{Running, authority, issue, until};
use grapevine_gossip::Hosted;
use grapevine_gossip::plane::{Context, Origin, Plane, Surroundings};
use grapevine_gossip::wire::Message;

/// Panics the first time that it is called by the clock.
#[derive(Default)]
struct Stumbles {
    turns: u32,
}

impl Plane for Stumbles {
    fn names(&self) -> &'static [&'static str] {
        &["stumbles"]
    }

    fn on_message(&mut self, _: Origin<'_>, _: Message, _: &mut Context) {}

    fn on_tick(&mut self, _: &Surroundings, _: &mut Context) -> Option<Instant> {
        self.turns += 1;
        assert!(self.turns > 1, "the mistake");
        None
    }
}

#[tokio::test]
async fn a_plane_that_panicked_is_called_again() {
    let authority = authority();
    let plane = Hosted::new(Stumbles::default());
    let replica = Running::start_with(issue(&authority, "demo", "a"), &[], plane.clone()).await;
    until("called again", || plane.lock().turns > 2).await;
    replica.agent.shutdown().await;
}
