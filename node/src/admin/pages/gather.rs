//! What a page is made from: what the admin API answers, as JSON, and what is in use of the limits.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::page::facts::{Facts, Limits, TenantUse};
use crate::page::model::{ASKERS_SHOWN, Listed};
use crate::page::sampler::reached;
use crate::shown::models::askable;
use crate::upstream::Worker;

impl Admin {
    /// What there is now.
    pub(super) fn facts(&self) -> Facts {
        let fleet = self.cluster.fleet();
        let mut workers: Vec<&Arc<Worker>> = fleet.workers().collect();
        workers.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let workers = workers.iter().filter_map(|of| self.describe_worker(of));
        let sources = self.board.describe(Instant::now());
        Facts {
            cluster: self.cluster_facts(),
            workers: workers.map(|worker| value(&worker)).collect(),
            links: value(&self.describe_links()),
            rings: value(&self.describe_rings()),
            sources: sources.iter().map(value).collect(),
            has_keys: self.keys.are_configured(),
            has_tenants: self.has_tenants(),
            tenants: self.tenants(),
            limits: self.limits(),
        }
    }

    /// The replicas and what is common to them.
    pub(super) fn cluster_facts(&self) -> Value {
        value(&self.describe_cluster())
    }

    /// One worker, if it is registered.
    pub(super) fn worker_facts(&self, id: &str) -> Option<Value> {
        let fleet = self.cluster.fleet();
        let worker = fleet.workers().find(|of| of.id.as_str() == id)?;
        Some(value(&self.describe_worker(worker)?))
    }

    /// What may be asked for: models that workers serve, and aliases for them.
    pub(super) fn askable(&self) -> Vec<String> {
        askable(&value(&self.describe_rings()), &self.cluster_facts())
    }

    /// In whose name may be asked where a prompt would go; none: prompts are nobody's.
    pub(super) fn askers(&self) -> Option<Listed<String>> {
        let tenants = self.keys.tenants();
        let names = tenants.iter().map(|(tenant, _)| tenant.name().to_string());
        self.has_tenants()
            .then(|| Listed::first(names.collect(), ASKERS_SHOWN))
    }

    fn tenants(&self) -> Vec<TenantUse> {
        let states = self.agent.peer_states();
        let tenants = self.keys.tenants().into_iter();
        let tenants = tenants.map(|(tenant, most)| {
            let (here, others) = (tenant.in_use(), states.others_usage(tenant.number()));
            TenantUse {
                name: tenant.name().to_string(),
                here: here.in_flight + here.queued,
                waiting_here: here.queued,
                elsewhere: others.in_flight.saturating_add(others.queued),
                most,
            }
        });
        tenants.collect()
    }

    fn limits(&self) -> Limits {
        let limits = self.limits.look();
        let body_bytes_max = limits.body_bytes_total.0;
        Limits {
            requests: self.admission.in_progress(),
            requests_max: limits.requests,
            waiting: u32::try_from(self.admission.waiting()).unwrap_or(0),
            body_bytes: body_bytes_max.saturating_sub(self.admission.bodies().free()),
            body_bytes_max,
            quarantined: u32::try_from(self.quarantine.count()).unwrap_or(u32::MAX),
            reached: reached(&self.metrics),
        }
    }
}

fn value<T: Serialize>(of: &T) -> Value {
    serde_json::to_value(of).expect("descriptions always serialise")
}
