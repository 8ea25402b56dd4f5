//! Questions to name servers: which servers, and one name's records.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;

use super::DnsSettings;
use super::answer::{Answer, Service, at_addresses, at_services};
use super::failure::{Failure, NO_NAME, failure};
use super::name::{DnsName, candidates};

/// A way to ask. It holds no answers: how long those stand is decided by the source.
pub(super) struct Asker {
    resolver: TokioResolver,
    search: Vec<Name>,
    ndots: usize,
}

impl Asker {
    /// One that asks the servers of `settings`, or those of the system.
    ///
    /// # Errors
    /// The system's configuration cannot be read.
    pub(super) fn new(settings: &DnsSettings) -> Result<Self, String> {
        let own = &settings.nameservers;
        let (config, mut options) = if own.is_empty() {
            read_system_conf().map_err(|error| {
                format!("/etc/resolv.conf cannot be read: {error}; mend it, or set name servers")
            })?
        } else {
            let servers = own.iter().map(|server| name_server(*server)).collect();
            let mut options = ResolverOpts::default();
            options.use_hosts_file = ResolveHosts::Never;
            (
                ResolverConfig::from_parts(None, Vec::new(), servers),
                options,
            )
        };
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
        let resolver = resolver.map_err(|error| format!("the resolver cannot be made: {error}"))?;
        let search = if search.is_empty() {
            domain.into_iter().collect()
        } else {
            search
        };
        Ok(Self {
            resolver,
            search,
            ndots,
        })
    }

    /// The workers of `name`.
    ///
    /// # Errors
    /// Why nothing is known of it, with what to check.
    pub(super) async fn ask(
        &self,
        name: &DnsName,
        settings: &DnsSettings,
    ) -> Result<Answer, String> {
        for full in candidates(name.name(), &self.search, self.ndots) {
            let asked = tokio::time::timeout(settings.timeout, self.records(&full, name));
            let records = match asked.await {
                Ok(Err(Failure::NoName)) => continue,
                Ok(Err(Failure::Blind(why))) => return Err(format!("{name}: {why}")),
                Ok(Err(Failure::Empty)) => None,
                Ok(Ok(records)) => Some(records),
                Err(_) => {
                    let within = settings.timeout.as_secs_f64();
                    return Err(format!(
                        "{name}: no answer within {within} s; check that the name server is up"
                    ));
                }
            };
            return answer(name, records.as_ref(), settings)
                .map_err(|why| format!("{name}: {why}"));
        }
        Err(format!("{name}: {NO_NAME}"))
    }

    async fn records(&self, full: &Name, name: &DnsName) -> Result<Lookup, Failure> {
        let lookup = |kind| async move {
            let found = self.resolver.lookup(full.clone(), kind).await;
            found.map_err(|error| failure(&error))
        };
        match name {
            DnsName::Service { .. } => lookup(RecordType::SRV).await,
            // IPv6 where there is no IPv4: a worker with both is one worker.
            DnsName::Addresses { .. } => match lookup(RecordType::A).await {
                Err(Failure::Empty) => lookup(RecordType::AAAA).await,
                other => other,
            },
        }
    }
}

fn name_server(server: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = server.port();
        connection
    });
    NameServerConfig::new(server.ip(), true, connections.to_vec())
}

fn answer(
    name: &DnsName,
    records: Option<&Lookup>,
    settings: &DnsSettings,
) -> Result<Answer, String> {
    let records = records.map_or(&[][..], Lookup::answers);
    let listed = match name {
        DnsName::Addresses { port, .. } => {
            let addresses = records.iter().filter_map(|record| match &record.data {
                RData::A(address) => Some(IpAddr::V4(address.0)),
                RData::AAAA(address) => Some(IpAddr::V6(address.0)),
                _ => None,
            });
            at_addresses(addresses, *port, settings.scheme)
        }
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
