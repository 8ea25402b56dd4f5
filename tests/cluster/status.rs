//! `grapevine status` begins with what is wrong, and scripts see it by the exit code.

use std::process::Stdio;
use std::time::Duration;

use grapevine_tests::binary::grapevine;
use grapevine_tests::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::keys::{self, KeyFile};
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually};
use tokio::process::Command;
use tokio::task::JoinSet;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_the_file_of_keys_is_told_with_its_place() {
    let mut file = KeyFile::new();
    file.add("acme", "").await;
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(1))).await;
    let cluster = file.plan().workers(&workers).start(1).await;
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let says = async |command: &str, parts: &[&str]| {
        eventually(LIMIT, command, async || {
            let shown = process::run(&[command, "--admin", &admin]).await;
            let has_all = parts.iter().all(|part| shown.text.contains(part));
            (shown.code == Some(4) && has_all)
                .then_some(())
                .ok_or(format!("{:?}: {}", shown.code, shown.text))
        })
        .await;
    };
    let bad = format!("{}\n[[key]]\nname = \"b\"\n", file.text());
    keys::write(&file.path(), &bad);
    let line = bad.trim_end().lines().count() - 1;
    let place = format!("keys.toml:{line}:1: [[key]]: `hash` is missing");
    let refused = "refused its changed keys of clients";
    says("status", &[refused, &place]).await;
    says("doctor", &[&place, "grapevine keys check FILE"]).await;
    file.restore();
    eventually(LIMIT, "it is mended", async || {
        let shown = process::run(&["status", "--admin", &admin]).await;
        (!shown.text.contains(refused))
            .then_some(())
            .ok_or(shown.text)
    })
    .await;
}

/// Its kernel takes connections, and nobody answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_stopped_is_given_up_soon_and_by_all_commands_alike() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(1))).await;
    let cluster = Plan::default().workers(&workers).start(1).await;
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let url = workers[0].url();
    cluster.replicas[0].process().freeze();
    let commands = [
        vec!["status"],
        vec!["events"],
        vec!["workers", "list"],
        vec!["explain", "--prompt", "hi"],
        vec!["doctor"],
        vec!["top", "--once"],
        vec!["workers", "drain", &url],
    ];
    let mut running = JoinSet::new();
    for words in commands {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let admin = admin.clone();
        running.spawn(async move {
            let mut all: Vec<&str> = words.iter().map(String::as_str).collect();
            all.extend(["--admin", &admin]);
            let done = process::run(&all).await;
            (words.join(" "), done)
        });
    }
    for (command, done) in running.join_all().await {
        let is_change = command.starts_with("workers drain");
        assert_eq!(done.code, Some(3), "{command}: {}", done.text);
        let within = if is_change { "15s" } else { "5s" };
        let said = format!("takes connections and gave no answer in {within}: it is overloaded");
        assert!(done.text.contains(&said), "{command}: {}", done.text);
        assert!(
            done.text.contains("is asked with --admin"),
            "{command}: {}",
            done.text
        );
        let is_told = done.text.contains("may still be carried out");
        assert_eq!(is_told, is_change, "{command}: {}", done.text);
    }
    cluster.replicas[0].process().thaw();
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
