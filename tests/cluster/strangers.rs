//! Processes that do not belong: foreign certificates, other clusters, wrong configuration.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, streamed};
use grapevine_tests::cluster::{Cluster, Identity, Plan, ca};
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually};

/// A cluster of two, and a stranger with an authority of its own that has one of them as its seed.
async fn with_stranger(cluster_id: &str) -> Cluster {
    let worker = chat::worker(chat::paced(Duration::from_millis(1))).await;
    let mut cluster = Plan::default().workers([&worker]).start(2).await;
    let dir = cluster.dir().join("foreign");
    ca(&["init", "--cluster-id", cluster_id], &dir).await;
    ca(&["issue", "stranger"], &dir).await;
    let identity = Identity {
        ca: dir.join("ca.pem"),
        cert: dir.join("stranger.pem"),
        key: dir.join("stranger.key"),
        cluster: cluster_id.to_owned(),
    };
    let seeds = vec![cluster.replicas[0].gossip_address()];
    let stranger = cluster.join_as("stranger", identity, seeds).await;
    stranger
        .admin()
        .add("own", &worker.url(), &["secret"])
        .await;

    // The stranger is alone and logs the reason; the others do not know it.
    said(&cluster, 2, "no connection: ").await;
    for replica in &cluster.replicas[..2] {
        let view = replica.admin().view().await;
        assert_eq!((view.live, view.agreeing), (2, 2), "{view:?}");
        assert!(view.replicas.iter().all(|peer| peer.id != "stranger"));
        assert_eq!(replica.admin().ring().await.workers, 1);
        let outcome = chat::stream(replica.data(), &streamed("still served", 3)).await;
        assert_eq!(outcome.ending, Ending::Done);
    }
    assert_eq!(cluster.replicas[2].admin().view().await.live, 1);
    cluster
}

async fn said(cluster: &Cluster, replica: usize, part: &str) {
    eventually(LIMIT, part, async || {
        let log = cluster.replicas[replica].log();
        log.contains(part).then_some(()).ok_or(log)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_another_authority_are_refused_with_a_clear_line_on_both_sides() {
    for cluster_id in ["grapevine", "another"] {
        let cluster = with_stranger(cluster_id).await;
        said(&cluster, 2, "its certificate is not of this cluster").await;
        // Nor does its status call the seed silent.
        let admin = format!("http://{}", cluster.replicas[2].admin().0);
        let begins = "this replica is alone, no seed could be joined for ";
        eventually(LIMIT, begins, async || {
            let shown = process::run(&["status", "--admin", &admin]).await;
            let has_why = shown
                .text
                .contains("(its certificate is not of this cluster: ");
            let is_told = shown.code == Some(4) && shown.text.starts_with(begins) && has_why;
            is_told.then_some(()).ok_or(shown.text)
        })
        .await;
        let refused = "refused a connection; a certificate of this cluster's authority is needed";
        said(&cluster, 0, refused).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_is_refused_with_its_place() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let file = dir.path().join("bad.toml");
    let path = file.to_str().expect("temporary paths are UTF-8");
    for (text, parts) in [
        (
            "[retry]\nmax_atempts = 3\n",
            ["bad.toml:2:1", "max_atempts", "did you mean `max_attempts`"],
        ),
        (
            "[health]\n\ninterval = 5\n",
            ["bad.toml:3", "health.interval", "5"],
        ),
        ("[listen\n", ["bad.toml:1", "", ""]),
        (
            "[gossip]\nseeds = [\"127.0.0.1:1\"]\n",
            ["bad.toml:2", "gossip.seeds", "grapevine ca init"],
        ),
        (
            "[admin]\nhost = \"0.0.0.0\"\n",
            ["bad.toml:2", "admin.host", "admin.token"],
        ),
    ] {
        std::fs::write(&file, text).expect("a file can be written");
        let done = process::run(&["serve", "--config", path, "--port", "0"]).await;
        assert!(
            done.code.is_some_and(|code| code != 0),
            "{text:?}: {}",
            done.text
        );
        for part in parts {
            assert!(
                done.text.contains(part),
                "{text:?} without {part:?}: {}",
                done.text
            );
        }
    }
}
