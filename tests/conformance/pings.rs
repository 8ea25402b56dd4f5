//! Engines that register by ZeroMQ, judged by a ZeroMQ and a MessagePack that are not ours (`pinging_engine.py`).

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::environment::{FOLDER, program};

/// Silence of 5 s, then a look each second.
const LIMIT: Duration = Duration::from_secs(60);
/// The shortest that the settings allow.
const TTL: &str = "\"5s\"";

/// Engines that ping the first replica.
async fn engines(cluster: &Cluster, engines: &[Value]) -> Child {
    let script = Path::new(FOLDER).join("pinging_engine.py");
    let mut command = Command::new(program("python").await);
    command
        .arg(script)
        .arg(cluster.replicas[0].pings().to_string());
    command.args(engines.iter().map(Value::to_string));
    command.stdin(Stdio::piped()).kill_on_drop(true);
    command.spawn().expect("python can be run")
}

/// Waits until every replica shows exactly these workers, in these states.
async fn all_show(cluster: &Cluster, wanted: &[(&str, &str)]) {
    eventually(LIMIT, "all replicas show the engines", async || {
        for replica in cluster.running() {
            let workers = replica.admin().workers().await;
            let seen = workers.iter().map(|w| (w.id.as_str(), w.state.as_str()));
            let seen: Vec<_> = seen.collect();
            if seen != wanted {
                return Err(format!("{} shows {seen:?}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_ping_one_replica_are_known_to_all_and_their_silence_too() {
    let plan = Plan::default()
        .set("pings.listen", "\"127.0.0.1:0\"")
        .set("pings.ttl", TTL);
    let cluster = plan.start(2).await;
    let p2p = json!({"type": "P", "http_address": "127.0.0.1:1", "zmq_address": "127.0.0.1:21001"});
    let moriio = json!({
        "type": "D", "http_address": "127.0.0.1:2",
        "zmq_address": "host:127.0.0.1,handshake:6301,notify:61005",
        "transfer_mode": "READ", "tp_size": 1, "dp_size": 1, "node_hosts": ["127.0.0.1"],
    });
    let mut engines = engines(&cluster, &[p2p, moriio]).await;
    let (first, second) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
    all_show(&cluster, &[(first, "active"), (second, "active")]).await;
    // The second engine ends; the first one's pings show that the way is open.
    let mut orders = engines.stdin.take().expect("piped");
    orders.write_all(b"end\n").await.expect("it runs");
    all_show(&cluster, &[(first, "active"), (second, "draining")]).await;
    let metrics = cluster.replicas[0].admin().metrics().await;
    assert!(metrics.sum("grapevine_pings_total", "result=\"renewed\"") >= 2.0);
    drop(orders);
    let ended = engines.wait().await.expect("python ends");
    assert!(ended.success(), "{ended}");
}
