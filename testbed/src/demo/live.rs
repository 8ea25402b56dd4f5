//! Looks at the cluster once a second while a trace runs.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch::Sender;
use tokio::time::sleep;

use super::cluster::Cluster;
use crate::replay::CacheCounters;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// The latest look.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Of the workers since they were started.
    pub(super) cache: CacheCounters,
    /// The ring digest, or a note that there are several.
    pub(super) ring: String,
}

/// Looks for ever; returns only with an error.
pub(super) async fn watch(cluster: &Cluster, live: &Sender<Live>) -> anyhow::Result<Infallible> {
    let workers = cluster.worker_targets()?;
    loop {
        let rings = cluster.rings().await?;
        let cache = CacheCounters::of_all(&workers).await?;
        live.send_modify(|live| {
            live.cache = cache;
            live.ring = if rings.windows(2).all(|pair| pair[0] == pair[1]) {
                format!("ring {}", rings[0].digest)
            } else {
                "rings differ".to_owned()
            };
        });
        sleep(EVERY).await;
    }
}
