//! Alarms of replicas: certificates that end, other settings, two processes of one id, a broken link, few files.

use std::time::Duration;

use grapevine_tests::chat;
use grapevine_tests::cluster::{Identity, Plan, ca};
use grapevine_tests::gate::Gate;
use grapevine_tests::process::Program;
use grapevine_tests::tls::Authority;

use super::faults;
use super::prometheus::Prometheus;

#[tokio::test(flavor = "multi_thread")]
async fn alarms_of_replicas_fire_under_their_faults_alone() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(2))).await;
    let files = tempfile::tempdir().expect("a temporary directory can be made");
    let days = Duration::from_secs(10 * 24 * 3600);
    let pair = Authority::new().issue_for(files.path(), "client", &["localhost"], days);
    let plan = Plan::default()
        .workers(&workers)
        .set("workers.client_cert", &format!("{:?}", pair.cert))
        .set("workers.client_key", &format!("{:?}", pair.key));
    let mut cluster = plan.found().await;
    let authority = cluster.dir().join("ca");
    ca(&["init", "--force", "--days", "60"], &authority).await;
    ca(&["issue", "r1", "--days", "10"], &authority).await;
    let short = Identity {
        ca: authority.join("ca.pem"),
        cert: authority.join("r1.pem"),
        key: authority.join("r1.key"),
        cluster: "grapevine".to_owned(),
    };
    cluster.join_as("r1", short.clone(), Vec::new()).await;
    for name in ["r2", "r3"] {
        let seeds = cluster.others(usize::MAX);
        cluster.join(name, seeds).await;
    }
    cluster.settled().await;
    let mut prometheus = Prometheus::start(&cluster).await;
    prometheus.fires(&faults::OLD_CERTIFICATES).await;

    let seeds = cluster.others(usize::MAX);
    cluster.set_program(Program {
        environment: vec![("GRAPEVINE_CLUSTER__SEED", "7")],
        ..Program::default()
    });
    cluster.join("r4", seeds).await;
    prometheus.fires(&faults::OTHER_SETTINGS).await;

    let seeds = cluster.others(usize::MAX);
    cluster.set_program(Program::default());
    cluster.join_as("r1", short, seeds).await;
    prometheus.fires(&faults::TWINS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_link_and_few_files_have_alarms_of_their_own() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(2))).await;
    let gates = [Gate::open().await, Gate::open().await, Gate::open().await];
    let mut cluster = Plan::default().workers(&workers).found().await;
    for (name, gate) in ["r1", "r2", "r3"].into_iter().zip(&gates) {
        let seeds = gates.iter().map(|gate| gate.address().to_string());
        cluster.join_behind(name, gate, seeds.collect()).await;
    }
    cluster.settled().await;
    let mut prometheus = Prometheus::start(&cluster).await;
    Gate::cut_one_way(&gates[0], &gates[1]);
    prometheus.fires(&faults::BROKEN_LINK).await;
    let process = cluster.replicas[2].process();
    process.limit_descriptors(process.descriptors() + 2);
    prometheus.fires(&faults::FEW_FILES).await;
}
