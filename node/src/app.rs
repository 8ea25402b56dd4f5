//! Composition root: builds every part once, binds, spawns, and runs the replica to its end.
//!
//! The only constructor of long-lived parts, and the only place that knows them all. No decisions here.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use grapevine_gossip::config::Facts;
use grapevine_gossip::{Agent, Identity};
use grapevine_placement::load::damp;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::admin::{self, Admin, Gate, Port};
use crate::admission::{Admission, AdmissionParts};
use crate::agreement::{Samples, Survey, SurveyParts, Views};
use crate::cache::ResponseCache;
use crate::cluster::{Bulletins, Cluster, WorkerDefaults};
use crate::config::{Config, Layers};
use crate::follow::Follower;
use crate::lag::Lag;
use crate::learner::Learner;
use crate::left_out::LeftOut;
use crate::listener::tls::ListenerTls;
use crate::listener::{self, Door, Front};
use crate::memory::Memory;
use crate::metrics::Metrics;
#[cfg(debug_assertions)]
use crate::provoke;
use crate::proxy::byte_budget::ByteBudget;
use crate::proxy::cors::Cors;
use crate::proxy::failover::Failovers;
use crate::proxy::quarantine::Quarantine;
use crate::proxy::realtime::Sessions;
use crate::proxy::{Proxy, ProxyParts};
use crate::quiet::Quiet;
use crate::readiness::{Condition, Lack, Readiness, ReadinessParts};
use crate::reload::Reload;
use crate::shutdown::{Phase, Shutdown, ShutdownLimits};
use crate::tenants::watch::Watch;
use crate::tenants::{Gossiped, Keys};
use crate::tls::{GossipFiles, Reloader};
use crate::trace::Tracing;
use crate::upstream::duty::Duty;
use crate::upstream::probe::{ProbeParts, Prober};
use crate::upstream::{Reach, ReachParts};
use crate::warmup::{WarmUpParts, WarmUps};

/// Answers of workers to "what do you serve?" that wait for the registry.
const LEARNED_WAITING_MAX: usize = 1_024;

/// Sockets of a replica.
struct Listeners {
    data: TcpListener,
    admin: TcpListener,
    metrics: Option<TcpListener>,
}

/// Runs a replica until it has been told to end, and says how it ended.
///
/// Prints one line of JSON to standard output once every port is bound. `origin` is where the configuration came from.
///
/// # Errors
/// A port cannot be bound, a certificate cannot be used, or a setting does not fit this machine; nothing is
/// left running.
pub async fn run(config: Config, origin: Layers) -> anyhow::Result<ExitCode> {
    let listeners = bind(&config)?;
    let mut metrics = Metrics::new();
    let replica = config.replica_id().to_string();
    let identity = GossipFiles::seen(&config);
    let agent = Arc::new(start_agent(&config, &replica, &listeners, &mut metrics).await?);
    // At once: a peer's snapshot may come before anything else.
    let heard = agent.evidence();
    let metrics = Arc::new(metrics);
    let shutdown = Shutdown::new();
    let signals = shutdown.signals().context("cannot listen for signals")?;
    let phase = shutdown.phase();

    let mut reloader = Reloader::new(Arc::clone(&metrics));
    let tls = listener_tls(&config, &mut reloader)?;
    let reach = reach(&config, &mut reloader)?;
    if let Some(identity) = identity {
        identity.watch(&agent, &mut reloader);
    }
    let hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let reloading = reloader.run(hangup, config.tls.refresh, phase.clone());
    shutdown.background().spawn(reloading);

    let defaults = WorkerDefaults {
        idle_max: config.timeouts.upstream_idle,
        breaker: config.breaker.clone(),
        health: config.health.clone(),
        reach: Arc::clone(&reach),
        worker_series: config.metrics.worker_series as usize,
    };
    let (samples, asked) = Samples::new();
    let cluster = Arc::new(Cluster::new(
        config.cluster_settings(),
        defaults,
        &agent,
        Arc::clone(&samples),
        Arc::clone(&metrics),
    ));
    if let Some(per_s) = NonZeroU32::new(config.gossip.agreement_samples) {
        let parts = SurveyParts {
            agent: Arc::clone(&agent),
            samples,
            metrics: Arc::clone(&metrics),
            settings: config.cluster_settings().fingerprint(),
            per_s,
            phase: phase.clone(),
        };
        let survey = Survey::new(parts, asked);
        shutdown.background().spawn(survey.run());
    }
    let asked = Arc::downgrade(&cluster);
    agent.answer_dry_runs(Arc::new(move |question| {
        asked.upgrade().and_then(|c| c.dry_run(question))
    }));
    let known = Arc::downgrade(&cluster);
    agent.serve_evidence(Arc::new(move || {
        known.upgrade().map_or_else(Vec::new, |c| c.evidence())
    }));
    let configured = config.worker.iter().map(|worker| worker.registered());
    agent.configure_all(configured.collect::<Result<Vec<_>, _>>()?)?;
    let reload = Reload {
        layers: origin,
        current: config.clone(),
        agent: Arc::clone(&agent),
        reach: Arc::clone(&reach),
        metrics: Arc::clone(&metrics),
        left_out: LeftOut::default(),
    };
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let reload = reload.run(hangups, phase.clone());
    shutdown.background().spawn(reload);

    let (learned, to_learn) = mpsc::channel(LEARNED_WAITING_MAX);
    let lag = Arc::new(Lag::default());
    let prober = Prober::new(
        ProbeParts {
            config: config.health.clone(),
            learned,
            metrics: Arc::clone(&metrics),
            duty: Duty(Arc::clone(&agent)),
            lag: Arc::clone(&lag),
            silence: config.timeouts.first_token,
        },
        shutdown.background().clone(),
    );
    let tasks = shutdown.background();
    tasks.spawn(lag.measure(Arc::clone(&metrics), phase.clone()));
    let follower = Follower {
        agent: Arc::clone(&agent),
        cluster: Arc::clone(&cluster),
        prober,
        views: Views::new(
            config.cluster_settings().fingerprint().to_string(),
            Arc::clone(&metrics),
        ),
        caught_up: shutdown.caught_up(),
        phase: phase.clone(),
    };
    let keys = Arc::new(Keys::open(metrics.tenants.clone()));
    if let Some(path) = &config.keys.file {
        let watch = Watch::open(Arc::clone(&keys), path.clone())?;
        let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        tasks.spawn(watch.run(config.keys.reload, hangups, phase.clone()));
    }

    tasks.spawn(follower.run(heard));
    let learner = Learner::new(Arc::clone(&agent), Arc::clone(&cluster));
    tasks.spawn(learner.run(to_learn, phase.clone()));
    tasks.spawn(announce_leaving(Arc::clone(&agent), phase.clone()));
    #[cfg(debug_assertions)]
    tasks.spawn(provoke::trip_gossip(Arc::clone(&agent), phase.clone()));

    let quarantine = Arc::new(Quarantine::new(config.retry.quarantine));
    if agent.local_addr().is_some() {
        let bulletins = Bulletins {
            agent: Arc::clone(&agent),
            cluster: Arc::clone(&cluster),
            own_use: {
                let keys = Arc::clone(&keys);
                Arc::new(move || keys.in_use())
            },
            quarantine: Arc::clone(&quarantine),
            metrics: Arc::clone(&metrics),
            phase: phase.clone(),
        };
        tasks.spawn(bulletins.run());
    }

    let warm_ups = Arc::new(WarmUps::new(WarmUpParts {
        agent: Arc::clone(&agent),
        cluster: Arc::clone(&cluster),
        metrics: Arc::clone(&metrics),
        config: config.warmup.clone(),
        timeouts: config.timeouts.clone(),
        phase: phase.clone(),
    }));
    tasks.spawn(Arc::clone(&warm_ups).run());

    let cache = ResponseCache::new(&config.cache, &metrics.cache);
    if let Some(cache) = &cache {
        let (cache, phase) = (Arc::clone(cache), phase.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = cache.sweep() => {}
                () = phase.closed() => {}
            }
        });
    }
    let traces = Tracing::start(&config.trace, &replica, &metrics.trace)?;
    let tracing = traces.map(|(tracing, sender)| {
        tasks.spawn(sender.run(phase.clone()));
        tracing
    });
    let admission = Arc::new(Admission::new(AdmissionParts {
        config: config.admission.clone(),
        requests: config.limits.requests,
        bytes_per_token: config.cluster.bytes_per_token.get(),
        tenant_header: config.cluster.tenant_header.clone(),
        others: Arc::new(Gossiped(Arc::clone(&agent))),
        bodies: Arc::new(ByteBudget::new(config.limits.body_bytes_total.0)),
        metrics: metrics.admission.clone(),
    }));
    let proxies = [
        &config.listen.trusted_proxies,
        &config.listen.proxy_protocol_from,
    ];
    let proxies = proxies.into_iter().flatten().copied().collect();
    let seats = listener::seats(&config.limits, proxies, &metrics);
    let memory = Arc::new(Memory::of(config.limits.memory));
    let watched = Arc::clone(&memory).watch(Arc::clone(&seats), phase.clone());
    tasks.spawn(watched);

    let readiness = Arc::new(Readiness::new(ReadinessParts {
        phase: phase.clone(),
        cluster: Arc::clone(&cluster),
        conditions: vec![twin(&agent), short_of_memory(&memory)],
        config: config.health.clone(),
        metrics: Arc::clone(&metrics),
    }));
    tasks.spawn(Arc::clone(&readiness).run(Arc::clone(&agent)));

    announce(&replica, &listeners, agent.local_addr())?;
    let front = Front {
        proxy: Arc::new(Proxy::new(ProxyParts {
            replica: replica.clone(),
            cluster: Arc::clone(&cluster),
            metrics: Arc::clone(&metrics),
            phase: phase.clone(),
            sessions: Sessions::new(config.realtime.clone()),
            cors: Cors::of(&config.cors),
            request_codings: config.listen.request_codings.clone(),
            request_id_headers: config.listen.request_id_headers.clone(),
            open_paths: config.listen.open_paths.clone(),
            timeouts: config.timeouts.clone(),
            retry: config.retry.clone(),
            limits: config.limits.clone(),
            warm_ups: Arc::clone(&warm_ups),
            cache,
            tracing,
            keys,
            admission: Arc::clone(&admission),
            failovers: Failovers::new(config.failover.clone(), &config.model),
            memory: Arc::clone(&memory),
            readiness: Arc::clone(&readiness),
            quarantine: Arc::clone(&quarantine),
        })),
        tls,
        timeouts: config.timeouts.clone(),
        limits: config.limits.clone(),
        balancers: config.listen.proxy_protocol_from.clone(),
        trusted_proxies: config.listen.trusted_proxies.clone(),
        metrics: Arc::clone(&metrics),
        phase: phase.clone(),
        misled: Quiet::default(),
    };
    let door = Door::new(listeners.data, seats, Arc::clone(&metrics));
    let connections = shutdown.connections().clone();
    let accepting = listener::run(door, Arc::new(front), connections);
    shutdown.accepting().spawn(accepting);

    let admin = Arc::new(Admin {
        replica,
        cluster,
        agent: Arc::clone(&agent),
        metrics,
        admission,
        phase,
        readiness,
        warm_ups,
        quarantine,
        reach,
        token: config.admin.token.clone(),
        admin_gate: Gate::new(config.admin.host, config.admin.allowed_hosts.clone()),
        metrics_gate: Gate::new(config.metrics.host, config.admin.allowed_hosts.clone()),
    });
    let serve = |socket, port| {
        let seats = admin::seats(port, &admin.metrics);
        let door = Door::new(socket, seats, Arc::clone(&admin.metrics));
        admin::run(door, port, Arc::clone(&admin), tasks.clone())
    };
    tasks.spawn(serve(listeners.admin, Port::Admin));
    if let Some(socket) = listeners.metrics {
        tasks.spawn(serve(socket, Port::Metrics));
    }

    let limits = ShutdownLimits {
        settle: config.timeouts.settle,
        drain: config.timeouts.drain,
    };
    let ending = shutdown.run(limits, signals, agent.shutdown()).await;
    Ok(ending.exit_code())
}

fn bind(config: &Config) -> anyhow::Result<Listeners> {
    let listen = |host, port, flag: &'static str| {
        let address = SocketAddr::new(host, port);
        listener::bind(address)
            .with_context(|| format!("cannot listen on {address}; choose another --{flag}"))
    };
    Ok(Listeners {
        data: listen(config.listen.host, config.listen.port, "port")?,
        admin: listen(config.admin.host, config.admin.port, "admin-port")?,
        metrics: if config.metrics.enabled {
            let flag = "prometheus-port, or --disable-prometheus";
            Some(listen(config.metrics.host, config.metrics.port, flag)?)
        } else {
            None
        },
    })
}

async fn start_agent(
    config: &Config,
    replica: &str,
    listeners: &Listeners,
    metrics: &mut Metrics,
) -> anyhow::Result<Agent> {
    let facts = Facts {
        http: reached_at(listeners.data.local_addr()?, config),
        admin: reached_at(listeners.admin.local_addr()?, config),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: config.cluster_settings().fingerprint().to_string(),
    };
    let cluster = config.cluster.id.as_str();
    let gossip_metrics = grapevine_gossip::Metrics::register(metrics.registry_mut());
    let Some(files) = config.gossip.identity() else {
        return Ok(Agent::solo(cluster, replica, &facts, gossip_metrics)?);
    };
    let identity = Identity::load(cluster, replica, &files)?;
    let gossip = config.gossip_config(facts);
    Ok(Agent::start(gossip, identity, damp, gossip_metrics).await?)
}

/// Where others reach a port of this replica: a wildcard address means nothing to them, so the host that
/// gossip advertises stands in for it.
fn reached_at(bound: SocketAddr, config: &Config) -> String {
    let advertised = config.gossip.advertise.as_ref().map(ToString::to_string);
    let host = advertised
        .as_deref()
        .filter(|_| bound.ip().is_unspecified())
        .and_then(|advertised| advertised.rsplit_once(':'))
        .map(|(host, _)| host);
    host.map_or_else(
        || bound.to_string(),
        |host| format!("{host}:{}", bound.port()),
    )
}

/// One line for whoever started this process, with the ports that were bound.
#[allow(clippy::print_stdout, reason = "the line is the program's output")]
fn announce(
    replica: &str,
    listeners: &Listeners,
    gossip: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let metrics = listeners.metrics.as_ref().map(TcpListener::local_addr);
    let line = serde_json::json!({
        "event": "listening",
        "replica": replica,
        "data": listeners.data.local_addr()?,
        "admin": listeners.admin.local_addr()?,
        "gossip": gossip,
        "prometheus": metrics.transpose()?,
    });
    println!("{line}");
    Ok(())
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
pub(crate) fn reach_parts(config: &Config) -> ReachParts {
    ReachParts {
        workers: config.workers.clone(),
        each: config.worker.clone(),
        handshake_within: config.timeouts.tls_handshake,
        check_within: config.health.timeout,
    }
}

fn reach(config: &Config, reloader: &mut Reloader) -> anyhow::Result<Arc<Reach>> {
    let parts = reach_parts(config);
    let files = Reach::files(&parts);
    let reach = Reach::load(parts).context("TLS or keys for workers")?;
    let reach = Arc::new(reach);
    reach.watch(files, reloader);
    Ok(reach)
}

/// Not ready while the cluster keeps another process under this replica's id.
fn twin(agent: &Arc<Agent>) -> Condition {
    let agent = Arc::clone(agent);
    Condition {
        lack: Lack::Twin,
        is_missing: Box::new(move || agent.kept_instead().is_some()),
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

/// Tells the other replicas at once that this one is leaving.
async fn announce_leaving(agent: Arc<Agent>, phase: Phase) {
    phase.leaving().await;
    agent.set_leaving();
}
