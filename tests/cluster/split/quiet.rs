//! While nothing is wrong: every request goes to a pair, the same from every replica, and says what one worker says.

use grapevine_testbed::fake_worker::{FakeWorker, Leg, Role};
use grapevine_tests::chat::{MODEL, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::invariants::agreement;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use super::scene::{CHATS, Member, Scene, halves, legs, scene, short};

const COMPLETIONS: &str = "/v1/completions";

/// Requests of each form that a pair can answer.
fn requests() -> Vec<(&'static str, Value)> {
    let prompt = |number: usize| format!("Prompt {number}. ").repeat(40);
    let completion = |number| json!({ "model": MODEL, "prompt": prompt(number), "max_tokens": 7 });
    let mut all: Vec<(&str, Value)> = distinct(6)
        .into_iter()
        .map(|chat| (CHATS, short(chat)))
        .collect();
    all.extend((0..4).map(|number| (COMPLETIONS, completion(number))));
    let odd = [
        json!({ "max_tokens": 1 }),
        json!({ "max_completion_tokens": 9, "max_tokens": null }),
        json!({ "logprobs": true, "top_logprobs": 2 }),
        json!({ "n": 1, "seed": 3, "stop": ["never said"] }),
    ];
    for (fields, (path, body)) in odd.iter().zip(all.clone()) {
        let mut body = body;
        let fields = fields.as_object().expect("an object");
        body.as_object_mut()
            .expect("an object")
            .extend(fields.clone());
        all.push((path, body));
    }
    all
}

/// The text of an answer, plain or as events, and its count of prompt and completion tokens.
fn said(body: &str) -> (String, Value, Value) {
    let events: Vec<Value> = match body.strip_prefix("data: ") {
        None => vec![serde_json::from_str(body).expect("JSON")],
        Some(_) => {
            let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
            assert_eq!(data.clone().next_back(), Some("[DONE]"), "{body}");
            data.filter(|data| *data != "[DONE]")
                .map(|data| serde_json::from_str(data).expect("JSON"))
                .collect()
        }
    };
    let text = |event: &Value| {
        let choice = &event["choices"][0];
        let places = [
            &choice["text"],
            &choice["message"]["content"],
            &choice["delta"]["content"],
        ];
        let mut found = places.iter().filter_map(|place| place.as_str());
        found.next().unwrap_or_default().to_owned()
    };
    let mut usage = events.iter().map(|event| &event["usage"]);
    let usage = usage.rfind(|usage| usage.is_object());
    let usage = usage.unwrap_or_else(|| panic!("no usage in {body}"));
    (
        events.iter().map(text).collect(),
        usage["prompt_tokens"].clone(),
        usage["completion_tokens"].clone(),
    )
}

async fn alone(worker: &FakeWorker, path: &str, body: &Value) -> (String, Value, Value) {
    let response = http1::post(worker.addr(), path, body).await;
    assert_eq!(response.head.status, 200, "{}", response.text());
    said(&response.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_goes_to_a_pair_and_says_what_one_worker_says() {
    let scene = scene(Plan::default(), 3, &halves(2, 2)).await;
    let one = Member::new(Role::Both).start().await;
    let mut sent = 0;
    for (number, (path, body)) in requests().into_iter().enumerate() {
        let expected = alone(&one, path, &body).await;
        for stream in [false, true] {
            let mut body = body.clone();
            if stream {
                body["stream"] = true.into();
                body["stream_options"] = json!({ "include_usage": true });
            }
            let seen = scene.ask_at(number % 3, path, &body).await.good();
            let (prefill, decode) = seen.pair();
            assert!(prefill.is_some(), "{path} {body} was not divided");
            assert_eq!(said(&seen.response.text()), expected, "{path} {body}");
            let urls = [scene.prefill(), scene.decode()];
            let of = |workers: &[&FakeWorker], url: Option<&str>| {
                workers.iter().any(|worker| Some(&*worker.url()) == url)
            };
            assert!(of(&urls[0], prefill) && of(&urls[1], decode), "{seen:?}");
            sent += 1;
        }
    }
    let count = |workers: &[&FakeWorker], leg| -> usize {
        workers.iter().map(|worker| legs(worker, leg).len()).sum()
    };
    assert_eq!(count(&scene.prefill(), Leg::Prefill), sent);
    assert_eq!(count(&scene.decode(), Leg::Decode), sent);
    for worker in scene.decode() {
        for entry in legs(worker, Leg::Decode) {
            assert_eq!(entry.transfer_error, None);
            assert!(
                entry.external_tokens > 0,
                "its prompt came from elsewhere: {entry:?}"
            );
        }
    }
    scene.ends().await;
}

/// Sends the same prompts through every replica; each has one pair.
async fn one_pair_each(scene: &Scene, chats: &[Value]) {
    for chat in chats {
        let mut pairs = Vec::new();
        for replica in 0..scene.cluster.replicas.len() {
            let sent = scene.ask_at(replica, CHATS, chat);
            let seen = scene.cluster.one_by_one(sent).await.good();
            let (prefill, decode) = seen.pair();
            pairs.push((prefill.map(str::to_owned), decode.map(str::to_owned)));
        }
        assert!(pairs[0].0.is_some() && pairs[0].1.is_some(), "{pairs:?}");
        assert!(
            pairs.iter().all(|pair| *pair == pairs[0]),
            "{chat}: {pairs:?}"
        );
    }
}

async fn agrees(prefill: usize, decode: usize) {
    let plan = Plan::default().set("gossip.agreement_samples", "50");
    let mut scene = scene(plan, 3, &halves(prefill, decode)).await;
    let chats: Vec<Value> = distinct(500).into_iter().map(short).collect();
    let found = agreement(&scene.cluster, &chats).await;
    assert_eq!(found.agreed, chats.len(), "of {}", chats.len());
    assert_eq!(found.digests.len(), 1, "{:?}", found.digests);
    for (workers, pool) in [
        (scene.prefill(), &found.prefill),
        (scene.decode(), &found.workers),
    ] {
        for worker in workers {
            assert!(pool.contains(&worker.url()), "{} has no key", worker.url());
        }
    }
    one_pair_each(&scene, &chats[..40]).await;
    let replicas = scene.cluster.replicas.len();
    for replica in 0..replicas {
        let (samples, _) = eventually(LIMIT, "comparisons", async || {
            let name = "grapevine_agreement_samples_total";
            let samples = scene.metric(replica, name, "").await;
            // Of the two choices of each of forty requests, as many as the limit of comparisons lets pass.
            (samples >= 20.0)
                .then_some(samples)
                .ok_or_else(|| format!("{samples}"))
        })
        .await;
        let ratio = scene.metric(replica, "grapevine_agreement_ratio", "").await;
        println!(
            "{prefill}+{decode}: r{}: ratio {ratio} of {samples} comparisons",
            replica + 1
        );
        assert_eq!(ratio, 1.0);
    }

    let seeds = scene.cluster.others(replicas);
    scene.cluster.join("r4", seeds).await;
    scene.cluster.settled().await;
    let found = agreement(&scene.cluster, &chats).await;
    assert_eq!(found.agreed, chats.len(), "with one that joined later");
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_prompt_has_the_same_pair_on_every_replica() {
    agrees(2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_prompt_has_the_same_pair_in_a_lopsided_fleet() {
    agrees(3, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_prefill_worker_holds_is_found_through_any_replica() {
    let scene = scene(Plan::default(), 3, &halves(2, 2)).await;
    let chats: Vec<Value> = distinct(12).into_iter().map(short).collect();
    for (number, chat) in chats.iter().enumerate() {
        for turn in 0..3 {
            scene.ask_at((number + turn) % 3, CHATS, chat).await.good();
        }
    }
    let entries: Vec<_> = scene
        .prefill()
        .iter()
        .flat_map(|worker| legs(worker, Leg::Prefill))
        .collect();
    let cached = entries
        .iter()
        .filter(|e| e.cached_tokens * 10 > e.prompt_tokens * 9);
    let cached = cached.count();
    println!(
        "{cached} of {} prompts were in the cache of their prefill worker",
        entries.len()
    );
    assert_eq!(
        (entries.len(), cached),
        (36, 24),
        "all but the first of each"
    );
    scene.ends().await;
}
