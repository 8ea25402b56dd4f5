//! R07: the configuration is read again at SIGHUP. Workers are added and removed; a mistake changes nothing.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, MODEL, Stream, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::invariants;
use grapevine_tests::process::Signal;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_the_file_come_and_go_at_sighup() {
    let workers = chat::workers(3, &chat::paced(Duration::from_millis(1))).await;
    let url = |at: usize| workers[at].url();
    let mut cluster = Plan::default().workers(&workers[..2]).start(2).await;
    let write = |cluster: &Cluster, text: &str| {
        std::fs::write(cluster.config(), text).expect("a file can be written");
    };
    let good = std::fs::read_to_string(cluster.config()).expect("it is there");
    let admin = format!("http://{}", cluster.replicas[0].admin().0);

    // A mistake anywhere: nothing changes, and the log reports it.
    for (number, bad) in [
        "[[worker]\nurl =".to_owned(),
        format!("timeouts.settle = \"soon\"\n{good}"),
        good.replace("[[worker]]", "[[worker]]\nwieght = 2"),
    ]
    .iter()
    .enumerate()
    {
        write(&cluster, bad);
        cluster.replicas[0].process().signal(Signal::HUP);
        reloads(&cluster, 0, "failed", number as f64 + 1.0).await;
        sees(&cluster, &[url(0), url(1)]).await;
    }
    // Also for whoever looks later, and was not there when the log had it.
    let status = ["status", "--admin", &admin];
    let told = grapevine_tests::process::run(&status).await;
    assert_eq!(told.code, Some(4), "{}", told.text);
    for part in ["r1 refused its configuration ", "stays: ", "wieght"] {
        assert!(told.text.contains(part), "no {part}: {}", told.text);
    }
    std::fs::remove_file(cluster.config()).expect("it was there");
    cluster.replicas[0].process().signal(Signal::HUP);
    reloads(&cluster, 0, "failed", 4.0).await;
    sees(&cluster, &[url(0), url(1)]).await;

    // One worker is removed and one added, for the whole cluster; the other replica reads its file later,
    // which changes nothing.
    let changed = format!(
        "limits.connections = 4000\n{}",
        good.replace(&url(0), &url(2))
    );
    write(&cluster, &changed);
    for index in 0..2 {
        cluster.replicas[index].process().signal(Signal::HUP);
        reloads(&cluster, index, "loaded", 1.0).await;
        sees(&cluster, &[url(1), url(2)]).await;
    }
    let log = cluster.replicas[0].log();
    assert!(
        log.contains("settings=\"limits.connections\""),
        "needs a restart: {log}"
    );
    assert!(!log.contains("most workers of the file"), "{log}");
    // The command does the same, and tells what a signal cannot.
    let told = grapevine_tests::process::run(&status).await;
    assert!(!told.text.contains("refused"), "{}", told.text);
    let command = ["config", "reload", "--admin", &admin];
    let again = grapevine_tests::process::run(&command).await;
    assert_eq!(again.code, Some(0), "{}", again.text);
    assert!(
        again.text.contains("limits.connections differs"),
        "{}",
        again.text
    );
    write(&cluster, "limits.requets = 1");
    let mistake = grapevine_tests::process::run(&command).await;
    assert_eq!(mistake.code, Some(1), "{}", mistake.text);
    assert!(mistake.text.contains("limits.requets"), "{}", mistake.text);
    reloads(&cluster, 0, "loaded", 2.0).await;
    write(&cluster, &changed);
    let outcome = chat::stream(cluster.replicas[1].data(), &streamed("hello", 2)).await;
    assert_eq!(outcome.ending, Ending::Done);

    // A replica that starts with the former file does not bring the removed worker back.
    write(&cluster, &good);
    let others = cluster.others(1);
    cluster.replicas[1].terminate().await;
    cluster.replicas[1].seeds = others;
    cluster.replicas[1].start().await;
    cluster.settled().await;
    sees(&cluster, &[url(1), url(2)]).await;
    let back = format!("grapevine workers add {} --model {MODEL}", url(0));
    says(&cluster, 1, &["took it out", &back], 1).await;
    // Only an explicit change does: of a file that differs from the one that this replica read before.
    cluster.replicas[0].process().signal(Signal::HUP);
    reloads(&cluster, 0, "loaded", 3.0).await;
    sees(&cluster, &[url(0), url(1)]).await;

    // An administrator's change wins over the file.
    cluster.replicas[0].admin().remove(&url(1)).await;
    sees(&cluster, &[url(0)]).await;
    let back = format!("grapevine workers add {} --model {MODEL}", url(1));
    for count in 4..6 {
        cluster.replicas[0].process().signal(Signal::HUP);
        reloads(&cluster, 0, "loaded", f64::from(count)).await;
        // Reported once, also when the file is read again.
        says(&cluster, 0, &["an administrator removed it", &back], 1).await;
    }
    cluster.replicas[1].kill().await;
    cluster.replicas[1].start().await;
    cluster.settled().await;
    says(&cluster, 1, &["an administrator removed it", &back], 1).await;
    sees(&cluster, &[url(0)]).await;
    cluster.replicas[0]
        .admin()
        .add_cold(&url(1), &url(1), &[MODEL])
        .await;
    sees(&cluster, &[url(0), url(1)]).await;
    let expected = ["the configuration was not taken over"];
    invariants::hold(&cluster, &workers, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_change_under_requests_and_the_rest_is_named() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(100))).await;
    let cluster = Plan::default()
        .workers(&workers)
        .set("limits.body_bytes", "\"64KiB\"")
        .start(1)
        .await;
    let replica = &cluster.replicas[0];
    let (data, admin) = (replica.data(), format!("http://{}", replica.admin().0));
    let good = std::fs::read_to_string(cluster.config()).expect("it is there");
    let reload = async |text: &str| {
        std::fs::write(cluster.config(), text).expect("a file can be written");
        grapevine_tests::process::run(&["config", "reload", "--admin", &admin]).await
    };
    let answer = async |origin: &str, bytes: usize| {
        let body = streamed(&"x".repeat(bytes), 1).to_string();
        let head = [("content-type", "application/json"), ("origin", origin)];
        let path = "/v1/chat/completions";
        http1::exchange(data, "POST", path, &head, body.as_bytes()).await
    };
    let page = "https://chat.example";
    let before = answer(page, 4096).await;
    assert_eq!(before.head.status, 200, "{}", before.text());
    assert_eq!(before.head.header("access-control-allow-origin"), None);
    let mut open = Stream::open(data, &streamed("a long one", 30))
        .await
        .expect("a head");
    open.read_events(1).await.expect("a first token");

    // Limits, web pages, times, and the log change; a port does not.
    let changed = good.replace("64KiB", "1KiB");
    // A key stands once.
    let others = changed
        .lines()
        .filter(|line| !line.starts_with("health.interval"));
    let changed = others.collect::<Vec<_>>().join("\n");
    let changed = format!(
        "cors.allowed_origins = [\"{page}\"]\ntimeouts.whole_request = \"1s\"\nlog.level = \"debug\"\n\
         health.interval = \"150ms\"\nmetrics.worker_series = 7\n{changed}"
    );
    let told = reload(&changed).await;
    assert_eq!(told.code, Some(0), "{}", told.text);
    for part in [
        "cors.allowed_origins changed",
        "health.interval changed",
        "timeouts.whole_request changed",
        "limits.body_bytes changed",
        "log.level changed",
        "metrics.worker_series differs from what runs; it needs a restart",
    ] {
        assert!(told.text.contains(part), "no {part}: {}", told.text);
    }
    let after = answer(page, 4096).await;
    assert_eq!(after.head.status, 413, "{}", after.text());
    assert_eq!(after.head.header("access-control-allow-origin"), Some(page));
    // One that begins now has a second for all of it; the one that was open before has not.
    let cut = chat::stream(data, &streamed("another long one", 30)).await;
    assert_ne!(cut.ending, Ending::Done);
    assert_eq!(open.finish().await.ending, Ending::Done, "nothing is cut");
    eventually(LIMIT, "debug lines", async || {
        let log = replica.log();
        log.contains(" DEBUG ").then_some(()).ok_or(log)
    })
    .await;

    // And back.
    let told = reload(&good).await;
    assert!(
        told.text.contains("limits.body_bytes changed"),
        "{}",
        told.text
    );
    let after = answer(page, 4096).await;
    assert_eq!(after.head.status, 200, "as before: {}", after.text());
    assert_eq!(after.head.header("access-control-allow-origin"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_must_be_equal_are_compared_after_a_reload() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(1))).await;
    let cluster = Plan::default().workers(&workers).start(2).await;
    let differ = async |count: f64| {
        for replica in cluster.running() {
            eventually(LIMIT, "replicas that differ", async || {
                let metrics = replica.admin().metrics().await;
                let seen = metrics.sum("grapevine_settings_differing", "");
                so(seen == count, || seen.to_string())
            })
            .await;
        }
    };
    let reload = async |index: usize| {
        let admin = format!("http://{}", cluster.replicas[index].admin().0);
        let told = grapevine_tests::process::run(&["config", "reload", "--admin", &admin]).await;
        let part = "transfer.short_prompt_tokens changed";
        assert!(told.text.contains(part), "{}", told.text);
    };
    differ(0.0).await;
    let good = std::fs::read_to_string(cluster.config()).expect("it is there");
    let changed = format!("transfer.short_prompt_tokens = 7\n{good}");
    std::fs::write(cluster.config(), changed).expect("a file can be written");
    reload(0).await;
    differ(1.0).await;
    reload(1).await;
    differ(0.0).await;
}

/// What the file says anew of workers while no replica runs that reads it is found at the next reading.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_retracts_nothing_and_a_reading_follows_the_file() {
    let workers = chat::workers(3, &chat::paced(Duration::from_millis(1))).await;
    let url = |at: usize| workers[at].url();
    let mut cluster = Plan::default().workers(&workers[..2]).start(2).await;
    let former = std::fs::read_to_string(cluster.config()).expect("it is there");
    let changed = former.replace(&url(1), &url(2));
    let changed = changed.replace("[[worker]]", "[[worker]]\nweight = 2.0");
    std::fs::write(cluster.config(), &changed).expect("a file can be written");
    for index in 0..2 {
        let others = cluster.others(index);
        cluster.replicas[index].terminate().await;
        cluster.replicas[index].seeds = others;
        cluster.replicas[index].start().await;
        cluster.settled().await;
        sees(&cluster, &[url(0), url(1), url(2)]).await;
        // It looks once it is ready, which others need not be told of yet.
        eventually(LIMIT, "what the file says otherwise", async || {
            let log = cluster.replicas[index].last_log();
            let is_told = log.contains("from a file that says something else");
            is_told.then_some(()).ok_or(log)
        })
        .await;
    }
    cluster.replicas[0].process().signal(Signal::HUP);
    reloads(&cluster, 0, "loaded", 1.0).await;
    sees(&cluster, &[url(0), url(2)]).await;
    for replica in cluster.running() {
        eventually(LIMIT, "the weight of the file", async || {
            let known = replica.admin().workers().await;
            let follows = known.iter().all(|worker| worker.weight == 2.0);
            so(follows, || format!("{known:?}"))
        })
        .await;
    }
    // The other one finds nothing left to do.
    cluster.replicas[1].process().signal(Signal::HUP);
    reloads(&cluster, 1, "loaded", 1.0).await;
    sees(&cluster, &[url(0), url(2)]).await;
    let told = told_of_reload(&cluster, 1).await;
    assert!(!told.contains("something else"), "{told}");

    // The last file that changed counts. A replica whose file did not change says what differs.
    std::fs::write(cluster.config(), &former).expect("a file can be written");
    let told = told_of_reload(&cluster, 0).await;
    assert!(!told.contains("something else"), "{told}");
    sees(&cluster, &[url(0), url(1)]).await;
    std::fs::write(cluster.config(), &changed).expect("a file can be written");
    let told = told_of_reload(&cluster, 1).await;
    for at in 0..2 {
        let named = format!("worker {}: the cluster knows something else", url(at));
        assert!(told.contains(&named), "no {named}: {told}");
    }
    let named = format!("worker {} of the file is left out", url(2));
    assert!(told.contains(&named), "no {named}: {told}");
    sees(&cluster, &[url(0), url(1)]).await;
    invariants::hold(&cluster, &workers, &[]).await;
}

/// An administrator's word stands above the file's: a reading says so, and counts no change that there is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_reading_says_what_an_administrator_has_decided() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(1))).await;
    let url = |at: usize| workers[at].url();
    let cluster = Plan::default().workers(&workers).start(1).await;
    let admin = cluster.replicas[0].admin();
    let with_both = std::fs::read_to_string(cluster.config()).expect("it is there");
    let changed = with_both.replace("[[worker]]", "[[worker]]\nweight = 2.0");

    admin.remove(&url(1)).await;
    std::fs::write(cluster.config(), &changed).expect("a file can be written");
    let told = told_of_reload(&cluster, 0).await;
    let left_out = format!("worker {} of the file is left out: an adm", url(1));
    for part in ["1 worker new or changed", &left_out] {
        assert!(told.contains(part), "no {part}: {told}");
    }
    assert!(!told.contains("something else"), "{told}");

    admin.add_cold(&url(1), &url(1), &[MODEL]).await;
    let (without, _) = changed.rsplit_once("[[worker]]").expect("a second worker");
    std::fs::write(cluster.config(), without).expect("a file can be written");
    let told = told_of_reload(&cluster, 0).await;
    let stays = format!("worker {} is gone from the file and stays: admin", url(1));
    for part in ["0 workers new or changed, 0 taken out", &stays] {
        assert!(told.contains(part), "no {part}: {told}");
    }
    sees(&cluster, &[url(0), url(1)]).await;

    // What was changed by PATCH is the administrator's as a whole, until it is what the file says.
    admin.change(&url(0), &json!({ "weight": 3.0 })).await;
    let zoned = without.replace("weight = 2.0", "weight = 2.0\nzone = \"c\"");
    std::fs::write(cluster.config(), zoned).expect("a file can be written");
    let named = format!("worker {}: the cluster knows something else", url(0));
    for _ in 0..2 {
        let told = told_of_reload(&cluster, 0).await;
        for part in ["0 workers new or changed", &named] {
            assert!(told.contains(part), "no {part}: {told}");
        }
    }
    let change = json!({ "weight": 2.0, "zone": "c" });
    admin.change(&url(0), &change).await;
    let told = told_of_reload(&cluster, 0).await;
    assert!(!told.contains("something else"), "{told}");
    invariants::hold(&cluster, &workers, &[]).await;
}

/// A file that is read while it is written looks like one with fewer workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_cut_between_two_workers_is_followed_with_a_warning() {
    let workers = chat::workers(3, &chat::paced(Duration::from_millis(1))).await;
    let url = |at: usize| workers[at].url();
    let cluster = Plan::default().workers(&workers).start(1).await;
    let whole = std::fs::read_to_string(cluster.config()).expect("it is there");
    let first = whole.match_indices("[[worker]]").nth(1).expect("three").0;
    std::fs::write(cluster.config(), &whole[..first]).expect("a file can be written");
    let told = told_of_reload(&cluster, 0).await;
    assert!(told.contains("2 taken out"), "{told}");
    let named = [url(1), url(2)];
    eventually(LIMIT, "the log names them", async || {
        let log = cluster.replicas[0].log();
        let is_it = |line: &str| {
            let parts = [" WARN ", "most workers of the file are gone from it"].map(str::to_owned);
            let parts = parts.iter().chain(&named);
            parts.into_iter().all(|part| line.contains(part))
        };
        log.lines().any(is_it).then_some(()).ok_or(log)
    })
    .await;
    std::fs::write(cluster.config(), whole).expect("a file can be written");
    told_of_reload(&cluster, 0).await;
    sees(&cluster, &[url(0), url(1), url(2)]).await;
}

/// What `config reload` tells of a replica.
async fn told_of_reload(cluster: &Cluster, index: usize) -> String {
    let admin = format!("http://{}", cluster.replicas[index].admin().0);
    let told = grapevine_tests::process::run(&["config", "reload", "--admin", &admin]).await;
    assert_eq!(told.code, Some(0), "{}", told.text);
    told.text
}

/// Waits until the log of a replica's last start has so many lines about workers left out, with all of these parts.
async fn says(cluster: &Cluster, index: usize, parts: &[&str], count: usize) {
    eventually(LIMIT, "the log says it", async || {
        let log = cluster.replicas[index].last_log();
        let is_it = |line: &&str| {
            let left_out = line.contains(" WARN ") && line.contains("is left out");
            left_out && parts.iter().all(|part| line.contains(part))
        };
        let found = log.lines().filter(is_it).count();
        so(found == count, || format!("{found} times in {log}"))
    })
    .await;
}

/// Waits for the count of readings with this result.
async fn reloads(cluster: &Cluster, index: usize, result: &str, count: f64) {
    let admin = cluster.replicas[index].admin();
    eventually(LIMIT, "the file was read", async || {
        let metrics = admin.metrics().await;
        let label = format!("result=\"{result}\"");
        let seen = metrics.sum("grapevine_config_reloads_total", &label);
        so(seen == count, || format!("{seen} {result}"))
    })
    .await;
}

/// Waits until every replica has exactly these workers.
async fn sees(cluster: &Cluster, urls: &[String]) {
    let mut expected = urls.to_vec();
    expected.sort();
    eventually(LIMIT, "these workers", async || {
        for replica in cluster.running() {
            let workers = replica.admin().workers().await;
            let mut ids: Vec<String> = workers.into_iter().map(|worker| worker.id).collect();
            ids.sort();
            if ids != expected {
                return Err(format!("{} has {ids:?}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}
