//! Starts the data port: which clients may connect, what is done with requests, and whether there is room.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use grapevine_gossip::Agent;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::base::Base;
use super::cluster::Followed;
use super::limits::Limits;
use crate::cache::ResponseCache;
use crate::lanes::{self, Lanes};
use crate::listener::tls::ListenerTls;
use crate::listener::{self, Door, Front};
use crate::log_limit::LogLimit;
use crate::memory::Memory;
use crate::proxy::continuation::Failovers;
use crate::proxy::cors::Cors;
use crate::proxy::realtime::Sessions;
use crate::proxy::{Proxy, ProxyParts};
use crate::readiness::{Condition, Lack, Readiness, ReadinessParts};
use crate::seats::Seats;
use crate::trace::Tracing;

/// The data port, open.
pub(super) struct Opened {
    /// Whether this replica takes traffic.
    pub(super) readiness: Arc<Readiness>,
    /// Where clients' connections are served; kept to the end.
    pub(super) lanes: Arc<Lanes>,
    /// Memory against its limit.
    pub(super) memory: Arc<Memory>,
}

/// What clients reach.
pub(super) struct ForClients {
    /// The data port, bound.
    pub(super) socket: TcpListener,
    /// TLS, where clients are to speak it.
    pub(super) tls: Option<Arc<ListenerTls>>,
    /// Makes the spans of their requests, where that is wanted.
    pub(super) tracing: Option<Arc<Tracing>>,
}

/// Opens the data port.
/// Errors: threads cannot be started.
pub(super) fn start_front(
    base: Base<'_>,
    followed: &Followed,
    limits: &Limits,
    clients: ForClients,
) -> anyhow::Result<Opened> {
    let config = base.config;
    // First, since it may fail.
    let lanes = Arc::new(lanes(config.listen.threads)?);
    let proxies = [
        &config.listen.trusted_proxies,
        &config.listen.proxy_protocol_from,
    ];
    let proxies = proxies.into_iter().flatten().copied().collect();
    let metrics = base.metrics.of_front();
    let seats = listener::seats(&config.limits, proxies, &metrics);
    let memory = Arc::new(Memory::of(config.limits.memory));
    let watched = Arc::clone(&memory).watch(Arc::clone(&seats), base.phase());
    base.run("memory", watched);
    let readiness = readiness(base, followed, &memory);
    let front = Front {
        proxy: Arc::new(Proxy::new(proxy_parts(
            base,
            followed,
            limits,
            Arc::clone(&memory),
            Arc::clone(&seats),
            &readiness,
            clients.tracing,
        ))),
        tls: clients.tls,
        timeouts: base.live(|config| config.timeouts.clone()),
        limits: base.live(|config| config.limits.clone()),
        balancers: config.listen.proxy_protocol_from.clone(),
        trusted_proxies: config.listen.trusted_proxies.clone(),
        metrics,
        phase: base.phase(),
        misled: LogLimit::default(),
    };
    let door = Door::new(clients.socket, seats, base.metrics.refusals.clone());
    let connections = base.shutdown.connections().clone();
    let accepting = listener::run(door, Arc::new(front), Arc::clone(&lanes), connections);
    let accepted = base.shutdown.accepting();
    base.standing.run_by(accepted, "accept", accepting);
    let stalled = base.metrics.process.lanes_stalled.clone();
    let watching = lanes.pulses().watch(stalled, base.phase());
    base.run("lanes", watching);
    Ok(Opened {
        readiness,
        lanes,
        memory,
    })
}

fn lanes(threads: Option<u32>) -> anyhow::Result<Lanes> {
    let threads = threads.and_then(|threads| NonZeroUsize::new(threads as usize));
    Lanes::start(threads.unwrap_or_else(lanes::usual_count)).context("cannot start threads")
}

fn readiness(base: Base<'_>, followed: &Followed, memory: &Arc<Memory>) -> Arc<Readiness> {
    let readiness = Arc::new(Readiness::new(ReadinessParts {
        phase: base.phase(),
        cluster: Arc::clone(&followed.cluster),
        conditions: vec![
            shut_out(base.agent),
            without_caches(&followed.handed_over),
            twin(base.agent),
            short_of_memory(memory),
        ],
        config: base.live(|config| config.health.clone()),
        metrics: base.metrics.readiness.clone(),
    }));
    let running = Arc::clone(&readiness).run(Arc::clone(base.agent));
    base.run("readiness", running);
    readiness
}

fn proxy_parts(
    base: Base<'_>,
    followed: &Followed,
    limits: &Limits,
    memory: Arc<Memory>,
    seats: Arc<Seats>,
    readiness: &Arc<Readiness>,
    tracing: Option<Arc<Tracing>>,
) -> ProxyParts {
    let config = base.config;
    ProxyParts {
        replica: base.replica.to_owned(),
        cluster: Arc::clone(&followed.cluster),
        metrics: base.metrics.of_proxy(),
        phase: base.phase(),
        sessions: Sessions::new(base.live(|config| config.realtime.clone())),
        cors: base.live(|config| Cors::of(&config.cors)),
        request_codings: base.live(|config| config.listen.request_codings.clone()),
        request_id_headers: base.live(|config| config.listen.request_id_headers.clone()),
        open_paths: base.live(|config| config.listen.open_paths.clone()),
        timeouts: base.live(|config| config.timeouts.clone()),
        retry: base.live(|config| config.retry.clone()),
        mark_responses: config.keys.mark_responses,
        limits: base.live(|config| config.limits.clone()),
        warm_ups: Arc::clone(&followed.warm_ups),
        cache: response_cache(base),
        tracing,
        keys: Arc::clone(&limits.keys),
        admission: Arc::clone(&limits.admission),
        transfer: base.live(|config| config.transfer.clone()),
        learned: followed.learned.clone(),
        failovers: Failovers::new(base.live(|config| config.failover.clone()), &config.model),
        memory,
        readiness: Arc::clone(readiness),
        quarantine: Arc::clone(&limits.quarantine),
        seats,
    }
}

fn response_cache(base: Base<'_>) -> Option<Arc<ResponseCache>> {
    let cache = ResponseCache::new(
        base.live(|config| config.cache.clone()),
        &base.metrics.cache,
    )?;
    let (swept, phase) = (Arc::clone(&cache), base.phase());
    base.run("response_cache", async move {
        tokio::select! {
            () = swept.sweep() => {}
            () = phase.closed() => {}
        }
    });
    Some(cache)
}

/// Not ready while it is shut out from its start on: a rollout that brings certificates which do not fit is to end at its
/// first replica, and not at the last one that knows the workers. Who was with the others once, or alone, serves on with its
/// view.
fn shut_out(agent: &Arc<Agent>) -> Condition {
    let (agent, holds_view) = (Arc::clone(agent), agent.ready());
    let is_over = AtomicBool::new(false);
    Condition {
        lack: Lack::Certificates,
        is_missing: Box::new(move || {
            if is_over.load(Ordering::Relaxed) {
                return false;
            }
            // Before: what is found until then counts.
            let holds_view = *holds_view.borrow();
            let is_shut_out = agent.is_shut_out();
            if holds_view && !is_shut_out {
                is_over.store(true, Ordering::Relaxed);
            }
            is_shut_out
        }),
    }
}

/// Not ready while the cluster keeps another process under this replica's id.
fn twin(agent: &Arc<Agent>) -> Condition {
    let agent = Arc::clone(agent);
    Condition {
        lack: Lack::Twin,
        is_missing: Box::new(move || agent.kept_instead().is_some()),
    }
}

/// Not ready before it knows what peers know of caches, if any does.
fn without_caches(handed_over: &watch::Receiver<bool>) -> Condition {
    let handed_over = handed_over.clone();
    Condition {
        lack: Lack::Caches,
        // The task that would say so may have died; it is not to keep the replica from its work.
        is_missing: Box::new(move || !*handed_over.borrow() && handed_over.has_changed().is_ok()),
    }
}

/// Not ready while requests are refused because memory is short.
fn short_of_memory(memory: &Arc<Memory>) -> Condition {
    let memory = Arc::clone(memory);
    Condition {
        lack: Lack::Memory,
        is_missing: Box::new(move || memory.is_short()),
    }
}
