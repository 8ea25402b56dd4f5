//! Settings that are good alone and wrong together.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use grapevine_discovery::dns::NAMES_MAX;
#[cfg(feature = "kubernetes")]
use grapevine_discovery::kubernetes::SettingsError;
use grapevine_gossip::worker::Role;
use grapevine_placement::{ModelFault, Target};

use super::Config;
use super::allow::Allow;
use super::cors::Wild;
use super::discovery::DnsConfig;
use super::error::{Origin, Problem};
use super::raw::Raw;
use super::section_values::SectionValues;
use super::selector;
use super::types::{OtlpProtocol, SECRET_BYTES_MIN, Secret};

/// Everything that does not fit together, each at the place of the setting to change.
pub(super) fn problems(config: &Config, raw: &Raw) -> Vec<Problem> {
    let mut checks = Checks {
        raw,
        problems: Vec::new(),
    };
    admin(config, &mut checks);
    ports(config, &mut checks);
    gossip(config, &mut checks);
    sizes(config, &mut checks);
    tls(config, &mut checks);
    cors(config, &mut checks);
    workers(config, &mut checks);
    discovery(config, &mut checks);
    models(config, &mut checks);
    collectors(config, &mut checks);
    checks.problems
}

/// The same of settings of which a part was read again: those that may change while the replica runs beside the others.
pub(super) fn of_live(config: &Config) -> Vec<Problem> {
    let raw = Raw::new();
    let mut checks = Checks {
        raw: &raw,
        problems: Vec::new(),
    };
    admin(config, &mut checks);
    sizes(config, &mut checks);
    tls(config, &mut checks);
    cors(config, &mut checks);
    // New workers have to fit the rule by which this replica connects.
    workers(config, &mut checks);
    discovery(config, &mut checks);
    checks.problems
}

struct Checks<'a> {
    raw: &'a Raw,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    fn refuse_if(&mut self, wrong: bool, section: &str, key: &str, what: impl Into<String>) {
        if wrong {
            self.refuse(
                self.raw.origin_of(section, key),
                &format!("{section}.{key}"),
                what,
            );
        }
    }

    fn refuse(&mut self, origin: Origin, key: &str, what: impl Into<String>) {
        self.problems.push(Problem {
            origin,
            key: key.to_owned(),
            what: what.into(),
        });
    }
}

fn admin(config: &Config, checks: &mut Checks<'_>) {
    let admin = &config.admin;
    checks.refuse_if(
        !admin.host.is_loopback() && admin.token.is_none(),
        "admin",
        "host",
        format!(
            "{} is beyond loopback, so a token is required: set admin.token, \
             GRAPEVINE_ADMIN__TOKEN or --admin-token",
            admin.host
        ),
    );
    let is_short = |token: &Secret| !admin.host.is_loopback() && token.is_short();
    checks.refuse_if(
        admin.token.as_ref().is_some_and(is_short),
        "admin",
        "token",
        format!(
            "beyond loopback a token has at least {SECRET_BYTES_MIN} characters, so that it cannot be guessed: \
             `openssl rand -hex 16` makes one"
        ),
    );
}

fn collectors(config: &Config, checks: &mut Checks<'_>) {
    let (trace, metrics) = (&config.trace, &config.metrics_export);
    for (section, flag, endpoint, protocol) in [
        ("trace", "traces", &trace.endpoint, trace.protocol),
        (
            "metrics_export",
            "metrics",
            &metrics.endpoint,
            metrics.protocol,
        ),
    ] {
        let Some(collector) = endpoint else { continue };
        let is_grpc = protocol == OtlpProtocol::Grpc;
        checks.refuse_if(
            collector.is_target && !is_grpc,
            section,
            "endpoint",
            format!(
                "host:port is how gRPC's addresses are written: set {section}.protocol = \"grpc\" \
                 (--otlp-{flag}-protocol grpc), or write http://host:port for OTLP over HTTP"
            ),
        );
        checks.refuse_if(
            is_grpc && collector.url.path() != "/",
            section,
            "endpoint",
            "a gRPC collector has no path: write http://host:port",
        );
    }
}

/// Two of ours cannot listen at one address.
fn ports(config: &Config, checks: &mut Checks<'_>) {
    let (listen, admin, metrics) = (&config.listen, &config.admin, &config.metrics);
    let pings = config.pings.listen.map(|at| ("pings", at.ip(), at.port()));
    let data = ("listen", listen.host, listen.port);
    let admin = ("admin", admin.host, admin.port);
    let metrics = metrics
        .enabled
        .then_some(("metrics", metrics.host, metrics.port));
    let pairs = [
        (Some(admin), Some(data)),
        (metrics, Some(data)),
        (metrics, Some(admin)),
        (pings, Some(data)),
        (pings, Some(admin)),
        (pings, metrics),
    ];
    for pair in pairs {
        let (Some((section, host, port)), Some((other, other_host, other_port))) = pair else {
            continue;
        };
        let meets = has(host, other_host) || has(other_host, host);
        checks.refuse_if(
            meets && port == other_port && port != 0,
            section,
            if section == "pings" { "listen" } else { "port" },
            format!("{port} is the port of [{other}], too"),
        );
    }
}

/// Whether who listens at a host has the port of the other one, too: `::` is all addresses, `0.0.0.0` those of IPv4.
fn has(host: IpAddr, other: IpAddr) -> bool {
    let all = host.is_unspecified() && (host.is_ipv6() || other.is_ipv4());
    all || host == other
}

fn gossip(config: &Config, checks: &mut Checks<'_>) {
    let gossip = &config.gossip;
    let files = [
        ("ca", &gossip.ca),
        ("cert", &gossip.cert),
        ("key", &gossip.key),
    ];
    let set = files.iter().filter(|(_, file)| file.is_some()).count();
    if let Some((there, _)) = files.iter().find(|(_, file)| file.is_some()) {
        for (key, _) in files.iter().filter(|(_, file)| file.is_none()) {
            // What is missing is missing beside the others.
            let origin = checks.raw.origin_of("gossip", there);
            let what = "missing; ca, cert and key go together";
            checks.refuse(origin, &format!("gossip.{key}"), what);
        }
    }
    checks.refuse_if(
        set == 0 && gossip.revoked.is_some(),
        "gossip",
        "revoked",
        "a list of revoked certificates needs certificates: set gossip.ca, gossip.cert and gossip.key",
    );
    let replica = config.replica_id();
    let make = format!(
        "run `grapevine ca init` once and `grapevine ca issue {replica}` for this replica, then \
         set gossip.ca, gossip.cert and gossip.key"
    );
    checks.refuse_if(
        set == 0 && !gossip.host.is_loopback(),
        "gossip",
        "host",
        format!(
            "{} is beyond loopback, so certificates are required: {make}",
            gossip.host
        ),
    );
    checks.refuse_if(
        set == 0 && !gossip.seeds.is_empty(),
        "gossip",
        "seeds",
        format!("replicas know each other by certificates, and there are none: {make}"),
    );
    checks.refuse_if(
        (set != 0 || !gossip.seeds.is_empty()) && config.replica.id.is_none(),
        "replica",
        "id",
        "missing; a replica with seeds or certificates needs a name that no other one has",
    );
    checks.refuse_if(
        gossip.host.is_unspecified() && gossip.advertise.is_none(),
        "gossip",
        "advertise",
        format!(
            "missing; gossip is bound to {}, so say where the others reach this replica, as \
             \"host:port\"",
            gossip.host
        ),
    );
}

fn sizes(config: &Config, checks: &mut Checks<'_>) {
    let limits = &config.limits;
    checks.refuse_if(
        limits.body_bytes > limits.body_bytes_total,
        "limits",
        "body_bytes",
        format!(
            "{} for one body is more than limits.body_bytes_total, {} for all",
            limits.body_bytes, limits.body_bytes_total
        ),
    );
    let admission = &config.admission;
    checks.refuse_if(
        admission.priority > admission.priority_max,
        "admission",
        "priority",
        format!(
            "{} is more urgent than admission.priority_max, {}, which no request without a key goes beyond",
            admission.priority.as_str(),
            admission.priority_max.as_str()
        ),
    );
    let cache = &config.cache;
    checks.refuse_if(
        cache.entry_bytes > cache.bytes,
        "cache",
        "entry_bytes",
        format!(
            "{} for one answer is more than cache.bytes, {} for all",
            cache.entry_bytes, cache.bytes
        ),
    );
    let retry = &config.retry;
    checks.refuse_if(
        retry.initial_backoff > retry.max_backoff,
        "retry",
        "initial_backoff",
        "longer than retry.max_backoff",
    );
    checks.refuse_if(
        !config.health.path.starts_with('/'),
        "health",
        "path",
        "must begin with a slash, such as \"/health\"",
    );
}

fn tls(config: &Config, checks: &mut Checks<'_>) {
    let (tls, workers) = (&config.tls, &config.workers);
    let pairs = [
        ("tls", [("cert", &tls.cert), ("key", &tls.key)]),
        (
            "workers",
            [
                ("client_cert", &workers.client_cert),
                ("client_key", &workers.client_key),
            ],
        ),
    ];
    for (section, [cert, key]) in pairs {
        for ((name, file), (other, other_file)) in [(cert, key), (key, cert)] {
            if file.is_none() && other_file.is_some() {
                // What is missing is missing beside the other one.
                let origin = checks.raw.origin_of(section, other);
                let what = format!("missing; {other} and {name} go together");
                checks.refuse(origin, &format!("{section}.{name}"), what);
            }
        }
    }
    checks.refuse_if(
        tls.client_ca.is_some() && tls.cert.is_none() && tls.key.is_none(),
        "tls",
        "client_ca",
        "certificates of clients need TLS: set tls.cert and tls.key",
    );
    checks.refuse_if(
        workers.api_key.is_some() && workers.api_key_file.is_some(),
        "workers",
        "api_key_file",
        KEY_TWICE,
    );
}

fn cors(config: &Config, checks: &mut Checks<'_>) {
    let cors = &config.cors;
    checks.refuse_if(
        cors.allow_credentials && cors.allowed_origins.contains(&Wild::Any),
        "cors",
        "allow_credentials",
        "browsers take no credentials together with \"*\", and to answer each page with its own origin would hand \
         its user's credentials to every page there is: list the origins in cors.allowed_origins",
    );
}

const KEY_TWICE: &str = "the key is given twice; keep api_key or api_key_file";

/// The ports of this replica, as far as they are fixed: where others reach each, and its name.
fn own_ports(config: &Config) -> Vec<(String, &'static str)> {
    let fixed = |host, port, name| {
        (port != 0).then(|| (config.reached_at(SocketAddr::new(host, port)), name))
    };
    let (listen, admin) = (&config.listen, &config.admin);
    let ports = [
        fixed(listen.host, listen.port, "data port"),
        fixed(admin.host, admin.port, "admin port"),
        config.metrics_at().map(|at| (at, "metrics port")),
    ];
    ports.into_iter().flatten().collect()
}

fn workers(config: &Config, checks: &mut Checks<'_>) {
    for (table, worker) in checks.raw.workers.iter().zip(&config.worker) {
        if worker.api_key.is_some() && worker.api_key_file.is_some() {
            let origin = origin_in(table, "api_key_file");
            checks.refuse(origin, "worker.api_key_file", KEY_TWICE);
        }
    }
    let allow = Allow::new(config.workers.allow.clone());
    let own = own_ports(config);
    let mut seen = BTreeSet::new();
    // The list begins with the `[[worker]]` sections, in their order; the lists of `[workers]` follow.
    for (index, worker) in config.worker.iter().enumerate() {
        if let Err(error) = worker.declared_labels() {
            let origin = checks.raw.workers.get(index);
            let origin = origin.map_or(Origin::Whole, |table| origin_in(table, "labels"));
            checks.refuse(origin, "worker.labels", error.to_string());
        }
        let what = match worker.registered() {
            Ok((id, _)) if seen.contains(&id) => format!("{id} is there twice"),
            Ok((id, spec)) => {
                seen.insert(id);
                let url = spec.url();
                let port = own.iter().find(|(at, _)| at == url.authority());
                match (allow.host(url.host()), port) {
                    (Err(refused), _) => refused.to_string(),
                    (Ok(()), None) => continue,
                    (Ok(()), Some((_, port))) => format!(
                        "{} is the {port} of this replica, not a worker: give the address of an engine",
                        worker.url
                    ),
                }
            }
            Err(first) => {
                let mistakes = worker.mistakes();
                match checks.raw.workers.get(index) {
                    Some(table) if !mistakes.is_empty() => {
                        for (key, error) in mistakes {
                            let origin = origin_in(table, key);
                            checks.refuse(origin, &format!("worker.{key}"), error.to_string());
                        }
                        continue;
                    }
                    _ => first.to_string(),
                }
            }
        };
        match checks.raw.workers.get(index) {
            Some(section) => checks.refuse(section.origin.clone(), "worker", what),
            None => checks.refuse_if(true, "workers", list_of(worker.role), what),
        }
    }
}

/// The list of `[workers]` whose workers have this role.
fn list_of(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill_urls",
        Role::Decode => "decode_urls",
        Role::Any | Role::Later(_) => "urls",
    }
}

fn discovery(config: &Config, checks: &mut Checks<'_>) {
    let times = &config.discovery;
    checks.refuse_if(
        times.empty_hold < times.hold,
        "discovery",
        "empty_hold",
        "is shorter than discovery.hold; a source that shows no worker at all is believed later than one that lacks some",
    );
    checks.refuse_if(
        config.leases.secret.as_ref().is_some_and(Secret::is_short),
        "leases",
        "secret",
        short_lease_secret(),
    );
    names(&config.dns, checks);
    let kubernetes = &config.kubernetes;
    if !kubernetes.enabled {
        return;
    }
    let refuse_if = |wrong, key, what: &str, checks: &mut Checks<'_>| {
        checks.refuse_if(wrong, "kubernetes", key, what);
    };
    let is_built = cfg!(feature = "kubernetes");
    refuse_if(!is_built, "enabled", NO_KUBERNETES, checks);
    let selectors = [
        &kubernetes.selector,
        &kubernetes.prefill_selector,
        &kubernetes.decode_selector,
    ];
    let none = selectors.iter().all(|selector| selector.is_empty());
    refuse_if(none, "selector", NO_SELECTOR, checks);
    let keys = ["selector", "prefill_selector", "decode_selector"];
    for (key, selector) in keys.into_iter().zip(selectors) {
        if !selector.is_empty()
            && let Err(what) = selector::check(&selector.join(","))
        {
            refuse_if(true, key, &what, checks);
        }
    }
    #[cfg(feature = "kubernetes")]
    if let Err(error @ SettingsError::Scopes(_)) = kubernetes.source().check() {
        refuse_if(true, "namespaces", &error.to_string(), checks);
    }
}

/// The source asks for so many names at most, those of all its lists together.
fn names(dns: &DnsConfig, checks: &mut Checks<'_>) {
    let lists = [
        ("names", dns.names.len()),
        ("prefill_names", dns.prefill_names.len()),
        ("decode_names", dns.decode_names.len()),
    ];
    let all: usize = lists.iter().map(|(_, count)| count).sum();
    let longest = lists.into_iter().max_by_key(|(_, count)| *count);
    let key = longest.map_or("names", |(key, _)| key);
    checks.refuse_if(
        all > NAMES_MAX,
        "dns",
        key,
        format!(
            "{all} names in the lists together are more than {NAMES_MAX}; put several workers under one name"
        ),
    );
}

/// Why a lease's secret is refused; also where a credential is made of it.
pub fn short_lease_secret() -> String {
    format!(
        "has at least {SECRET_BYTES_MIN} characters, so that it cannot be guessed from a credential: \
         `openssl rand -hex 16` makes one"
    )
}

const NO_KUBERNETES: &str = "this build cannot watch pods; build Grapevine with `--features kubernetes` (what is \
     shipped has it), or find workers by [files] or [dns]";
const NO_SELECTOR: &str =
    "every pod would be a worker; give labels that only workers have, as `--selector app=vllm`";

/// Mistakes in single values of models: they are wrong whatever is wrong beside them.
pub(super) fn of_models(config: &Config, raw: &Raw) -> Vec<Problem> {
    let mut checks = Checks {
        raw,
        problems: Vec::new(),
    };
    let mut seen = BTreeSet::new();
    for (table, model) in raw.models.iter().zip(&config.model) {
        // As it was written: a default stands for a name that could not be read.
        let name = table.take::<String>("name", |_| Ok(()), &mut Vec::new());
        if name.is_some_and(|name| !seen.insert(name)) {
            let what = ModelFault::NamedTwice.to_string();
            checks.refuse(origin_in(table, "name"), "model.name", what);
        }
        if model.targets.as_ref().is_some_and(Vec::is_empty) {
            let what = "an alias has at least one target; without `targets` the name is a model's";
            checks.refuse(origin_in(table, "targets"), "model.targets", what);
        }
    }
    checks.problems
}

fn models(config: &Config, checks: &mut Checks<'_>) {
    for (table, model) in checks.raw.models.iter().zip(&config.model) {
        let is_own = |target: &Target| target.model == model.name;
        let targets = model.targets.as_deref().unwrap_or_default();
        let has_streams = model.targets.is_none() || targets.iter().any(is_own);
        if !has_streams && model.failover.is_some() {
            let what = "an alias has no streams of its own; give each of its targets a failover";
            checks.refuse(origin_in(table, "failover"), "model.failover", what);
        }
    }
    let Err(error) = config.models() else { return };
    let key = match error.fault {
        // `of_models` has said so.
        ModelFault::NamedTwice => return,
        ModelFault::TooManyModels | ModelFault::BadName => "name",
        ModelFault::PolicyOfAlias => "policy",
        ModelFault::TooManyTargets(_)
        | ModelFault::BadTarget
        | ModelFault::TargetTwice(_)
        | ModelFault::TargetIsAlias(_) => "targets",
    };
    let table = &checks.raw.models[error.index];
    let what = error.fault.to_string();
    checks.refuse(origin_in(table, key), &format!("model.{key}"), what);
}

/// Where a key of one section among several of its name was written, else where the section begins.
fn origin_in(table: &SectionValues, key: &str) -> Origin {
    table.origin_of(key).unwrap_or(&table.origin).clone()
}
