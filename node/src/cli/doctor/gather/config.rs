//! A configuration file, and what this machine has for it: files that it names, ports, names, routes, limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::SystemTime;

use grapevine_gossip::identity::certificates_in;
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

/// Workers that are tried; a list of thousands says the same by its first.
const WORKERS_TRIED: usize = 256;
const DAY_S: u64 = 86_400;

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
            false => serde_json::Value::Null,
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
            days: days_until(ends),
            renewal,
        })
    };
    named.into_iter().filter_map(read).collect()
}

fn days_until(end: SystemTime) -> i64 {
    let days = |seconds: u64| i64::try_from(seconds / DAY_S).unwrap_or(i64::MAX);
    match end.duration_since(SystemTime::now()) {
        Ok(left) => days(left.as_secs()),
        Err(over) => -1 - days(over.duration().as_secs()),
    }
}

async fn ports(config: &Config) -> Vec<PortFact> {
    let tcp = [
        (
            "listen.port",
            Some((config.listen.host, config.listen.port)),
        ),
        ("admin.port", Some((config.admin.host, config.admin.port))),
        (
            "metrics.port",
            config
                .metrics
                .enabled
                .then_some((config.metrics.host, config.metrics.port)),
        ),
        (
            "pings.listen",
            config
                .pings
                .listen
                .map(|address| (address.ip(), address.port())),
        ),
    ];
    let mut ports = Vec::new();
    let fact = |setting, address: SocketAddr, state| PortFact {
        setting,
        address: address.to_string(),
        state,
    };
    for (setting, address) in tcp {
        // Port 0 is one that is free.
        let Some((host, port)) = address.filter(|(_, port)| *port != 0) else {
            continue;
        };
        let address = SocketAddr::new(host, port);
        ports.push(fact(setting, address, net::tcp_port(address).await));
    }
    let gossip = SocketAddr::new(config.gossip.host, config.gossip.port);
    if config.gossip.identity().is_some() && gossip.port() != 0 {
        ports.push(fact("gossip.port", gossip, net::udp_port(gossip)));
    }
    let is_taken = |port: &&mut PortFact| port.state == PortState::Taken;
    if ports.iter_mut().any(|port| is_taken(&port)) && runs(config).await {
        ports
            .iter_mut()
            .filter(is_taken)
            .for_each(|port| port.state = PortState::Own);
    }
    ports
}

/// Whether the replica of this configuration answers at its admin port.
async fn runs(config: &Config) -> bool {
    let address = SocketAddr::new(reachable(config.admin.host), config.admin.port);
    let Ok(url) = Url::parse(&format!("http://{address}")) else {
        return false;
    };
    let token = config
        .admin
        .token
        .as_ref()
        .map(|token| token.reveal().to_owned());
    let Ok(client) = AdminClient::at(url, token) else {
        return false;
    };
    let answered = client.get(&["cluster"]).await;
    answered.is_ok_and(|cluster| field(&cluster, "replica") == config.replica_id())
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
