//! Keeps ports of replicas from being added as workers. Pure.
//!
//! Only where it is certain: at the very address that a live replica names as its own. One that is spelled otherwise, or is
//! a balancer's, is found by its checks, which the replica behind it refuses (`http/hops`). A gossip port is UDP: an engine
//! may have the TCP port of its number.

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::{ReplicaInfo, View};
use grapevine_gossip::worker::WorkerSpec;

/// The address is no worker's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is the {port} of the replica {replica}, not a worker: give the address of an engine"
)]
pub struct IsReplica {
    address: String,
    port: &'static str,
    replica: ReplicaId,
}

/// Refuses a worker at the data port or at the admin port of a replica.
/// Errors: whose port it is.
pub fn refuse_replica(view: &View, worker: &WorkerSpec) -> Result<(), IsReplica> {
    let address = worker.url().authority();
    let port_of = |replica: &ReplicaInfo| {
        if replica.http == address {
            Some("data port")
        } else if replica.admin == address {
            Some("admin port")
        } else {
            None
        }
    };
    let live = view.replicas().iter().filter(|replica| replica.live);
    let mut found = live.filter_map(|replica| Some((port_of(replica)?, &replica.id)));
    match found.next() {
        None => Ok(()),
        Some((port, replica)) => Err(IsReplica {
            address: address.to_owned(),
            port,
            replica: replica.clone(),
        }),
    }
}

/// Refuses a worker at the metrics port of the replica itself, which no other one knows.
/// Errors: it is there.
pub fn refuse_own_metrics(
    replica: &ReplicaId,
    metrics: Option<&str>,
    worker: &WorkerSpec,
) -> Result<(), IsReplica> {
    let address = worker.url().authority();
    match metrics == Some(address) {
        false => Ok(()),
        true => Err(IsReplica {
            address: address.to_owned(),
            port: "metrics port",
            replica: replica.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::config::Facts;
    use grapevine_gossip::worker::RawWorker;
    use grapevine_gossip::{Agent, Metrics};

    use super::*;

    #[test]
    fn a_replica_is_refused_at_its_own_address_in_any_spelling_and_nobody_else_is() {
        let facts = Facts {
            http: "10.0.0.1:30000".to_owned(),
            admin: "10.0.0.1:30001".to_owned(),
            ..Facts::default()
        };
        let agent = Agent::solo("c", "r1", &facts, Metrics::default()).expect("valid");
        let refused = |url: &str| {
            let spec = WorkerSpec::new(RawWorker::at(url)).expect("a worker");
            refuse_replica(&agent.view(), &spec)
                .and_then(|()| refuse_own_metrics(agent.replica(), Some("10.0.0.1:29000"), &spec))
                .map_err(|error| error.to_string())
        };
        for (url, port) in [
            ("http://10.0.0.1:30000/", "data port"),
            ("https://10.0.0.1:30000@2", "data port"),
            ("http://10.0.0.1:30001", "admin port"),
            ("http://10.0.0.1:29000", "metrics port"),
        ] {
            let why = refused(url).expect_err(url);
            let told = format!("is the {port} of the replica r1, not a worker");
            assert!(why.contains(&told), "{why}");
        }
        for url in ["http://10.0.0.1:8000", "http://10.0.0.2:30000"] {
            refused(url).expect("another address");
        }
    }
}
