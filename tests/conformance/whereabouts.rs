//! Allowed addresses of workers: which ones the admin API refuses, and to which ones the replica never
//! connects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{exchange, post};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::house::{House, quick};

/// Adds a worker by both ways; the status and the message of the refusal.
async fn add(control: SocketAddr, url: &str) -> (u16, String) {
    let answer = post(control, "/workers", &json!({ "id": "asked", "url": url })).await;
    let escaped: String = url.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let same = exchange(
        control,
        "POST",
        &format!("/add_worker?url={escaped}"),
        &[],
        b"",
    )
    .await;
    assert_eq!(
        answer.head.status / 100,
        same.head.status / 100,
        "{url}: {}",
        same.text()
    );
    (answer.head.status, answer.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_not_added_where_secrets_are() {
    let house = House::new(1).await;
    let control = house.cluster.replicas[0].admin().0;
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "https://169.254.169.254",
        "http://2852039166:80",
        "http://0xa9fea9fe:80",
        "http://[::ffff:169.254.169.254]:80",
        "http://[fe80::1]:8000",
        "http://[fd00:ec2::254]:80",
        "file:///etc/passwd",
        "gopher://127.0.0.1:70",
        "http://user:secret@127.0.0.1:8000",
        "http://127.0.0.1:8000?x=1",
        "http://127.0.0.1:8000#x",
        "http://metadata.google.internal/computeMetadata/v1/",
        "http://METADATA.google.internal.:80",
        "http://instance-data:80",
        "http://metadata.azure.internal",
        "127.0.0.1:8000",
        "",
    ] {
        let (status, said) = add(control, url).await;
        assert_eq!(status, 400, "{url}: {said}");
        let error: Value = serde_json::from_str(&said).expect("OpenAI's shape");
        assert_eq!(error["error"]["type"], "invalid_request_error", "{said}");
        let is_special = ["169", "::", "metadata", "METADATA", "instance-data"];
        if is_special.iter().any(|part| url.contains(part)) {
            assert!(said.contains("workers.allow"), "it says what to do: {said}");
        }
    }
    // Nor is a known worker moved there.
    let known = house.cluster.replicas[0].admin().workers().await;
    let id = known[0].id.replace(':', "%3A").replace('/', "%2F");
    let body = json!({ "url": "http://169.254.169.254" }).to_string();
    let moved = exchange(
        control,
        "PATCH",
        &format!("/workers/{id}"),
        &[],
        body.as_bytes(),
    )
    .await;
    assert_eq!(moved.head.status, 400, "{}", moved.text());
    assert_eq!(house.cluster.replicas[0].admin().workers().await.len(), 1);
    house.close().await;
}

/// Redirects every client, and counts them.
struct Trap {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
    came: Arc<AtomicUsize>,
}

impl Trap {
    async fn start(redirects_to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let answer = format!(
            "HTTP/1.1 302 Found\r\nlocation: {redirects_to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let came = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&came);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self {
            address,
            _task: AbortOnDropHandle::new(task),
            came,
        }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }
}

async fn until_unhealthy(house: &House, id: &str) {
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "the worker is found unhealthy", async || {
        let workers = admin.workers().await;
        let unhealthy = workers
            .iter()
            .any(|w| w.id == id && w.health == "unhealthy");
        so(unhealthy, || format!("{workers:?}"))
    })
    .await;
}

fn chat_of(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_alone_says_where_workers_may_be_and_redirects_lead_nowhere() {
    let secret = Trap::start("/").await;
    let redirecting = Trap::start(&format!("http://{}/health", secret.address)).await;
    let allow = "[\"127.0.0.1\", \"10.0.0.0/8\", \"*.workers.example\"]";
    let plan = Plan::default().set("workers.allow", allow);
    let house = House::of(plan, vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin();
    for url in [
        "http://127.0.0.2:8000",
        "http://[::1]:8000",
        "http://192.168.0.1:8000",
        "http://169.254.169.254",
    ] {
        let (status, said) = add(admin.0, url).await;
        assert_eq!(status, 400, "{url}: {said}");
        assert!(said.contains("workers.allow"), "{said}");
    }
    let url = format!("http://{}", redirecting.address);
    admin.add_cold("redirecting", &url, &["other"]).await;
    until_unhealthy(&house, "redirecting").await;
    // No usable worker, or the redirect itself; not what it leads to.
    let answer = post(house.data(), "/v1/chat/completions", &chat_of("other")).await;
    assert_ne!(answer.head.status, 200, "{}", answer.text());
    assert!(redirecting.came() > 0);
    assert_eq!(secret.came(), 0, "a redirect was followed");
    admin.remove("redirecting").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_resolves_to_a_forbidden_address_is_not_connected_to() {
    let secret = Trap::start("/").await;
    let plan = Plan::default().set("workers.allow", "[\"10.0.0.0/8\"]");
    let house = House::of(plan, Vec::new()).await;
    let replica = &house.cluster.replicas[0];
    // When a name is added its address is not known; this one resolves to a loopback address.
    let url = format!("http://localhost:{}", secret.address.port());
    replica.admin().add_cold("rebound", &url, &["m"]).await;
    until_unhealthy(&house, "rebound").await;
    let answer = post(house.data(), "/v1/chat/completions", &chat_of("m")).await;
    assert_eq!(answer.head.status, 503, "{}", answer.text());
    assert_eq!(secret.came(), 0, "it was connected to");
    house.until_log_says("is not in workers.allow").await;
    replica.admin().remove("rebound").await;
}
