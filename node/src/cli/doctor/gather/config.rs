//! A configuration file, and what this machine has for it: files that it names, ports, names, routes, limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::SystemTime;

use grapevine_gossip::identity::certificates_in;
use serde_json::Value;
use tokio::task::JoinSet;
use url::Url;

use super::engines::{Known, engines};
use super::net;
use crate::cli::client::AdminClient;
use crate::cli::doctor::facts::{
    CertificateFact, ConfigFacts, PortFact, PortState, SeedFact, WorkerFact,
};
use crate::config::{Config, Layers, WorkerConfig};
use crate::descriptors::fitting;
use crate::lanes;
use crate::machine::{own_files_max, udp};
use crate::memory::Memory;
use crate::shown::field;
use crate::shown::words::days_until;

/// Workers that are tried; a list of thousands says the same by its first.
const WORKERS_TRIED: usize = 256;

/// Looks at what a file says, laid over the defaults and under the environment.
pub(in super::super) async fn gather(path: &Path, layers: &Layers) -> ConfigFacts {
    let (config, mistakes, notes) = crate::cli::check::examine(layers);
    let asked = config.limits.connections;
    let files_max = own_files_max();
    let memory = Memory::of(config.limits.memory);
    let (admin, data) = (&config.admin, &config.listen);
    ConfigFacts {
        path: path.display().to_string(),
        replica: config.replica_id(),
        is_named: config.replica.id.is_some(),
        mistakes: mistakes.iter().map(ToString::to_string).collect(),
        gossip_unread: mistakes.iter().any(|mistake| mistake.hides("gossip")),
        notes,
        certificates: certificates(&config),
        ports: ports(&config).await,
        seeds: seeds(&config).await,
        gossips: config.gossip.identity().is_some(),
        workers: workers(&config).await,
        engines: engines(config.worker.iter().map(known).collect()).await,
        connections: (asked, fitting(asked, files_max)),
        files_max,
        memory: (
            config.limits.body_bytes_total.0,
            memory.limit().map(|(limit, _)| limit),
        ),
        threads: (config.listen.threads, lanes::usual_count().get()),
        udp_buffer_bytes: udp::buffer_bytes(),
        admin_beyond_loopback: !admin.host.is_loopback(),
        data_without_keys: !data.host.is_loopback() && config.keys.file.is_none(),
        settings: match mistakes.is_empty() {
            true => serde_json::json!(config.must_agree()),
            // What could not be read has its default, and says nothing.
            false => Value::Null,
        },
    }
}

fn certificates(config: &Config) -> Vec<CertificateFact> {
    let id = config.replica_id();
    let issue = format!("grapevine ca issue {id} --force, and its two files onto this machine");
    let rotate = "grapevine ca rotate --help says how an authority is replaced".to_owned();
    let replace = "replace the file; it is read again by itself".to_owned();
    let named = [
        ("gossip.cert", &config.gossip.cert, issue),
        ("gossip.ca", &config.gossip.ca, rotate),
        ("tls.cert", &config.tls.cert, replace.clone()),
        ("workers.client_cert", &config.workers.client_cert, replace),
    ];
    let read = |(setting, file, renewal): (&'static str, &Option<std::path::PathBuf>, String)| {
        let file = file.as_ref()?;
        // One that cannot be read is a mistake, and told as such.
        let text = std::fs::read_to_string(file).ok()?;
        let found = certificates_in(setting, &text).ok()?;
        let ends = found
            .iter()
            .map(|(_, certificate)| certificate.until)
            .min()?;
        Some(CertificateFact {
            setting,
            file: file.display().to_string(),
            days: days_until(ends, SystemTime::now()),
            renewal,
        })
    };
    named.into_iter().filter_map(read).collect()
}

async fn ports(config: &Config) -> Vec<PortFact> {
    let (listen, admin, metrics) = (&config.listen, &config.admin, &config.metrics);
    let tcp = [
        ("listen.port", Some((listen.host, listen.port))),
        ("admin.port", Some((admin.host, admin.port))),
        (
            "metrics.port",
            metrics.enabled.then_some((metrics.host, metrics.port)),
        ),
        (
            "pings.listen",
            config.pings.listen.map(|at| (at.ip(), at.port())),
        ),
    ];
    let mut ports = Vec::new();
    for (setting, address) in tcp {
        // Port 0 is one that is free.
        let Some((host, port)) = address.filter(|(_, port)| *port != 0) else {
            continue;
        };
        let address = SocketAddr::new(host, port);
        ports.push((setting, address, net::tcp_port(address).await));
    }
    let gossip = SocketAddr::new(config.gossip.host, config.gossip.port);
    if config.gossip.identity().is_some() && gossip.port() != 0 {
        ports.push(("gossip.port", gossip, net::udp_port(gossip)));
    }
    let is_taken = |state: &PortState| *state == PortState::Taken;
    if ports.iter().any(|(_, _, state)| is_taken(state))
        && let Some(about) = running(config).await
    {
        for (setting, address, state) in &mut ports {
            if is_taken(state) && has_open(&about, setting, *address) {
                *state = PortState::Own;
            }
        }
    }
    let fact = |(setting, address, state): (_, SocketAddr, _)| PortFact {
        setting,
        address: address.to_string(),
        state,
    };
    ports.into_iter().map(fact).collect()
}

/// What the replica of this configuration says of itself, if it answers at its admin port.
async fn running(config: &Config) -> Option<Value> {
    let address = SocketAddr::new(reachable(config.admin.host), config.admin.port);
    let url = Url::parse(&format!("http://{address}")).ok()?;
    let token = config
        .admin
        .token
        .as_ref()
        .map(|token| token.reveal().to_owned());
    let client = AdminClient::at(url, token).ok()?;
    let cluster = client.get(&["cluster"]).await.ok()?;
    if field(&cluster, "replica") != config.replica_id() {
        return None;
    }
    // An earlier release has none.
    Some(client.get(&["about"]).await.unwrap_or_default())
}

/// Whether a replica that says this of itself has an address open for this setting. Since it began, the file may have
/// got another one, which is somebody else's. Where it does not say, as an earlier release, it is taken to have it.
fn has_open(about: &Value, setting: &str, wanted: SocketAddr) -> bool {
    let name = match setting {
        "listen.port" => "data",
        "admin.port" => "admin",
        "metrics.port" => "metrics",
        "pings.listen" => "pings",
        _ => "gossip",
    };
    let Some(said) = about["listen"].get(name) else {
        return true;
    };
    let open = said.as_str().and_then(|said| said.parse().ok());
    open.is_some_and(|open: SocketAddr| {
        // A port of all addresses takes that of each.
        let is_any = open.ip().is_unspecified() || wanted.ip().is_unspecified();
        open.port() == wanted.port() && (is_any || open.ip() == wanted.ip())
    })
}

/// "Any address" is reached at loopback.
fn reachable(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(host) if host.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(host) if host.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        host => host,
    }
}

async fn seeds(config: &Config) -> Vec<SeedFact> {
    let own = SocketAddr::new(config.gossip.host, config.gossip.port);
    let advertised = config.gossip.advertise.as_ref().map(ToString::to_string);
    let mut seeds = Vec::new();
    for seed in config.gossip.seeds.iter().map(ToString::to_string) {
        let found = net::addresses(&seed).await;
        let addresses = found.as_deref().unwrap_or_default();
        let is_own = advertised.as_ref() == Some(&seed) || addresses.contains(&own);
        let first = addresses.first().filter(|_| !is_own);
        let route_mtu = first.and_then(|to| Some((net::route_mtu(*to)?, to.is_ipv6())));
        seeds.push(SeedFact {
            seed,
            is_own,
            route_mtu,
            addresses: found.map(|found| found.iter().map(ToString::to_string).collect()),
        });
    }
    seeds
}

fn known(worker: &WorkerConfig) -> Known {
    let name = worker.id.clone().unwrap_or_else(|| worker.url.to_string());
    (name, worker.url.clone(), 0)
}

async fn workers(config: &Config) -> Vec<WorkerFact> {
    let mut trying = JoinSet::new();
    for (at, worker) in config.worker.iter().take(WORKERS_TRIED).enumerate() {
        let (url, authority) = (worker.url.to_string(), worker.url.authority().to_owned());
        trying.spawn(async move {
            let failed = net::failure_to_connect(&authority).await;
            (at, WorkerFact { url, failed })
        });
    }
    let mut tried = trying.join_all().await;
    tried.sort_by_key(|(at, _)| *at);
    tried.into_iter().map(|(_, worker)| worker).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_port_is_the_replicas_own_only_where_it_says_that_it_has_it_open() {
        let about = json!({ "listen": {
            "data": "0.0.0.0:30000",
            "admin": "127.0.0.1:30001",
            "metrics": null,
            "gossip": "[::1]:30002",
        } });
        for (setting, address, is_own) in [
            ("listen.port", "0.0.0.0:30000", true),
            ("listen.port", "192.0.2.1:30000", true),
            ("listen.port", "0.0.0.0:30005", false),
            ("admin.port", "127.0.0.1:30001", true),
            ("admin.port", "0.0.0.0:30001", true),
            ("admin.port", "127.0.0.2:30001", false),
            ("metrics.port", "127.0.0.1:30003", false),
            ("gossip.port", "[::1]:30002", true),
            ("gossip.port", "[::1]:30004", false),
            // It is of a release that does not say.
            ("pings.listen", "127.0.0.1:30006", true),
        ] {
            let wanted = address.parse().expect("an address");
            let found = has_open(&about, setting, wanted);
            assert_eq!(found, is_own, "{setting} {address}");
        }
        let wanted = ([127, 0, 0, 1], 30_000).into();
        assert!(has_open(&Value::Null, "listen.port", wanted));
    }
}
