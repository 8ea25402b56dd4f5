//! `grapevine status` begins with what is wrong, and scripts see it by the exit code.

use std::process::Stdio;
use std::time::Duration;

use grapevine_tests::binary::grapevine;
use grapevine_tests::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually};
use tokio::process::Command;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn it_begins_with_what_is_wrong() {
    let mut workers = chat::workers(2, &chat::paced(Duration::from_millis(1))).await;
    let mut cluster = Plan::default().workers(&workers).start(2).await;
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let says = async |code: i32, begins: &str, rows: &[&str]| {
        eventually(LIMIT, begins, async || {
            let shown = process::run(&["status", "--admin", &admin]).await;
            let has_all = rows.iter().all(|row| shown.text.contains(row));
            match shown.code == Some(code) && shown.text.starts_with(begins) && has_all {
                true => Ok(()),
                false => Err(format!("{:?}: {}", shown.code, shown.text)),
            }
        })
        .await;
    };
    says(0, "2 replicas that agree; 2 workers usable\n", &[]).await;
    cluster.replicas[1].kill().await;
    let dead = cluster.replicas[1].name.clone();
    says(
        4,
        "2 replicas, 1 dead for ",
        &[&format!(" s: {dead}; 2 workers usable\n")],
    )
    .await;
    // The other command for the same hour.
    let line = format!("{dead} is dead (seen by {})", cluster.replicas[0].name);
    eventually(LIMIT, "the death is an event", async || {
        let shown = process::run(&["events", "--admin", &admin]).await;
        let is_told = shown.code == Some(0) && shown.text.contains(&line);
        is_told.then_some(()).ok_or(shown.text)
    })
    .await;
    let first = workers[0].url();
    workers.remove(0).kill().await;
    let usable = format!(": {dead}; 1 of 2 workers usable: 1 refusing connections for ");
    says(4, "2 replicas, 1 dead for ", &[&usable, &first]).await;
}

/// `events --follow | grep -m1 ...` ends with grep, also where nothing happens any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_followed_ends_with_its_reader() {
    let cluster = Plan::default().start(1).await;
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    for words in [&["events", "--follow"][..], &["status", "--watch", "3600"]] {
        let mut run = Command::new(grapevine());
        run.args(words)
            .args(["--admin", &admin])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = run.spawn().expect("grapevine can be started");
        drop(child.stdout.take());
        let ended = timeout(LIMIT, child.wait()).await;
        let ended = ended.unwrap_or_else(|_| panic!("{words:?} goes on"));
        assert!(ended.expect("it can be waited for").success(), "{words:?}");
    }
}
