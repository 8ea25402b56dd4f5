//! Agreement as a live number: a few real requests a second, each compared with what one peer would decide.
//!
//! The request path only hands over a decision that it makes anyway; asking is a task of its own, and a request
//! never waits for it. The peer is asked about the moment of the decision: it answers by the load that counted there then.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use grapevine_gossip::Agent;
use grapevine_gossip::ReplicaId;
use grapevine_gossip::dry_run::DryRun;
use grapevine_placement::Digest;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::compare::{Sample, Verdict};
use crate::cluster::metrics::ClusterMetrics;
use crate::metrics::AgreementLabels;
use crate::shutdown::Phase;

/// Samples that wait to be asked about; more are not taken.
const WAITING_MAX: usize = 8;
/// Questions that wait for their answers: more than one peer may hold up, so that others are still asked while one is
/// dead or stands still, which is when agreement is of interest.
const ASKING_MAX: usize = 8;
/// Comparisons that the ratio is made of.
const WINDOW: usize = 500;

/// Where the request path leaves samples.
#[derive(Debug)]
pub struct Samples {
    wanted: AtomicU32,
    to_ask: mpsc::Sender<Sample>,
    window: Mutex<VecDeque<bool>>,
}

impl Samples {
    /// The path's end and the task's.
    pub fn new() -> (Arc<Self>, mpsc::Receiver<Sample>) {
        let (to_ask, asked) = mpsc::channel(WAITING_MAX);
        let samples = Self {
            wanted: AtomicU32::new(0),
            to_ask,
            window: Mutex::default(),
        };
        (Arc::new(samples), asked)
    }

    /// Whether this request shall be a sample. One relaxed load when not.
    pub fn wants(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0 && self.wanted.swap(0, Ordering::Relaxed) > 0
    }

    /// Hands over a sample.
    pub fn offer(&self, sample: Sample) {
        // A full queue means that peers answer slowly: the next sample is as good.
        let _ = self.to_ask.try_send(sample);
    }

    /// Share of the latest comparisons that named the same worker, and their number; `None` before the first.
    pub fn agreement(&self) -> Option<(f64, usize)> {
        let window = self.window.lock();
        let same = window.iter().filter(|same| **same).count();
        (!window.is_empty()).then(|| (same as f64 / window.len() as f64, window.len()))
    }

    fn note(&self, same: bool) {
        let mut window = self.window.lock();
        if window.len() == WINDOW {
            window.pop_front();
        }
        window.push_back(same);
    }
}

/// What a survey is made of.
pub struct SurveyParts {
    /// What asks the peers.
    pub agent: Arc<Agent>,
    /// Where samples are asked for, and results noted.
    pub samples: Arc<Samples>,
    /// Where to count.
    pub metrics: ClusterMetrics,
    /// Fingerprint of this replica's cluster-wide settings.
    pub settings: Digest,
    /// Samples a second.
    pub per_s: NonZeroU32,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

/// The task that asks.
pub struct Survey {
    parts: Arc<SurveyParts>,
    asked: mpsc::Receiver<Sample>,
    turn: usize,
}

impl Survey {
    /// A survey of what comes in `asked`.
    pub fn new(parts: SurveyParts, asked: mpsc::Receiver<Sample>) -> Self {
        for verdict in Verdict::ALL {
            // Counters that are there from the start can be alarmed on.
            let result = verdict.as_str();
            let counters = &parts.metrics.agreement_samples;
            for prompt in ["known", "unknown"] {
                drop(counters.get_or_create(&AgreementLabels { result, prompt }));
            }
        }
        Self {
            parts: Arc::new(parts),
            asked,
            turn: 0,
        }
    }

    /// Asks until the replica ends.
    pub async fn run(mut self) {
        let mut due = interval(Duration::from_secs(1) / self.parts.per_s.get());
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asking = JoinSet::new();
        loop {
            tokio::select! {
                () = self.parts.phase.closed() => return,
                _ = due.tick() => {
                    let has_peers = !self.parts.agent.ready_peers().is_empty();
                    self.parts.samples.wanted.store(has_peers.into(), Ordering::Relaxed);
                }
                Some(_) = asking.join_next() => {}
                sample = self.asked.recv(), if asking.len() < ASKING_MAX => {
                    let Some(sample) = sample else {
                        return;
                    };
                    if let Some(peer) = self.next_peer() {
                        let parts = Arc::clone(&self.parts);
                        asking.spawn(async move { parts.ask(&peer, sample).await });
                    }
                }
            }
        }
    }

    /// One after the other: each pair of replicas is compared in turn.
    fn next_peer(&mut self) -> Option<ReplicaId> {
        let peers = self.parts.agent.ready_peers();
        self.turn = self.turn.wrapping_add(1);
        peers.get(self.turn % peers.len().max(1)).cloned()
    }
}

impl SurveyParts {
    async fn ask(&self, peer: &ReplicaId, mut sample: Sample) {
        let Self {
            agent,
            samples,
            metrics,
            settings,
            ..
        } = self;
        let question = DryRun {
            pool: sample.pool.name().to_owned(),
            key: std::mem::take(&mut sample.key),
            at_us: Some(sample.at_us),
        };
        let verdict = match agent.ask(peer, question).await {
            Ok(answer) => {
                let verdict = Verdict::of(&sample, &answer, *settings);
                if verdict != Verdict::Same {
                    metrics.agreement_cost.inc_by(sample.costs_more(&answer));
                }
                verdict
            }
            Err(error) => {
                tracing::debug!(replica = %peer, %error, "agreement could not be compared");
                Verdict::Unanswered
            }
        };
        let labels = AgreementLabels {
            result: verdict.as_str(),
            prompt: if sample.is_known() {
                "known"
            } else {
                "unknown"
            },
        };
        metrics.agreement_samples.get_or_create(&labels).inc();
        if verdict != Verdict::Unanswered {
            samples.note(verdict == Verdict::Same);
            let ratio = samples.agreement().map_or(f64::NAN, |(ratio, _)| ratio);
            metrics.agreement_ratio.set(ratio);
        }
    }
}
