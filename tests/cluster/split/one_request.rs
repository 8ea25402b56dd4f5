//! To its client, and to everything that counts, a divided request is one request.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Entry, Fault, Leg, Role};
use grapevine_tests::chat::distinct;
use grapevine_tests::cluster::Plan;
use grapevine_tests::collector::{Collector, Span, attribute, hex};
use grapevine_tests::keys::KeyFile;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::time::Instant;

use super::scene::{
    CHATS, Member, Scene, always, as_stream, halves, header, legs, next, scene, seen, short,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn one_chat() -> Value {
    short(distinct(1).swap_remove(0))
}

/// A policy that expects nothing of caches.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_prefill_worker_had_is_counted_and_logged_whatever_its_policy() {
    let plan = Plan::default().set("cluster.prefill_policy", "\"round_robin\"");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    for id in ["first", "again"] {
        let headers = [("x-request-id", id)];
        scene.ask_with(0, CHATS, &headers, &one_chat()).await.good();
    }
    let line = logged(&scene, "again").await.swap_remove(0);
    let cached = line.split("prefill_cached_tokens=").nth(1);
    let cached = cached.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(cached.is_some_and(|cached| cached > 0.0), "{line}");
    let url = scene.prefill()[0].url();
    let counted = scene.metric(0, "grapevine_cached_tokens_total", &url).await;
    assert_eq!(Some(counted), cached);
    // What arrived is no hit of the other one, which reports it as one.
    let url = scene.decode()[0].url();
    let again = scene.metric(0, "grapevine_cached_tokens_total", &url).await;
    assert_eq!(again, 0.0);
    let prompts = scene.metric(0, "grapevine_prompt_tokens_total", &url).await;
    assert!(prompts > counted, "{prompts} tokens of prompts");
    scene.ends().await;
}

/// The two legs of the only request.
fn both(scene: &Scene) -> (Entry, Entry) {
    let only = |workers: Vec<_>, leg| {
        let workers: Vec<&grapevine_testbed::fake_worker::FakeWorker> = workers;
        let mut entries: Vec<Entry> = workers.iter().flat_map(|w| legs(w, leg)).collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    };
    (
        only(scene.prefill(), Leg::Prefill),
        only(scene.decode(), Leg::Decode),
    )
}

/// Lines of the first replica's access log about a request.
async fn logged(scene: &Scene, id: &str) -> Vec<String> {
    let part = format!("request_id=\"{id}\"");
    let (lines, _) = eventually(LIMIT, "a line in the access log", async || {
        let log = scene.cluster.replicas[0].log();
        let of_it = |line: &&str| line.contains("grapevine::access") && line.contains(&part);
        let lines: Vec<String> = log.lines().filter(of_it).map(str::to_owned).collect();
        (!lines.is_empty())
            .then_some(lines)
            .ok_or_else(|| "none".to_owned())
    })
    .await;
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn id_credentials_and_trace_of_the_client_are_on_both_legs() {
    let collector = Collector::start().await;
    let plan = Plan::default()
        .set("trace.endpoint", &collector.setting())
        .set("trace.interval", "\"20ms\"");
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let trace = format!("00-{TRACE}-{PARENT}-01");
    let headers = [
        ("x-request-id", "the-clients-id"),
        ("authorization", "Bearer the-clients-key"),
        ("accept-encoding", "gzip"),
        ("traceparent", &*trace),
    ];
    let answer = scene.ask_with(0, CHATS, &headers, &one_chat()).await.good();
    let id = answer.response.head.header("x-request-id");
    assert_eq!(id, Some("the-clients-id"));
    let (prefill, decode) = both(&scene);
    let mut parents = Vec::new();
    for leg in [&prefill, &decode] {
        assert_eq!(leg.request_id.as_deref(), Some("the-clients-id"));
        assert_eq!(header(leg, "authorization"), Some("Bearer the-clients-key"));
        assert_eq!(header(leg, "x-grapevine-explain"), None, "it stays here");
        let parent = header(leg, "traceparent").expect("traces go on");
        assert!(parent.starts_with(&format!("00-{TRACE}-")), "{parent}");
        parents.push(parent.split('-').nth(2).expect("a span").to_owned());
    }
    assert_ne!(parents[0], parents[1], "each leg is a span of its own");
    // The replica reads the one answer, and its client the other.
    let takes = [&prefill, &decode].map(|leg| header(leg, "accept-encoding"));
    assert_eq!(takes, [Some("identity"), Some("gzip")]);
    let (spans, _) = eventually(LIMIT, "spans of both legs", async || {
        let spans = collector.spans();
        let known = |parent: &String| spans.iter().any(|span| hex(&span.span_id) == *parent);
        let all = parents.iter().all(known) && spans.iter().any(|s| s.kind == 2);
        all.then_some(spans.clone())
            .ok_or_else(|| format!("{spans:?}"))
    })
    .await;
    let whole = spans
        .iter()
        .find(|span| span.kind == 2)
        .expect("the request's");
    assert_eq!(hex(&whole.parent_span_id), PARENT);
    for (leg, parent) in [&prefill, &decode].into_iter().zip(&parents) {
        let span: &Span = spans
            .iter()
            .find(|span| hex(&span.span_id) == *parent)
            .expect("found above");
        assert_eq!(hex(&span.parent_span_id), hex(&whole.span_id));
        let worker = attribute(span, "grapevine.worker").or_else(|| attribute(span, "server.port"));
        println!("{}: {} {worker:?}", leg.path, span.name);
    }
    let lines = logged(&scene, "the-clients-id").await;
    let [line] = &lines[..] else {
        panic!("one line a request: {lines:?}");
    };
    let (prefill, decode) = answer.pair();
    for part in [
        format!("prefill_worker=\"{}\"", prefill.expect("divided")),
        format!(" worker=\"{}\"", decode.expect("answered")),
        "split=\"pair\"".to_owned(),
        "attempts=1".to_owned(),
        "outcome=\"success\"".to_owned(),
    ] {
        assert!(line.contains(&part), "no {part} in {line}");
    }
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_leg_has_the_key_of_its_worker() {
    let guarded = |role, key: &str| {
        let mut member = Member::new(role).line(&format!("api_key = \"{key}\""));
        member.config.api_key = Some(key.to_owned());
        member
    };
    let members = [
        guarded(Role::Prefill, "prefill-key"),
        guarded(Role::Decode, "decode-key"),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    let headers = [("authorization", "Bearer the-clients-key")];
    scene.ask_with(0, CHATS, &headers, &one_chat()).await.good();
    let (prefill, decode) = both(&scene);
    assert_eq!(
        header(&prefill, "authorization"),
        Some("Bearer prefill-key")
    );
    assert_eq!(header(&decode, "authorization"), Some("Bearer decode-key"));
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_key_and_places_of_admission_are_taken_once() {
    let mut file = KeyFile::new();
    let key = file
        .add("rated", "requests_per_minute = 3\nmax_requests = 1")
        .await;
    // With two places for one request, none would ever be let in.
    let plan = file.plan().set("limits.requests", "1");
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    for remaining in ["2", "1", "0"] {
        let answer = scene.ask_with(0, CHATS, &headers, &one_chat()).await.good();
        let told = answer
            .response
            .head
            .header("x-ratelimit-remaining-requests");
        assert_eq!(told, Some(remaining));
    }
    let answer = scene.ask_with(0, CHATS, &headers, &one_chat()).await;
    assert_eq!(answer.status(), 429, "{answer:?}");
    assert_eq!((seen(&scene.prefill()), seen(&scene.decode())), (3, 3));
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_request_is_that_of_both_legs() {
    let limit = Duration::from_millis(700);
    let plan = Plan::default().set("timeouts.whole_request", "\"700ms\"");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    let (prefill, decode) = (scene.prefill()[0], scene.decode()[0]);
    // Each leg alone is within the limit.
    always(prefill, Fault::delay_ms(450));
    always(decode, Fault::delay_ms(450));
    for body in [one_chat(), as_stream(&one_chat(), 3)] {
        let begun = Instant::now();
        let answer = scene.ask(&body).await;
        let took = begun.elapsed();
        println!("over after {took:?}");
        assert_eq!(answer.status(), 504, "{answer:?}");
        assert!(took >= limit && took < limit * 3, "{took:?}");
    }
    prefill.clear_rules();
    decode.clear_rules();
    always(prefill, Fault::never_answer());
    let answer = scene.ask(&one_chat()).await;
    assert_eq!(answer.status(), 504, "{answer:?}");
    prefill.clear_rules();
    // The engine that was to answer never saw the first two, and of the third nobody was told.
    scene.ends_with(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_legs_draw_on_one_budget_of_attempts() {
    let plan = Plan::default()
        .set("retry.max_attempts", "2")
        .set("retry.initial_backoff", "\"1ms\"");
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let chat = scene.prompts_at(scene.prefill()[0]).await.swap_remove(0);
    next(scene.prefill()[0], Fault::status(500));
    for worker in scene.decode() {
        always(worker, Fault::status(503));
    }
    let answer = scene.ask(&chat).await;
    assert_eq!(answer.status(), 503, "{answer:?}");
    assert_eq!((seen(&scene.prefill()), seen(&scene.decode())), (2, 1));
    let lines = logged(
        &scene,
        answer.response.head.header("x-request-id").expect("an id"),
    )
    .await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(scene.metric(0, "grapevine_retries_total", "").await, 1.0);
}

/// The client hears of it while its prompt is computed, and while its decode worker has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_pair_that_takes_long_begins_with_comments() {
    const COMMENT: &str = ": keep-alive\n\n";
    let plan = Plan::default().set("timeouts.stream_comment", "\"100ms\"");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    scene.talks().await;
    let chat = as_stream(&one_chat(), 3);
    let asked = async |at_least: usize| {
        let seen = scene.ask_at(0, CHATS, &chat).await.good();
        let text = seen.response.text();
        let rest = text.trim_start_matches(COMMENT).to_owned();
        let comments = (text.len() - rest.len()) / COMMENT.len();
        assert!(comments >= at_least, "{comments} comments: {text}");
        rest
    };
    next(scene.prefill()[0], Fault::delay_ms(300));
    next(scene.decode()[0], Fault::delay_ms(300));
    let answer = asked(4).await;
    assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
    let late = Fault {
        delay_ms: 300,
        ..Fault::status(503)
    };
    next(scene.prefill()[0], late);
    let refused = asked(2).await;
    assert!(refused.starts_with("data: {\"error\":"), "{refused}");
    scene.ends().await;
}
