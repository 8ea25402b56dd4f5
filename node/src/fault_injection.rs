//! Defects on demand, for the tests of what happens then.
//!
//! In debug builds alone, and there only where the environment says `GRAPEVINE_PROVOKE=1`: a release build has nothing
//! of this file, so it opens no way in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use grapevine_gossip::Agent;
use http::HeaderValue;
use tokio::signal::unix::{SignalKind, signal};

use crate::shutdown::Phase;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Lets tests provoke defects of this process from now on.
pub fn enable() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Panics in a step of the one request whose id asks for it: `panic-in-<step>`.
pub(crate) fn panic_in(step: &str, id: &HeaderValue) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let asked = id.to_str().ok().and_then(|id| id.strip_prefix("panic-in-"));
    assert!(asked != Some(step), "provoked");
}

/// Blocks the lane of the one request whose id asks for it, for ever: `block-the-lane`.
pub(crate) fn block_lane(id: &HeaderValue) {
    while IS_ON.load(Ordering::Relaxed) && id == "block-the-lane" {
        std::thread::park();
    }
}

/// Makes the gossip task panic at each SIGUSR1, until the replica ends; panics itself at SIGUSR2, as any other task might.
pub(crate) async fn trip(agent: Arc<Agent>, phase: Phase) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let of = |kind| signal(kind).ok();
    let (Some(mut of_gossip), Some(mut of_this)) = (
        of(SignalKind::user_defined1()),
        of(SignalKind::user_defined2()),
    ) else {
        return;
    };
    loop {
        tokio::select! {
            () = phase.closed() => return,
            _ = of_gossip.recv() => agent.trip(),
            _ = of_this.recv() => panic!("provoked"),
        }
    }
}
