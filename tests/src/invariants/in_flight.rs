//! In-flight counts return to zero: at the workers, at each replica, in the counts that placement
//! uses, and in the queues.

use grapevine_testbed::fake_worker::FakeWorker;

use crate::cluster::Cluster;
use crate::wait::{LIMIT, eventually};

pub(super) async fn returns_to_zero(cluster: &Cluster, workers: &[FakeWorker]) {
    eventually(LIMIT, "nothing in flight", async || {
        for worker in workers {
            let left = worker.stats().in_flight;
            if left > 0 {
                return Err(format!("{left} at {}", worker.url()));
            }
        }
        for replica in cluster.running() {
            let metrics = replica.admin().metrics().await;
            for name in [
                "grapevine_requests_active",
                "grapevine_worker_in_flight",
                "grapevine_worker_in_flight_cluster",
                "grapevine_queue_length",
            ] {
                let left = metrics.sum(name, "");
                if left != 0.0 {
                    return Err(format!("{name} {left} on {}", replica.name));
                }
            }
        }
        Ok(())
    })
    .await;
}
