//! A running cluster: what the asked replica knows, and what each other one says of itself where its admin port answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::engines::{Known, engines};
use super::net::failure_to_connect;
use crate::cli::client::{AdminClient, NO_ADMIN_ADDRESS};
use crate::cli::doctor::facts::{ClusterFacts, DataPort, ReplicaFacts, series};
use crate::cli::failure::Failure;
use crate::cli::workers::workers_that;
use crate::shown::trouble::own_trouble;
use crate::shown::{field, rows};

/// Rings differ for a moment after each change of the workers; what differs for longer than this lasts.
const SECOND_LOOK: Duration = Duration::from_secs(3);

/// Other replicas that are asked for their workers at once: each answers with thousands of them, page by page.
const ASKED_AT_ONCE: usize = 8;

/// Asks the replica, and those that it names.
/// Errors: the first one does not answer, or refuses.
pub(in super::super) async fn gather(client: &AdminClient) -> Result<ClusterFacts, Failure> {
    let mut cluster = client.get(&["cluster"]).await?;
    if is_in_motion(&cluster) {
        sleep(SECOND_LOOK).await;
        cluster = client.get(&["cluster"]).await?;
    }
    let workers = workers_that(client, |_| true).await?;
    let discovery = client.get(&["discovery"]).await?;
    let own = field(&cluster, "replica");
    let troubled = workers.iter().filter(|row| is_troubled(row)).cloned();
    let mut facts = ClusterFacts {
        replicas: vec![replica(client, &own, Ok(troubled.collect())).await?],
        workers,
        sources: rows(&discovery, "sources").to_vec(),
        ..ClusterFacts::default()
    };
    let (mut asking, turns) = (JoinSet::new(), Arc::new(Semaphore::new(ASKED_AT_ONCE)));
    let live = rows(&cluster, "replicas")
        .iter()
        .filter(|row| row["live"] == true);
    for row in live.filter(|row| field(row, "id") != own) {
        let (id, admin) = (field(row, "id"), field(row, "admin"));
        let Some(other) = client.elsewhere(&admin) else {
            facts.not_asked.push((id, NO_ADMIN_ADDRESS.to_owned()));
            continue;
        };
        let turns = Arc::clone(&turns);
        asking.spawn(async move {
            let asked = replica(&other, &id, Err(&turns)).await;
            (id, asked)
        });
    }
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok((_, Ok(replica))) => facts.replicas.push(replica),
            Ok((id, Err(failure))) => facts.not_asked.push((id, failure.to_string())),
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
    facts.replicas[1..].sort_by(|a, b| a.id.cmp(&b.id));
    facts.not_asked.sort();
    facts.engines = engines(known(&facts.workers)).await;
    facts.data_ports = data_ports(&cluster, &facts).await;
    facts.cluster = cluster;
    Ok(facts)
}

/// The workers, as far as they can be compared. One that drains may have a successor at its address.
fn known(workers: &[Value]) -> Vec<Known> {
    let active = workers.iter().filter(|row| row["state"] == "active");
    let known = active.map(|row| {
        let url = row["url"].as_str()?.parse().ok()?;
        Some((field(row, "id"), url, row["epoch"].as_u64().unwrap_or(0)))
    });
    known.flatten().collect()
}

/// Whether live replicas differ in what becomes equal by itself.
fn is_in_motion(cluster: &Value) -> bool {
    let live = rows(cluster, "replicas")
        .iter()
        .filter(|row| row["live"] == true);
    let mut seen = live.map(|row| (field(row, "ring"), field(row, "registry")));
    let first = seen.next();
    seen.any(|row| Some(row) != first) || !rows(cluster, "unheard").is_empty()
}

fn is_troubled(worker: &Value) -> bool {
    own_trouble(worker).is_some()
}

/// What a replica says of itself; `troubled`: its workers in trouble, or whose turn it is to tell of thousands. Those that
/// do not answer hold no turn.
async fn replica(
    client: &AdminClient,
    id: &str,
    troubled: Result<Vec<Value>, &Semaphore>,
) -> Result<ReplicaFacts, Failure> {
    let cluster = client.get(&["cluster"]).await?;
    client.must_be(id, &cluster)?;
    let asked = Instant::now();
    let about = match client.get(&["about"]).await {
        Ok(about) => about,
        // An earlier release has none.
        Err(Failure::Refused(_)) => Value::Null,
        Err(failure) => return Err(failure),
    };
    let (now, took) = (now_ms(), asked.elapsed());
    let troubled = match troubled {
        Ok(troubled) => troubled,
        Err(turns) => {
            let _turn = turns.acquire().await;
            workers_that(client, is_troubled).await?
        }
    };
    let unsure_ms = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
    let ahead = |theirs: i64| theirs - (now - unsure_ms);
    Ok(ReplicaFacts {
        ahead_ms: about["now_ms"].as_i64().map(ahead),
        metrics: wanted(&client.text(&["metrics"]).await?),
        id: id.to_owned(),
        troubled,
        cluster,
        about,
        unsure_ms,
    })
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

/// Of metrics as text, those that the checks read.
fn wanted(text: &str) -> Vec<(String, f64)> {
    let lines = text
        .lines()
        .filter(|line| series::ALL.iter().any(|name| line.starts_with(name)));
    let parsed = lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        Some((series.to_owned(), value.parse().ok()?))
    });
    parsed.collect()
}

/// Tries the data ports: of loopback ones those of replicas that answered at loopback, which are this machine's.
async fn data_ports(cluster: &Value, facts: &ClusterFacts) -> Vec<DataPort> {
    let mut trying = JoinSet::new();
    for row in rows(cluster, "replicas") {
        let (replica, address) = (field(row, "id"), field(row, "data"));
        let is_asked = facts.replicas.iter().any(|asked| asked.id == replica);
        let is_here = is_asked && is_loopback(&field(row, "admin"));
        if row["live"] != true || (is_loopback(&address) && !is_here) {
            continue;
        }
        trying.spawn(async move {
            DataPort {
                failed: failure_to_connect(&address).await,
                replica,
                address,
            }
        });
    }
    let mut tried = trying.join_all().await;
    tried.sort_by(|a, b| a.replica.cmp(&b.replica));
    tried
}

fn is_loopback(address: &str) -> bool {
    let parsed = address.parse::<std::net::SocketAddr>();
    parsed.is_ok_and(|address| address.ip().is_loopback() || address.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::cli::fake_replica::{port, serve};

    #[test]
    fn the_metrics_that_are_read_are_found() {
        let text = "# HELP grapevine_limits_reached x\ngrapevine_limits_reached_total{limit=\"a b\"} 3\n\
             grapevine_requests_total 9\ngrapevine_log_lines_dropped_total 0\n\
             grapevine_tls_certificate_begins_seconds{files=\"listener\"} 7\n";
        let expected = [
            (
                "grapevine_limits_reached_total{limit=\"a b\"}".to_owned(),
                3.0,
            ),
            ("grapevine_log_lines_dropped_total".to_owned(), 0.0),
            (
                "grapevine_tls_certificate_begins_seconds{files=\"listener\"}".to_owned(),
                7.0,
            ),
        ];
        assert_eq!(wanted(text), expected);
    }

    #[tokio::test]
    async fn the_list_of_the_asked_replica_is_read_once() {
        let (listener, at) = port().await;
        let row =
            |id: &str, verdict: &str| json!({ "id": id, "state": "active", "verdict": verdict });
        let workers = [row("w1", "good"), row("w2", "unreachable")];
        let answer = json!({ "replica": "r1", "replicas": [], "workers": workers });
        let lists = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lists);
        let _replica = serve(listener, move |line| {
            count.fetch_add(usize::from(line.contains(" /workers")), Ordering::Relaxed);
            (200, answer.clone())
        });
        let url = format!("http://{at}").parse().expect("a URL");
        let client = AdminClient::at(url, None).expect("a client");
        let facts = gather(&client).await.expect("r1 answers");
        assert_eq!(facts.workers.len(), 2);
        assert_eq!(field(&facts.replicas[0].troubled[0], "id"), "w2");
        assert_eq!(facts.replicas[0].troubled.len(), 1);
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_second_look_is_for_what_becomes_equal() {
        let row = |ring: &str, live: bool| json!({ "ring": ring, "registry": "x", "live": live });
        let cluster = |rows: &[Value]| json!({ "replicas": rows });
        assert!(!is_in_motion(&cluster(&[row("a", true), row("a", true)])));
        assert!(!is_in_motion(&cluster(&[row("a", true), row("b", false)])));
        assert!(is_in_motion(&cluster(&[row("a", true), row("b", true)])));
    }

    #[test]
    fn loopback_is_known() {
        for (address, expected) in [
            ("127.0.0.1:9", true),
            ("[::1]:9", true),
            ("0.0.0.0:9", true),
            ("10.0.0.2:9", false),
            ("gpu-1:9", false),
        ] {
            assert_eq!(is_loopback(address), expected, "{address}");
        }
    }
}
