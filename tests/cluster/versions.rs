//! R06: a cluster rolled forward and back between two releases under load.
//!
//! `GRAPEVINE_PREVIOUS` names the binary of the former release. Without it both are the program under test, which tests
//! the roll itself; gossip's own tests, with `gossip/tests/releases`, cover messages of earlier and later releases.

use std::path::PathBuf;
use std::time::Duration;

use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::invariants;
use grapevine_tests::process::Program;
use grapevine_tests::wait::{LIMIT, eventually};

use super::rolling::{Load, balancer, restart};

const STEP: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_rolled_forward_and_back() {
    let previous = std::env::var_os("GRAPEVINE_PREVIOUS").map(PathBuf::from);
    println!("former release: {previous:?}");
    let former = Program {
        binary: previous,
        ..Program::default()
    };
    let workers = chat::workers(5, &chat::paced(STEP)).await;
    let plan = Plan::default().set("timeouts.settle", "\"2s\"");
    let plan = plan.program(former.clone()).workers(&workers[..4]);
    let mut cluster = plan.start(3).await;
    let balancer = balancer(&cluster).await;
    let load = Load::start(&balancer);
    load.answers(24).await;

    for (number, program) in [Program::default(), former].into_iter().enumerate() {
        for index in 0..3 {
            restart(&mut cluster, index, |replica| {
                replica.program = program.clone();
            })
            .await;
            registries_are_equal(&cluster).await;
            if index == 0 {
                // A change while both run, made through each side, is the same on both.
                let id = format!("extra-{number}");
                let [one, other] = [0, 1].map(|at| cluster.replicas[at].admin());
                one.add_cold(&id, &workers[4].url(), &[MODEL]).await;
                registries_are_equal(&cluster).await;
                other.remove(&id).await;
                registries_are_equal(&cluster).await;
            }
        }
    }
    let (requests, rates) = load.succeeded().await;
    println!("{requests} requests, 0 failed; share of cached prompt tokens {rates:.3?}");
    for replica in &cluster.replicas {
        let refused = "refused a message of a replica";
        assert!(!replica.log().contains(refused), "{}", replica.name);
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

async fn registries_are_equal(cluster: &Cluster) {
    eventually(LIMIT, "one registry", async || {
        for replica in cluster.running() {
            let view = replica.admin().view().await;
            let differs = |told: &&grapevine_tests::admin::Peer| {
                told.live && told.registry != view.replicas[0].registry
            };
            if let Some(other) = view.replicas.iter().find(differs) {
                return Err(format!("{} has {} of {other:?}", replica.name, other.id));
            }
        }
        Ok(())
    })
    .await;
}
