//! Web pages: the answers to a browser on which pages may send and read.

use grapevine_testbed::fake_worker::Canned;
use grapevine_tests::chat::{CHATS, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Head, Response};
use grapevine_tests::keys::KeyFile;

use crate::errors::assert_error;
use crate::house::{House, quick};

const PAGE: &str = "https://chat.example.com";

/// What a browser sends before a page's `POST` of JSON with a key.
async fn preflight(house: &House, path: &str, origin: &str) -> Response {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,content-type",
        ),
    ];
    http1::exchange(house.data(), "OPTIONS", path, &headers, b"").await
}

async fn ask(house: &House, headers: &[(&str, &str)]) -> Response {
    let body = chat("from a page", 1).to_string();
    http1::exchange(house.data(), "POST", CHATS, headers, body.as_bytes()).await
}

/// All CORS headers of an answer, sorted.
fn said(head: &Head) -> Vec<String> {
    let named = head.headers.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix("access-control-")?;
        Some(format!("{name}: {value}"))
    });
    let mut said: Vec<String> = named.collect();
    said.sort();
    said
}

/// Makes the next answer as vLLM sends it by default, which allows every page.
fn as_vllm_by_default(house: &House) {
    let headers = [
        ("content-type", "application/json"),
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
    ];
    let reply = Canned {
        status: 200,
        headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
        body: Some("{}".to_owned()),
        repeat: 1,
        gzip: false,
    };
    house.reply_next(reply);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_may_read_anything_by_default() {
    let house = House::new(1).await;
    let asked = preflight(&house, CHATS, PAGE).await;
    assert_eq!(asked.head.status, 405, "{}", asked.text());
    assert!(said(&asked.head).is_empty(), "{:?}", said(&asked.head));
    as_vllm_by_default(&house);
    let answer = ask(&house, &[("origin", PAGE)]).await;
    assert_eq!(answer.text(), "{}");
    assert!(said(&answer.head).is_empty(), "{:?}", said(&answer.head));
    house.close().await;
}

/// What a form can send goes out without a preflight, and a page need not read an answer to have it computed.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_has_nothing_computed_unasked() {
    const CROSS: (&str, &str) = ("sec-fetch-site", "cross-site");
    let (page, other) = (("origin", PAGE), ("origin", "https://evil.example"));
    let text = ("content-type", "text/plain;charset=UTF-8");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let json = ("content-type", "application/json");
    let nobody = vec![
        (vec![CROSS, other, text], 403),
        (vec![CROSS, other, form], 403),
        (vec![CROSS, ("origin", "null"), text], 403),
        (vec![CROSS, text], 403),
        // No browser sends this without having asked.
        (vec![CROSS, other, json], 200),
        (vec![("sec-fetch-site", "same-origin"), text], 200),
        (vec![("sec-fetch-site", "none"), text], 200),
        (vec![text], 200),
        (vec![form], 200),
        // Over HTTP browsers send no more than this, and beside it where it is another port.
        (vec![other, text], 403),
        (vec![("origin", "null"), text], 403),
        (vec![("sec-fetch-site", "same-site"), other, text], 403),
        (vec![other, json], 200),
    ];
    let listed = vec![
        (vec![CROSS, page, text], 200),
        (vec![CROSS, other, text], 403),
        (vec![CROSS, text], 403),
    ];
    let all = vec![(vec![CROSS, other, text], 200)];
    for (allowed, table) in [
        ("[]".to_owned(), nobody),
        (format!("[{PAGE:?}]"), listed),
        ("[\"*\"]".to_owned(), all),
    ] {
        let plan = Plan::default().set("cors.allowed_origins", &allowed);
        let house = House::of(plan, vec![quick()]).await;
        let mut good = 0;
        for (headers, status) in table {
            let answer = ask(&house, &headers).await;
            // The engine takes JSON alone, which is between it and who gets there.
            let found = answer.head.status == 403;
            assert_eq!(
                found,
                status == 403,
                "{allowed} {headers:?}: {}",
                answer.text()
            );
            match status {
                403 => _ = assert_error(&answer, 403, "permission_denied"),
                _ => good += 1,
            }
        }
        assert_eq!(
            house.workers[0].log().len(),
            good,
            "no worker saw the others"
        );
        // Without a body there need be no media type.
        let path = "/v1/responses/a/cancel";
        let bare = http1::exchange(house.data(), "POST", path, &[CROSS, other], b"").await;
        assert_eq!(bare.head.status == 403, allowed != "[\"*\"]");
        house.close().await;
    }

    // With keys it is the key that counts: no page has one.
    let mut file = KeyFile::new();
    let key = file.add("app", "").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    assert_eq!(ask(&house, &[CROSS, other, text]).await.head.status, 401);
    let bearer = format!("Bearer {key}");
    let headers = [CROSS, other, text, ("authorization", bearer.as_str())];
    ask(&house, &headers).await;
    assert_eq!(house.workers[0].log().len(), 1, "its worker has it");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listed_pages_may_ask_and_read_and_others_may_not() {
    let mut file = KeyFile::new();
    let key = file.add("web", "").await;
    let plan = file
        .plan()
        .set("cors.allowed_origins", &format!("[{PAGE:?}]"))
        .set("cors.allowed_methods", r#"["GET", "POST"]"#)
        .set("cors.allow_credentials", "true");
    let house = House::of(plan, vec![quick()]).await;

    // No key is needed; every path gets the same answer.
    for path in [CHATS, "/v1/models", "/readiness", "/v1/anything"] {
        let asked = preflight(&house, path, PAGE).await;
        assert_eq!(asked.head.status, 204, "{path}");
        let expected = [
            "allow-credentials: true".to_owned(),
            "allow-headers: authorization,content-type".to_owned(),
            "allow-methods: GET, POST".to_owned(),
            format!("allow-origin: {PAGE}"),
            "expose-headers: x-request-id, retry-after".to_owned(),
            "max-age: 600".to_owned(),
        ];
        assert_eq!(said(&asked.head), expected, "{path}");
        assert_eq!(asked.head.header("vary"), Some("origin"));
    }
    for stranger in [
        "https://evil.example",
        "null",
        "https://chat.example.com.evil",
    ] {
        let asked = preflight(&house, CHATS, stranger).await;
        assert_eq!(asked.head.status, 403, "{stranger}");
        assert!(said(&asked.head).is_empty(), "{stranger}");
        assert_eq!(asked.head.header("vary"), Some("origin"));
    }
    assert!(house.workers[0].log().is_empty(), "a worker was asked");

    let may_read = [
        "allow-credentials: true".to_owned(),
        format!("allow-origin: {PAGE}"),
        "expose-headers: x-request-id, retry-after".to_owned(),
    ];
    let bearer = format!("Bearer {key}");
    let key = ("authorization", bearer.as_str());
    as_vllm_by_default(&house);
    let answer = ask(&house, &[("origin", PAGE), key]).await;
    assert_eq!((answer.head.status, answer.text().as_str()), (200, "{}"));
    assert_eq!(said(&answer.head), may_read, "the worker's word is dropped");
    // A page can read why it was refused.
    let refused = ask(&house, &[("origin", PAGE)]).await;
    assert_eq!(refused.head.status, 401);
    assert_eq!(said(&refused.head), may_read);
    let ready = http1::exchange(house.data(), "GET", "/liveness", &[("origin", PAGE)], b"").await;
    assert_eq!(said(&ready.head), may_read);

    // Served as usual, since no browser shows it to the page; a cache must not give it to another page.
    for headers in [&[key][..], &[key, ("origin", "https://evil.example")]] {
        let answer = ask(&house, headers).await;
        assert_eq!(answer.head.status, 200);
        assert!(said(&answer.head).is_empty());
        // The worker already sends it, and once is enough.
        let vary = answer
            .head
            .headers
            .iter()
            .filter(|(name, _)| name == "vary");
        let vary: Vec<String> = vary.map(|(_, value)| value.to_lowercase()).collect();
        assert_eq!(vary, ["origin"]);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pages_may_be_allowed_without_credentials() {
    let plan = Plan::default().set("cors.allowed_origins", r#"["*"]"#);
    let house = House::of(plan, vec![quick()]).await;
    let asked = preflight(&house, CHATS, "null").await;
    assert_eq!(asked.head.status, 204);
    // A `*` for headers would not cover Authorization.
    let expected = [
        "allow-headers: authorization,content-type",
        "allow-methods: POST",
        "allow-origin: *",
        "expose-headers: x-request-id, retry-after",
        "max-age: 600",
    ];
    assert_eq!(said(&asked.head), expected);
    let answer = ask(&house, &[("origin", PAGE)]).await;
    assert_eq!(answer.head.status, 200);
    assert_eq!(answer.head.header("access-control-allow-origin"), Some("*"));
    let live = http1::get(house.data(), "/liveness").await;
    assert_eq!(live.head.header("access-control-allow-origin"), Some("*"));
    assert_eq!(live.head.header("vary"), None, "one answer for all");
    // The replica does not answer an `OPTIONS` that is no preflight.
    let options = http1::exchange(house.data(), "OPTIONS", CHATS, &[("origin", PAGE)], b"").await;
    assert_eq!(options.head.status, 405);
    house.close().await;
}
