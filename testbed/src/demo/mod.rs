//! The main features on one machine: a cluster of processes, a real trace, and two killed processes.
//!
//! Starts this binary several times (`ca`, `serve`, `fake-worker`, `balancer`), replays the trace through the
//! balancer under `prefix` and under `random`, kills a replica and a worker under load, and reports what
//! clients saw. It uses only the command line and the HTTP API, as any user would.

mod agreement;
mod chaos;
mod cluster;
mod live;
mod report;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;

use agreement::Agreement;
use chaos::Victim;
use cluster::Cluster;
use live::Live;
use report::{Report, Round};

use crate::processes::{MODEL, make_authority, make_certificate};
use crate::replay::{self, Asking, Messages, Plan, Shape, Trace};
use grapevine_bench::client::Client;
use grapevine_bench::load::Endpoint;
use grapevine_bench::progress::Progress;

/// Share of the trace's requests about which two replicas are asked before they are sent.
const ASKED: f64 = 0.5;
/// Prompts of one agreement check.
const SAMPLES: u64 = 100;

/// Size and speed of the demo.
#[derive(Debug, Clone)]
pub(crate) struct DemoPlan {
    pub(crate) replicas: usize,
    pub(crate) workers: usize,
    /// Rows of the embedded trace.
    pub(crate) requests: usize,
    /// Trace seconds, and seconds of the modelled workers, per real second.
    pub(crate) speed: f64,
    pub(crate) tokens_scale: f64,
    pub(crate) answers_scale: f64,
    /// Further flags for each `fake-worker`.
    pub(crate) worker_flags: Vec<String>,
}

/// Runs the demo in `dir`; true when every promise held.
pub(crate) async fn run(plan: &DemoPlan, dir: &Path, json: bool) -> anyhow::Result<bool> {
    let mut trace = Trace::embedded()?;
    trace.truncate(plan.requests);
    let trace = Arc::new(trace);
    make_authority(dir).await?;
    for index in 1..=plan.replicas {
        make_certificate(&format!("r{index}"), dir).await?;
    }

    eprintln!(
        "starting {} replicas, {} workers, balancer",
        plan.replicas, plan.workers
    );
    let cluster = Cluster::start(plan, "random", dir).await?;
    let random = round(plan, &trace, &cluster, "random").await?;
    cluster.stop().await?;

    let mut cluster = Cluster::start(plan, "prefix", dir).await?;
    let prefix = round(plan, &trace, &cluster, "prefix").await?;

    eprintln!("killing a replica under load");
    let samples = agreement::samples(2, SAMPLES);
    cluster.quiet(&samples[0]).await?;
    let before = agreement::placements(&cluster, &samples).await?;
    let replica_killed = chaos::strike(&mut cluster, Victim::Replica, 11).await?;
    cluster.quiet(&samples[0]).await?;
    let after = agreement::placements(&cluster, &samples).await?;
    let unmoved = agreement::over_time(&before, &after);

    eprintln!("killing a worker under load");
    let worker_killed = chaos::strike(&mut cluster, Victim::Worker, 12).await?;
    cluster.stop().await?;

    let report = Report {
        speed: plan.speed,
        prefix,
        random,
        replica_killed,
        unmoved,
        worker_killed,
    };
    if json {
        println!("{}", serde_json::to_string(&report).context("report")?);
    } else {
        println!("{report}");
    }
    Ok(report.held())
}

/// Replays the trace and watches the replicas meanwhile.
async fn round(
    plan: &DemoPlan,
    trace: &Arc<Trace>,
    cluster: &Cluster,
    policy: &str,
) -> anyhow::Result<Round> {
    let replay_plan = Plan {
        trace: Arc::clone(trace),
        speed: plan.speed,
        rate: 1.0,
        warm_up: 0.0,
        shape: Shape {
            endpoint: Endpoint::Chat,
            messages: Messages::Equal,
            tokens_scale: plan.tokens_scale,
            answers_scale: plan.answers_scale,
            model: Some(MODEL.to_owned()),
            explain: true,
        },
        in_flight_max: 512,
        timeout: Duration::from_secs(60),
        worker_urls: cluster.worker_targets()?,
        asking: Some(Asking {
            admins: cluster.admin_targets()?,
            share: ASKED,
        }),
    };
    let live = watch::Sender::new(Live::default());
    let mut bar = Progress::new(policy, trace.rows.len() as u64);
    let client = Arc::new(Client::one(cluster.front()?));
    let replayed = replay::run(client, replay_plan, |now| {
        bar.set(now.tally.requests(), || {
            let seen = live.borrow();
            format!(
                "hits {:.1} %, TTFT {} ms, {} failed, {}",
                100.0 * seen.cache.hit_rate(),
                now.tally.first_token_p50().as_millis(),
                now.tally.failed(),
                seen.ring
            )
        });
    });
    // The watch never ends by itself; the replay ends both.
    let report = tokio::select! {
        report = replayed => report?,
        never = live::watch(cluster, &live) => match never {},
    };
    bar.finish();
    let samples = agreement::samples(2, SAMPLES);
    cluster.quiet(&samples[0]).await?;
    let digests = cluster.rings().await?.into_iter().map(|ring| ring.digest);
    let quiet = agreement::placements(cluster, &samples).await?;
    Ok(Round {
        policy: policy.to_owned(),
        agreement_under_load: Agreement {
            asked: report.asked as usize,
            equal: report.agreed as usize,
        },
        replay: report,
        agreement_quiet: agreement::among_replicas(&quiet),
        digests: digests.collect(),
    })
}
