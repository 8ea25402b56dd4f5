//! Loads certificates and keys, and what reads them again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::base::Base;
use crate::config::Config;
use crate::listener::tls::ListenerTls;
use crate::live::Live;
use crate::tls::{GossipFiles, Reloader};
use crate::upstream::{Connector, ConnectorParts};

/// The ways in and out.
pub(super) struct Ways {
    /// TLS of the data port, where clients are to speak it.
    pub(super) tls: Option<Arc<ListenerTls>>,
    /// How workers are reached.
    pub(super) connector: Arc<Connector>,
}

/// Loads what is configured; a task reads it again.
/// Errors: a file cannot be used.
pub(super) fn start_certificates(
    base: Base<'_>,
    identity: Option<GossipFiles>,
) -> anyhow::Result<Ways> {
    let mut reloader = Reloader::new(base.metrics.tls.clone());
    let tls = listener_tls(base.config, &mut reloader)?;
    let connector = connector(base, &mut reloader)?;
    if let Some(identity) = identity {
        identity.watch(base.agent, &mut reloader);
    }
    let hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let reloading = reloader.run(hangup, base.config.tls.refresh, base.phase());
    base.run("certificates", reloading);
    Ok(Ways { tls, connector })
}

fn listener_tls(
    config: &Config,
    reloader: &mut Reloader,
) -> anyhow::Result<Option<Arc<ListenerTls>>> {
    let files = ListenerTls::files(&config.tls);
    let tls = ListenerTls::load(&config.tls).context("TLS of the data port")?;
    let tls = tls.map(Arc::new);
    if let Some(tls) = &tls {
        tls.watch(files, reloader);
    }
    Ok(tls)
}

/// How workers are reached, by the configuration.
pub(crate) fn reach_parts(config: &Config, handshake_within: Live<Duration>) -> ConnectorParts {
    ConnectorParts {
        workers: config.workers.clone(),
        each: config.worker.clone(),
        handshake_within,
        check_within: config.health.timeout,
        dns: config.dns.clone(),
    }
}

fn connector(base: Base<'_>, reloader: &mut Reloader) -> anyhow::Result<Arc<Connector>> {
    let handshake_within = base.live(|config| config.timeouts.tls_handshake);
    let parts = reach_parts(base.config, handshake_within);
    let files = Connector::files(&parts);
    let connector = Connector::load(parts).context("TLS or keys for workers")?;
    let connector = Arc::new(connector);
    connector.watch(files, reloader);
    Ok(connector)
}
