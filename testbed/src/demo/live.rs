//! Looks at the cluster once a second while a trace runs.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch::Sender;
use tokio::time::sleep;

use super::agreement::{self, Agreement};
use super::cluster::Cluster;
use crate::replay::CacheCounters;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Prompts that the replicas are asked about each time.
const SAMPLES: u64 = 10;
/// Seeds of these prompts begin here, so that they are never those of another check.
const FIRST_SEED: u64 = 1_000;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Over all samples so far.
    pub(super) agreement: Agreement,
    /// Of the workers since they were started.
    pub(super) cache: CacheCounters,
    /// The ring digest, or that there are several.
    pub(super) ring: String,
}

/// Looks for ever; ends only with what went wrong.
pub(super) async fn watch(cluster: &Cluster, live: &Sender<Live>) -> anyhow::Result<Infallible> {
    let workers = cluster.worker_targets()?;
    let mut seed = FIRST_SEED;
    loop {
        let samples = agreement::samples(seed, SAMPLES);
        let placements = agreement::placements(cluster, &samples).await?;
        let agreement = agreement::among_replicas(&placements);
        let rings = cluster.rings().await?;
        let cache = CacheCounters::of_all(&workers).await?;
        live.send_modify(|live| {
            live.agreement.asked += agreement.asked;
            live.agreement.equal += agreement.equal;
            live.cache = cache;
            live.ring = if rings.windows(2).all(|pair| pair[0] == pair[1]) {
                format!("ring {}", rings[0].digest)
            } else {
                "rings differ".to_owned()
            };
        });
        seed += 1;
        sleep(EVERY).await;
    }
}
