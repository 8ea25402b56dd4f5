//! Which clients are let in, and what stays over a change of the file.

use std::path::Path;

use http::HeaderValue;
use prometheus_client::registry::Registry;

use super::*;
use crate::config::parse_keys;

const CANARY: &str = "gv-canary-7f3a";

fn entry(name: &str, key: &str, more: &str) -> String {
    let hash = secret::hash_of(key.as_bytes());
    format!("[[key]]\nname = \"{name}\"\nhash = \"{hash}\"\n{more}\n")
}

fn configs(text: &str) -> Vec<KeyConfig> {
    parse_keys(Path::new("keys.toml"), text).expect("a good file")
}

fn keys(text: &str) -> Keys {
    let keys = Keys::open(TenantMetrics::register(&mut Registry::default()));
    keys.set(configs(text), Instant::now());
    keys
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

fn bearer(key: &str) -> HeaderMap {
    headers(&[("authorization", &format!("Bearer {key}"))])
}

#[test]
fn without_a_file_everybody_may_ask() {
    let keys = Keys::open(TenantMetrics::register(&mut Registry::default()));
    assert!(keys.caller(&HeaderMap::new()).expect("open").is_none());
    keys.set(Vec::new(), Instant::now());
    assert!(
        keys.caller(&HeaderMap::new()).is_err(),
        "an empty list is a list"
    );
}

#[test]
fn only_a_good_key_is_let_in() {
    let past = "expires = \"2020-01-01T00:00:00Z\"";
    let keys = keys(&(entry("a", CANARY, "") + &entry("old", "gv-old", past)));
    for good in [
        bearer(CANARY),
        headers(&[("authorization", &format!("bearer  {CANARY}"))]),
        headers(&[("x-api-key", CANARY)]),
    ] {
        let key = keys.caller(&good).expect("let in").expect("a key");
        assert_eq!(key.name(), "a");
    }
    for (bad, reason) in [
        (HeaderMap::new(), "missing"),
        (bearer("gv-other"), "unknown"),
        (bearer(&CANARY[..8]), "unknown"),
        (bearer("gv-old"), "expired"),
        (bearer(""), "unreadable"),
        (bearer(&"x".repeat(513)), "unreadable"),
        (headers(&[("authorization", CANARY)]), "unreadable"),
        (headers(&[("authorization", "Basic abc")]), "unreadable"),
        (
            headers(&[("x-api-key", CANARY), ("x-api-key", "b")]),
            "unreadable",
        ),
        (
            headers(&[("authorization", "Bearer b"), ("x-api-key", CANARY)]),
            "unreadable",
        ),
        (
            headers(&[
                ("authorization", &format!("Bearer {CANARY}")),
                ("authorization", "b"),
            ]),
            "unreadable",
        ),
    ] {
        let counted = || {
            let labels = crate::metrics::ReasonLabels { reason };
            keys.metrics.key_refusals.get_or_create(&labels).get()
        };
        let before = counted();
        let error = keys.caller(&bad).expect_err(reason);
        assert_eq!(error.kind, ErrorKind::InvalidApiKey);
        assert_eq!(counted(), before + 1, "{reason}");
        assert!(!error.message.contains("gv-"));
    }
    assert!(!format!("{keys:?}").contains(CANARY));
}

/// As a browser sends it, which can set no header.
#[test]
fn a_key_among_subprotocols_is_taken_from_there() {
    let keys = keys(&entry("a", CANARY, ""));
    let offered = |values: &[&str]| {
        let pairs: Vec<_> = values
            .iter()
            .map(|value| ("sec-websocket-protocol", *value))
            .collect();
        let mut headers = headers(&pairs);
        take_offered_keys(&mut headers);
        headers
    };
    let key = format!("openai-insecure-api-key.{CANARY}");
    for (values, left) in [
        (
            vec![format!("realtime, {key},x.v1")],
            Some("realtime, x.v1"),
        ),
        (vec!["realtime".to_owned(), key.clone()], Some("realtime")),
        (vec![key.clone()], None),
    ] {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let headers = offered(&values);
        let found = keys.caller(&headers).expect("let in").expect("a key");
        assert_eq!(found.name(), "a");
        let protocols = headers.get(header::SEC_WEBSOCKET_PROTOCOL);
        assert_eq!(
            protocols.map(HeaderValue::as_bytes),
            left.map(str::as_bytes)
        );
    }
    // Which of two counts is nobody's guess.
    assert!(keys.caller(&offered(&[&key, &key])).is_err());
    let mut both = headers(&[
        ("authorization", "Bearer b"),
        ("sec-websocket-protocol", &key),
    ]);
    take_offered_keys(&mut both);
    assert!(keys.caller(&both).is_err());
    let none = ["realtime ,x", "y"];
    let untouched = offered(&none);
    let untouched = untouched.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    assert!(untouched.eq(none), "as it was");
}

#[test]
fn a_new_list_keeps_counts_and_rates_and_drops_who_is_gone() {
    let rate = "tenant = \"t\"\nrequests_per_minute = 1";
    let keys = keys(&(entry("a", CANARY, rate) + &entry("b", "gv-b", "tenant = \"t\"")));
    let caller = |key: &str| keys.caller(&bearer(key)).map(|key| key.expect("a key"));
    let before = caller(CANARY).expect("let in");
    let (_seat, count) = before.tenant().enter();
    assert_eq!(count, 1);
    assert!(
        before
            .take(Instant::now(), &Two)
            .expect("a limit")
            .next_in
            .is_none()
    );

    keys.set(configs(&entry("a", CANARY, rate)), Instant::now());
    let after = caller(CANARY).expect("still let in");
    assert_eq!(after.tenant().enter().1, 2, "the same tenant");
    assert!(
        after
            .take(Instant::now(), &Two)
            .expect("a limit")
            .next_in
            .is_some()
    );
    assert!(caller("gv-b").is_err(), "gone at once");
    let used = keys.in_use();
    assert_eq!(used.len(), 1);
    assert_eq!((used[0].in_flight, used[0].queued), (0, 1));
}

#[test]
fn a_tenant_that_left_leaves_no_series() {
    let mut registry = Registry::default();
    let keys = Keys::open(TenantMetrics::register(&mut registry));
    keys.set(configs(&entry("acme", CANARY, "")), Instant::now());
    let key = keys
        .caller(&bearer(CANARY))
        .expect("let in")
        .expect("a key");
    key.tenant().refused("request_rate");
    drop(key);
    let encoded = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        text
    };
    assert!(encoded().contains("acme"));
    keys.set(Vec::new(), Instant::now());
    assert!(!encoded().contains("acme"), "{}", encoded());
}

#[test]
fn models_are_bounded_by_the_list() {
    let keys = keys(&(entry("a", CANARY, "models = [\"m\"]") + &entry("b", "gv-b", "")));
    let key = |key| keys.caller(&bearer(key)).expect("let in").expect("a key");
    let (bounded, free) = (key(CANARY), key("gv-b"));
    assert!(bounded.may_ask_for(Some("m")));
    assert!(!bounded.may_ask_for(Some("other")));
    assert!(!bounded.may_ask_for(None));
    assert!(free.may_ask_for(Some("other")) && free.may_ask_for(None));
}

#[test]
fn a_tenant_has_no_limit_where_one_of_its_keys_has_none() {
    let of = |limits: [&str; 2]| {
        let names = [("a", "gv-a"), ("b", "gv-b")].into_iter().zip(limits);
        let entries = names
            .map(|((name, key), limit)| entry(name, key, &format!("tenant = \"acme\"\n{limit}")));
        let tenants = keys(&entries.collect::<String>()).tenants();
        let limits: Vec<_> = tenants.into_iter().map(|(_, limit)| limit).collect();
        limits
    };
    let (few, more) = ("max_requests = 3", "max_requests = 5");
    for (limits, most) in [
        ([few, more], Some(5)),
        ([more, few], Some(5)),
        ([few, ""], None),
        (["", few], None),
    ] {
        assert_eq!(of(limits), [most], "{limits:?}");
    }
}

#[derive(Debug)]
struct Two;

impl OthersUse for Two {
    fn requests(&self, _: u64) -> u32 {
        0
    }

    fn ready_replicas(&self) -> u32 {
        2
    }
}
