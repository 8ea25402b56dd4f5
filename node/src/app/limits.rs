//! Starts what limits requests, here and over the whole cluster: keys, admission, marks of requests that end workers.

use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::base::Base;
use crate::admission::byte_budget::ByteBudget;
use crate::admission::{Admission, AdmissionParts};
use crate::cluster::quarantine::Quarantine;
use crate::cluster::{Cluster, PeerStateTask};
use crate::discovery::Board;
use crate::reload::{Readings, RefusedReading};
use crate::tenants::watch::{Told, Watch};
use crate::tenants::{Gossiped, Keys};

/// What a request has to get past.
pub(super) struct Limits {
    /// The clients' keys.
    pub(super) keys: Arc<Keys>,
    /// Which requests are let in, and which wait.
    pub(super) admission: Arc<Admission>,
    /// Requests that no worker gets.
    pub(super) quarantine: Arc<Quarantine>,
}

/// Builds the limits, and the task that sends their use to the other replicas.
/// Errors: the file of keys cannot be used.
pub(super) fn start_limits(
    base: Base<'_>,
    cluster: &Arc<Cluster>,
    board: &Arc<Board>,
    readings: &Arc<Readings>,
) -> anyhow::Result<Limits> {
    let config = base.config;
    let keys = Arc::new(Keys::open(base.metrics.tenants.clone()));
    if let Some(path) = &config.keys.file {
        let readings = Arc::clone(readings);
        let told: Told = Box::new(move |refused| {
            let refused = refused.map(|error| RefusedReading::now(&error.to_string()));
            readings.refused_keys.store(refused.map(Arc::new));
        });
        let watch = Watch::open(Arc::clone(&keys), path.clone(), told)?;
        let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let watching = watch.run(config.keys.reload, hangups, base.phase());
        base.run("keys", watching);
    }
    let quarantine = Arc::new(Quarantine::new(base.live(|config| config.retry.quarantine)));
    if base.agent.local_addr().is_some() {
        let task = PeerStateTask {
            agent: Arc::clone(base.agent),
            cluster: Arc::clone(cluster),
            own_use: {
                let keys = Arc::clone(&keys);
                Arc::new(move || keys.in_use())
            },
            quarantine: Arc::clone(&quarantine),
            sightings: {
                let board = Arc::clone(board);
                Box::new(move || board.sightings())
            },
            metrics: base.metrics.cluster.clone(),
            marks: base.metrics.marks.clone(),
            refusals: base.metrics.refusals.clone(),
            phase: base.phase(),
        };
        base.run("peer_state", task.run());
    }
    let admission = Arc::new(Admission::new(AdmissionParts {
        config: base.live(|config| config.admission.clone()),
        requests: config.limits.requests,
        bytes_per_token: config.cluster.bytes_per_token.get(),
        tenant_header: config.cluster.tenant_header.clone(),
        others: Arc::new(Gossiped(Arc::clone(base.agent))),
        bodies: Arc::new(ByteBudget::new(config.limits.body_bytes_total.0)),
        metrics: base.metrics.admission.clone(),
    }));
    let resized = Arc::clone(&admission);
    base.changes.on(move |config| {
        resized.resize(config.limits.requests);
        resized.bodies().resize(config.limits.body_bytes_total.0);
    });
    Ok(Limits {
        keys,
        admission,
        quarantine,
    })
}
