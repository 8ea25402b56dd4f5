//! Ring digests are equal on all live replicas.

use crate::cluster::Cluster;
use crate::wait::{LIMIT, eventually, so};

pub(super) async fn are_equal(cluster: &Cluster) {
    eventually(LIMIT, "equal ring digests", async || {
        let mut rings = Vec::new();
        for replica in cluster.running() {
            rings.push(replica.admin().ring().await);
        }
        let equal = rings.windows(2).all(|pair| pair[0] == pair[1]);
        so(equal, || format!("{rings:?}"))
    })
    .await;
}
