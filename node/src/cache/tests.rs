//! The cache as the proxy uses it, with answers made by hand.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, header, response};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{Asked, Bypass, CacheMetrics, Found, Recording, ResponseCache};
use crate::config::{ByteSize, CacheConfig};
use crate::metrics::{ReasonLabels, ResultLabels};

fn cache(change: impl FnOnce(&mut CacheConfig)) -> Arc<ResponseCache> {
    let mut config = CacheConfig {
        enabled: true,
        ..CacheConfig::default()
    };
    change(&mut config);
    let metrics = CacheMetrics::register(&mut Registry::default());
    ResponseCache::new(config.into(), &metrics).expect("it is switched on")
}

fn find(
    cache: &Arc<ResponseCache>,
    tenant: &str,
    control: Option<&'static str>,
    prompt: usize,
) -> Found {
    let mut headers = HeaderMap::new();
    if let Some(control) = control {
        headers.insert(
            header::CACHE_CONTROL,
            header::HeaderValue::from_static(control),
        );
    }
    let body = json!({ "temperature": 0, "prompt": prompt.to_string() }).to_string();
    cache.find(&Asked {
        method: &Method::POST,
        path: "/v1/completions",
        query: None,
        headers: &headers,
        model: "m",
        tenant: tenant.as_bytes(),
        key_is_checked: false,
        body: body.as_bytes(),
    })
}

fn ask(cache: &Arc<ResponseCache>, prompt: usize) -> Found {
    find(cache, "", None, prompt)
}

fn missed(found: Found) -> Recording {
    match found {
        Found::Miss(recording) | Found::Bypass(_, Some(recording)) => recording,
        other => panic!("{other:?}"),
    }
}

fn head() -> response::Parts {
    let response = Response::builder().header("content-type", "application/json");
    response.body(()).expect("a head").into_parts().0
}

fn keep(mut recording: Recording, body: &Bytes) {
    recording.begin(&head());
    recording.add(body);
    recording.keep();
}

fn is_hit(found: &Found) -> bool {
    matches!(found, Found::Hit(_))
}

fn fates(cache: &ResponseCache, result: &'static str) -> u64 {
    cache
        .metrics
        .answers
        .get_or_create(&ResultLabels { result })
        .get()
}

/// JSON of this length.
fn blank(length: usize) -> Bytes {
    let mut json = vec![b' '; length];
    json[..2].copy_from_slice(b"{}");
    json.into()
}

const BODY: Bytes = Bytes::from_static(b"{\"text\":\"t\"}");

#[test]
fn switched_off_there_is_no_cache() {
    let metrics = CacheMetrics::register(&mut Registry::default());
    assert!(ResponseCache::new(CacheConfig::default().into(), &metrics).is_none());
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_given_until_it_is_too_old() {
    let cache = cache(|config| config.ttl = Duration::from_secs(60));
    keep(missed(ask(&cache, 1)), &BODY);
    tokio::time::advance(Duration::from_secs(59)).await;
    let Found::Hit(answer) = ask(&cache, 1) else {
        panic!("it is there");
    };
    assert_eq!((answer.body(), answer.age().as_secs()), (BODY, 59));
    assert!(!is_hit(&find(&cache, "", Some("max-age=58"), 1)));
    assert!(is_hit(&find(&cache, "", Some("max-age=59"), 1)));
    assert!(!is_hit(&ask(&cache, 2)), "another prompt");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(!is_hit(&ask(&cache, 1)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_has_an_age_when_it_comes() {
    let cache = cache(|config| config.ttl = Duration::from_secs(60));
    let mut recording = missed(ask(&cache, 1));
    let mut head = head();
    head.headers.insert(header::AGE, 30.into());
    recording.begin(&head);
    recording.add(&BODY);
    recording.keep();
    tokio::time::advance(Duration::from_secs(5)).await;
    let Found::Hit(answer) = ask(&cache, 1) else {
        panic!("it is there");
    };
    assert_eq!(answer.age().as_secs(), 35);
    assert!(!is_hit(&find(&cache, "", Some("max-age=34"), 1)));
    assert!(is_hit(&find(&cache, "", Some("max-age=35"), 1)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_given_for_as_long_as_its_worker_says() {
    let cache = cache(|config| config.ttl = Duration::from_secs(60));
    let keep_with = |control: &'static str, prompt| {
        let mut recording = missed(ask(&cache, prompt));
        let mut head = head();
        let control = header::HeaderValue::from_static(control);
        head.headers.insert(header::CACHE_CONTROL, control);
        recording.begin(&head);
        recording.add(&BODY);
        recording.keep();
    };
    keep_with("max-age=10", 1);
    keep_with("max-age=10, s-maxage=20", 2);
    keep_with("max-age=3600", 3);
    keep_with("no-cache", 4);
    for (waited, given) in [
        (0, &[1, 2, 3][..]),
        (9, &[1, 2, 3]),
        (1, &[2, 3]),
        (10, &[3]),
        (40, &[3]),
        (1, &[]),
    ] {
        tokio::time::advance(Duration::from_secs(waited)).await;
        let hits: Vec<_> = (1..5)
            .filter(|prompt| is_hit(&ask(&cache, *prompt)))
            .collect();
        assert_eq!(hits, given, "{waited}");
    }
}

#[tokio::test]
async fn what_clients_ask_for_is_done() {
    let cache = cache(|_| ());
    assert!(matches!(
        find(&cache, "", Some("no-store"), 1),
        Found::Bypass(Bypass::Client, None)
    ));
    keep(missed(ask(&cache, 1)), &BODY);
    let newer = Bytes::from_static(b"{\"text\":\"newer\"}");
    let fresh = find(&cache, "", Some("no-cache"), 1);
    assert!(matches!(&fresh, Found::Bypass(Bypass::Client, Some(_))));
    keep(missed(fresh), &newer);
    let Found::Hit(answer) = ask(&cache, 1) else {
        panic!("it is there");
    };
    assert_eq!(answer.body(), newer);
}

#[tokio::test]
async fn only_whole_answers_are_kept() {
    let cache = cache(|config| config.entry_bytes = ByteSize::kib(1));
    // The client left, or the worker broke off.
    let mut cut = missed(ask(&cache, 1));
    cut.begin(&head());
    cut.add(&BODY);
    drop(cut);
    // An error.
    let mut error = missed(ask(&cache, 1));
    let mut parts = head();
    parts.status = http::StatusCode::INTERNAL_SERVER_ERROR;
    error.begin(&parts);
    error.add(&BODY);
    error.keep();
    keep(missed(ask(&cache, 1)), &Bytes::from(vec![b' '; 1_024]));
    assert!(!is_hit(&ask(&cache, 1)));
    // The looks that found nothing, and this one, end unfinished.
    assert_eq!(
        ["refused", "too_long", "kept"].map(|fate| fates(&cache, fate)),
        [1, 1, 0]
    );
    assert_eq!(fates(&cache, "unfinished"), 2);
    assert_eq!(
        cache
            .recorded_bytes
            .load(std::sync::atomic::Ordering::Relaxed),
        0
    );
    assert_eq!(
        (cache.metrics.entries.get(), cache.metrics.bytes.get()),
        (0, 0)
    );
}

#[tokio::test]
async fn answers_that_are_taken_down_have_a_bound_too() {
    let cache = cache(|config| {
        config.bytes = ByteSize::mib(1);
        config.entry_bytes = ByteSize::mib(1);
    });
    let most = blank(600 << 10);
    let mut open: Vec<Recording> = (0..2).map(|prompt| missed(ask(&cache, prompt))).collect();
    for recording in &mut open {
        recording.begin(&head());
        recording.add(&most);
    }
    for recording in open {
        recording.keep();
    }
    assert_eq!(["kept", "no_room"].map(|fate| fates(&cache, fate)), [1, 1]);
}

#[tokio::test]
async fn a_piece_does_not_keep_the_buffer_that_it_was_read_into() {
    let cache = cache(|_| ());
    let buffer = Bytes::from(vec![b' '; 1 << 20]);
    let mut recording = missed(ask(&cache, 1));
    recording.begin(&head());
    recording.add(&buffer.slice(..100));
    assert!(buffer.is_unique(), "nobody else holds it");
    recording.add(&buffer.slice(..512 << 10));
    assert!(buffer.is_unique(), "nor of a large one");
}

#[tokio::test]
async fn the_size_is_bounded() {
    let cache = cache(|config| config.bytes = ByteSize::mib(1));
    let body = blank(100 << 10);
    for prompt in 0..50 {
        keep(missed(ask(&cache, prompt)), &body);
    }
    cache.answers.run_pending_tasks();
    let (entries, bytes) = (cache.metrics.entries.get(), cache.metrics.bytes.get());
    assert!(
        entries > 0 && bytes <= 1 << 20,
        "{entries} with {bytes} bytes"
    );
    assert_eq!(cache.answers.entry_count() as i64, entries);
    assert_eq!(cache.answers.weighted_size() as i64, bytes);
    assert_eq!(fates(&cache, "kept"), 50);
}

#[tokio::test]
async fn a_tenant_gets_its_own_answers_and_its_share() {
    let cache = cache(|config| {
        config.bytes = ByteSize::mib(1);
        config.tenant_share = 0.25;
    });
    keep(missed(find(&cache, "a", None, 1)), &BODY);
    assert!(is_hit(&find(&cache, "a", None, 1)));
    assert!(!is_hit(&find(&cache, "b", None, 1)));
    assert!(!is_hit(&ask(&cache, 1)));
    let body = blank(100 << 10);
    for prompt in 0..8 {
        keep(missed(find(&cache, "greedy", None, prompt)), &body);
    }
    // Two of them fit: the newest.
    for prompt in 0..8 {
        let found = find(&cache, "greedy", None, prompt);
        assert_eq!(is_hit(&found), prompt >= 6, "{prompt}");
    }
    assert_eq!(
        (fates(&cache, "tenant_full"), fates(&cache, "kept")),
        (0, 9)
    );
    assert!(is_hit(&find(&cache, "a", None, 1)));
    let reason = ReasonLabels {
        reason: "tenant_share",
    };
    assert_eq!(cache.metrics.evicted.get_or_create(&reason).get(), 6);
}

#[tokio::test]
async fn a_newer_answer_takes_the_place_of_the_older_one_or_ends_it() {
    let cache = cache(|config| {
        config.bytes = ByteSize::mib(1);
        config.entry_bytes = ByteSize::kib(512);
        config.tenant_share = 0.25;
    });
    let of = |size: usize, byte| Bytes::from(vec![byte; size << 10]);
    let plain = || find(&cache, "a", None, 1);
    let fresh = || missed(find(&cache, "a", Some("no-cache"), 1));
    // Its tenant's share has room for one.
    let one = |byte| {
        keep(fresh(), &of(200, byte));
        let Found::Hit(answer) = plain() else {
            panic!("it is kept");
        };
        assert_eq!(answer.body(), of(200, byte));
    };
    one(b'1');
    one(b'2');
    // An error, and an answer that broke off, say nothing of the one that is kept.
    let mut error = fresh();
    let mut parts = head();
    parts.status = http::StatusCode::SERVICE_UNAVAILABLE;
    error.begin(&parts);
    error.keep();
    let mut cut = fresh();
    cut.begin(&head());
    drop(cut);
    assert!(is_hit(&plain()));
    for (fate, size) in [("tenant_full", 300), ("too_long", 600)] {
        keep(fresh(), &of(size, b'3'));
        assert_eq!(fates(&cache, fate), 1);
        assert!(!is_hit(&plain()), "{fate}: the older one");
        one(b'4');
    }
    let mut own = fresh();
    let mut parts = head();
    let private = header::HeaderValue::from_static("private");
    parts.headers.insert(header::CACHE_CONTROL, private);
    own.begin(&parts);
    own.keep();
    assert!(!is_hit(&plain()), "the newer one is for its client alone");
    assert_eq!(
        (cache.metrics.entries.get(), cache.metrics.bytes.get()),
        (0, 0)
    );
}
