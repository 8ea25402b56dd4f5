//! The page of the admin port: what comes, to whom, and with which headers. In a browser it is driven by `tests/page/`.

use std::net::SocketAddr;

use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response, exchange};
use grapevine_tests::keys::KeyFile;
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use crate::house::{House, quick};

const TOKEN: &str = "a-token-of-the-operator";
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

async fn get(admin: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Response {
    exchange(admin, "GET", path, headers, b"").await
}

/// As a form of the page sends it.
async fn post(
    admin: SocketAddr,
    path: &str,
    origin: Option<&str>,
    cookie: &str,
    body: &str,
) -> Response {
    let mut headers = vec![FORM, ("cookie", cookie)];
    headers.extend(origin.map(|origin| ("origin", origin)));
    exchange(admin, "POST", path, &headers, body.as_bytes()).await
}

fn assert_guarded(answer: &Response, path: &str) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(answer.head.header(name), Some(value), "{path}: {name}");
    }
}

/// `http1::exchange` names the host so.
const OWN: &str = "http://localhost";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_whole_without_scripts_and_loads_nothing_from_elsewhere() {
    let house = House::new(2).await;
    house.until_ready().await;
    let admin = house.cluster.replicas[0].admin().0;
    let worker = house.workers[0].url();
    let id = worker.replace(':', "%3A").replace('/', "%2F");
    for (path, status, kind, texts) in [
        (
            "/",
            200,
            "text/html",
            vec!["1 replica; 2 workers usable", &worker, "Who owns what"],
        ),
        ("/page/style.css", 200, "text/css", vec![]),
        (
            "/page/script.js",
            200,
            "text/javascript",
            vec!["EventSource"],
        ),
        (
            &format!("/page/workers/{id}"),
            200,
            "text/html",
            vec![&worker, "The last hour"],
        ),
        (
            "/page/workers/none",
            404,
            "text/html",
            vec!["No worker of this id"],
        ),
        (
            "/page/replicas/none",
            404,
            "text/html",
            vec!["No replica of this id"],
        ),
        ("/page/replicas/r1", 200, "text/html", vec!["this replica"]),
        (
            "/page/explain",
            200,
            "text/html",
            vec!["Show where it would go"],
        ),
        ("/page/none", 404, "application/json", vec![]),
        ("/page/workers/%ff", 400, "application/json", vec![]),
        ("/page/live?of=x", 400, "application/json", vec![]),
    ] {
        let answer = get(admin, path, &[]).await;
        assert_eq!(answer.head.status, status, "{path}: {}", answer.text());
        assert_guarded(&answer, path);
        let found = answer.head.header("content-type").unwrap_or_default();
        assert!(found.starts_with(kind), "{path}: {found}");
        let html = answer.text();
        for text in texts {
            assert!(html.contains(text), "{path}: {text} is not in {html}");
        }
        if kind == "text/html" {
            for elsewhere in [
                "src=\"http",
                "href=\"http",
                "//cdn",
                "url(",
                "<iframe",
                "@import",
            ] {
                assert!(!html.contains(elsewhere), "{path}: {elsewhere}");
            }
        }
    }
    let answer = post(admin, "/", Some(OWN), "", "").await;
    assert_eq!(answer.head.status, 405, "{}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sites_can_link_to_the_page_and_do_nothing_else() {
    let house = House::new(1).await;
    let own = house.cluster.replicas[0].admin().0;
    let site = ("sec-fetch-site", "cross-site");
    let (mode, document) = (
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    );
    let link = get(own, "/", &[site, mode, document]).await;
    assert_eq!(link.head.status, 200, "{}", link.text());
    for (path, headers) in [
        ("/", vec![site]),
        ("/", vec![site, mode, ("sec-fetch-dest", "iframe")]),
        ("/", vec![("origin", "http://attacker.example")]),
        (
            "/page/script.js",
            vec![
                site,
                ("sec-fetch-mode", "no-cors"),
                ("sec-fetch-dest", "script"),
            ],
        ),
        ("/page/live", vec![("sec-fetch-site", "same-site")]),
        ("/page/live", vec![("origin", "null")]),
        // A link leads to the page, not to the rest of the admin API.
        ("/workers", vec![site, mode, document]),
    ] {
        let answer = get(own, path, &headers).await;
        assert_eq!(
            answer.head.status,
            403,
            "{path} {headers:?}: {}",
            answer.text()
        );
    }
    let mut rebound = Connection::open(own).await;
    let head = b"GET / HTTP/1.1\r\nhost: attacker.example\r\nsec-fetch-site: none\r\n\r\n";
    rebound.send(head).await.expect("taken");
    let answer = rebound.response().await.expect("an answer");
    assert_eq!(answer.head.status, 403, "{}", answer.text());
    for origin in [
        None,
        Some("null"),
        Some("http://attacker.example"),
        Some("http://localhost:1"),
    ] {
        let answer = post(own, "/page/explain", origin, "", "prompt=x").await;
        assert_eq!(answer.head.status, 403, "{origin:?}: {}", answer.text());
    }
    let json = [("content-type", "application/json"), ("origin", OWN)];
    let answer = exchange(own, "POST", "/page/explain", &json, b"{}").await;
    assert_eq!(answer.head.status, 403, "{}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_explained_and_not_shown_again() {
    let house = House::new(2).await;
    house.until_ready().await;
    let admin = house.cluster.replicas[0].admin().0;
    let body = "model=fake-model&prompt=a+secret+%3Cb%3Eprompt";
    let answer = post(admin, "/page/explain", Some(OWN), "", body).await;
    let html = answer.text();
    assert_eq!(answer.head.status, 200, "{html}");
    assert_guarded(&answer, "/page/explain");
    let is_named = house
        .workers
        .iter()
        .any(|worker| html.contains(&format!("The request would go to {}", worker.url())));
    assert!(is_named, "{html}");
    assert!(!html.contains("secret"), "{html}");
    let unknown = "model=%3Cscript%3E&prompt=x";
    let html = post(admin, "/page/explain", Some(OWN), "", unknown)
        .await
        .text();
    assert!(
        html.contains("role=\"alert\"") && html.contains("&lt;script&gt;"),
        "{html}"
    );
    assert_eq!(html.matches("<script").count(), 1, "{html}");
    let long = format!("prompt={}", "x".repeat(2 << 20));
    let answer = post(admin, "/page/explain", Some(OWN), "", &long).await;
    assert_eq!(answer.head.status, 413);
    house.close().await;
}

/// Where clients have keys, an answer without a tenant is about nobody's prompt.
#[tokio::test(flavor = "multi_thread")]
async fn where_clients_have_keys_a_prompt_is_explained_for_a_tenant() {
    let mut file = KeyFile::new();
    let _acme = file.add("acme", "").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin().0;
    let body = "model=fake-model&prompt=hi";
    let ask = async |tenant: &str| {
        let body = format!("{body}{tenant}");
        let html = post(admin, "/page/explain", Some(OWN), "", &body).await;
        html.text()
    };
    eventually(LIMIT, "the model is known", async || {
        let html = ask("").await;
        let is_known = html.contains("The request would go to");
        is_known.then_some(()).ok_or(html)
    })
    .await;
    let chat = json!({ "model": "fake-model", "messages": [{ "role": "user", "content": "hi" }] });
    let explained = async |query: &str| -> Value {
        http1::post(admin, &format!("/explain{query}"), &chat)
            .await
            .json()
    };
    let (nobodys, acmes) = (explained("").await, explained("?tenant=acme").await);
    let of = |answer: &Value| {
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        (text("tenant"), text("tenant_is"))
    };
    let owned = |text: &str| Some(text.to_owned());
    assert_eq!(of(&nobodys), (None, owned("missing")));
    assert_eq!(of(&acmes), (owned("acme"), owned("known")));
    assert_eq!(of(&explained("?tenant=acne").await).1, owned("unknown"));
    let (key, other) = (acmes["key"].as_str(), nobodys["key"].as_str());
    assert!(key.is_some() && key != other, "{acmes}");
    let (without, with) = (ask("").await, ask("&tenant=acme").await);
    assert!(without.contains("this is for no tenant's key"), "{without}");
    assert!(without.contains("<option value=\"acme\">"), "{without}");
    assert!(with.contains(key.expect("a key")), "{with}");
    assert!(!with.contains("this is for no tenant"), "{with}");
    assert!(with.contains("<option value=\"acme\" selected>"), "{with}");
    let unknown = ask("&tenant=acne").await;
    assert!(
        unknown.contains("no key is of the tenant acne"),
        "{unknown}"
    );
    let overview = get(admin, "/", &[]).await.text();
    assert!(overview.contains("name=\"tenant\""), "{overview}");
    // The command says the same.
    let at = format!("http://{admin}");
    let run = async |more: &[&str]| {
        let words = [
            "explain",
            "--model",
            "fake-model",
            "--prompt",
            "hi",
            "--admin",
            &at,
        ];
        process::run(&[&words[..], more].concat()).await.text
    };
    let text = run(&[]).await;
    assert!(text.contains("this is for no tenant's key"), "{text}");
    let text = run(&["--tenant", "acme"]).await;
    assert!(
        text.contains("acme") && !text.contains("no tenant's key"),
        "{text}"
    );
    house.close().await;
}

/// Browsers send the end of a line as CRLF, and a client's JSON has what was typed.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_of_several_lines_is_explained_as_a_client_sends_it() {
    let house = House::new(1).await;
    house.until_ready().await;
    let admin = house.cluster.replicas[0].admin().0;
    let body = "model=fake-model&prompt=one%0D%0Atwo%0D%0A";
    let html = post(admin, "/page/explain", Some(OWN), "", body)
        .await
        .text();
    let messages = json!([{ "role": "user", "content": "one\ntwo\n" }]);
    let chat = json!({ "model": "fake-model", "messages": messages });
    let explained: Value = http1::post(admin, "/explain", &chat).await.json();
    let key = explained["key"].as_str().expect("a key");
    assert!(html.contains(key), "{key} is not in {html}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_a_session_opens_the_page_and_nothing_else() {
    let plan = Plan::default().set("admin.token", &format!("{TOKEN:?}"));
    let mut cluster = plan.worker("http://127.0.0.1:9", &["m"]).found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin().0;
    for path in ["/", "/page/workers/x", "/page/explain", "/page/live"] {
        let answer = get(admin, path, &[]).await;
        assert_eq!(answer.head.status, 401, "{path}: {}", answer.text());
        let html = answer.text();
        assert!(
            html.contains("Sign in") && !html.contains("127.0.0.1:9"),
            "{path}: {html}"
        );
    }
    assert_eq!(get(admin, "/page/style.css", &[]).await.head.status, 200);
    let wrong = post(
        admin,
        "/page/login",
        Some(OWN),
        "",
        "token=a-token-of-somebody",
    )
    .await;
    assert_eq!(wrong.head.status, 401);
    assert_eq!(wrong.head.header("set-cookie"), None);
    let long = format!("token={}", "x".repeat(9 << 10));
    let long = post(admin, "/page/login", Some(OWN), "", &long).await;
    assert_eq!(long.head.status, 413, "{}", long.text());
    let form = format!("token={TOKEN}");
    let evil = Some("http://evil.example");
    let foreign = post(admin, "/page/login", evil, "", &form).await;
    assert_eq!(foreign.head.status, 403);
    let right = post(admin, "/page/login", Some(OWN), "", &form).await;
    assert_eq!(
        (right.head.status, right.head.header("location")),
        (303, Some("/"))
    );
    let cookie = right
        .head
        .header("set-cookie")
        .expect("a session")
        .to_owned();
    assert!(
        cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
    assert!(!cookie.contains(TOKEN), "{cookie}");
    let cookie = cookie.split(';').next().expect("a pair");
    let html = get(admin, "/", &[("cookie", cookie)]).await.text();
    assert!(
        html.contains("127.0.0.1:9") && !html.contains(TOKEN),
        "{html}"
    );
    for (method, path) in [
        ("GET", "/workers"),
        ("GET", "/metrics"),
        ("POST", "/explain"),
    ] {
        let answer = exchange(admin, method, path, &[("cookie", cookie)], b"").await;
        assert_eq!(answer.head.status, 401, "{path}: {}", answer.text());
    }
    let bearer = format!("Bearer {TOKEN}");
    let by_token = get(admin, "/", &[("authorization", &bearer)]).await;
    assert_eq!(by_token.head.status, 200);
    // What a proxy on the way asks for, and passes on.
    let refusals = async || -> f64 {
        let metrics = get(admin, "/metrics", &[("authorization", &bearer)]).await;
        let text = metrics.text();
        let name = "grapevine_admin_refusals_total{reason=\"token\"}";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect("counted").trim().parse().expect("a number")
    };
    let before = refusals().await;
    for of_proxy in ["Basic YTpi", "Bearer of-somebody"] {
        let of_proxy = ("authorization", of_proxy);
        let in_session = get(admin, "/", &[of_proxy, ("cookie", cookie)]).await;
        assert_eq!(in_session.head.status, 200, "{}", in_session.text());
        let stranger = get(admin, "/", &[of_proxy]).await;
        assert_eq!(stranger.head.status, 401);
        assert!(stranger.text().contains("Sign in"), "{}", stranger.text());
    }
    // A Bearer may be somebody's guess.
    assert_eq!(refusals().await, before + 1.0);
    let ended = post(admin, "/page/logout", Some(OWN), cookie, "").await;
    assert_eq!(ended.head.status, 200, "{}", ended.text());
    assert_eq!(
        get(admin, "/", &[("cookie", cookie)]).await.head.status,
        401
    );
    assert_eq!(
        get(admin, "/", &[("cookie", "grapevine_r1=")])
            .await
            .head
            .status,
        401
    );
}

/// A stream of the page, from its first event.
async fn listen(admin: SocketAddr, path: &str) -> Connection {
    let mut stream = Connection::open(admin).await;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\n\r\n");
    stream.send(head.as_bytes()).await.expect("taken");
    let head = stream.head().await.expect("an answer");
    assert_eq!(head.status, 200);
    let kind = head.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_is_sent_to_a_bounded_number_of_viewers() {
    let mut house = House::of(Plan::default(), vec![quick(); 2]).await;
    house.until_ready().await;
    let admin = house.cluster.replicas[0].admin().0;
    let mut stream = listen(admin, "/page/live").await;
    let mut heard = String::new();
    let mut until = async |text: &str| {
        while !heard.contains(text) {
            let data = stream.data().await.expect("the stream stands");
            heard.push_str(&String::from_utf8_lossy(&data.expect("it goes on")));
        }
        std::mem::take(&mut heard)
    };
    let first = until("event: heard").await;
    for part in ["headline", "replicas", "workers", "hour", "ring"] {
        assert!(
            first.contains(&format!("\"id\":\"{part}\"")),
            "{part} in {first}"
        );
    }
    let dead = house.workers.remove(0);
    let url = dead.url();
    dead.kill().await;
    let later = until("1 of 2 workers usable").await;
    assert!(later.contains(&url), "{later}");
    // It lasts longer than a connection may be idle, 15 s: one beat each two seconds.
    for _ in 0..9 {
        until("event: heard").await;
    }
    let mut others = Vec::new();
    for _ in 1..32 {
        others.push(listen(admin, "/page/live?of=replica&id=r1").await);
    }
    let refused = get(admin, "/page/live", &[]).await;
    assert_eq!(refused.head.status, 503, "{}", refused.text());
    drop(others);
    eventually(LIMIT, "who has left makes room", async || {
        let mut stream = Connection::open(admin).await;
        let head = b"GET /page/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.send(head).await.expect("taken");
        let status = stream.head().await.map(|head| head.status);
        (status == Ok(200))
            .then_some(())
            .ok_or(format!("{status:?}"))
    })
    .await;
}
