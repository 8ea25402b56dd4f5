//! Roles and labels of workers: declared anywhere, learned from engines, and the same on every replica.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_tests::chat::MODEL;
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::process;
use grapevine_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::worker_kill::start_worker;

/// A worker is asked again every 60 health checks.
const LIMIT: Duration = Duration::from_secs(60);

/// The side of a Mooncake prefill worker that tells the ids of its engines.
struct Bootstrap {
    address: SocketAddr,
    id: Arc<Mutex<String>>,
    _task: AbortOnDropHandle<()>,
}

impl Bootstrap {
    async fn start(id: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let id = Arc::new(Mutex::new(id.to_owned()));
        let told = Arc::clone(&id);
        let task = tokio::task::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let body = {
                    let id = told.lock().expect("whole");
                    json!({ "0": { "engine_id": *id } }).to_string()
                };
                let mut head = [0; 4096];
                let read = stream.read(&mut head).await.unwrap_or(0);
                let is_asked = head[..read].starts_with(b"GET /query HTTP/1.1\r\n");
                let status = if is_asked { "200 OK" } else { "404 Not Found" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                // A client that left asks again.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let _task = AbortOnDropHandle::new(task);
        Self { address, id, _task }
    }

    fn set(&self, id: &str) {
        id.clone_into(&mut self.id.lock().expect("whole"));
    }
}

/// What every running replica shows of a worker, once all show the same, and `is_so`.
async fn everywhere(cluster: &Cluster, id: &str, what: &str, is_so: impl Fn(&Value) -> bool) {
    eventually(LIMIT, what, async || {
        for replica in cluster.running() {
            let answer = http1::get(replica.admin().0, &format!("/workers/{id}")).await;
            let shown: Value = answer.json();
            if !is_so(&shown) {
                return Err(format!("{}: {} {shown}", replica.name, answer.head.status));
            }
        }
        Ok(())
    })
    .await;
}

fn label<'a>(shown: &'a Value, name: &str) -> Option<&'a str> {
    shown["labels"][name].as_str()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_declared_and_what_engines_report_is_known_to_every_replica() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (_decoder, decoder) = start_worker(&dir, "d", "0").await;
    let (_prefiller, prefiller) = start_worker(&dir, "p", "0").await;
    let bootstrap = Bootstrap::start("engine-1").await;
    let lines = "id = \"d\"\nrole = \"decode\"\nlabels = { \"kv.tp_size\" = \"2\" }\n";
    let plan = Plan::default().worker_with(&decoder, &[MODEL], lines);
    let cluster = plan.start(3).await;
    everywhere(&cluster, "d", "the configuration's labels", |shown| {
        shown["role"] == "decode" && label(shown, "kv.tp_size") == Some("2")
    })
    .await;

    // Added at one replica; the engine is asked by those that probe the worker.
    let body = json!({
        "url": prefiller, "id": "p", "models": [MODEL], "role": "prefill", "kv_connector": "MooncakeConnector",
        "bootstrap_port": bootstrap.address.port(),
    });
    let added = http1::post(cluster.replicas[0].admin().0, "/workers", &body).await;
    assert_eq!(added.head.status, 201, "{}", added.text());
    everywhere(&cluster, "p", "what the engine reports", |shown| {
        shown["role"] == "prefill"
            && label(shown, "kv.connector") == Some("MooncakeConnector")
            && label(shown, "kv.engine_id") == Some("engine-1")
            && label(shown, "engine.version") == Some("0.32.0")
            && label(shown, "kv.block_size").is_some()
    })
    .await;

    // Its engine is another one.
    bootstrap.set("engine-2");
    everywhere(&cluster, "p", "the new id of its engine", |shown| {
        label(shown, "kv.engine_id") == Some("engine-2")
    })
    .await;

    // Changed at another replica; what else is known stays.
    let change = json!({ "labels": { "kv.tp_size": "4" } }).to_string();
    let admin = cluster.replicas[2].admin().0;
    let json = [("content-type", "application/json")];
    let changed = http1::exchange(admin, "PATCH", "/workers/p", &json, change.as_bytes()).await;
    assert_eq!(changed.head.status, 200, "{}", changed.text());
    everywhere(
        &cluster,
        "p",
        "the changed label beside the others",
        |shown| {
            label(shown, "kv.tp_size") == Some("4")
                && label(shown, "kv.engine_id") == Some("engine-2")
        },
    )
    .await;
    for (body, part) in [
        (json!({ "labels": { "Bad": "1" } }), "label"),
        (json!({ "role": "both" }), "role"),
        (json!({ "bootstrap_port": 0 }), "bootstrap_port"),
    ] {
        let body = body.to_string();
        let refused = http1::exchange(admin, "PATCH", "/workers/p", &json, body.as_bytes()).await;
        assert_eq!(refused.head.status, 400, "{body}");
        assert!(refused.text().contains(part), "{}", refused.text());
    }

    // One that is known and added again is described anew, and the answer and the command say what changed.
    let anew = json!({ "url": prefiller, "id": "p", "models": [MODEL], "weight": 2 });
    let added = http1::post(cluster.replicas[0].admin().0, "/workers", &anew).await;
    assert_eq!(added.head.status, 201, "{}", added.text());
    let added: Value = added.json();
    let changes = added["changes"].as_array().expect("there are some");
    for change in ["role: prefill -> any", "weight: 1 -> 2"] {
        assert!(changes.contains(&json!(change)), "{change}: {added}");
    }
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let words = [
        "workers",
        "add",
        prefiller.as_str(),
        "--id",
        "p",
        "--role",
        "prefill",
        "--model",
        MODEL,
        "--admin",
        &admin,
    ];
    let told = process::run(&words).await;
    assert_eq!(told.code, Some(0), "{}", told.text);
    let expected = "p was known, and is changed: role: any -> prefill; weight: 2 -> 1";
    assert!(told.text.contains(expected), "{}", told.text);

    // A worker that is removed and added again begins anew.
    cluster.replicas[1].admin().remove("p").await;
    let again = json!({ "url": prefiller, "id": "p", "models": [MODEL] });
    let added = http1::post(cluster.replicas[0].admin().0, "/workers", &again).await;
    assert_eq!(added.head.status, 201, "{}", added.text());
    everywhere(&cluster, "p", "a worker without labels", |shown| {
        shown["role"] == "any" && shown["labels"] == json!({})
    })
    .await;
    cluster.settled().await;
}
