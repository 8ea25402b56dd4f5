//! `GET /ring`.

use serde::Serialize;

use crate::admin::Admin;
use crate::admin::page::PAGE;

/// `GET /ring`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct RingsView {
    digest: String,
    pools: Vec<PoolView>,
    workers: usize,
    registry: RegistryView,
}

#[derive(Debug, Serialize)]
struct PoolView {
    model: String,
    /// `any`, or the part of a request that its workers are there for.
    role: &'static str,
    digest: String,
    /// More than half of its workers are unhealthy, and health is not believed.
    panic: bool,
    /// How many workers it has.
    count: usize,
    /// The first of them.
    workers: Vec<String>,
    /// The part of all prefixes that each of these is the home of, 0 to 1.
    shares: Vec<f64>,
    /// How they are chosen.
    policy: &'static str,
}

/// Digest of all entries of the registry.
#[derive(Debug, Serialize)]
pub(super) struct RegistryView {
    crc: String,
    count: u32,
    stamp: String,
}

impl Admin {
    pub(super) fn registry(&self) -> RegistryView {
        let digest = self.agent.view().registry();
        RegistryView {
            crc: format!("{:08x}", digest.crc),
            count: digest.count,
            stamp: format!("{:016x}", digest.stamp.bits()),
        }
    }

    pub(in crate::admin) fn describe_rings(&self) -> RingsView {
        let fleet = self.cluster.fleet();
        let pools = fleet.all_pools().map(|pool| PoolView {
            model: pool.model().to_owned(),
            role: pool.role().as_str(),
            digest: pool.digest().to_string(),
            panic: pool.panics(),
            count: pool.members().len(),
            workers: pool
                .members()
                .iter()
                .take(PAGE)
                .map(|member| member.worker.id.to_string())
                .collect(),
            shares: pool.shares().into_iter().take(PAGE).collect(),
            policy: pool.policy().policy.as_str(),
        });
        RingsView {
            digest: fleet.digest().to_string(),
            pools: pools.collect(),
            workers: fleet.workers().count(),
            registry: self.registry(),
        }
    }
}
