//! Did a worker end because of a request? A process that ends takes along all that it has in hand, and one of these
//! may be why.
//!
//! A request that was sent to a worker which ended without a word goes to another one at once: nearly always something
//! else ended the first. If the next ends as well the request is the likeliest cause; no other worker gets it, and its
//! body is marked (`quarantine`). Unless something shows another reason:
//!
//! | seen | so |
//! |---|---|
//! | the worker had refused connections for a while before it ended | it was stopped: a crash closes everything at once |
//! | it accepts connections now | it lives; a connection ended, or something in front of it did |
//! | its engine was known to be dead before the request came | it was not the request |
//! | other workers ended a moment ago that did not have the request | a rack, a rollout, an operator |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::metrics::QuarantineMetrics;
use crate::upstream::Worker;
use crate::upstream::failure::Failure;

/// Longest time between the moment at which a crash closes a port and the one at which it cuts the last connection.
const CRASH_TAKES: Duration = Duration::from_millis(250);
/// Ends of other workers within this time belong together.
const TOGETHER: Duration = Duration::from_secs(10);
/// Other workers that have to end for it to be no request's doing.
const OTHERS: usize = 2;
/// Ends that are remembered.
const SEEN_MAX: usize = 64;
/// How long it may take to find out whether a worker lives.
const LOOK: Duration = Duration::from_secs(1);

/// Servers that ended a moment ago, as far as this replica noticed. Ranks of one server end together, which is one end.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    seen: Mutex<VecDeque<(Arc<str>, Instant)>>,
}

impl Deaths {
    fn recent(&self, now: Instant) -> MutexGuard<'_, VecDeque<(Arc<str>, Instant)>> {
        // Each change is complete before anything could panic.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(_, at): &(Arc<str>, Instant)| now.saturating_duration_since(*at) > TOGETHER;
        while seen.front().is_some_and(is_old) {
            seen.pop_front();
        }
        seen
    }

    /// A worker ended.
    fn saw(&self, worker: &Worker, now: Instant) {
        let mut seen = self.recent(now);
        let server = server(worker);
        if seen.iter().any(|(known, _)| **known == *server) {
            return;
        }
        if seen.len() >= SEEN_MAX {
            seen.pop_front();
        }
        // Its name alone: a worker that is removed meanwhile is not kept.
        seen.push_back((server.into(), now));
    }

    /// Servers that ended a moment ago, but for those of these workers.
    fn others(&self, workers: &[Arc<Worker>], now: Instant) -> usize {
        let seen = self.recent(now);
        let is_other = |(ended, _): &&(Arc<str>, Instant)| !is_among(ended, workers);
        seen.iter().filter(is_other).count()
    }

    /// It is known why these ended: that says nothing about others.
    fn explained(&self, workers: &[Arc<Worker>], now: Instant) {
        let mut seen = self.recent(now);
        seen.retain(|(ended, _)| !is_among(ended, workers));
    }
}

/// Workers that ended while they had one request.
#[derive(Debug, Default)]
pub(super) struct Company(Mutex<Vec<(Arc<Worker>, Sign)>>);

/// How it is known that a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The connection ended: it may live all the same.
    Connection,
    /// It says that its engine is dead.
    Word,
}

impl Company {
    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Worker>, Sign)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt failed on a worker that had the request since `begun`.
    pub(super) fn failed(
        &self,
        deaths: &Deaths,
        worker: &Arc<Worker>,
        begun: Instant,
        why: &Failure,
    ) {
        let now = Instant::now();
        let sign = match why {
            _ if why.is_engine_dead() => {
                worker.engine_dead_since.begin(now);
                let since = worker.engine_dead_since.get();
                // Moments are whole milliseconds.
                if since.is_some_and(|at| at + Duration::from_millis(1) < begun) {
                    return;
                }
                Sign::Word
            }
            Failure::Closed(_) => Sign::Connection,
            // Another request on it was the first to notice.
            Failure::WorkerBad if worker.health.look().is_unreachable => Sign::Connection,
            Failure::Connect(_) if why.is_refused() => {
                deaths.saw(worker, now);
                return;
            }
            _ => return,
        };
        self.ended(deaths, worker, sign);
    }

    /// A stream that had begun broke off.
    pub(super) fn broke(&self, deaths: &Deaths, worker: &Arc<Worker>, sign: Sign) {
        self.ended(deaths, worker, sign);
    }

    fn ended(&self, deaths: &Deaths, worker: &Arc<Worker>, sign: Sign) {
        let now = Instant::now();
        let refuses = worker.refuses_since.get();
        deaths.saw(worker, now);
        if sign == Sign::Connection && refuses.is_some_and(|since| since + CRASH_TAKES < now) {
            return;
        }
        self.lock().push((Arc::clone(worker), sign));
    }

    /// Whether so many workers ended with this request that it is the likeliest cause.
    ///
    /// `most`: ends that a request may bring about; `connect`: the longest wait for a connection.
    pub(super) async fn is_condemned(
        &self,
        deaths: &Deaths,
        most: usize,
        connect: Duration,
        marks: &QuarantineMetrics,
    ) -> Option<Vec<Arc<Worker>>> {
        let ended = self.lock().clone();
        if of_one_kind(ended.iter().map(|(worker, _)| worker)) < most {
            return None;
        }
        let within = LOOK.min(connect);
        let mut gone = Vec::with_capacity(ended.len());
        for (worker, sign) in ended {
            // On the heap: no other request must have its room.
            let lives = sign == Sign::Connection && Box::pin(worker.connect(within)).await.is_ok();
            if !lives {
                gone.push((worker, sign));
            }
        }
        self.lock().clone_from(&gone);
        let gone: Vec<Arc<Worker>> = gone.into_iter().map(|(worker, _)| worker).collect();
        let now = Instant::now();
        if of_one_kind(&gone) < most {
            return None;
        }
        if deaths.others(&gone, now) >= OTHERS {
            // It is known why these ended. The others are forgotten in a moment, and then it would look otherwise.
            self.lock().clear();
            marks.query_of_death("excused");
            return None;
        }
        deaths.explained(&gone, now);
        Some(gone)
    }
}

/// The process that ends: all ranks of a server have one address.
fn server(worker: &Worker) -> &str {
    worker.address.url.base()
}

fn is_among(ended: &str, workers: &[Arc<Worker>]) -> bool {
    workers.iter().any(|worker| server(worker) == ended)
}

/// The most servers of these workers that take the same part of a request. A divided request is on two workers at once, which
/// may end together; what ends engines ends one after the other of the same kind.
fn of_one_kind<'a>(workers: impl IntoIterator<Item = &'a Arc<Worker>>) -> usize {
    let mut servers: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for worker in workers {
        let of_role = servers.entry(worker.about.load().role);
        of_role.or_default().insert(server(worker));
    }
    servers.values().map(BTreeSet::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use grapevine_placement::ClusterSettings;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::cluster::pool_for_tests;
    use crate::metrics::ResultLabels;

    fn workers() -> Vec<Arc<Worker>> {
        let pool = pool_for_tests(&ClusterSettings::default(), &["a", "b", "c", "d"]);
        let members = pool.members().iter();
        members.map(|member| Arc::clone(&member.worker)).collect()
    }

    fn closed() -> Failure {
        Failure::Closed("reset".into())
    }

    fn engine_dead() -> Failure {
        crate::upstream::failure::tests::status(
            500,
            r#"{"error":{"message":"EngineCore encountered an issue."}}"#,
        )
    }

    fn count(company: &Company) -> usize {
        company.lock().len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_was_told_to_stop_was_not_ended_by_a_request() {
        let (deaths, company, workers) = (Deaths::default(), Company::default(), workers());
        let now = Instant::now();
        // The crash that a request brings about closes the port a moment before its connection.
        workers[0].refuses_since.begin(now);
        tokio::time::advance(CRASH_TAKES / 2).await;
        company.failed(&deaths, &workers[0], now, &closed());
        assert_eq!(count(&company), 1);
        workers[1].refuses_since.begin(Instant::now());
        tokio::time::advance(CRASH_TAKES * 2).await;
        company.failed(&deaths, &workers[1], now, &closed());
        assert_eq!(count(&company), 1);
        // Nothing was sent.
        let refused = Failure::Connect(std::io::ErrorKind::ConnectionRefused.into());
        company.failed(&deaths, &workers[2], now, &refused);
        company.failed(&deaths, &workers[2], now, &Failure::Late);
        assert_eq!(count(&company), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_was_dead_before_was_not_ended_by_a_request() {
        let (deaths, workers) = (Deaths::default(), workers());
        let (first, later) = (Company::default(), Company::default());
        first.failed(&deaths, &workers[0], Instant::now(), &engine_dead());
        assert_eq!(count(&first), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        later.failed(&deaths, &workers[0], Instant::now(), &engine_dead());
        assert_eq!(count(&later), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_excused_once_is_not_condemned_later_for_the_same_ends() {
        let (deaths, company, workers) = (Deaths::default(), Company::default(), workers());
        let marks = QuarantineMetrics::register(&mut Registry::default());
        // Its attempts end with a rack.
        for worker in &workers[..2] {
            company.failed(&deaths, worker, Instant::now(), &engine_dead());
        }
        for worker in &workers[2..] {
            deaths.saw(worker, Instant::now());
        }
        let is_condemned = || async {
            let condemned = company.is_condemned(&deaths, 2, LOOK, &marks).await;
            condemned.is_some()
        };
        assert!(!is_condemned().await);
        // Another attempt fails, for whatever reason, when the others are forgotten.
        tokio::time::advance(TOGETHER + Duration::from_secs(1)).await;
        assert!(!is_condemned().await);
        let excused = ResultLabels { result: "excused" };
        assert_eq!(marks.queries_of_death.get_or_create(&excused).get(), 1);
        // What it ends from now on counts.
        for worker in &workers[2..] {
            company.failed(&deaths, worker, Instant::now(), &engine_dead());
        }
        assert!(is_condemned().await);
    }

    #[tokio::test(start_paused = true)]
    async fn ranks_of_one_server_end_once() {
        let pool = pool_for_tests(&ClusterSettings::default(), &["a@0", "a@1", "b@0"]);
        let members = pool.members().iter();
        let ranks: Vec<_> = members.map(|member| Arc::clone(&member.worker)).collect();
        let (deaths, company) = (Deaths::default(), Company::default());
        for rank in &ranks[..2] {
            company.failed(&deaths, rank, Instant::now(), &closed());
        }
        assert_eq!(of_one_kind(&ranks[..2]), 1, "one process ended");
        assert_eq!(of_one_kind(&ranks), 2);
        let others = |of: &[Arc<Worker>]| deaths.others(of, Instant::now());
        assert_eq!(others(&ranks[2..]), 1, "one process ended");
        assert_eq!(others(&ranks[..1]), 0, "its own");
    }

    #[tokio::test(start_paused = true)]
    async fn ends_of_others_count_for_a_moment_and_once_each() {
        let (deaths, workers) = (Deaths::default(), workers());
        let see = |index: usize| deaths.saw(&workers[index], Instant::now());
        let others = || deaths.others(&workers[..2], Instant::now());
        for index in [0, 1, 2, 2] {
            see(index);
        }
        assert_eq!(others(), 1);
        tokio::time::advance(TOGETHER / 2).await;
        see(3);
        assert_eq!(others(), OTHERS);
        deaths.explained(&workers[3..], Instant::now());
        assert_eq!(others(), 1, "another request is known to have ended it");
        tokio::time::advance(TOGETHER).await;
        assert_eq!(others(), 0);
    }
}
