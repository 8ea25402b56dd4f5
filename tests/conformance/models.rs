//! `/v1/models` is the union over all workers; a model is found by its id, also if that has a slash.

use std::collections::BTreeSet;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::house::{House, quick};

fn serving(models: &[&str]) -> Config {
    let models = models.iter().map(|&model| model.to_owned()).collect();
    Config { models, ..quick() }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_the_union_over_all_workers() {
    let configs = vec![
        serving(&["org/a", "adapter"]),
        serving(&["b"]),
        serving(&["b", "adapter"]),
    ];
    let house = House::of(Plan::default(), configs).await;
    let list: Value = http1::get(house.data(), "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let models = list["data"].as_array().expect("a list");
    let ids: Vec<_> = models.iter().map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, [Some("adapter"), Some("b"), Some("org/a")]);
    for model in models {
        assert_eq!(model["object"], "model");
        assert!(
            model["created"].is_u64() && model["owned_by"].is_string(),
            "{model}"
        );
    }

    for (path, id) in [
        ("/v1/models/b", "b"),
        ("/v1/models/org/a", "org/a"),
        ("/v1/models/org%2Fa", "org/a"),
    ] {
        let answer = http1::get(house.data(), path).await;
        assert_eq!(answer.head.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.json::<Value>()["id"], id, "{path}");
    }
    let missing = http1::get(house.data(), "/v1/models/c").await;
    assert_eq!(missing.head.status, 404);
    assert_eq!(missing.json::<Value>()["error"]["code"], "model_not_found");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let told = metrics.sum("grapevine_errors_total", "model_not_found");
    assert_eq!(told, 1.0, "an answer of this replica's own counts as any");

    for (model, serving) in [
        ("org/a", [0].as_slice()),
        ("b", &[1, 2]),
        ("adapter", &[0, 2]),
    ] {
        let mut used = BTreeSet::new();
        for number in 0..40 {
            let mut body = chat(&format!("question {number}"), 1);
            body["model"] = model.into();
            let answer = http1::post(house.data(), "/v1/chat/completions", &body).await;
            assert_eq!(answer.json::<Value>()["model"], model);
        }
        for (index, worker) in house.workers.iter().enumerate() {
            if worker.stats().requests > 0 {
                used.insert(index);
            }
            worker.reset();
        }
        assert_eq!(
            used,
            serving.iter().copied().collect(),
            "workers of {model}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_shown_as_its_workers_say_it() {
    let of_length = |tokens| Config {
        model_len_max: tokens,
        ..serving(&["m", "adapter"])
    };
    let house = House::of(Plan::default(), vec![of_length(8_192), of_length(4_096)]).await;
    let shown = |id: &'static str| {
        let data = house.data();
        async move {
            http1::get(data, &format!("/v1/models/{id}"))
                .await
                .json::<Value>()
        }
    };
    let (model, _) = eventually(LIMIT, "both workers have said it", async || {
        let model = shown("m").await;
        let differs = model["grapevine_differs"].is_object();
        differs
            .then_some(model.clone())
            .ok_or_else(|| model.to_string())
    })
    .await;
    assert_eq!(model["max_model_len"], 4_096, "what every worker takes");
    assert_eq!(
        model["grapevine_differs"]["max_model_len"],
        serde_json::json!([4_096, 8_192])
    );
    assert_eq!(model["owned_by"], "vllm");
    assert_eq!(
        (model["root"].as_str(), model["parent"].as_str()),
        (Some("m"), None)
    );
    assert!(model["created"].as_u64() > Some(1_000_000_000), "{model}");
    assert_eq!(model["permission"][0]["object"], "model_permission");
    assert_eq!(
        shown("adapter").await["root"],
        "m",
        "as vLLM gives it to an adapter"
    );
    // Once for each of the two models.
    eventually(LIMIT, "the log says it", async || {
        let log = house.cluster.replicas[0].log();
        let said = log
            .lines()
            .filter(|line| line.contains("report different facts about it"));
        let said = said.count();
        assert!(said <= 2, "more than once: {log}");
        (said == 2).then_some(()).ok_or(log)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_models_is_asked_for_them() {
    let house = House::new(0).await;
    house.cluster.settled().await;
    let worker = chat::worker(serving(&["found"])).await;
    house.cluster.replicas[0]
        .admin()
        .add("w", &worker.url(), &[])
        .await;
    eventually(LIMIT, "models are learned", async || {
        let list: Value = http1::get(house.data(), "/v1/models").await.json();
        so(list["data"][0]["id"] == "found", || list.to_string())
    })
    .await;

    // A change of something else does not declare them.
    let admin = house.cluster.replicas[0].admin();
    admin.change("w", &json!({ "weight": 2.0 })).await;

    // Another engine at its address, which the first request that it cannot serve tells.
    let address = worker.addr();
    worker.kill().await;
    let other = chat::worker(Config {
        listen: address,
        ..serving(&["other", "adapter"])
    })
    .await;
    eventually(LIMIT, "its models are learned", async || {
        let asked = chat_of("found");
        let answer = http1::post(house.data(), "/v1/chat/completions", &asked).await;
        let list: Value = http1::get(house.data(), "/v1/models").await.json();
        let ids: Vec<_> = (list["data"].as_array().into_iter().flatten())
            .map(|model| model["id"].clone())
            .collect();
        so(
            ids == ["adapter", "other"] && answer.head.status == 404,
            || format!("{list} {}", answer.text()),
        )
    })
    .await;
    let answer = http1::post(house.data(), "/v1/chat/completions", &chat_of("other")).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert!(!other.log().is_empty());
}

/// Whoever still serves the model answers; the client sees nothing of the worker that does not any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_left_one_worker_is_asked_for_at_another() {
    // Checks that would tell of the other engine first are far apart.
    let plan = Plan::default().set("health.interval", "\"1h\"");
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(chat::worker(serving(&["shared"])).await);
    }
    let plan = workers
        .iter()
        .fold(plan, |plan, worker| plan.worker(&worker.url(), &[]));
    let house = House::with(plan, Vec::new()).await;
    let ask = async |question: &str| {
        let mut asked = chat(question, 1);
        asked["model"] = "shared".into();
        http1::post(house.data(), "/v1/chat/completions", &asked).await
    };
    eventually(LIMIT, "both are known to serve it", async || {
        for number in 0..20 {
            ask(&format!("question {number}")).await;
        }
        let requests = [0, 1].map(|at: usize| workers[at].stats().requests);
        so(requests[0] > 0 && requests[1] > 0, || {
            format!("{requests:?}")
        })
    })
    .await;

    let listen = workers[0].addr();
    workers.remove(0).kill().await;
    let other = chat::worker(Config {
        listen,
        ..serving(&["other"])
    })
    .await;
    for number in 0..20 {
        let answer = ask(&format!("question {number}")).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let moved = metrics.sum("grapevine_attempts_total", "no_such_model");
    assert!(moved >= 1.0 && !other.log().is_empty());
    eventually(LIMIT, "what it serves is known", async || {
        let list = http1::get(house.data(), "/v1/models").await.text();
        list.contains("other").then_some(()).ok_or(list)
    })
    .await;

    // And where nobody has it, that is said, without the names that the worker knows.
    workers.remove(0).kill().await;
    let answer = ask("question").await;
    assert!(matches!(answer.head.status, 404 | 503), "{}", answer.text());
    assert!(
        !answer.text().contains("Valid aliases"),
        "{}",
        answer.text()
    );
}

fn chat_of(model: &str) -> Value {
    let mut body = chat("a question", 1);
    body["model"] = model.into();
    body
}

/// A wrong or missing key is a mistake of the configuration: it is told, and not only that there is no model.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_refuses_the_key_for_its_models_says_why() {
    let worker = chat::worker(Config {
        api_key: Some("engines-key".to_owned()),
        ..quick()
    })
    .await;
    let url = worker.url();
    let plan = Plan::default().worker(&url, &[]);
    let mut cluster = plan.found().await;
    let replica = cluster.join("r1", Vec::new()).await;
    let Admin(admin) = replica.admin();
    eventually(LIMIT, "why it has no model", async || {
        let listed: Value = http1::get(admin, "/workers").await.json();
        let worker = &listed["workers"][0];
        let why = worker["why"].as_str().unwrap_or_default();
        let is_told = worker["health"] == "healthy" && why.contains("it answered 401");
        so(is_told, || listed.to_string())
    })
    .await;
    let line = "a worker refuses the key";
    eventually(LIMIT, "it is asked again, and named once", async || {
        let paths = worker.stats().paths;
        let asked = paths.get("/v1/models").copied().unwrap_or(0);
        so(asked >= 3, || format!("{asked} times"))
    })
    .await;
    assert_eq!(replica.log().matches(line).count(), 1, "{}", replica.log());
}

/// One name of a list that cannot be used costs no other one its requests.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_used_of_a_list_is_served_and_the_rest_is_told() {
    let (good, worker) = ("good", chat::worker(serving(&["bad\nname"])).await);
    let house = House::with(Plan::default().worker(&worker.url(), &[]), Vec::new()).await;
    let why = async |expected: &str| {
        let Admin(admin) = house.cluster.replicas[0].admin();
        eventually(LIMIT, "why a name is left out", async || {
            let listed: Value = http1::get(admin, "/workers").await.json();
            let why = listed["workers"][0]["why"].as_str().unwrap_or_default();
            let is_told = why.starts_with(expected) && listed["workers"][0]["health"] == "healthy";
            so(is_told, || listed.to_string())
        })
        .await;
    };
    why(r#"1 of its models cannot be used: model name "bad\nname""#).await;
    let answer = http1::post(house.data(), "/v1/chat/completions", &chat_of(good)).await;
    assert!(
        answer.text().contains("that can be used"),
        "{}",
        answer.text()
    );
    eventually(LIMIT, "readiness says it", async || {
        let answer = http1::get(house.data(), "/readiness").await;
        let is_told = answer.text().contains("none that can be used");
        so(is_told, || answer.text())
    })
    .await;

    let listen = worker.addr();
    worker.kill().await;
    let many: Vec<String> = (0..70).map(|n| format!("m{n:02}")).collect();
    let listed = ["bad\nname", good]
        .into_iter()
        .chain(many.iter().map(String::as_str));
    let listed: Vec<&str> = listed.collect();
    let _second = chat::worker(Config {
        listen,
        ..serving(&listed)
    })
    .await;
    why("8 of its models cannot be used: ").await;
    eventually(LIMIT, "as many as an entry has are served", async || {
        let list: Value = http1::get(house.data(), "/v1/models").await.json();
        let count = list["data"].as_array().map(Vec::len);
        so(count == Some(64), || list.to_string())
    })
    .await;
    let answer = http1::post(house.data(), "/v1/chat/completions", &chat_of(good)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
}
