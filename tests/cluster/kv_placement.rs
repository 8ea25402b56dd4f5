//! What workers publish of their caches decides where prompts go, on every replica alike.

use std::num::NonZeroU32;
use std::time::Duration;

use grapevine_testbed::fake_worker::{
    Config, EngineConfig, FakeWorker, Fault, How, KvEventsConfig, Point, Rule, When,
};
use grapevine_tests::admin::worker_path;
use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::wait::eventually;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
/// Blocks of each cache.
const BLOCKS: u32 = 2_000;

struct Scene {
    workers: Vec<FakeWorker>,
    cluster: Cluster,
}

/// Three replicas and three workers that publish; evidence is not believed against them from the first second on.
async fn scene() -> Scene {
    scene_of([(); 3].map(|()| KvEventsConfig::default())).await
}

/// The same with workers that publish in these ways.
async fn scene_of(publishers: [KvEventsConfig; 3]) -> Scene {
    let quick = chat::paced(Duration::from_millis(1));
    let config = Config {
        engine: EngineConfig {
            blocks: BLOCKS,
            ..quick.engine
        },
        ..quick
    };
    let mut workers = Vec::new();
    for publisher in publishers {
        let config = Config {
            kv_events: Some(publisher),
            ..config.clone()
        };
        workers.push(chat::worker(config).await);
    }
    let plan = Plan::default()
        .set("kv_events.silence", "\"1s\"")
        .set("cluster.prefix_index_told_after", "\"0s\"");
    let cluster = plan.workers(&workers).start(3).await;
    eventually(LIMIT, "all replicas hear all workers", async || {
        for replica in 0..3 {
            let connected = sum(&cluster, replica, "grapevine_kv_engines{state=").await;
            if connected < 3.0 {
                return Err(format!("replica {replica}: {connected}"));
            }
        }
        Ok(())
    })
    .await;
    Scene { workers, cluster }
}

/// The sum of all series that begin so.
async fn sum(cluster: &Cluster, replica: usize, series: &str) -> f64 {
    let text = http1::get(cluster.replicas[replica].admin().0, "/metrics").await;
    let text = text.text();
    let lines = text.lines().filter(|line| line.starts_with(series));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

/// Asks through a replica; the answer's text, and the prompt tokens that were cached.
async fn ask(cluster: &Cluster, replica: usize, messages: &[Value]) -> (String, u64) {
    let body = json!({ "model": MODEL, "messages": messages, "max_tokens": 40 });
    let answer = http1::post(
        cluster.replicas[replica].data(),
        "/v1/chat/completions",
        &body,
    )
    .await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let answer: Value = answer.json();
    let text = answer["choices"][0]["message"]["content"].as_str();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (text.expect("an answer").to_owned(), cached.unwrap_or(0))
}

/// What a replica would do with these messages.
async fn explained(cluster: &Cluster, replica: usize, messages: &[Value]) -> Value {
    let body = json!({ "model": MODEL, "messages": messages });
    let target = "/explain?path=/v1/chat/completions&load=ignore";
    let address = cluster.replicas[replica].admin().0;
    let answer = http1::post(address, target, &body).await;
    answer.json()
}

fn said(explained: &Value, worker: &str) -> Option<(u64, u64)> {
    let rows = explained["order"].as_array()?;
    let row = rows.iter().find(|row| row["worker"] == worker)?;
    let events = row.get("events")?;
    Some((
        events["held_tokens"].as_u64()?,
        events["of_tokens"].as_u64()?,
    ))
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// A conversation goes round the replicas. All of them know, by events alone, how much of it its worker holds, and that
/// the others hold nothing; answers report what they had expected. What the worker has lost is known to be lost.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_known_by_events_on_every_replica() {
    let scene = scene().await;
    let cluster = &scene.cluster;
    let mut messages = vec![user(&"Tell me of the sea. ".repeat(100))];
    for turn in 0..4 {
        let (text, _) = ask(cluster, turn % 3, &messages).await;
        messages.push(json!({ "role": "assistant", "content": text }));
        messages.push(user(
            &format!("And then, for the {turn}. time? ").repeat(20),
        ));
    }
    let mut holder = String::new();
    eventually(LIMIT, "every replica knows where it is", async || {
        for replica in 0..3 {
            let explained = explained(cluster, replica, &messages).await;
            holder = explained["worker"].as_str().unwrap_or_default().to_owned();
            let prompt = explained["prompt_tokens"].as_u64().unwrap_or(0);
            let Some((held, of)) = said(&explained, &holder) else {
                return Err(format!("replica {replica}: {explained}"));
            };
            let others = scene.workers.iter().map(FakeWorker::url);
            let others = others.filter(|url| *url != holder);
            let nothing = others.map(|url| said(&explained, &url).map_or(0, |(held, _)| held));
            // The last question is new, and a whole block at most is not counted.
            if held * 10 < of * 9 || of * 10 < prompt * 6 || nothing.sum::<u64>() > 0 {
                return Err(format!("replica {replica}: {held} of {of}: {explained}"));
            }
        }
        Ok(())
    })
    .await;
    let (_, cached) = ask(cluster, 1, &messages).await;
    assert!(cached > 500, "{cached}");
    let mut exact = 0.0;
    for replica in 0..3 {
        exact += sum(
            cluster,
            replica,
            "grapevine_kv_predictions_total{result=\"exact\"}",
        )
        .await;
        let wrong = sum(cluster, replica, "grapevine_kv_predictions_total").await;
        let over = "grapevine_kv_predictions_total{result=\"over\"}";
        assert!(sum(cluster, replica, over).await <= 1.0, "of {wrong}");
    }
    assert!(exact >= 3.0, "{exact}");

    // Other prompts, straight to that worker, push it out of its cache: no replica has sent them.
    let worker = scene.workers.iter().find(|worker| worker.url() == holder);
    let address = worker.expect("one of them").addr();
    for number in 0..30 {
        let flood = chat::chat(&format!("{number} others ").repeat(800), 1);
        let answer = http1::post(address, "/v1/chat/completions", &flood).await;
        assert_eq!(answer.head.status, 200);
    }
    eventually(LIMIT, "every replica knows that it is gone", async || {
        for replica in 0..3 {
            let explained = explained(cluster, replica, &messages).await;
            let rows = explained["order"].as_array().cloned().unwrap_or_default();
            let expected = rows
                .iter()
                .map(|row| row["expected_tokens"].as_u64().unwrap_or(0));
            if expected.sum::<u64>() > 0 {
                return Err(format!("replica {replica}: {explained}"));
            }
        }
        Ok(())
    })
    .await;
}

/// Requests that begin alike: once two of them were computed, every replica knows where their common part ends, and who
/// holds it.
#[tokio::test(flavor = "multi_thread")]
async fn what_prompts_have_in_common_is_known_by_events() {
    let scene = scene().await;
    let cluster = &scene.cluster;
    let system = json!({ "role": "system", "content": "You are a careful assistant of the harbour. ".repeat(60) });
    let question = |number: usize| {
        let text = format!("Question {number}: when does ship {number} leave? ").repeat(8);
        vec![system.clone(), user(&text)]
    };
    for number in 0..3 {
        ask(cluster, number % 3, &question(number)).await;
    }
    eventually(LIMIT, "a new question's beginning is known", async || {
        for replica in 0..3 {
            let explained = explained(cluster, replica, &question(100 + replica)).await;
            let holder = explained["worker"].as_str().unwrap_or_default();
            match said(&explained, holder) {
                Some((held, of)) if of > 400 && held * 10 >= of * 9 => {}
                other => return Err(format!("replica {replica}: {other:?} {explained}")),
            }
        }
        Ok(())
    })
    .await;
    // An operator sees it, too.
    let admin = cluster.replicas[2].admin().0;
    let top: Value = http1::get(admin, "/cache?limit=5").await.json();
    let prefixes = top["prefixes"].as_array().expect("prefixes");
    let shared = prefixes.iter().find(|prefix| prefix["texts"] == 3);
    let shared = shared.unwrap_or_else(|| panic!("{top}"));
    let tokens = shared["tokens"].as_u64().expect("tokens");
    assert!(
        shared["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("gv1-"))
    );
    let holders = shared["workers"].as_array().expect("workers");
    assert!(tokens > 400 && !holders.is_empty(), "{top}");
    assert_eq!(
        shared["held_tokens"],
        tokens * holders.len() as u64,
        "{top}"
    );
    // What one worker alone holds is no more than it holds, and nothing where all of it is twice.
    for worker in top["workers"].as_array().expect("workers") {
        let held = worker["tokens"]["gpu"].as_u64().expect("tokens");
        let alone = worker["only_here_tokens"].as_u64().expect("tokens");
        let shared = if holders.len() > 1 { tokens } else { 0 };
        assert!(alone <= held && alone + shared >= held, "{top}");
    }
}

/// A client's own session id reaches the worker as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_id_of_the_clients_own_is_left_alone() {
    let scene = scene().await;
    let cluster = &scene.cluster;
    let body = chat::chat(&"Once upon a time. ".repeat(100), 2).to_string();
    for (session, begins) in [
        (Some("my-session"), "my-session"),
        (None, "gv1-"),
        (Some(""), "gv1-"),
    ] {
        let id = format!("id-{session:?}");
        let id = id.replace(|letter: char| !letter.is_alphanumeric(), "-");
        let mut headers = vec![("x-request-id", &*id)];
        headers.extend(session.map(|session| ("x-session-id", session)));
        let data = cluster.replicas[0].data();
        let path = "/v1/chat/completions";
        let answer = http1::exchange(data, "POST", path, &headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let seen = scene.workers.iter().flat_map(FakeWorker::log);
        let mine = seen.filter(|entry| entry.request_id.as_ref() == Some(&id));
        let headers = mine.flat_map(|entry| entry.headers);
        let sessions = headers.filter(|(name, _)| name.eq_ignore_ascii_case("x-session-id"));
        let sessions: Vec<String> = sessions.map(|(_, value)| value).collect();
        assert_eq!(sessions.len(), 1, "{session:?}");
        assert!(sessions[0].starts_with(begins), "{sessions:?}");
    }
}

/// What another worker is to go on from is the prompt with a part of its answer: none that is to be learned as the prompt.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_broken_stream_goes_on_from_is_not_named_as_its_prompt() {
    let scene = scene().await;
    let cluster = &scene.cluster;
    let mut body = chat::streamed("Tell me of the sea, and do not stop.", 12);
    let explained = explained(cluster, 0, body["messages"].as_array().expect("some")).await;
    let home = scene
        .workers
        .iter()
        .find(|worker| worker.url() == explained["worker"]);
    let rule = Rule {
        when: When {
            header: Some(("x-request-id".into(), "broken".into())),
            ..When::default()
        },
        times: NonZeroU32::new(1),
        fault: Fault::stop(Point::Event(4), How::Rst),
    };
    home.expect("one of them").add_rule(rule).expect("room");
    body["stream_options"] = json!({ "include_usage": true });
    let headers = [("x-request-id", "broken"), ("x-grapevine-failover", "on")];
    let data = cluster.replicas[0].data();
    let path = "/v1/chat/completions";
    let answer = http1::exchange(data, "POST", path, &headers, body.to_string().as_bytes()).await;
    assert!(answer.text().contains("[DONE]"), "{}", answer.text());
    let seen = scene.workers.iter().flat_map(FakeWorker::log);
    let mut named = Vec::new();
    for entry in seen.filter(|entry| entry.request_id.as_deref() == Some("broken")) {
        let has = |name: &str| {
            let mut headers = entry.headers.iter();
            headers.any(|(header, _)| header.eq_ignore_ascii_case(name))
        };
        named.push((has("x-grapevine-continuation"), has("x-session-id")));
    }
    named.sort_unstable();
    assert_eq!(named, [(false, true), (true, false)]);
}

/// A worker whose block hashes are others than its neighbours' says nothing about texts that these taught: what was sent to
/// it counts, as without events.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hashes_otherwise_is_found_out_and_loses_nothing() {
    is_found_out([0, 0, 0x5eed], 2).await;
}

/// Also where it is the first that tells what texts became: the others are more.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hashes_otherwise_is_found_out_though_it_speaks_first() {
    is_found_out([0x5eed, 0, 0], 0).await;
}

/// Every worker computes every prompt, in the order of the seeds.
async fn is_found_out(seeds: [u64; 3], odd: usize) {
    let publishers = seeds.map(|hash_seed| KvEventsConfig {
        hash_seed,
        ..KvEventsConfig::default()
    });
    let scene = scene_of(publishers).await;
    let (cluster, odd) = (&scene.cluster, scene.workers[odd].url());
    let prompts: Vec<String> = (0..30)
        .map(|number| format!("{number} ships and their cargo. ").repeat(60))
        .collect();
    // Every worker computes every prompt: whoever is not drained does.
    for worker in &scene.workers {
        for other in scene
            .workers
            .iter()
            .filter(|other| other.url() != worker.url())
        {
            set_state(cluster, &other.url(), "draining").await;
        }
        for (number, prompt) in prompts.iter().enumerate() {
            ask(cluster, number % 3, &[user(prompt)]).await;
        }
        for other in scene
            .workers
            .iter()
            .filter(|other| other.url() != worker.url())
        {
            set_state(cluster, &other.url(), "active").await;
        }
    }
    eventually(LIMIT, "the odd one alone is not believed", async || {
        for replica in 0..3 {
            for worker in &scene.workers {
                let path = worker_path(&worker.url());
                let shown: Value = http1::get(cluster.replicas[replica].admin().0, &path)
                    .await
                    .json();
                let believed = shown["kv_caches"][0]["believed"].as_bool();
                if believed != Some(worker.url() != odd) {
                    return Err(format!("replica {replica}: {shown}"));
                }
            }
        }
        Ok(())
    })
    .await;
    for replica in 0..3 {
        let explained = explained(cluster, replica, &[user(&prompts[7])]).await;
        assert_eq!(said(&explained, &odd), None, "{explained}");
        let rows = explained["order"].as_array().expect("rows");
        let row = rows
            .iter()
            .find(|row| row["worker"] == *odd)
            .expect("a row");
        assert!(row["expected_tokens"].as_u64() > Some(200), "{explained}");
    }
}

/// Labels by mistake: two workers, one publisher. Nobody knows whose events are heard there.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_name_one_publisher_are_not_believed() {
    let scene = scene().await;
    let cluster = &scene.cluster;
    let [first, second, third] = [0, 1, 2].map(|at| scene.workers[at].url());
    let publishes = async |at: usize| {
        let sources = http1::get(scene.workers[at].addr(), "/kv_event_sources").await;
        let sources: Value = sources.json();
        let port = sources["0"]["endpoint"]
            .as_str()
            .and_then(|at| at.rsplit(':').next());
        format!("tcp://127.0.0.1:{}", port.expect("an address"))
    };
    let admin = cluster.replicas[0].admin();
    let believed = async |expected: [(&str, bool); 3]| {
        eventually(LIMIT, "believed, or not, on all replicas", async || {
            for replica in &cluster.replicas {
                for (worker, is_believed) in expected {
                    let shown: Value = http1::get(replica.admin().0, &worker_path(worker))
                        .await
                        .json();
                    if shown["kv_caches"][0]["believed"] != is_believed {
                        return Err(shown.to_string());
                    }
                }
            }
            Ok(())
        })
        .await;
    };
    believed([(&first, true), (&second, true), (&third, true)]).await;
    let address = publishes(0).await;
    admin
        .change(&second, &json!({"labels": {"kv.events": address}}))
        .await;
    believed([(&first, false), (&second, false), (&third, true)]).await;
    let address = publishes(1).await;
    admin
        .change(&second, &json!({"labels": {"kv.events": address}}))
        .await;
    believed([(&first, true), (&second, true), (&third, true)]).await;
}

/// A replica that starts knows caches and texts as its peers do, though workers repeat their last messages only; and each
/// message behind that reaches it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_starts_takes_over_what_peers_know() {
    let publishers = [(); 3].map(|()| KvEventsConfig {
        buffer: 8,
        ..KvEventsConfig::default()
    });
    let mut scene = scene_of(publishers).await;
    let mut messages = vec![user(&"Tell me of the sea. ".repeat(100))];
    let (text, _) = ask(&scene.cluster, 0, &messages).await;
    messages.push(json!({ "role": "assistant", "content": text }));
    messages.push(user("And then?"));
    for number in 0..60 {
        let other = format!("{number} other things. ").repeat(20);
        ask(&scene.cluster, number % 3, &[user(&other)]).await;
    }
    let cluster = &mut scene.cluster;
    let seeds = cluster.others(2);
    cluster.replicas[2].seeds = seeds;
    assert!(cluster.replicas[2].terminate().await.success());
    cluster.replicas[2].start().await;
    let cluster = &*cluster;
    let all_alike = async |what: &str| {
        eventually(LIMIT, what, async || {
            for worker in &scene.workers {
                let mut seen = Vec::new();
                for replica in &cluster.replicas {
                    let path = worker_path(&worker.url());
                    let shown: Value = http1::get(replica.admin().0, &path).await.json();
                    let of = &shown["kv_caches"][0];
                    if of["knowledge"] != "whole" || of["current"] != true {
                        return Err(format!("{}: {of}", replica.name));
                    }
                    seen.push(of["digest"].to_string());
                }
                seen.dedup();
                if seen.len() > 1 {
                    return Err(format!("{}: {seen:?}", worker.url()));
                }
            }
            Ok(())
        })
        .await;
    };
    all_alike("what was taken over is proved").await;
    let taken = "grapevine_kv_handovers_total{result=\"taken\"}";
    assert_eq!(sum(cluster, 2, taken).await, 1.0);
    let explained = [
        explained(cluster, 0, &messages).await,
        explained(cluster, 2, &messages).await,
    ];
    let holder = explained[0]["worker"].as_str().expect("a worker");
    let told = said(&explained[1], holder);
    assert_eq!(told, said(&explained[0], holder), "{}", explained[1]);
    assert!(told.is_some_and(|(held, of)| held * 10 >= of * 9 && of > 400));
    // And it goes on from there.
    for number in 0..9 {
        let other = format!("{number} further things. ").repeat(20);
        ask(cluster, number % 3, &[user(&other)]).await;
    }
    all_alike("what comes behind it is known, too").await;
}

async fn set_state(cluster: &Cluster, worker: &str, state: &str) {
    let admin = cluster.replicas[0].admin();
    admin.change(worker, &json!({ "state": state })).await;
    eventually(LIMIT, "every replica knows it", async || {
        for replica in &cluster.replicas {
            let seen = replica.admin().worker(worker).await;
            if seen.state != state {
                return Err(format!("{seen:?}"));
            }
        }
        Ok(())
    })
    .await;
}
