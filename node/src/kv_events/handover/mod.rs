//! How a replica that starts takes over what a peer knows of caches and texts.
//!
//! Engines replay their last messages only, so without this a replica would know a part of most caches for as long as these
//! last. `plane.rs` answers peers by `telling.rs`; [`TakeOver`] asks one, a page at a time, and gives what it says to
//! `taking.rs`. Subscriptions begin behind it, each at the message as of which its engine was told.

mod plane;
mod taking;
mod telling;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use grapevine_gossip::plane::RequestError;
use grapevine_gossip::wire::Extra;
use grapevine_gossip::{Agent, ReplicaId};
use grapevine_kv_events::handover::{self, BadFrame, Question};
use rand::seq::SliceRandom;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, Instant, sleep, timeout_at};

use self::plane::KINDS;
use self::taking::Taking;
use super::caches::Caches;
use super::metrics::{FAILED, NOBODY, TAKEN};
use crate::shutdown::Phase;

pub use self::plane::HandoverPlane;

/// After so long a replica hears engines by itself.
const WITHIN: Duration = Duration::from_secs(10);
/// Peers that are asked, one after the other, until one of them knows something.
const PEERS_MAX: usize = 3;
/// Pages of one peer: 24 GB of blocks would be more than any index holds.
const PAGES_MAX: usize = 2_000;
/// What was told of an engine waits so long for it to be found here, too.
const WAIT_FOR_ENGINE: Duration = Duration::from_secs(60);

/// Takes over what a peer knows, once.
pub struct TakeOver {
    /// By which peers are asked.
    pub agent: Arc<Agent>,
    /// Where it goes.
    pub caches: Arc<Caches>,
    /// Told when it is done, or in vain.
    pub done: watch::Sender<bool>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Frame(#[from] BadFrame),
    #[error("it does not come to an end")]
    Endless,
    #[error("it takes too long")]
    Late,
    #[error("this replica ends")]
    Ended,
}

impl TakeOver {
    /// Asks, says that it is done, and forgets later what nobody wanted.
    pub async fn run(self, phase: Phase) {
        tokio::select! {
            () = self.take_over() => {}
            () = phase.closed() => {}
        }
    }

    async fn take_over(&self) {
        let until = Instant::now() + WITHIN;
        let result = timeout_at(until, self.take_from_somebody(until)).await;
        let result = result.unwrap_or_else(|_| {
            tracing::warn!("what peers know of workers' caches was not had in {WITHIN:?}; workers are asked instead");
            FAILED
        });
        self.caches.metrics.handed_over(result);
        self.done.send_replace(true);
        sleep(WAIT_FOR_ENGINE).await;
        self.caches.forget_offers();
    }

    async fn take_from_somebody(&self, until: Instant) -> &'static str {
        // From then on there are peers, or there is nobody.
        let _ = self.agent.ready().wait_for(|is_ready| *is_ready).await;
        let mut peers = self.agent.connected_peers();
        peers.shuffle(&mut rand::rng());
        let mut result = NOBODY;
        for peer in peers.iter().take(PEERS_MAX) {
            match self.take_from(peer, until).await {
                Ok(true) => return TAKEN,
                Ok(false) => {}
                Err(error) => {
                    tracing::info!(replica = %peer, %error, "what a peer knows of workers' caches was not had");
                    result = FAILED;
                }
            }
        }
        result
    }

    /// Whether it knew anything.
    async fn take_from(&self, peer: &ReplicaId, until: Instant) -> Result<bool, Failure> {
        let began = Instant::now();
        let mut taking = Taking::default();
        let mut question = Some(Question::Engines(None));
        for _ in 0..PAGES_MAX {
            let Some(asked) = question else {
                let taken = taking.counts();
                if taken.engines > 0 {
                    tracing::info!(
                        replica = %peer,
                        engines = taken.engines,
                        blocks = taken.blocks,
                        left_out = taken.left_out,
                        texts = self.caches.texts().names(),
                        ms = began.elapsed().as_millis() as u64,
                        "took over what a peer knows of workers' caches"
                    );
                }
                return Ok(taken.engines > 0);
            };
            // A peer that does not hear engines, or of an earlier release, says nothing.
            let frames = self.page(peer, &asked).await?;
            // A million blocks take a quarter of a second. It ends by itself: nobody waits for it then.
            let caches = Arc::clone(&self.caches);
            let take = move || {
                let next = taking.take(&caches, &frames, until);
                (taking, next)
            };
            let taken = spawn_blocking(take).await.map_err(|_| Failure::Ended)?;
            taking = taken.0;
            question = taken.1?;
        }
        Err(Failure::Endless)
    }

    async fn page(&self, peer: &ReplicaId, question: &Question) -> Result<Vec<Vec<u8>>, Failure> {
        let question = Extra {
            kind: &KINDS[0],
            body: handover::ask(question),
        };
        let frames = self.agent.request(peer, question).await?;
        Ok(frames.into_iter().map(|frame| frame.body).collect())
    }
}
