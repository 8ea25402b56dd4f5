//! Which replica hears which: a cut that only two of three notice is named by all of them.

use std::time::Duration;

use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::gate::Gate;
use grapevine_tests::wait::{LIMIT, eventually, so};
use grapevine_tests::{chat, http1, invariants, process};

/// Three replicas, each behind a gate.
async fn behind_gates(plan: Plan) -> (Cluster, [Gate; 3]) {
    let gates = [Gate::open().await, Gate::open().await, Gate::open().await];
    let mut cluster = plan.found().await;
    for (name, gate) in ["r1", "r2", "r3"].into_iter().zip(&gates) {
        let seeds = gates.iter().map(|gate| gate.address().to_string());
        cluster.join_behind(name, gate, seeds.collect()).await;
    }
    cluster.settled().await;
    (cluster, gates)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_way_cut_is_named_by_status_until_it_is_healed() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(1))).await;
    let (cluster, gates) = behind_gates(Plan::default().workers(&workers)).await;
    let says = async |at: usize, code: i32, parts: &[&str]| {
        let admin = format!("http://{}", cluster.replicas[at].admin().0);
        let what = format!("status of r{} has {parts:?}", at + 1);
        eventually(LIMIT, &what, async || {
            let shown = process::run(&["status", "--links", "--admin", &admin]).await;
            let has_all = parts.iter().all(|part| shown.text.contains(part));
            match shown.code == Some(code) && has_all {
                true => Ok(()),
                false => Err(format!("{:?}: {}", shown.code, shown.text)),
            }
        })
        .await;
    };
    let well = "3 replicas that agree; 1 worker usable\n";
    let all_heard = [
        "r1     –    yes  yes",
        "r2     yes  –    yes",
        "r3     yes  yes  –",
    ];
    says(2, 0, &[&[well][..], &all_heard].concat()).await;
    Gate::cut_one_way(&gates[0], &gates[1]);
    // The third one hears both, and tells what they say of each other: first that one is deaf. A connection needs both
    // ways, so in the end neither hears the other.
    says(2, 4, &["hear", "r2     NO   –    yes"]).await;
    let mutual = "r1 and r2 do not hear each other; 3 replicas";
    says(2, 4, &[mutual, "r1     –    NO   yes"]).await;
    // The two know of themselves alone, and say so.
    says(
        0,
        4,
        &["r1 does not hear r2; 3 replicas", "r2     ?    –    ?"],
    )
    .await;
    says(
        1,
        4,
        &["r2 does not hear r1; 3 replicas", "r2     NO   –    yes"],
    )
    .await;
    // For whoever looks later, once it has lasted.
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let notes = async |what: &str| {
        eventually(2 * LIMIT, what, async || {
            let shown = process::run(&["events", "--admin", &admin]).await;
            let is_told = shown.text.contains(what);
            is_told.then_some(()).ok_or(shown.text)
        })
        .await;
    };
    notes("r2 is not heard by r1 (seen by r1)").await;
    let line = "a replica that lives is not heard here";
    // Lines are written behind what they tell of.
    eventually(LIMIT, line, async || {
        let log = cluster.replicas[0].log();
        log.contains(line).then_some(()).ok_or(log)
    })
    .await;
    gates.iter().for_each(Gate::heal);
    for at in 0..3 {
        says(at, 0, &[&[well][..], &all_heard].concat()).await;
    }
    notes("r2 is heard by r1 again (seen by r1)").await;
}

/// G11: without gossip each replica serves by what it knew last, says that it is alone, and finds fault with no worker.
#[tokio::test(flavor = "multi_thread")]
async fn requests_go_on_while_no_gossip_passes() {
    let workers = chat::workers(3, &chat::paced(Duration::from_millis(1))).await;
    let (cluster, gates) = behind_gates(Plan::default().workers(&workers)).await;
    let before = cluster.replicas[0].admin().ring().await;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        Gate::cut_one_way(&gates[from], &gates[to]);
        Gate::cut_one_way(&gates[to], &gates[from]);
    }
    for replica in &cluster.replicas {
        eventually(LIMIT, "it reports that it is alone", async || {
            let metrics = replica.admin().metrics().await;
            let live = metrics.sum("grapevine_replicas_live", "");
            so(live == 1.0, || format!("{live}"))
        })
        .await;
        for chat in chat::distinct(40) {
            let answer = http1::post(replica.data(), "/v1/chat/completions", &chat).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
        }
        assert!(replica.admin().is_ready().await);
        assert_eq!(replica.admin().ring().await, before);
        for worker in replica.admin().workers().await {
            assert_eq!((&*worker.verdict, &*worker.breaker), ("good", "closed"));
        }
    }
    gates.iter().for_each(Gate::heal);
    cluster.settled().await;
    invariants::hold(&cluster, &workers, &[]).await;
}
