//! The admin API and the metrics with more workers than a page or a scrape should hold.

use grapevine_tests::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::errors::assert_refusal;
use crate::house::{House, quick, until_log_says};

const JSON: (&str, &str) = ("content-type", "application/json");

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// URLs of workers that need not answer.
fn urls(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("http://127.2.0.{}:9", number + 1))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_workers_is_added_whole_or_not_at_all() {
    let house = House::new(1).await;
    let admin = house.cluster.replicas[0].admin();
    let add = async |list: Value| http1::post(admin.0, "/workers", &list).await;
    let wrong = add(json!([{ "url": "http://127.2.0.1:9" }, { "url": "ftp://x" }])).await;
    assert_refusal(&wrong, 400, "invalid_request");
    assert!(wrong.text().contains("workers[1]"), "{}", wrong.text());
    let twice =
        add(json!([{ "url": "http://127.2.0.1:9" }, { "url": "http://127.2.0.1:9/" }])).await;
    assert_refusal(&twice, 400, "invalid_request");
    let unknown = add(json!([{ "url": "http://127.2.0.1:9", "colour": "red" }])).await;
    assert_refusal(&unknown, 400, "invalid_request");
    // Not the ring, which follows a moment later.
    let listed: Value = http1::get(admin.0, "/list_workers").await.json();
    let urls_of = |listed: &Value| listed["urls"].as_array().map(Vec::len);
    assert_eq!(
        urls_of(&listed),
        Some(1),
        "nothing of a wrong list is added"
    );

    let list = urls(25)
        .into_iter()
        .map(|url| json!({ "url": url, "models": ["m"], "weight": 2.0 }));
    let added = add(list.collect::<Vec<_>>().into()).await;
    assert_eq!(added.head.status, 201, "{}", added.text());
    let added: Value = added.json();
    assert_eq!(added["workers"].as_array().map(Vec::len), Some(25));
    assert_eq!(added["replicated"], false, "it is alone");

    // All workers that were confirmed as added are listed.
    let page: Value = http1::get(admin.0, "/workers").await.json();
    assert_eq!(page["total"], 26);
    let listed: Value = http1::get(admin.0, "/list_workers?limit=20").await.json();
    assert_eq!(urls_of(&listed), Some(20));
    let next = listed["next"].as_str().expect("there are more");
    let rest = format!("/list_workers?limit=20&after={next}");
    let rest: Value = http1::get(admin.0, &rest).await.json();
    assert_eq!((urls_of(&rest), rest.get("next")), (Some(6), None));
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page: Value = http1::get(admin.0, &format!("/workers?limit=10{after}"))
            .await
            .json();
        assert_eq!(page["total"], 26);
        let workers = page["workers"].as_array().expect("a list");
        seen.extend(
            workers
                .iter()
                .map(|worker| worker["id"].as_str().expect("an id").to_owned()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        assert_eq!(workers.len(), 10);
        after = format!("&after={next}");
    }
    assert_eq!(seen.len(), 26);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    let wrong = http1::get(admin.0, "/workers?limit=0").await;
    assert_refusal(&wrong, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_adds_many_from_its_line_and_from_a_file() {
    let house = House::new(1).await;
    let admin = format!("http://{}", house.cluster.replicas[0].admin().0);
    let file = house.cluster.dir().join("workers.txt");
    let all = urls(5);
    let text = format!("# the rack\n{}\n\n{} # spare\n", all[2], all[3]);
    std::fs::write(&file, text).expect("a file can be written");
    let file = file.to_str().expect("temporary paths are UTF-8");
    let args = [
        "workers", "add", &all[0], &all[1], "--file", file, "--model", "m", "--admin", &admin,
    ];
    let done = process::run(&args).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(done.text.contains("added 4 workers"), "{}", done.text);
    eventually(LIMIT, "all four are listed", async || {
        let done = process::run(&["workers", "list", "--admin", &admin]).await;
        let listed = all[..4].iter().all(|url| done.text.contains(url.as_str()));
        listed.then_some(()).ok_or(done.text)
    })
    .await;
    let done = process::run(&[
        "workers", "add", &all[0], &all[4], "--id", "x", "--admin", &admin,
    ])
    .await;
    assert_ne!(done.code, Some(0), "{}", done.text);
    assert!(done.text.contains("--id names one worker"), "{}", done.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_changes_nothing_says_so() {
    let house = House::new(1).await;
    let at = house.cluster.replicas[0].admin().0;
    let admin = format!("http://{at}");
    let urls = urls(2);
    let add = async |urls: &[String]| {
        let words = urls.iter().map(String::as_str);
        let words: Vec<&str> = ["workers", "add", "--model", "m", "--admin", &admin]
            .into_iter()
            .chain(words)
            .collect();
        let done = process::run(&words).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        done.text
    };
    let first = add(&urls[..1]).await;
    assert!(first.contains(&format!("added {}", urls[0])), "{first}");
    let again = add(&urls[..1]).await;
    assert!(again.contains(" was known, and is as it was,"), "{again}");
    let both = add(&urls).await;
    let expected = "added 2 workers, of which 1 were known and are as they were, known to this replica alone so far";
    assert!(both.contains(expected), "{both}");
    let id = percent_encoded(&urls[0]);
    let path = format!("/workers/{id}");
    let labels = json!({ "labels": { "a": "b" } });
    let state = json!({ "state": "draining" });
    let both = json!({ "labels": { "a": "c" }, "state": "draining" });
    let back = json!({ "labels": { "a": "c" }, "state": "active" });
    // Whichever half of a change is new, the whole is told to have been written. A drain is written anew each time: it is
    // to win over news that have not come yet.
    for (change, is_written, is_unchanged) in [
        (&json!({}), false, true),
        (&labels, true, false),
        (&labels, false, true),
        (&state, true, false),
        (&both, true, false),
        (&both, true, true),
        (&back, true, false),
    ] {
        let body = change.to_string();
        let answer = http1::exchange(at, "PATCH", &path, &[JSON], body.as_bytes()).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let told: Value = answer.json();
        let replicated = told.get("replicated").and_then(Value::as_bool);
        assert_eq!(replicated, is_written.then_some(false), "{change}: {told}");
        assert_eq!(told["unchanged"] == true, is_unchanged, "{change}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_makes_a_found_worker_its_own_is_told() {
    let url = &urls(1)[0];
    let mut cluster = Plan::default().worker(url, &["m"]).found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin().0;
    let body = json!({ "url": url, "models": ["m"] });
    let first: Value = http1::post(admin, "/workers", &body).await.json();
    assert_eq!(first["changes"], json!(["described by: config -> admin"]));
    assert!(first.get("unchanged").is_none(), "{first}");
    let again: Value = http1::post(admin, "/workers", &body).await.json();
    assert_eq!(again["unchanged"], true, "{again}");
    let list: Value = http1::post(admin, "/workers", &json!([body])).await.json();
    assert_eq!(list["workers"][0]["unchanged"], true, "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_that_an_endpoint_does_not_have_is_refused() {
    let house = House::new(1).await;
    let admin = house.cluster.replicas[0].admin();
    for (method, path, told) in [
        ("GET", "/workers?limt=3", "`limt`; it has limit, after"),
        ("POST", "/workers?warm_up=false", "`warm_up`; it has warmup"),
        ("GET", "/cluster?replica=r1", "`replica`; it has none"),
    ] {
        let refused = http1::exchange(admin.0, method, path, &[], b"").await;
        assert_refusal(&refused, 400, "invalid_request");
        assert!(refused.text().contains(told), "{}", refused.text());
    }
    for (path, status) in [
        ("/metrics?format=prometheus", 200),
        ("/healthz?verbose", 200),
        ("/workers?limit=3&after=a", 200),
        ("/no-such-path?x=1", 404),
    ] {
        let answer = http1::get(admin.0, path).await;
        assert_eq!(answer.head.status, status, "{path}: {}", answer.text());
    }
}

/// Series follow settings and registered workers, never what clients send.
#[tokio::test(flavor = "multi_thread")]
async fn series_are_bounded_whatever_comes() {
    let plan = Plan::default()
        .set("metrics.worker_series", "2")
        .set("health.interval", "\"10s\"");
    let house = House::of(plan, vec![quick(); 4]).await;
    let replica = &house.cluster.replicas[0];
    for number in 0..24 {
        let chat = chat::chat(&format!("a prompt of its own {number} {number}"), 2);
        let answer = http1::post(replica.data(), "/v1/chat/completions", &chat).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let metrics = replica.admin().metrics().await;
    let attempts = metrics.sum("grapevine_attempts_total", "");
    assert_eq!(attempts, 24.0, "nothing is lost to the shared label");
    // Series without a worker or a model exist after the first such request.
    let odd = async |number: usize| {
        let mut chat = chat::chat("x", 1);
        chat["model"] = format!("no-such-model-{number}").into();
        let id = format!("request-{number}");
        let headers = [
            ("x-request-id", id.as_str()),
            ("content-type", "application/json"),
        ];
        let body = chat.to_string();
        let path = "/v1/chat/completions";
        let answer = http1::exchange(replica.data(), "POST", path, &headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 404, "{}", answer.text());
        http1::get(replica.data(), &format!("/no/such/path/{number}")).await;
    };
    odd(0).await;
    let count = async || {
        let text = http1::get(replica.admin().0, "/metrics").await.text();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        (lines.count(), text)
    };
    let (before, _) = count().await;
    for number in 1..500 {
        odd(number).await;
    }
    let (after, text) = count().await;
    assert!(after <= before + 20, "{before} series became {after}");
    assert!(
        !text.contains("no-such-model") && !text.contains("request-") && !text.contains("/no/such")
    );

    let metrics = replica.admin().metrics().await;
    let mut labels: Vec<&str> = metrics
        .series("grapevine_worker_in_flight")
        .into_iter()
        .map(|(labels, _)| labels)
        .collect();
    labels.sort_unstable();
    assert_eq!(labels.len(), 3, "{labels:?}");
    assert!(labels.contains(&"{worker=\"other\"}"), "{labels:?}");
    assert_eq!(metrics.sum("grapevine_workers_without_series", ""), 2.0);
    assert_eq!(metrics.sum("grapevine_workers_by_verdict", "good"), 4.0);
    assert!(metrics.sum("grapevine_attempts_total", "worker=\"other\"") > 0.0);

    // One of them leaves: the others' series stay.
    let listed = replica.admin().workers().await;
    let without = listed
        .iter()
        .find(|worker| !labels.iter().any(|label| label.contains(&worker.id)));
    let remove = async |id: &str, left: usize| {
        replica.admin().remove(id).await;
        eventually(LIMIT, "the ring has followed", async || {
            let known = replica.admin().ring().await.workers;
            so(known == left, || format!("{known} workers"))
        })
        .await;
    };
    remove(&without.expect("two have none").id, 3).await;
    let metrics = replica.admin().metrics().await;
    assert!(metrics.sum("grapevine_attempts_total", "worker=\"other\"") > 0.0);
    // The shared series `other` end with the last worker that they stand for.
    let last = listed.iter().rfind(|worker| {
        let has_series = labels.iter().any(|label| label.contains(&worker.id));
        !has_series
    });
    let last = last.expect("two have none");
    assert_ne!(last.id, without.expect("two have none").id);
    remove(&last.id, 2).await;
    let text = http1::get(replica.admin().0, "/metrics").await.text();
    let of_others = |line: &&str| line.contains("worker=\"other\"");
    let kept: Vec<&str> = text.lines().filter(of_others).collect();
    assert!(kept.is_empty(), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_workers_are_drained_by_one_command() {
    let house = House::new(3).await;
    let admin = house.cluster.replicas[0].admin();
    let address = format!("http://{}", admin.0);
    let drain = async |named: &[&str]| {
        let words = [&["workers", "drain"], named, &["--admin", &address]].concat();
        process::run(&words).await
    };
    let states = async || -> Vec<String> {
        let mut states = Vec::new();
        for worker in &house.workers {
            states.push(admin.worker(&worker.url()).await.state);
        }
        states
    };
    let [first, second, third] = [0, 1, 2].map(|at: usize| house.workers[at].url());
    let done = drain(&[&first, &second]).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    for url in [&first, &second] {
        assert!(done.text.contains(url.as_str()), "{}", done.text);
    }
    assert_eq!(states().await, ["draining", "draining", "active"]);

    // The one that is not there is named; what was drained before it stays so.
    for url in [&first, &second] {
        let active = json!({ "state": "active" });
        admin.change(url, &active).await;
    }
    let refused = drain(&[&third, "http://127.0.0.1:1", &first]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.text);
    let named = "http://127.0.0.1:1: ";
    assert!(refused.text.contains(named), "{}", refused.text);
    assert_eq!(states().await, ["active", "active", "draining"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_worker_is_in_the_log_once_with_what_is_otherwise() {
    const NOTED: &str = "worker drained, activated or labelled";
    const DESCRIBED: &str = "worker added or changed";
    let house = House::new(1).await;
    let admin = house.cluster.replicas[0].admin();
    let url = house.workers[0].url();
    for (change, line, part) in [
        (json!({ "state": "draining" }), NOTED, "draining"),
        (json!({ "weight": 2.5 }), DESCRIBED, "weight: 1 -> 2.5"),
    ] {
        // The second time nothing changes.
        admin.change(&url, &change).await;
        admin.change(&url, &change).await;
        // Lines keep their order: behind this one nothing of the changes is to come.
        let behind = format!("mark-of-{}", part.len());
        admin.add_cold(&behind, "http://127.2.0.9:9", &["m"]).await;
        until_log_says(&house.cluster, &behind).await;
        admin.remove(&behind).await;
        let log = house.cluster.replicas[0].log();
        let said = log
            .lines()
            .filter(|one| one.contains(line) && one.contains(&url));
        let said: Vec<&str> = said.collect();
        assert!(matches!(said[..], [one] if one.contains(part)), "{log}");
    }
}
