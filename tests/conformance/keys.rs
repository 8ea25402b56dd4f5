//! Clients' keys: which are accepted, what a key may do, and that it is never shown.

use std::fmt::Write as _;

use grapevine_testbed::fake_worker::{Config, Entry, Fault, How, Point, Rule};
use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, MODEL, chat};
use grapevine_tests::http1::{self, Response};
use grapevine_tests::keys::{KeyFile, write};
use grapevine_tests::process::{self, Signal};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::errors::assert_error;
use crate::house::{House, quick};

const CHATS: &str = "/v1/chat/completions";

async fn ask(house: &House, key: &str, more: &[(&str, &str)], body: &Value) -> Response {
    let bearer = format!("Bearer {key}");
    let headers = [&[("authorization", bearer.as_str())], more].concat();
    let body = body.to_string();
    http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await
}

/// Waits until the replica's log has this text; lines before it are there, too.
async fn logged(house: &House, text: &str) {
    eventually(LIMIT, text, async || {
        let log = house.cluster.replicas[0].log();
        log.contains(text)
            .then_some(())
            .ok_or_else(|| "not in the log".to_owned())
    })
    .await;
}

fn values<'a>(entry: &'a Entry, name: &str) -> Vec<&'a str> {
    let named = entry.headers.iter();
    let named = named.filter(|(n, _)| n.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.as_str()).collect()
}

/// Whoever's models were declared is not asked for them, so that its first refusal is that of a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_refuses_the_routers_key_costs_its_clients_nothing() {
    let mut file = KeyFile::new();
    let key = file.add("acme", "").await;
    let wants_one = Config {
        api_key: Some("engines-key".to_owned()),
        ..quick()
    };
    let (strict, open) = (chat::worker(wants_one).await, chat::worker(quick()).await);
    let plan = (file.plan().set("cluster.policy", "\"round_robin\""))
        .worker(&strict.url(), &[MODEL])
        .worker(&open.url(), &[MODEL]);
    let house = House::with(plan, Vec::new()).await;
    let send = async |question: &str| ask(&house, &key, &[], &chat(question, 1)).await;
    for number in 0..8 {
        let answer = send(&format!("question {number}")).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    assert_eq!(open.log().len(), 8);
    logged(
        &house,
        "a worker refuses the key with which this replica asks it",
    )
    .await;
    let Admin(admin) = house.cluster.replicas[0].admin();
    let listed: Value = http1::get(admin, "/workers").await.json();
    let rows = listed["workers"].as_array().expect("workers");
    let of = |url: &str| rows.iter().find(|row| row["url"] == url).expect("a worker");
    assert_eq!(
        of(&strict.url())["why"],
        "it refuses the key: it answered 401"
    );
    assert_eq!(of(&open.url())["why"], Value::Null);
    let refused = [&strict, &open].map(|worker| of(&worker.url())["key_refused"].clone());
    assert_eq!(refused, [401.into(), Value::Null]);
    assert_eq!(of(&strict.url())["health"], "healthy");

    let id = open.url().replace(':', "%3A").replace('/', "%2F");
    let removed = http1::exchange(admin, "DELETE", &format!("/workers/{id}"), &[], b"").await;
    assert_eq!(removed.head.status, 200, "{}", removed.text());
    eventually(LIMIT, "nobody else is left", async || {
        let answer = send("to nobody").await;
        (answer.head.status == 502)
            .then_some(())
            .ok_or_else(|| answer.text())
    })
    .await;
    let error = assert_error(&send("to nobody").await, 502, "upstream_failed");
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("refuse the key of this replica"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_good_keys_are_let_in_and_no_worker_sees_them() {
    let mut file = KeyFile::new();
    let key = file.add("acme", "").await;
    let ended = file
        .add("ended", "expires = \"2020-01-01T00:00:00Z\"")
        .await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let body = chat("hello", 1).to_string();
    let bearer = |key: &str| ("authorization", format!("Bearer {key}"));
    for header in [
        ("x-nothing", "1".to_owned()),
        bearer("gv-unknown"),
        bearer(&ended),
        bearer(""),
        ("authorization", key.clone()),
        ("authorization", format!("Basic {key}")),
        ("x-api-key", "gv-unknown".to_owned()),
    ] {
        let headers = [(header.0, header.1.as_str())];
        for (method, path, body) in [
            ("POST", CHATS, body.as_str()),
            ("POST", "/tokenize", "{}"),
            ("GET", "/v1/models", ""),
            ("GET", "/v1/models/fake-model", ""),
        ] {
            let answer = http1::exchange(house.data(), method, path, &headers, body.as_bytes());
            let answer = answer.await;
            assert_eq!(answer.head.status, 401, "{path} {header:?}");
            assert_eq!(answer.head.header("www-authenticate"), Some("Bearer"));
            let error = &answer.json::<Value>()["error"];
            assert_eq!(error["code"], "invalid_api_key");
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    assert!(
        house.workers[0].log().is_empty(),
        "a worker saw one of them"
    );
    for path in ["/health", "/liveness", "/readiness"] {
        let answer = http1::get(house.data(), path).await;
        assert_ne!(answer.head.status, 401, "{path} needs no key");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let refused = metrics.sum("grapevine_key_refusals_total", "");
    assert_eq!(refused, 7.0 * 4.0, "only what was refused is counted");
    let headers = [
        ("authorization", format!("Bearer {key}")),
        ("x-api-key", key),
    ];
    for (name, value) in &headers {
        let headers = [(*name, value.as_str())];
        let answer = http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let log = house.workers[0].log();
        let seen = log.last().expect("the worker was asked");
        for (name, _) in &headers {
            assert!(values(seen, name).is_empty(), "{name} reached the worker");
        }
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_get_their_own_key() {
    let mut file = KeyFile::new();
    let key = file.add("acme", "").await;
    let plan = file.plan().set("workers.api_key", "\"worker-key\"");
    let config = Config {
        api_key: Some("worker-key".to_owned()),
        ..quick()
    };
    let house = House::of(plan, vec![config]).await;
    let answer = ask(&house, &key, &[], &chat("hello", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let log = house.workers[0].log();
    let seen = log.last().expect("the worker was asked");
    assert_eq!(values(seen, "authorization"), ["Bearer worker-key"]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_ask_for_its_models_only() {
    let mut file = KeyFile::new();
    let free = file.add("free", "").await;
    let bound = file.add("bound", "models = [\"fake-model\"]").await;
    let config = Config {
        models: vec![MODEL.to_owned(), "b".to_owned()],
        ..quick()
    };
    let house = House::of(file.plan(), vec![config]).await;
    let to = |model: &str| {
        let mut body = chat("hello", 1);
        body["model"] = model.into();
        body
    };
    for (key, model, status) in [
        (&free, MODEL, 200),
        (&free, "b", 200),
        (&bound, MODEL, 200),
        (&bound, "b", 404),
        (&bound, "c", 404),
    ] {
        let answer = ask(&house, key, &[], &to(model)).await;
        assert_eq!(answer.head.status, status, "{model}: {}", answer.text());
    }
    let hidden = ask(&house, &bound, &[], &to("b")).await;
    let absent = ask(&house, &bound, &[], &to("x")).await;
    let text = |answer: Response, model: &str| answer.text().replace(&format!("`{model}`"), "it");
    assert_eq!(
        text(hidden, "b"),
        text(absent, "x"),
        "what is hidden looks absent"
    );
    // Engines compute with an adapter that the body names beside its model.
    for (key, field, adapter, status) in [
        (&bound, "lora_path", json!("a"), 403),
        (&bound, "lora", json!([{ "id": 0, "scale": 1.0 }]), 403),
        (&bound, "lora_id", json!("1"), 403),
        (&bound, "lora_path", Value::Null, 200),
        (&free, "lora_path", json!("a"), 200),
    ] {
        let mut body = to(MODEL);
        body[field] = adapter;
        let count = house.workers[0].log().len();
        let answer = ask(&house, key, &[], &body).await;
        assert_eq!(answer.head.status, status, "{body}: {}", answer.text());
        if status == 403 {
            let error = assert_error(&answer, 403, "permission_denied");
            assert_eq!(error["param"], field);
            assert_eq!(house.workers[0].log().len(), count, "no worker saw it");
        }
    }
    // Without a model in the request, a worker would choose one.
    let bearer = format!("Bearer {bound}");
    let headers = [("authorization", bearer.as_str())];
    let count = house.workers[0].log().len();
    let answer = http1::exchange(house.data(), "POST", "/tokenize", &headers, b"{}").await;
    assert_error(&answer, 403, "permission_denied");
    assert_eq!(house.workers[0].log().len(), count);

    // vLLM goes by what SageMaker's header names there, whatever the body says, and without it by its first model.
    const ADAPTER: &str = "x-amzn-sagemaker-adapter-identifier";
    for (key, named, said, refused) in [
        (&free, Some("b"), &[][..], None),
        (&free, None, &["b"], None),
        (&free, Some("b"), &["b"], None),
        (&bound, Some(MODEL), &[], None),
        (&bound, Some("b"), &[], Some(404)),
        (&bound, None, &["b"], Some(403)),
        (&bound, None, &[MODEL], Some(403)),
        (&bound, Some(MODEL), &["b"], Some(400)),
        (&free, None, &[MODEL, "b"], Some(400)),
        (&free, Some("b"), &[MODEL], Some(400)),
    ] {
        let mut body = chat("hello", 1);
        body["model"] = named.into();
        let bearer = format!("Bearer {key}");
        let said = said.iter().map(|name| (ADAPTER, *name));
        let mut headers: Vec<(&str, &str)> = said.collect();
        headers.push(("authorization", &bearer));
        let before = house.workers[0].log().len();
        let body = body.to_string();
        let path = "/invocations";
        let answer = http1::exchange(house.data(), "POST", path, &headers, body.as_bytes()).await;
        let log = house.workers[0].log();
        let seen = log[before..].iter().map(|seen| values(seen, ADAPTER));
        let seen: Vec<_> = seen.collect();
        match refused {
            Some(status) => {
                assert_eq!(answer.head.status, status, "{named:?} {headers:?}");
                assert!(seen.is_empty(), "{named:?} {headers:?}");
            }
            // Whatever the worker makes of it.
            None => assert_eq!(seen, [[named.unwrap_or("b")]], "{headers:?}"),
        }
    }
    // Elsewhere it reaches no worker.
    let answer = ask(&house, &bound, &[(ADAPTER, "b")], &to(MODEL)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let log = house.workers[0].log();
    assert!(values(log.last().expect("asked"), ADAPTER).is_empty());

    let listed = async |key: &str| -> Vec<String> {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let answer = http1::exchange(house.data(), "GET", "/v1/models", &headers, b"").await;
        let list: Value = answer.json();
        let ids = list["data"].as_array().expect("a list").iter();
        ids.map(|card| card["id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert_eq!(listed(&free).await, ["b", MODEL]);
    assert_eq!(listed(&bound).await, [MODEL]);
    for (model, status) in [(MODEL, 200), ("b", 404)] {
        let path = format!("/v1/models/{model}");
        let answer = http1::exchange(house.data(), "GET", &path, &headers, b"").await;
        assert_eq!(answer.head.status, status, "{path}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_counts_at_once_and_a_bad_one_not_at_all() {
    let mut file = KeyFile::new();
    let first = file.add("first", "").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let comes = async |key: &str, status: u16| {
        eventually(LIMIT, "the file is followed", async || {
            let answer = ask(&house, key, &[], &chat("hello", 1)).await;
            let found = answer.head.status;
            (found == status)
                .then_some(())
                .ok_or_else(|| format!("{found}, not {status}"))
        })
        .await;
    };
    comes(&first, 200).await;
    let second = file.add("second", "").await;
    comes(&second, 200).await;

    // A stream goes on when its key is removed; a new request is refused.
    let mut open = chat::held(house.data(), &first).await;
    write(&file.path(), "# Nobody.\n");
    comes(&first, 401).await;
    comes(&second, 401).await;
    for _ in 0..3 {
        assert!(open.data().await.expect("not cut").is_some(), "ended");
    }
    drop(open);
    file.restore();
    comes(&first, 200).await;

    // As a program does that is about to write it.
    write(&file.path(), "");
    logged(&house, "keys.toml:1:1: [[key]]: the file is empty").await;
    comes(&first, 200).await;

    let replica = &house.cluster.replicas[0];
    let bad = format!(
        "{}\n[[key]]\nname = \"third\"\nhash = \"gv-canary\"\n",
        file.text()
    );
    write(&file.path(), &bad);
    let place = format!("keys.toml:{}:8: key.hash: expected", bad.lines().count());
    logged(&house, &place).await;
    let metrics = replica.admin().metrics().await;
    assert_eq!(metrics.sum("grapevine_keys_loads_total", "bad"), 2.0);
    assert!(!replica.log().contains("canary"));
    comes(&first, 200).await;
    comes(&second, 200).await;
    assert_eq!(
        replica.admin().metrics().await.sum("grapevine_keys", ""),
        2.0
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_the_file_and_a_bad_one_prevents_the_start() {
    let mut file = KeyFile::new();
    let first = file.add("first", "").await;
    let plan = file.plan().set("keys.reload", "\"1h\"");
    let house = House::of(plan, vec![quick()]).await;
    let second = file.add("second", "").await;
    let answer = ask(&house, &second, &[], &chat("hello", 1)).await;
    assert_eq!(answer.head.status, 401, "nobody has looked yet");
    house.cluster.replicas[0].process().signal(Signal::HUP);
    eventually(LIMIT, "the file is read", async || {
        let answer = ask(&house, &second, &[], &chat("hello", 1)).await;
        let found = answer.head.status;
        (found == 200)
            .then_some(())
            .ok_or_else(|| found.to_string())
    })
    .await;
    let answer = ask(&house, &first, &[], &chat("hello", 1)).await;
    assert_eq!(answer.head.status, 200);

    let path = file.path().display().to_string();
    let good = process::run(&["keys", "check", &path]).await;
    assert_eq!(good.code, Some(0), "{}", good.text);
    assert!(good.text.contains("first: tenant first"), "{}", good.text);
    write(&file.path(), "[[key]]\nname = \"a\"\n");
    for command in [
        vec!["keys", "check", &path],
        vec!["serve", "--check", "--api-keys-file", &path],
        vec!["serve", "--api-keys-file", &path],
    ] {
        let bad = process::run(&command).await;
        assert_eq!(bad.code, Some(2), "{}", bad.text);
        let expected = "keys.toml:1:1: [[key]]: `hash` is missing";
        assert!(bad.text.contains(expected), "{}", bad.text);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_its_own_prefixes_and_nobody_speaks_for_another_tenant() {
    let mut file = KeyFile::new();
    let one = file.add("one", "tenant = \"t1\"").await;
    let same = file.add("same", "tenant = \"t1\"").await;
    let other = file.add("other", "tenant = \"t2\"").await;
    let plan = file.plan().set("cluster.tenant_header", "\"x-tenant\"");
    let house = House::of(plan, vec![quick(), quick()]).await;
    let prompt = chat(&"a common prompt of both tenants. ".repeat(200), 1);
    let expected = async |key: &str, tenant: &str| {
        let headers = [("x-grapevine-explain", "1"), ("x-tenant", tenant)];
        let answer = ask(&house, key, &headers, &prompt).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let tokens = answer.head.header("x-grapevine-expected-tokens");
        tokens.expect("explained").parse::<u32>().expect("a number")
    };
    assert_eq!(expected(&one, "t1").await, 0, "nobody has asked yet");
    assert!(expected(&same, "t2").await > 0, "the key's tenant counts");
    assert_eq!(expected(&other, "t1").await, 0, "the header does not");
    assert!(expected(&other, "t3").await > 0);

    // The same answer without sending, for the key in question.
    let admin = house.cluster.replicas[0].admin();
    let explained = async |query: &str| -> Value {
        let path = format!("/explain{query}");
        http1::post(admin.0, &path, &prompt).await.json()
    };
    let keys = [
        explained("?tenant=t1").await["key"].clone(),
        explained("?tenant=t2").await["key"].clone(),
        explained("").await["key"].clone(),
    ];
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    assert!(explained("?tenant=t1").await["expected_tokens"].as_u64() > Some(0));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_key_hold_and_are_told() {
    let mut file = KeyFile::new();
    let narrow = file.add("narrow", "tenant = \"t\"\nmax_requests = 1").await;
    let wide = file.add("wide", "tenant = \"t\"\nmax_requests = 2").await;
    let rated = file.add("rated", "requests_per_minute = 2").await;
    let house = House::of(file.plan(), vec![quick()]).await;

    let held = chat::held(house.data(), &narrow).await;
    let refused = ask(&house, &narrow, &[], &chat("more", 1)).await;
    let error = assert_error(&refused, 429, "rate_limit_exceeded");
    assert_eq!(error["type"], "rate_limit_error");
    // The tenant's requests are counted together; the other key allows one more.
    let second = chat::held(house.data(), &wide).await;
    assert_error(
        &ask(&house, &wide, &[], &chat("x", 1)).await,
        429,
        "rate_limit_exceeded",
    );
    drop((held, second));
    eventually(LIMIT, "there is room again", async || {
        let answer = ask(&house, &narrow, &[], &chat("again", 1)).await;
        let status = answer.head.status;
        (status == 200)
            .then_some(())
            .ok_or_else(|| status.to_string())
    })
    .await;

    for remaining in ["1", "0"] {
        let answer = ask(&house, &rated, &[], &chat("x", 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let header = |name| answer.head.header(name);
        assert_eq!(header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(header("x-ratelimit-remaining-requests"), Some(remaining));
    }
    let refused = ask(&house, &rated, &[], &chat("x", 1)).await;
    assert_error(&refused, 429, "rate_limit_exceeded");
    let after = refused.head.header("retry-after").expect("told");
    let after: u64 = after.parse().expect("whole seconds");
    assert!((1..=30).contains(&after), "{after}");
    assert_eq!(
        refused.head.header("x-ratelimit-remaining-requests"),
        Some("0")
    );
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let counted = |labels: &str| metrics.sum("grapevine_tenant_refusals_total", labels);
    assert_eq!(counted("tenant=\"rated\",reason=\"request_rate\""), 1.0);
    assert!(counted("tenant=\"t\",reason=\"tenant_requests\"") >= 2.0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_count_by_what_was_used_and_failures_use_none() {
    let mut file = KeyFile::new();
    let writer = file.add("writer", "tokens_per_minute = 1000").await;
    let clumsy = file.add("clumsy", "tokens_per_minute = 1000").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    for streams in [false, true] {
        let mut long = chat("tell me a long story", 1_100);
        long["stream"] = streams.into();
        let key = if streams { &clumsy } else { &writer };
        if streams {
            // Each would count with 256 tokens at the least, if it counted.
            for _ in 0..8 {
                let wrong = ask(&house, key, &[], &chat("hi", 9_999_999)).await;
                assert_eq!(wrong.head.status, 400, "{}", wrong.text());
            }
        }
        let answer = ask(&house, key, &[], &long).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let limit = answer.head.header("x-ratelimit-limit-tokens");
        assert_eq!(limit, Some("1000"));
        // The record ends behind the answer's last byte.
        let refused = eventually(LIMIT, "the rate is used up", async || {
            let answer = ask(&house, key, &[], &chat("more", 1)).await;
            so(answer.head.status == 429, || answer.text()).map(|()| answer)
        });
        let (refused, _) = refused.await;
        assert_error(&refused, 429, "rate_limit_exceeded");
        assert!(refused.text().contains("1000 tokens a minute"));
        let left = refused.head.header("x-ratelimit-remaining-tokens");
        assert_eq!(left, Some("0"));
        assert!(refused.head.header("retry-after").is_some());
        // What has nothing generated is no part of it.
        let body = json!({ "model": MODEL, "prompt": "a text" }).to_string();
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let counted = http1::exchange(house.data(), "POST", "/tokenize", &headers, body.as_bytes());
        assert_eq!(counted.await.head.status, 200);
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let refusals = metrics.sum("grapevine_tenant_refusals_total", "reason=\"token_rate\"");
    assert!(refusals >= 2.0, "{refusals}");
    house.close().await;
}

/// vLLM takes the header in place of the body's `priority`, so what the replica says there is what counts.
#[tokio::test(flavor = "multi_thread")]
async fn no_client_is_more_urgent_in_the_engine_than_its_key_may_be() {
    const URGENCY: &str = "x-vllm-priority";
    let mut file = KeyFile::new();
    let urgent = file.add("urgent", "priority = \"high\"").await;
    let usual = file.add("usual", "").await;
    let patient = file.add("patient", "priority = \"low\"").await;
    let told = file.plan().set("admission.engine_priority", "true");
    let house = House::of(told, vec![quick()]).await;
    let untold = House::of(file.plan(), vec![quick()]).await;
    let seen = async |house: &House, key: &str, headers: &[(&str, &str)]| {
        let answer = ask(house, key, headers, &chat("hi", 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let log = house.workers[0].log();
        let seen = values(log.last().expect("asked"), URGENCY);
        seen.iter()
            .map(|value| (*value).to_owned())
            .collect::<Vec<_>>()
    };
    let bold = [(URGENCY, "-10")];
    for (key, headers, urgency) in [
        (&urgent, &[][..], "-1"),
        (&urgent, &[("x-priority", "normal")], "0"),
        (&usual, &[], "0"),
        (&usual, &bold, "0"),
        (&patient, &[], "1"),
        (&patient, &bold, "1"),
        (&patient, &[("x-priority", "high")], "1"),
    ] {
        assert_eq!(seen(&house, key, headers).await, [urgency], "{headers:?}");
    }
    assert!(seen(&untold, &urgent, &[]).await.is_empty());
    assert_eq!(seen(&untold, &patient, &bold).await, ["-10"]);
    house.close().await;
    untold.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_and_a_prompt_are_in_no_log_metric_or_error() {
    const PROMPT: &str = "prompt-canary-51c8";
    let mut file = KeyFile::new();
    let key = file.add("acme", "requests_per_minute = 600").await;
    let unknown = "gv-unknown-canary-93b1";
    let plan = file.plan().set("log.level", "\"trace\"");
    let house = House::of(plan, vec![quick()]).await;
    let mut said = String::new();
    let mut note = |answer: &Response| {
        write!(said, "{:?}{}", answer.head, answer.text()).expect("a string takes it");
    };
    let prompt = chat(PROMPT, 1);
    let mut no_model = prompt.clone();
    no_model["model"] = Value::Null;
    let mut other_model = prompt.clone();
    other_model["model"] = "other".into();
    for body in [&prompt, &no_model, &other_model, &json!([PROMPT])] {
        for key in [key.as_str(), unknown, "two words-canary-93b1"] {
            let answer = ask(&house, key, &[("x-priority", key)], body).await;
            if answer.head.status != 200 {
                note(&answer);
            }
        }
    }
    for fault in [
        Fault::status(500),
        Fault::status(400),
        Fault::stop(Point::Head(0), How::Rst),
    ] {
        house.workers[0].clear_rules();
        let rule = Rule::always(fault);
        house.workers[0].add_rule(rule).expect("room for a rule");
        let answer = ask(&house, &key, &[], &prompt).await;
        note(&answer);
    }
    house.workers[0].clear_rules();
    write(&file.path(), "[[key]]\n");
    let replica = &house.cluster.replicas[0];
    logged(&house, "the file of keys cannot be used").await;
    let metrics = http1::get(replica.admin().0, "/metrics").await.text();
    let secret = key.strip_prefix("gv-").expect("a made key");
    for (place, text) in [
        ("an error", &said),
        ("the log", &replica.log()),
        ("a metric", &metrics),
    ] {
        for canary in [secret, "canary-93b1", PROMPT] {
            assert!(!text.contains(canary), "{canary} is in {place}:\n{text}");
        }
    }
    assert!(replica.log().contains("tenant=\"acme\""), "the name is");
    house.close().await;
}
