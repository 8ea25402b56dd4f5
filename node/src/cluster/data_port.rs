//! Keeps data ports of replicas from being added as workers. Pure.
//!
//! Only where it is certain: at the very address that a live replica names as its own. One that is spelled otherwise, or is
//! a balancer's, is found by its checks, which the replica behind it refuses (`http/hops`).

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::WorkerSpec;

/// The address is no worker's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is the data port of the replica {replica}, not a worker: give the address of an engine"
)]
pub struct IsReplica {
    address: String,
    replica: ReplicaId,
}

/// Refuses a worker at the data port of a replica.
///
/// # Errors
/// Whose port it is.
pub fn refuse_replica(view: &View, worker: &WorkerSpec) -> Result<(), IsReplica> {
    let address = worker.url().authority();
    view.replica_at(address).map_or(Ok(()), |replica| {
        Err(IsReplica {
            address: address.to_owned(),
            replica: replica.clone(),
        })
    })
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
            ..Facts::default()
        };
        let agent = Agent::solo("c", "r1", &facts, Metrics::default()).expect("valid");
        let refused = |url: &str| {
            let spec = WorkerSpec::new(RawWorker::at(url)).expect("a worker");
            refuse_replica(&agent.view(), &spec).map_err(|error| error.to_string())
        };
        for url in ["http://10.0.0.1:30000/", "https://10.0.0.1:30000@2"] {
            let why = refused(url).expect_err(url);
            assert!(why.contains("the data port of the replica r1"), "{why}");
        }
        for url in ["http://10.0.0.1:8000", "http://10.0.0.2:30000"] {
            refused(url).expect("another address");
        }
    }
}
