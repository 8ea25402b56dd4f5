//! Every request ends in exactly one outcome, both by the counters and by the access log.

use std::collections::HashMap;

use crate::cluster::{Cluster, Replica};
use crate::wait::{LIMIT, eventually, so};

pub(super) async fn for_every_request(cluster: &Cluster) {
    for replica in cluster.running() {
        eventually(LIMIT, "one outcome a request", async || {
            let counted = replica.admin().metrics().await;
            let counted = counted.sum("grapevine_requests_total", "");
            let logged = logged(replica);
            let twice: Vec<_> = logged.iter().filter(|(_, times)| **times > 1).collect();
            assert!(twice.is_empty(), "more than one outcome: {twice:?}");
            let same = counted == logged.len() as f64;
            so(same, || {
                format!("{counted} counted, {} logged", logged.len())
            })
        })
        .await;
    }
}

/// Number of outcomes of each request id in the log of the replica's last start.
fn logged(replica: &Replica) -> HashMap<String, usize> {
    let mut times = HashMap::new();
    for line in replica.last_log().lines() {
        let Some((_, rest)) = line.split_once("grapevine::access: request request_id=\"") else {
            continue;
        };
        let id = rest.split('"').next().unwrap_or_default();
        *times.entry(id.to_owned()).or_default() += 1;
    }
    times
}
