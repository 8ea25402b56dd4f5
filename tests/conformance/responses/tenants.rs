//! Whose a response is: that of the key it was asked for with.

use grapevine_testbed::fake_worker::{Config, Entry};
use grapevine_tests::chat::MODEL;
use grapevine_tests::http1;
use grapevine_tests::keys::KeyFile;
use serde_json::Value;

use super::{PATH, asked};
use crate::codings::packed;
use crate::errors::assert_error;
use crate::house::{House, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_no_response_at_workers_of_other_models() {
    let mut file = KeyFile::new();
    let free = file.add("free", "tenant = \"t\"").await;
    let limits = "tenant = \"t\"\nmodels = [\"fake-model\"]";
    let bound = file.add("bound", limits).await;
    let limits = "tenant = \"t\"\nmodels = [\"fast\"]";
    let by_alias = file.add("by-alias", limits).await;
    let other = Config {
        models: vec!["b".to_owned()],
        ..quick()
    };
    let plan = file
        .plan()
        .set("model", r#"[{ name = "fast", targets = ["fake-model"] }]"#);
    let house = House::of(plan, vec![quick(), quick(), other]).await;
    let ask = async |key: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    for (model, found) in [(MODEL, 200), ("b", 404)] {
        let mut body = asked("x");
        body["model"] = model.into();
        let made = ask(&free, "POST", PATH, &body.to_string()).await;
        assert_eq!(made.head.status, 200, "{}", made.text());
        let path = format!(
            "{PATH}/{}",
            made.json::<Value>()["id"].as_str().expect("an id")
        );
        assert_eq!(ask(&free, "GET", &path, "").await.head.status, 200);
        for key in [&bound, &by_alias] {
            let got = ask(key, "GET", &path, "").await;
            assert_eq!(got.head.status, found, "{model}");
        }
        assert_eq!(ask("gv-unknown", "GET", &path, "").await.head.status, 401);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_there_for_its_tenant_alone() {
    let mut file = KeyFile::new();
    let own = file.add("own", "tenant = \"a\"").await;
    let same = file.add("same", "tenant = \"a\"").await;
    let foreign = file.add("foreign", "tenant = \"b\"").await;
    let house = House::of(file.plan(), vec![quick(), quick()]).await;
    let ask = async |key: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    // The last answer repeats its question, and is too long to be buffered whole.
    let long = "whose is it? ".repeat(8_000);
    for (stream, input) in [
        (false, "whose is it?"),
        (true, "whose is it?"),
        (false, &long),
    ] {
        let mut body = asked(input);
        body["stream"] = stream.into();
        let made = ask(&own, "POST", PATH, &body.to_string()).await;
        assert_eq!(made.head.status, 200, "{}", made.text());
        let text = made.text();
        let (_, rest) = text.split_once(r#""id":"resp_"#).expect("an id");
        let id = format!("resp_{}", rest.split('"').next().expect("its end"));
        let path = format!("{PATH}/{id}");
        let cancel = format!("{path}/cancel");
        let mut next = asked("and then?");
        next["previous_response_id"] = id.as_str().into();
        let next = next.to_string();
        let seen = || -> usize {
            let logs = house.workers.iter().map(|worker| worker.log());
            let named = |log: Vec<_>| -> usize {
                log.iter()
                    .filter(|entry: &&Entry| entry.path.contains(&id))
                    .count()
            };
            logs.map(named).sum()
        };
        for (method, path, body) in [
            ("GET", &path, ""),
            ("DELETE", &path, ""),
            ("POST", &cancel, ""),
            ("POST", &PATH.to_owned(), next.as_str()),
        ] {
            let asked = house
                .workers
                .iter()
                .map(|w| w.stats().requests)
                .sum::<u64>();
            let answer = ask(&foreign, method, path, body).await;
            assert_error(&answer, 404, "not_found");
            let now = house
                .workers
                .iter()
                .map(|w| w.stats().requests)
                .sum::<u64>();
            assert_eq!(now, asked, "{method} {path}: a worker was asked");
            let unknown = ask(
                &foreign,
                method,
                &path.replace(&id, "resp_nobody"),
                &body.replace(&id, "resp_nobody"),
            )
            .await;
            assert_eq!(unknown.text(), answer.text().replace(&id, "resp_nobody"));
        }
        assert_eq!(seen(), 0, "of the foreign key");
        for key in [&own, &same] {
            assert_eq!(ask(key, "GET", &path, "").await.head.status, 200);
            assert_eq!(ask(key, "POST", PATH, &next).await.head.status, 200);
        }
        assert_error(&ask(&foreign, "GET", &path, "").await, 404, "not_found");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let foreign = metrics.sum("grapevine_response_searches_total", "\"foreign\"");
    assert_eq!(foreign, 15.0);
    house.close().await;
}

/// vLLM lets clients choose ids (`request_id`).
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_a_client_chose_stays_its_tenants() {
    let mut file = KeyFile::new();
    let own = file.add("own", "tenant = \"a\"").await;
    let foreign = file.add("foreign", "tenant = \"b\"").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let ask = async |key: &str, method: &str, path: &str, body: &Value| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    let path = format!("{PATH}/chosen-1");
    let mut body = asked("mine");
    body["request_id"] = "chosen-1".into();
    let made = ask(&own, "POST", PATH, &body).await;
    assert_eq!(made.json::<Value>()["id"], "chosen-1", "{}", made.text());
    let theirs = ask(&foreign, "GET", &path, &Value::Null).await;
    assert_error(&theirs, 404, "not_found");
    // Nor by making a response with the same id.
    assert_eq!(ask(&foreign, "POST", PATH, &body).await.head.status, 200);
    let theirs = ask(&foreign, "GET", &path, &Value::Null).await;
    assert_error(&theirs, 404, "not_found");
    let got = ask(&own, "GET", &path, &Value::Null).await;
    assert_eq!(got.head.status, 200, "{}", got.text());
    // Ids of such a form are never recorded, so they cannot be asked for.
    let mut next = asked("and then?");
    for id in ["a.b", "", "a/../b", &"x".repeat(129)] {
        next["previous_response_id"] = id.into();
        let answer = ask(&own, "POST", PATH, &next).await;
        let error = assert_error(&answer, 400, "invalid_request");
        assert_eq!(error["param"], "previous_response_id", "{error}");
    }
    house.close().await;
}

/// What is not stored, or says its id, or comes without a key, goes to its worker as it came.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_a_key_has_stored_gets_an_id() {
    let mut file = KeyFile::new();
    let key = file.add("own", "tenant = \"a\"").await;
    let marked = House::of(file.plan(), vec![quick()]).await;
    let plain = file.plan().set("keys.mark_responses", "false");
    let plain = House::of(plain, vec![quick()]).await;
    let open = House::new(1).await;
    let id_of = async |house: &House, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let answer = http1::exchange(house.data(), "POST", PATH, &headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let id = answer.json::<Value>()["id"].clone();
        id.as_str().expect("an id").to_owned()
    };
    let usual = asked("a question { \"with\": braces }");
    let mut unstored = usual.clone();
    unstored["store"] = false.into();
    let mut named = usual.clone();
    named["request_id"] = "mine".into();
    // As people write it; the fake worker reads what came as strictly as vLLM.
    let written = format!(" \r\n\t{:#}\n", usual);
    let [usual, unstored, named] = [usual, unstored, named].map(|body| body.to_string());
    for (house, body, is_marked) in [
        (&marked, &usual, true),
        (&marked, &written, true),
        (&marked, &unstored, false),
        (&marked, &named, false),
        (&plain, &usual, false),
        (&open, &usual, false),
    ] {
        let id = id_of(house, body).await;
        assert_eq!(id.starts_with("resp_g1"), is_marked, "{id}: {body}");
    }
    for house in [marked, plain, open] {
        house.close().await;
    }
}

/// The id goes into what a body says, not into its compressed bytes.
#[tokio::test(flavor = "multi_thread")]
async fn what_came_compressed_is_stored_under_an_id_of_its_tenants() {
    let mut file = KeyFile::new();
    let key = file.add("own", "tenant = \"a\"").await;
    let plan = file
        .plan()
        .set("listen.request_codings", r#"["gzip", "zstd"]"#);
    let house = House::of(plan, vec![quick()]).await;
    let bearer = format!("Bearer {key}");
    let body = asked("said once").to_string();
    for coding in ["gzip", "zstd"] {
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-encoding", coding),
        ];
        let packed = packed(coding, body.as_bytes());
        let answer = http1::exchange(house.data(), "POST", PATH, &headers, &packed).await;
        assert_eq!(answer.head.status, 200, "{coding}: {}", answer.text());
        let id = answer.json::<Value>()["id"].to_string();
        assert!(id.starts_with("\"resp_g1"), "{coding}: {id}");
        let seen = house.workers[0].log().last().expect("asked").clone();
        assert!(
            seen.body_bytes > body.len() as u64,
            "{coding}: the id is added"
        );
    }
    house.close().await;
}
