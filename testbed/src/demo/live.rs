//! Looks at the cluster once a second while a trace runs, for the line of progress. It judges nothing: on a busy machine
//! a replica may answer too late, and then there is no look this time.

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

impl Live {
    /// What is known after a look.
    fn looked(&mut self, look: anyhow::Result<Self>) {
        match look {
            Ok(look) => *self = look,
            // Counts only grow, so the former one is still true of what was asked for so far.
            Err(_) => "no answer in time".clone_into(&mut self.ring),
        }
    }
}

/// Looks for ever.
pub(super) async fn watch(cluster: &Cluster, live: &Sender<Live>) -> Infallible {
    loop {
        let seen = look(cluster).await;
        live.send_modify(|live| live.looked(seen));
        sleep(EVERY).await;
    }
}

async fn look(cluster: &Cluster) -> anyhow::Result<Live> {
    let rings = cluster.rings().await?;
    let cache = CacheCounters::of_all(&cluster.worker_targets()?).await?;
    let ring = if rings.windows(2).all(|pair| pair[0] == pair[1]) {
        format!("ring {}", rings[0].digest)
    } else {
        "rings differ".to_owned()
    };
    Ok(Live { cache, ring })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_gets_no_answer_is_left_out() {
        let cache = CacheCounters {
            queried_tokens: 10,
            hit_tokens: 5,
        };
        let mut live = Live::default();
        live.looked(Ok(Live {
            cache,
            ring: "ring a".into(),
        }));
        live.looked(Err(anyhow::anyhow!("no reply in time")));
        assert_eq!(
            (live.cache, live.ring.as_str()),
            (cache, "no answer in time")
        );
    }
}
