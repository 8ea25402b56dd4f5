//! Settings of discovery: sources of workers that are watched, and how long is waited before they are believed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use grapevine_discovery::dns::DnsName;
use grapevine_discovery::file::PathPattern;

use super::setting::{HOUR, secs};
use super::table::section;
use super::types::Secret;

section! {
    /// Workers that are found: what holds for all sources ([files], [dns], [kubernetes]).
    ///
    /// Every replica watches by itself, and the replicas agree: one whose source is broken, empty or late removes
    /// nothing. Equal on all replicas.
    [discovery] DiscoveryConfig {
        /// How long no replica must see a worker before it leaves the ring. It gets no new prompts meanwhile.
        ///
        /// Longer than a restart under the same name takes: then its keys stay where they are.
        hold: Duration = secs(30), in secs(1)..=HOUR,
            flag "discovery-hold-secs" Secs, live now;
        /// The same where a source shows no worker at all any more, which is a mistake more often than an intention: they
        /// stay in use meanwhile.
        empty_hold: Duration = secs(300), in secs(1)..=HOUR * 24, live now;
        /// How long replicas that still see a worker hold it against most others that do not; a replica that was lost without
        /// leaving, and saw the source, may see it, too.
        contest: Duration = secs(600), in secs(10)..=HOUR * 24, live now;
    }
}

section! {
    /// Workers from files, in the form of Prometheus' file_sd (JSON, YAML), or as TOML with [[worker]] sections.
    [files] FilesConfig {
        /// Files to read; the last part of each may have `*`. Empty: no files are read.
        paths: Vec<PathPattern> = Vec::new(), flag "worker-files" List;
        /// How often is looked whether they changed.
        every: Duration = secs(2), in secs(1)..=secs(60);
    }
}

section! {
    /// Workers by DNS: a worker for each address of a name, or for each SRV record.
    [dns] DnsConfig {
        /// Names as `name:port` (A and AAAA), or as `_service._proto.name` (SRV). Empty: none is asked for.
        names: Vec<DnsName> = Vec::new(), flag "worker-dns" List;
        /// The same, for workers that prefill only.
        prefill_names: Vec<DnsName> = Vec::new();
        /// The same, for workers that decode only.
        decode_names: Vec<DnsName> = Vec::new();
        /// Workers speak TLS.
        https: bool = false;
        /// Servers to ask, as `address:port`. Empty: those of the system.
        ///
        /// Those that are set are also asked first for the host of every worker, when a connection to it is made: the
        /// targets of SRV records stand in their zone. What they do not know is asked of the system.
        servers: Vec<SocketAddr> = Vec::new();
        /// How long a server may take to answer.
        timeout: Duration = secs(5), in secs(1)..=secs(30);
    }
}

section! {
    /// Workers from Kubernetes: pods by their labels.
    [kubernetes] KubernetesConfig {
        /// Watch pods. Needs a selector, and a build with the feature `kubernetes`, as what is shipped has it.
        enabled: bool = false, flag "service-discovery" On;
        /// Labels of workers' pods, as `key=value`; all of them must fit. In the file also `key in (a,b)`, `!key`.
        selector: Vec<String> = Vec::new(), flag "selector" List;
        /// Labels of pods that prefill only.
        prefill_selector: Vec<String> = Vec::new(), flag "prefill-selector" List;
        /// Labels of pods that decode only.
        decode_selector: Vec<String> = Vec::new(), flag "decode-selector" List;
        /// Namespaces to watch; "*" for all. Empty: that of this replica's own pod.
        namespaces: Vec<String> = Vec::new(), flag "service-discovery-namespace" List;
        /// Port of a pod's worker, where its labels and annotations name none.
        port: u16 = 80, in 1..=65535, flag "service-discovery-port" Text;
        /// How to reach the API server. Unset: as the pod's service account; outside of a pod, KUBECONFIG and its
        /// default.
        kubeconfig: Option<PathBuf> = None;
    }
}

section! {
    /// Workers that register themselves, by `grapevine register`: each holds a lease that it renews.
    [leases] LeaseConfig {
        /// How long a lease lasts that is not renewed; then the worker gets no new prompts.
        ///
        /// `grapevine register` renews it six times in that time.
        ttl: Duration = secs(30), in secs(5)..=secs(600), live now;
        /// How much longer the worker keeps its place on the ring.
        grace: Duration = secs(300), in secs(5)..=HOUR * 24, live now;
        /// Secret from which workers' credentials are made (`grapevine register --show-credential`), equal on all replicas.
        ///
        /// A credential is good for one worker only. Unset: the admin token registers workers.
        secret: Option<Secret> = None, live now;
    }
}

impl DnsConfig {
    /// Whether any name is asked for.
    pub(crate) fn has_names(&self) -> bool {
        let lists = [&self.names, &self.prefill_names, &self.decode_names];
        lists.iter().any(|names| !names.is_empty())
    }
}

section! {
    /// Workers that register by ZeroMQ, as vLLM's engines with P2P NCCL and MoRI-IO do: they ping every three seconds.
    [pings] PingConfig {
        /// Where to hear pings: what engines have as `proxy_ip` and `proxy_port`. Unset: nowhere.
        ///
        /// Whoever reaches this address can register workers; `workers.allow` says which hosts may be any.
        listen: Option<SocketAddr> = None, flag "vllm-discovery-address" Text;
        /// How long a worker counts as there that does not ping; then it gets no new prompts.
        ttl: Duration = secs(10), in secs(5)..=secs(600), live now;
        /// How much longer the worker keeps its place on the ring.
        grace: Duration = secs(300), in secs(5)..=HOUR * 24, live now;
        /// Greatest number of connections; each worker has one.
        connections: u32 = 4096, in 1..=65_536;
    }
}
