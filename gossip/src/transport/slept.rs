//! Notices that this process was stopped, and gives up its connections, as the peers have done.

use std::sync::Arc;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Close, Shared, limits};

/// Closes every connection from here after a pause longer than they live without a packet.
///
/// Left to QUIC it may take minutes: acknowledgements that came before the end wait in the receive
/// buffer, the pause is taken for a round trip, and the idle timeout is at least three times what a
/// lost packet then waits for (RFC 9000, 10.1). Until then everything for that peer is lost.
pub(super) async fn give_up_links(shared: Arc<Shared>) {
    let mut tick = interval(limits::KEEP_ALIVE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        tick.tick().await;
        let pause = last.elapsed();
        last = Instant::now();
        if pause > limits::IDLE {
            tracing::warn!(
                ?pause,
                "this process was stopped; connecting to every replica again"
            );
            shared.peers.lock().close_links(Close::Done);
        }
    }
}
