//! Invariants at the end of every test of a cluster, one file each.

mod in_flight;
mod logs;
mod one_answer;
mod one_outcome;
mod rings;
mod same_worker;

use grapevine_testbed::fake_worker::FakeWorker;

use crate::cluster::Cluster;

pub use same_worker::{Agreement, agreement};

/// Distinct chats that [`hold`] asks every replica about.
const SAMPLE: usize = 200;

/// Checks every invariant on the running replicas; `workers` are those of this process.
///
/// `expected_errors`: parts of the lines of errors and panics that the test provoked.
pub async fn hold(cluster: &Cluster, workers: &[FakeWorker], expected_errors: &[&str]) {
    rings::are_equal(cluster).await;
    same_worker::for_the_same_prefix(cluster, SAMPLE).await;
    in_flight::returns_to_zero(cluster, workers).await;
    one_outcome::for_every_request(cluster).await;
    one_answer::for_every_request(workers);
    logs::are_quiet(cluster, expected_errors);
}
