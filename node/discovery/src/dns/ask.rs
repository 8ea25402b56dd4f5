//! Questions to name servers: which servers, and one name's records.

use std::fmt::Display;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};

use super::answer::{Answer, Service, at_addresses, at_services};
use super::failure::{Failure, NO_NAME, failure};
use super::name::{DnsName, absolute, candidates};
use super::{DnsSettings, NoAnswer};

/// A way to ask. It holds no answers: how long those stand is decided by the source. What the system says of servers and
/// hosts is as it was when this was made.
pub(super) struct Asker {
    resolver: TokioResolver,
    hosts: Arc<Hosts>,
    search: Vec<Name>,
    ndots: usize,
}

impl Asker {
    /// One that asks the servers of `settings`, or those of the system.
    /// Errors: the system's configuration cannot be read.
    pub(super) fn new(settings: &DnsSettings) -> Result<Self, String> {
        let own = &settings.nameservers;
        let (config, mut options, hosts) = if own.is_empty() {
            of_system(&settings.system)?
        } else {
            let servers = own.iter().map(|server| name_server(*server)).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            (config, ResolverOpts::default(), Hosts::default())
        };
        let hosts = Arc::new(hosts);
        options.use_hosts_file = ResolveHosts::Never;
        let ndots = options.ndots;
        options.cache_size = 0;
        // Larger answers by UDP.
        options.edns0 = true;
        // A lost packet is sent again once; both tries end within the whole time.
        options.attempts = 1;
        options.timeout = settings.timeout / 2;
        let (domain, search, servers) = config.into_parts();
        // The names to try are made here: the resolver would go on to the next one after a failure, too, and find
        // workers of another domain while the right server is down.
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build();
        let mut resolver =
            resolver.map_err(|error| format!("the resolver cannot be made: {error}"))?;
        resolver.set_hosts(Arc::clone(&hosts));
        let search = if search.is_empty() {
            domain.into_iter().collect()
        } else {
            search
        };
        Ok(Self {
            resolver,
            hosts,
            search,
            ndots,
        })
    }

    /// Whether the hosts file has addresses of this kind.
    fn in_hosts(&self, full: &Name, kind: RecordType) -> bool {
        let query = Query::query(full.clone(), kind);
        self.hosts.lookup_static_host(&query).is_some()
    }

    /// The workers of `name`.
    /// Errors: why nothing is known of it, with what to check.
    pub(super) async fn ask(
        &self,
        name: &DnsName,
        settings: &DnsSettings,
    ) -> Result<Answer, String> {
        let mut names = candidates(name.name(), &self.search, self.ndots);
        // The system looks at its hosts file before it asks anybody.
        let kinds = [RecordType::A, RecordType::AAAA];
        names.sort_by_key(|full| !kinds.iter().any(|kind| self.in_hosts(full, *kind)));
        for full in names {
            let asked = tokio::time::timeout(settings.timeout, self.records(&full, name));
            let records = match asked.await {
                Ok(Err(Failure::NoName)) => continue,
                Ok(Err(Failure::Blind(why))) => return Err(format!("{name}: {why}")),
                Ok(Err(Failure::Empty)) => None,
                Ok(Ok(records)) => Some(records),
                Err(_) => return Err(format!("{name}: {}", unanswered(settings.timeout))),
            };
            return answer(name, records.as_ref(), settings)
                .map_err(|why| format!("{name}: {why}"));
        }
        Err(format!("{name}: {NO_NAME}"))
    }

    async fn records(&self, full: &Name, name: &DnsName) -> Result<Lookup, Failure> {
        match name {
            DnsName::Service { .. } => self.lookup(full, RecordType::SRV).await,
            DnsName::Addresses { .. } => self.addresses(full).await,
        }
    }

    /// IPv6 where there is no IPv4: a worker with both is one worker.
    async fn addresses(&self, full: &Name) -> Result<Lookup, Failure> {
        if self.in_hosts(full, RecordType::AAAA) && !self.in_hosts(full, RecordType::A) {
            return self.lookup(full, RecordType::AAAA).await;
        }
        match self.lookup(full, RecordType::A).await {
            Err(Failure::Empty) => self.lookup(full, RecordType::AAAA).await,
            other => other,
        }
    }

    async fn lookup(&self, full: &Name, kind: RecordType) -> Result<Lookup, Failure> {
        let found = self.resolver.lookup(full.clone(), kind).await;
        found.map_err(|error| failure(&error))
    }

    /// The addresses of a host, whose name is searched for in no domain.
    /// Errors: why none is known, with what to check.
    pub(super) async fn host(&self, host: &str, within: Duration) -> Result<Vec<IpAddr>, NoAnswer> {
        let said = |why: &str| NoAnswer {
            why: why.to_owned(),
            is_final: true,
        };
        let blind = |why| NoAnswer {
            why,
            is_final: false,
        };
        let full = absolute(host).ok_or_else(|| said("it is no name that can be asked for"))?;
        match tokio::time::timeout(within, self.addresses(&full)).await {
            Ok(Ok(records)) => Ok(addresses(records.answers()).collect()),
            Ok(Err(Failure::NoName)) => Err(said("there is no such name (NXDOMAIN)")),
            Ok(Err(Failure::Empty)) => Err(said("the name has no address")),
            Ok(Err(Failure::Blind(why))) => Err(blind(why)),
            Err(_) => Err(blind(unanswered(within))),
        }
    }
}

/// Name servers, search list and hosts file of the system, in its folder.
fn of_system(folder: &Path) -> Result<(ResolverConfig, ResolverOpts, Hosts), String> {
    let path = folder.join("resolv.conf");
    let unread = |error: &dyn Display| {
        let path = path.display();
        format!("{path} cannot be read: {error}; mend it, or set name servers")
    };
    let text = fs::read(&path).map_err(|error| unread(&error))?;
    let (config, options) = parse_resolv_conf(text).map_err(|error| unread(&error))?;
    let mut hosts = Hosts::default();
    let read = File::open(folder.join("hosts")).and_then(|file| hosts.read_hosts_conf(file));
    // As with the system: one that is not there names nobody.
    Ok((
        config,
        options,
        read.map_or_else(|_| Hosts::default(), |()| hosts),
    ))
}

fn name_server(server: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = server.port();
        connection
    });
    NameServerConfig::new(server.ip(), true, connections.to_vec())
}

fn unanswered(within: Duration) -> String {
    let within = within.as_secs_f64();
    format!("no answer within {within} s; check that the name server is up")
}

fn addresses(records: &[Record]) -> impl Iterator<Item = IpAddr> {
    records.iter().filter_map(|record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    })
}

fn answer(
    name: &DnsName,
    records: Option<&Lookup>,
    settings: &DnsSettings,
) -> Result<Answer, String> {
    let records = records.map_or(&[][..], Lookup::answers);
    let listed = match name {
        DnsName::Addresses { port, .. } => at_addresses(addresses(records), *port, settings.scheme),
        DnsName::Service { .. } => {
            let services = records.iter().filter_map(|record| match &record.data {
                RData::SRV(service) => Some(Service {
                    target: service.target.to_ascii(),
                    port: service.port,
                    weight: service.weight,
                }),
                _ => None,
            });
            at_services(&services.collect::<Vec<_>>(), settings.scheme)
        }
    };
    let workers =
        listed.map_err(|error| format!("a record is no worker: {error}; correct the record"))?;
    // The shortest of a chain: an alias may end before the address that it leads to.
    let ttl = records.iter().map(|record| record.ttl).min();
    let ttl = ttl.map(|seconds| Duration::from_secs(u64::from(seconds)));
    let is_ipv6 = |record: &Record| matches!(record.data, RData::AAAA(_));
    Ok(Answer {
        workers,
        is_second_choice: records.iter().any(is_ipv6),
        ttl,
    })
}
