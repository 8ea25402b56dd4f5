//! Aliases of models: what workers see of them, how a split stays stable, and settings of single models.

use std::collections::{BTreeMap, BTreeSet};

use grapevine_testbed::fake_worker::{Config, FakeWorker};
use grapevine_tests::chat::{self, EXPLAIN, MODEL, chat};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Response};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use crate::house::{House, quick};

const CHATS: &str = "/v1/chat/completions";

fn serving(models: &[&str]) -> Config {
    let models = models.iter().map(|&model| model.to_owned()).collect();
    Config { models, ..quick() }
}

/// A chat to a model by this name.
fn to(model: &str, prompt: &str) -> Value {
    let mut body = chat(prompt, 1);
    body["model"] = model.into();
    body
}

async fn ask(house: &House, headers: &[(&str, &str)], body: &Value) -> Response {
    let body = body.to_string();
    http1::exchange(house.data(), "POST", CHATS, headers, body.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_models_name_differs_at_the_worker() {
    let aliases = r#"[
        { name = "alias", targets = ["org/m\"1\""] },
        { name = "org/alias", targets = ["org/m\"1\"", "gone:9"] },
        { name = "nobody", targets = ["gone"] },
    ]"#;
    let plan = Plan::default().set("model", aliases);
    let house = House::of(plan, vec![serving(&["org/m\"1\"", MODEL])]).await;
    let long = "a long prompt ".repeat(30_000);
    let long = format!(r#","messages":[{{"role":"user","content":"{long}"}}],"max_tokens":1}}"#);
    for (number, (before, alias, after)) in [
        (
            " {\"messages\" : [ {\"role\":\"user\",\"content\":\"a\\u00e9\\n\"} ],\t\"x\":{\"model\":\"alias\"},\"model\" : ",
            "\"alias\"",
            " , \"y\":1.50e2 } \r\n",
        ),
        (
            "{\"model\":",
            "\"org\\/alias\"",
            ",\"seed\":12345678901234567890,\"messages\":[{\"role\":\"user\",\"content\":\"alias\"}]}",
        ),
        ("{\"model\":", "\"alias\"", long.as_str()),
    ]
    .into_iter()
    .enumerate()
    {
        let asked = [before, alias, after].concat();
        let expected = [before, r#""org/m\"1\"""#, after].concat();
        let ids = [format!("direct-{number}"), format!("alias-{number}")];
        let mut seen = Vec::new();
        for (id, address, body) in [
            (&ids[0], house.workers[0].addr(), &expected),
            (&ids[1], house.data(), &asked),
        ] {
            let headers = [("x-request-id", id.as_str())];
            let answer = http1::exchange(address, "POST", CHATS, &headers, body.as_bytes()).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
            // The worker's name for the model: clients see which version it was.
            assert_eq!(answer.json::<Value>()["model"], "org/m\"1\"");
            seen.extend(house.seen(id));
        }
        assert_eq!(seen.len(), 2, "direct and by the alias");
        assert_eq!(seen[0].body_hash, seen[1].body_hash, "{number}");
        assert_eq!(seen[1].body_bytes, expected.len() as u64);
    }
    // And where a header names it, because engines take the model from there.
    const ADAPTER: &str = "x-amzn-sagemaker-adapter-identifier";
    for (id, said, body) in [
        ("named-in-body", &[][..], &to("alias", "x")),
        (
            "named-in-head",
            &[(ADAPTER, "alias")],
            &json!({ "prompt": "x" }),
        ),
    ] {
        let headers = [said, &[("x-request-id", id)]].concat();
        let body = body.to_string();
        let path = "/invocations";
        let answer = http1::exchange(house.data(), "POST", path, &headers, body.as_bytes()).await;
        let seen = house.seen(id);
        let named = seen.iter().flat_map(|entry| &entry.headers);
        let named = named.filter(|(name, _)| name.eq_ignore_ascii_case(ADAPTER));
        let named: Vec<&str> = named.map(|(_, model)| model.as_str()).collect();
        assert_eq!(named, ["org/m\"1\""], "{id}: {}", answer.text());
    }
    let missing = ask(&house, &[], &to("nobody", "x")).await;
    assert_eq!(missing.head.status, 404);
    assert_eq!(missing.json::<Value>()["error"]["code"], "model_not_found");

    // The root of a model is what its worker reports, once it was asked.
    let model = Some("org/m\"1\"");
    let expected = [
        [Some("alias"), model, model],
        [Some(MODEL), model, None],
        [Some("org/alias"), model, model],
        [model, model, None],
    ];
    eventually(LIMIT, "models are shown as their worker says", async || {
        let list: Value = http1::get(house.data(), "/v1/models").await.json();
        let models = list["data"].as_array().expect("a list");
        let cards: Vec<_> = models
            .iter()
            .map(|card| [&card["id"], &card["root"], &card["parent"]].map(Value::as_str))
            .collect();
        (cards == expected)
            .then_some(())
            .ok_or_else(|| list.to_string())
    })
    .await;
    for (id, status) in [("alias", 200), ("org%2Falias", 200), ("nobody", 404)] {
        let answer = http1::get(house.data(), &format!("/v1/models/{id}")).await;
        assert_eq!(answer.head.status, status, "{id}");
    }
    house.close().await;
}

/// Two replicas, and one worker for each version of a model.
async fn versions(aliases: &str) -> (Cluster, Vec<FakeWorker>) {
    let workers = [
        chat::worker(serving(&["v1", MODEL])).await,
        chat::worker(serving(&["v2", MODEL])).await,
    ];
    let mut plan = Plan::default().set("model", aliases);
    for (worker, model) in workers.iter().zip(["v1", "v2"]) {
        plan = plan.worker(&worker.url(), &[model, MODEL]);
    }
    (plan.start(2).await, workers.into())
}

/// The workers to which both replicas send these; they must agree.
async fn sent(cluster: &Cluster, chats: &[Value]) -> Vec<String> {
    let found = invariants::agreement(cluster, chats).await;
    assert_eq!(found.agreed, chats.len(), "replicas split differently");
    found.workers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_stays_on_its_version_on_every_replica() {
    let (cluster, workers) = versions(r#"[{ name = "m", targets = ["v1:3", "v2"] }]"#).await;
    let mut sessions = Vec::new();
    let mut later = Vec::new();
    for number in 0..2_000 {
        let mut first = to("m", &format!("question {number}"));
        let mut next = first.clone();
        let history = next["messages"].as_array_mut().expect("messages");
        history.push(json!({ "role": "assistant", "content": "an answer" }));
        history.push(json!({ "role": "user", "content": "and then?" }));
        // Half of them by a session, with any text.
        if number % 2 == 0 {
            next = to("m", "something else");
            for body in [&mut first, &mut next] {
                body["session_id"] = format!("session {number}").into();
            }
        }
        sessions.push(first);
        later.push(next);
    }
    let first = sent(&cluster, &sessions).await;
    assert_eq!(first, sent(&cluster, &later).await, "a later turn moved");
    let on = |url: &str| first.iter().filter(|worker| *worker == url).count();
    let counts = [on(&workers[0].url()), on(&workers[1].url())];
    assert_eq!(counts[0] + counts[1], 2_000);
    // A quarter is 500; five standard deviations are 97.
    assert!(counts[1].abs_diff(500) < 97, "{counts:?}");

    // When a version leaves, only its own conversations move; they return with it.
    let admin = cluster.replicas[0].admin();
    admin.remove(&workers[1].url()).await;
    eventually(LIMIT, "both replicas know one version", async || {
        for replica in cluster.running() {
            let workers = replica.admin().ring().await.workers;
            if workers != 1 {
                return Err(format!("{} knows {workers}", replica.name));
            }
        }
        Ok(())
    })
    .await;
    let some = &sessions[..400];
    let alone = sent(&cluster, some).await;
    assert!(alone.iter().all(|worker| *worker == workers[0].url()));
    admin
        .add(&workers[1].url(), &workers[1].url(), &["v2", MODEL])
        .await;
    cluster.settled().await;
    assert_eq!(first[..400], sent(&cluster, some).await);

    // A request arrives at the predicted worker, under the version's name.
    for (body, worker) in sessions.iter().zip(&first).take(40) {
        let model = if *worker == workers[0].url() {
            "v1"
        } else {
            "v2"
        };
        for replica in cluster.running() {
            let answer = http1::post(replica.data(), CHATS, body).await;
            assert_eq!(answer.json::<Value>()["model"], model);
        }
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

/// What is asked next is drawn for any version; the response lies on one.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_goes_on_at_its_version_on_every_replica() {
    goes_on_at_its_version("m").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_goes_on_at_its_version_where_that_has_the_name_of_the_alias() {
    goes_on_at_its_version("v1").await;
}

async fn goes_on_at_its_version(alias: &str) {
    const RESPONSES: &str = "/v1/responses";
    let aliases = format!(r#"[{{ name = "{alias}", targets = ["v1", "v2"] }}]"#);
    let (cluster, workers) = versions(&aliases).await;
    let data: Vec<_> = cluster.running().map(|replica| replica.data()).collect();
    let asked = |input: &str| json!({ "model": alias, "input": input, "max_output_tokens": 3 });
    let mut models = BTreeSet::new();
    for number in 0..8 {
        let first = http1::post(data[0], RESPONSES, &asked(&format!("question {number}"))).await;
        assert_eq!(first.head.status, 200, "{}", first.text());
        let made: Value = first.json();
        models.insert(made["model"].to_string());
        // The second replica has relayed none of them.
        for (data, turn) in data
            .iter()
            .flat_map(|data| (0..4).map(move |turn| (data, turn)))
        {
            let mut next = asked(&format!("and then {turn}?"));
            next["previous_response_id"] = made["id"].clone();
            let next = http1::post(*data, RESPONSES, &next).await;
            assert_eq!(next.head.status, 200, "{}", next.text());
            assert_eq!(next.json::<Value>()["model"], made["model"]);
        }
        let mut unknown = asked("and then?");
        unknown["previous_response_id"] = "resp_nobody".into();
        let unknown = http1::post(data[number % 2], RESPONSES, &unknown).await;
        assert_eq!(unknown.head.status, 404, "{}", unknown.text());
    }
    assert_eq!(models.len(), 2, "all by chance: {models:?}");
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_may_have_a_policy_of_its_own() {
    let policies = r#"[
        { name = "turns", policy = "round_robin" },
        { name = "trees", policy = "cache_aware" },
    ]"#;
    let plan = Plan::default().set("model", policies);
    let house = House::of(plan, vec![serving(&["turns", "trees", MODEL]); 3]).await;
    // Long enough to become evidence.
    let prompt = "the same ".repeat(200);
    // Homes change until all workers are known to be healthy.
    house.home(&to(MODEL, &prompt)).await;
    let mut reasons = BTreeMap::<&str, Vec<String>>::new();
    let mut workers = BTreeMap::<&str, BTreeSet<String>>::new();
    for model in ["turns", "trees", MODEL] {
        for _ in 0..6 {
            let answer = ask(&house, &[EXPLAIN], &to(model, &prompt)).await;
            let header = |name: &str| answer.head.header(name).expect("explained").to_owned();
            let reason = header("x-grapevine-reason");
            reasons.entry(model).or_default().push(reason);
            let worker = header("x-grapevine-worker");
            workers.entry(model).or_default().insert(worker);
        }
    }
    let used: Vec<_> = workers
        .iter()
        .map(|(model, used)| (*model, used.len()))
        .collect();
    assert_eq!(used, [(MODEL, 1), ("trees", 1), ("turns", 3)]);
    assert_eq!(reasons["turns"], ["round_robin"; 6]);
    assert_eq!(reasons["trees"][0], "smallest_tree");
    assert_eq!(reasons["trees"][1..], ["longest_match"; 5]);
    assert_eq!(reasons[MODEL], ["home"; 6]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_have_their_own_homes() {
    let plan = Plan::default().set("cluster.tenant_header", "\"x-tenant\"");
    let house = House::of(plan, vec![quick(); 4]).await;
    let prompt = chat("what everybody asks", 1);
    house.home(&prompt).await;
    let home = async |tenant: Option<&str>, salt: Option<&str>| {
        let mut body = prompt.clone();
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        let headers: Vec<(&str, &str)> =
            tenant.map(|name| ("x-tenant", name)).into_iter().collect();
        let admin = house.cluster.replicas[0].admin();
        let path = "/explain?load=ignore";
        let body = body.to_string();
        let answer = http1::exchange(admin.0, "POST", path, &headers, body.as_bytes()).await;
        let explained: Value = answer.json();
        explained["key"].as_str().map(str::to_owned)
    };
    let mut keys = vec![home(None, None).await];
    for salt in ["a", "b"] {
        keys.push(home(Some(salt), None).await);
        keys.push(home(None, Some(salt)).await);
        keys.push(home(Some(salt), Some("a")).await);
    }
    assert_eq!(home(Some("a"), Some("a")).await, keys[3]);
    assert!(keys.iter().all(Option::is_some), "{keys:?}");
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 7, "{keys:?}");

    let long = "s".repeat(1_025);
    let mut body = prompt.clone();
    body["cache_salt"] = long.as_str().into();
    let salted = ask(&house, &[], &body).await;
    assert_eq!(salted.head.status, 400);
    assert_eq!(salted.json::<Value>()["error"]["param"], "cache_salt");
    let tenant = ask(&house, &[("x-tenant", &long)], &prompt).await;
    assert_eq!(tenant.head.status, 400);
    assert!(tenant.text().contains("x-tenant"), "{}", tenant.text());
    // A proxy that adds its word leaves the client's before it.
    for (second, status) in [("acme", 200), ("other", 400)] {
        let both = [("x-tenant", "acme"), ("x-tenant", second)];
        let answer = ask(&house, &both, &prompt).await;
        assert_eq!(answer.head.status, status, "{}", answer.text());
        assert_eq!(answer.text().contains("two tenants"), status == 400);
    }
    house.close().await;
}
