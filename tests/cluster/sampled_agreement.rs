//! Agreement as each replica measures it: its own requests, compared with what a peer would decide.

use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, distinct};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually};

const REPLICAS: usize = 3;
const WORKERS: usize = 4;
const SAMPLES: f64 = 20.0;

async fn samples(admin: Admin, result: &str) -> f64 {
    let label = format!("result=\"{result}\"");
    let name = "grapevine_agreement_samples_total";
    admin.metrics().await.sum(name, &label)
}

/// Sends chats, one at a time, until `done` is true.
async fn chat_until(
    cluster: &Cluster,
    replicas: &[usize],
    mut done: impl AsyncFnMut() -> Result<(), String>,
) {
    let chats = distinct(200);
    let mut turn = 0;
    eventually(LIMIT, "enough comparisons", async || {
        for &replica in replicas {
            let data = cluster.replicas[replica].data();
            let sent = http1::post(data, "/v1/chat/completions", &chats[turn]);
            let response = cluster.one_by_one(sent).await;
            assert_eq!(response.head.status, 200, "{}", response.text());
            turn = (turn + 1) % chats.len();
        }
        done().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_measure_that_they_agree_and_say_why_not() {
    // A request lasts long enough to be load for all while the peer is asked: it has to answer about the moment before.
    let step = std::time::Duration::from_micros(500);
    let workers = chat::workers(WORKERS, &chat::paced(step)).await;
    let mut cluster = Plan::default()
        .set("gossip.agreement_samples", "50")
        .workers(&workers)
        .start(REPLICAS)
        .await;
    let all: Vec<usize> = (0..REPLICAS).collect();
    chat_until(&cluster, &all, async || {
        for replica in cluster.running() {
            let same = samples(replica.admin(), "same").await;
            if same < SAMPLES {
                return Err(format!("{}: {same}", replica.name));
            }
        }
        Ok(())
    })
    .await;
    for replica in cluster.running() {
        let metrics = replica.admin().metrics().await;
        println!(
            "{}: {:?}",
            replica.name,
            metrics.series("grapevine_agreement_samples_total")
        );
        let ratio = metrics.sum("grapevine_agreement_ratio", "");
        assert_eq!(ratio, 1.0, "one request at a time: nothing can differ");
    }

    // The most costly mistake: another seed, so every prefix has another home.
    let config = cluster.dir().join("grapevine.toml");
    let text = std::fs::read_to_string(&config).expect("it was written");
    std::fs::write(&config, format!("cluster.seed = 7\n{text}")).expect("it can be written");
    let seeds = vec![cluster.replicas[0].gossip_address()];
    cluster.join("r4", seeds).await;
    let odd = cluster.replicas.last().expect("it joined").admin();
    eventually(LIMIT, "the odd one is ready", async || {
        match odd.is_ready().await {
            true => Ok(()),
            false => Err("not ready".to_owned()),
        }
    })
    .await;
    chat_until(&cluster, &[REPLICAS], async || {
        match samples(odd, "settings").await {
            count if count >= 5.0 => Ok(()),
            count => Err(format!("{count} samples")),
        }
    })
    .await;
    assert!(odd.metrics().await.sum("grapevine_agreement_ratio", "") < 1.0);
    assert_eq!(samples(odd, "membership").await, 0.0);
}
