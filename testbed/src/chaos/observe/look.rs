//! One look at one replica: its admin API, and its process where that runs on this machine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use tokio::try_join;

use super::super::record::Seen;
use super::super::seat::Seat;
use grapevine_bench::client::{Ask, Client, Target};

/// A replica that takes longer counts as silent. Well above what a replica on a busy machine needs; a paused one
/// delays the looks at the others for that long.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Limit of one question where a prompt would go.
const EXPLAIN_WITHIN: Duration = Duration::from_secs(1);
/// Clock ticks of `/proc/<pid>/stat` in a second: `USER_HZ`, fixed by Linux's interface to programs.
const TICKS_PER_S: f64 = 100.0;

/// Clients of one replica, kept from look to look.
pub(super) struct Eye {
    admin: Target,
    token: Option<String>,
    client: Arc<Client>,
}

impl Eye {
    /// The client for this seat, made anew when its address or token has changed.
    pub(super) fn of(eyes: &mut BTreeMap<String, Self>, seat: &Seat) -> Option<Arc<Client>> {
        let admin = seat.admin.as_ref()?;
        let fresh = || {
            let client = Client::one(admin.clone());
            let client = match &seat.token {
                Some(token) => client.with_token(token).ok()?,
                None => client,
            };
            Some(Self {
                admin: admin.clone(),
                token: seat.token.clone(),
                client: Arc::new(client),
            })
        };
        let eye = match eyes.entry(seat.name.clone()) {
            Entry::Occupied(known) => {
                let eye = known.into_mut();
                if eye.admin != *admin || eye.token != seat.token {
                    *eye = fresh()?;
                }
                eye
            }
            Entry::Vacant(place) => place.insert(fresh()?),
        };
        Some(Arc::clone(&eye.client))
    }
}

/// What one replica answered.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) seen: Seen,
    /// By its own metrics.
    pub(super) resident_bytes: Option<u64>,
    /// One for each prompt; shorter when the replica stopped answering in between.
    pub(super) placements: Placements,
}

pub(super) type Placements = Vec<Placement>;

/// Where a prompt would go.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) now: Option<String>,
    /// Without regard to load.
    pub(super) idle: Option<String>,
}

#[derive(Deserialize)]
struct Ring {
    digest: String,
    workers: u64,
    registry: Registry,
}

#[derive(Deserialize)]
struct Registry {
    crc: String,
}

#[derive(Deserialize)]
struct Explained {
    worker: Option<String>,
}

/// Asks a replica; `None` when there is no valid answer in time.
pub(super) async fn look(client: &Client, prompts: &[Ask]) -> Option<Look> {
    let ring = client.json::<Ring>("/ring", ANSWER_WITHIN);
    let metrics = client.text(Method::GET, "/metrics", Bytes::new(), ANSWER_WITHIN);
    let (ring, metrics) = try_join!(ring, metrics).ok()?;
    let count = |name| gauge(&metrics, name).map(|value| value as u64);
    let seen = Seen {
        ready: count("grapevine_ready")? == 1,
        ring: ring.digest,
        registry: ring.registry.crc,
        workers: ring.workers,
        live_peers: count("grapevine_gossip_peers_live")?,
        isolated: count("grapevine_gossip_isolated")? == 1,
        in_flight: count("grapevine_requests_active")?,
    };
    let mut placements = Vec::with_capacity(prompts.len());
    for ask in prompts {
        let now = explain(client, ask, "now");
        let idle = explain(client, ask, "ignore");
        let Ok((now, idle)) = try_join!(now, idle) else {
            break;
        };
        placements.push(Placement { now, idle });
    }
    Some(Look {
        seen,
        resident_bytes: count("process_resident_memory_bytes").filter(|bytes| *bytes > 0),
        placements,
    })
}

async fn explain(client: &Client, ask: &Ask, load: &str) -> anyhow::Result<Option<String>> {
    let path = format!("/explain?path={}&load={load}", ask.path);
    let body = ask.body.clone();
    let text = client
        .text(Method::POST, &path, body, EXPLAIN_WITHIN)
        .await?;
    Ok(serde_json::from_str::<Explained>(&text)?.worker)
}

/// The value of a series without labels in the OpenMetrics text.
fn gauge(metrics: &str, name: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    metrics.lines().find_map(value)
}

/// Figures of a process from the system; each is absent where the system has none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Process {
    pub(super) rss_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) cpu_s: Option<f64>,
}

/// Reads `/proc`; `None` when there is no such process. Files there are made in memory: reading them does not
/// wait for a disk.
pub(super) fn process(pid: u32) -> Option<Process> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let status = read("status")?;
    let stat = read("stat")?;
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok();
    Some(Process {
        rss_bytes: resident(&status),
        open_files: files.map(|files| files.count() as u64),
        cpu_s: cpu(&stat),
    })
}

/// `VmRSS` of `/proc/<pid>/status`, which is in kB; a zombie has none. proc(5).
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Fields 14 and 15 of `/proc/<pid>/stat`; the second field is a name in brackets and may hold blanks. proc(5).
fn cpu(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    Some((user + system) as f64 / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_found_by_their_whole_name() {
        let text = "# TYPE grapevine_ready gauge\ngrapevine_ready_x 7\ngrapevine_ready 1\ngrapevine_w{a=\"b\"} 3\nx nan\n";
        assert_eq!(gauge(text, "grapevine_ready"), Some(1.0));
        assert_eq!(gauge(text, "grapevine_w"), None);
        assert_eq!(gauge(text, "grapevine"), None);
    }

    #[test]
    fn this_process_has_memory_files_and_time() {
        let process = process(std::process::id()).expect("it runs");
        assert!(process.rss_bytes.expect("Linux tells") > 100 << 10);
        assert!(process.open_files.expect("own ones may be read") >= 3);
        assert!(process.cpu_s.expect("Linux tells") >= 0.0);
        assert_eq!(super::process(u32::MAX), None);
    }

    #[test]
    fn names_of_processes_may_hold_brackets() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0";
        assert_eq!(cpu(stat), Some(2.0));
        assert_eq!(cpu("7 (a"), None);
        assert_eq!(resident("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident("Name:\tzombie\n"), None);
    }
}
