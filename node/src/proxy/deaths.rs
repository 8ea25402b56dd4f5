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
//! | other workers ended a moment ago that never had a request with this body | a rack, a rollout, an operator |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::cluster::metrics::QuarantineMetrics;
use crate::cluster::quarantine::BodyId;
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
/// Bodies that are remembered of each: as many as an engine runs requests at once (vLLM's `max_num_seqs`).
const BODIES_MAX: usize = 1_024;
/// How long it may take to find out whether a worker lives.
const LOOK: Duration = Duration::from_secs(1);

/// Servers that ended a moment ago, as far as this replica noticed. Ranks of one server end together, which is one end.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    seen: Mutex<VecDeque<End>>,
}

/// The end of a server.
#[derive(Debug)]
struct End {
    server: Arc<str>,
    /// Whom to ask whether it lives; one that is removed meanwhile is not kept.
    worker: Weak<Worker>,
    at: Instant,
    sign: Sign,
    /// Bodies that it does not excuse: it had a request with them, or has excused one already.
    had: BTreeSet<BodyId>,
}

impl Deaths {
    fn recent(&self, now: Instant) -> MutexGuard<'_, VecDeque<End>> {
        // Each change is complete before anything could panic.
        let mut seen = self.seen.lock();
        let is_old = |end: &End| now.saturating_duration_since(end.at) > TOGETHER;
        while seen.front().is_some_and(is_old) {
            seen.pop_front();
        }
        seen
    }

    /// A worker ended; `had`: what was sent to it.
    fn saw(&self, worker: &Arc<Worker>, sign: Sign, had: Option<BodyId>, now: Instant) {
        let mut seen = self.recent(now);
        let server = server(worker);
        let at = seen.iter().position(|end| *end.server == *server);
        let at = at.unwrap_or_else(|| {
            if seen.len() >= SEEN_MAX {
                seen.pop_front();
            }
            seen.push_back(End {
                server: server.into(),
                worker: Arc::downgrade(worker),
                at: now,
                sign,
                had: BTreeSet::new(),
            });
            seen.len() - 1
        });
        let end = &mut seen[at];
        end.sign = end.sign.max(sign);
        if end.had.len() < BODIES_MAX {
            end.had.extend(had);
        }
    }

    /// Whether [`OTHERS`] servers ended a moment ago besides those of these workers. Each is asked first whether it lives: a
    /// connection that ends is no process that does. They excuse this body once.
    async fn excuse(&self, workers: &[Arc<Worker>], body: BodyId, within: Duration) -> bool {
        let mut ended = Vec::new();
        for (server, worker, sign) in self.others(workers, body, Instant::now()) {
            match worker.upgrade() {
                Some(worker) if lives(&worker, sign, within).await => {
                    self.forget(&[worker], Instant::now());
                }
                _ => ended.push(server),
            }
            if ended.len() >= OTHERS {
                break;
            }
        }
        if ended.len() < OTHERS {
            return false;
        }
        let mut seen = self.recent(Instant::now());
        for end in seen.iter_mut().filter(|end| ended.contains(&end.server)) {
            end.had.insert(body);
        }
        true
    }

    /// Servers that ended a moment ago, but for those of these workers and those that do not excuse this body.
    fn others(
        &self,
        workers: &[Arc<Worker>],
        body: BodyId,
        now: Instant,
    ) -> Vec<(Arc<str>, Weak<Worker>, Sign)> {
        let seen = self.recent(now);
        let others = seen
            .iter()
            .filter(|end| !is_among(&end.server, workers) && !end.had.contains(&body));
        others
            .map(|end| (Arc::clone(&end.server), Weak::clone(&end.worker), end.sign))
            .collect()
    }

    /// These did not end, or it is known why: that says nothing about others.
    fn forget(&self, workers: &[Arc<Worker>], now: Instant) {
        let mut seen = self.recent(now);
        seen.retain(|end| !is_among(&end.server, workers));
    }
}

/// Whether a worker that seemed to end is there all the same.
async fn lives(worker: &Worker, sign: Sign, within: Duration) -> bool {
    // On the heap: no other request must have its room.
    sign == Sign::Connection && !Box::pin(worker.is_gone(within)).await
}

/// Workers that ended while they had one request.
#[derive(Debug, Default)]
pub(super) struct Company(Mutex<Vec<(Arc<Worker>, Sign)>>);

/// How it is known that a worker ended; the surer is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sign {
    /// The connection ended: it may live all the same.
    Connection,
    /// It says that its engine is dead.
    Word,
}

impl Company {
    /// An attempt failed on a worker that had the request, with this body, since `begun`.
    pub(super) fn failed(
        &self,
        deaths: &Deaths,
        worker: &Arc<Worker>,
        (begun, body): (Instant, impl FnOnce() -> BodyId),
        why: &Failure,
    ) {
        let now = Instant::now();
        let sign = match why {
            _ if why.is_engine_dead() => {
                worker.engine_dead_since.begin(now);
                let since = worker.engine_dead_since.get();
                if since.is_some_and(|at| at < begun) {
                    return;
                }
                Sign::Word
            }
            Failure::Closed(_) => Sign::Connection,
            // Another request on it was the first to notice.
            Failure::WorkerBad if worker.health.look().is_unreachable => Sign::Connection,
            Failure::Connect(_) if why.is_refused() => {
                // One that has refused for long is asked as a last resort: it did not end now.
                let since = worker.refuses_since.get();
                if since.is_none_or(|since| since + TOGETHER >= now) {
                    deaths.saw(worker, Sign::Connection, None, now);
                }
                return;
            }
            _ => return,
        };
        self.ended(deaths, worker, sign, body());
    }

    /// A stream that had begun broke off.
    pub(super) fn broke(&self, deaths: &Deaths, worker: &Arc<Worker>, sign: Sign, body: BodyId) {
        self.ended(deaths, worker, sign, body);
    }

    fn ended(&self, deaths: &Deaths, worker: &Arc<Worker>, sign: Sign, body: BodyId) {
        let now = Instant::now();
        let refuses = worker.refuses_since.get();
        deaths.saw(worker, sign, Some(body), now);
        if sign == Sign::Connection && refuses.is_some_and(|since| since + CRASH_TAKES < now) {
            return;
        }
        self.0.lock().push((Arc::clone(worker), sign));
    }

    /// Whether so many workers ended with this request, of this body, that it is the likeliest cause.
    ///
    /// `most`: ends that a request may bring about; `connect`: the longest wait for a connection.
    pub(super) async fn is_condemned(
        &self,
        deaths: &Deaths,
        body: impl FnOnce() -> BodyId,
        (most, connect): (usize, Duration),
        marks: &QuarantineMetrics,
    ) -> Option<Vec<Arc<Worker>>> {
        let ended = self.0.lock().clone();
        if of_one_kind(ended.iter().map(|(worker, _)| worker)) < most {
            return None;
        }
        let within = LOOK.min(connect);
        let mut gone = Vec::with_capacity(ended.len());
        for (worker, sign) in ended {
            if lives(&worker, sign, within).await {
                deaths.forget(&[worker], Instant::now());
            } else {
                gone.push((worker, sign));
            }
        }
        self.0.lock().clone_from(&gone);
        let gone: Vec<Arc<Worker>> = gone.into_iter().map(|(worker, _)| worker).collect();
        if of_one_kind(&gone) < most {
            return None;
        }
        if deaths.excuse(&gone, body(), within).await {
            // It is known why these ended. The others are forgotten in a moment, and then it would look otherwise.
            self.0.lock().clear();
            marks.query_of_death("excused");
            return None;
        }
        deaths.forget(&gone, Instant::now());
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

    use tokio::net::TcpListener;

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::cluster::pool_for_tests;
    use crate::config::KvEventsConfig;
    use crate::metrics::ResultLabels;
    use crate::upstream::failure::tests::{DEAD, status};

    fn workers() -> Vec<Arc<Worker>> {
        let pool = pool_for_tests(&ClusterSettings::default(), &["a", "b", "c", "d"]);
        let members = pool.members().iter();
        members.map(|member| Arc::clone(&member.worker)).collect()
    }

    async fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.expect("a port")
    }

    /// Its listener takes connections, and says nothing.
    fn worker_at(listener: &TcpListener) -> Arc<Worker> {
        let port = listener.local_addr().expect("bound").port();
        let worker = worker_with("w", "m", |raw| {
            raw.url = format!("https://127.0.0.1:{port}")
        });
        let alone = Alone::new("r1", [worker], &KvEventsConfig::default(), 1);
        let fleet = alone.cluster.fleet();
        Arc::clone(fleet.workers().next().expect("one"))
    }

    const BODY: BodyId = (7, [7; 16]);

    fn sent_now() -> (Instant, impl FnOnce() -> BodyId) {
        (Instant::now(), || BODY)
    }

    fn closed() -> Failure {
        Failure::Closed("reset".into())
    }

    fn engine_dead() -> Failure {
        status(500, DEAD[0])
    }

    fn count(company: &Company) -> usize {
        company.0.lock().len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_was_told_to_stop_was_not_ended_by_a_request() {
        let (deaths, company, workers) = (Deaths::default(), Company::default(), workers());
        let now = Instant::now();
        // The crash that a request brings about closes the port a moment before its connection.
        workers[0].refuses_since.begin(now);
        tokio::time::advance(CRASH_TAKES / 2).await;
        company.failed(&deaths, &workers[0], (now, || BODY), &closed());
        assert_eq!(count(&company), 1);
        workers[1].refuses_since.begin(Instant::now());
        tokio::time::advance(CRASH_TAKES * 2).await;
        company.failed(&deaths, &workers[1], (now, || BODY), &closed());
        assert_eq!(count(&company), 1);
        // Nothing was sent.
        let refused = Failure::Connect(std::io::ErrorKind::ConnectionRefused.into());
        company.failed(&deaths, &workers[2], (now, || BODY), &refused);
        company.failed(&deaths, &workers[2], (now, || BODY), &Failure::Late);
        assert_eq!(count(&company), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_was_dead_before_was_not_ended_by_a_request() {
        let (deaths, workers) = (Deaths::default(), workers());
        let (first, later) = (Company::default(), Company::default());
        first.failed(&deaths, &workers[0], sent_now(), &engine_dead());
        assert_eq!(count(&first), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        later.failed(&deaths, &workers[0], sent_now(), &engine_dead());
        assert_eq!(count(&later), 0);
        for dead in DEAD {
            let (company, of_another) = (Company::default(), self::workers());
            company.failed(&deaths, &of_another[0], sent_now(), &status(500, dead));
            assert_eq!(count(&company), 1, "{dead}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_excused_once_is_not_condemned_later_for_the_same_ends() {
        let (deaths, company, workers) = (Deaths::default(), Company::default(), workers());
        let marks = QuarantineMetrics::register(&mut Registry::default());
        // Its attempts end with a rack.
        for worker in &workers[..2] {
            company.failed(&deaths, worker, sent_now(), &engine_dead());
        }
        for worker in &workers[2..] {
            deaths.saw(worker, Sign::Word, None, Instant::now());
        }
        let is_condemned = || async {
            let condemned = company
                .is_condemned(&deaths, || BODY, (2, LOOK), &marks)
                .await;
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
            company.failed(&deaths, worker, sent_now(), &engine_dead());
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
            company.failed(&deaths, rank, sent_now(), &closed());
        }
        assert_eq!(of_one_kind(&ranks[..2]), 1, "one process ended");
        assert_eq!(of_one_kind(&ranks), 2);
        let others = |of: &[Arc<Worker>]| deaths.others(of, (1, [1; 16]), Instant::now()).len();
        assert_eq!(others(&ranks[2..]), 1, "one process ended");
        assert_eq!(others(&ranks[..1]), 0, "its own");
    }

    /// However often its client sends it again.
    #[tokio::test(start_paused = true)]
    async fn what_one_body_ended_excuses_it_never_and_others_excuse_it_once() {
        let ids = ["a", "b", "c", "d", "e", "f"];
        let pool = pool_for_tests(&ClusterSettings::default(), &ids);
        let members = pool.members().iter();
        let workers: Vec<_> = members.map(|member| Arc::clone(&member.worker)).collect();
        let deaths = Deaths::default();
        let marks = QuarantineMetrics::register(&mut Registry::default());
        for worker in &workers[..2] {
            deaths.saw(worker, Sign::Word, None, Instant::now());
        }
        let is_condemned = async |ended: &[Arc<Worker>], body: BodyId| {
            let company = Company::default();
            for worker in ended {
                company.failed(&deaths, worker, (Instant::now(), || body), &engine_dead());
            }
            let condemned = company.is_condemned(&deaths, || body, (2, LOOK), &marks);
            condemned.await.is_some()
        };
        assert!(!is_condemned(&workers[2..4], BODY).await, "with a rack");
        let other = (2, [2; 16]);
        assert!(!is_condemned(&workers[2..4], other).await, "so is another");
        assert!(is_condemned(&workers[4..6], BODY).await, "by itself");
    }

    /// While the health of most is bad, such ones are asked again and again.
    #[tokio::test(start_paused = true)]
    async fn workers_that_ended_long_ago_excuse_nobody() {
        let (deaths, company, workers) = (Deaths::default(), Company::default(), workers());
        let refused = || Failure::Connect(std::io::ErrorKind::ConnectionRefused.into());
        for worker in &workers[..OTHERS] {
            worker.refuses_since.begin(Instant::now());
        }
        let others = || deaths.others(&workers[2..], BODY, Instant::now()).len();
        let asks = || {
            for worker in &workers[..OTHERS] {
                company.failed(&deaths, worker, sent_now(), &refused());
            }
        };
        asks();
        assert_eq!(others(), OTHERS, "they ended a moment ago");
        tokio::time::advance(TOGETHER + Duration::from_secs(1)).await;
        asks();
        assert_eq!(others(), 0);
    }

    /// Connections end by the hundred where there are hundreds of workers.
    #[tokio::test]
    async fn a_connection_that_ended_at_a_worker_that_lives_excuses_nobody() {
        let listeners = [listener().await, listener().await];
        let live = listeners.each_ref().map(worker_at);
        let (deaths, company) = (Deaths::default(), Company::default());
        let marks = QuarantineMetrics::register(&mut Registry::default());
        for worker in &live {
            let other = Company::default();
            let sent = (Instant::now(), || (2, [2; 16]));
            other.failed(&deaths, worker, sent, &closed());
        }
        for worker in &workers()[..2] {
            company.failed(&deaths, worker, sent_now(), &engine_dead());
        }
        let condemned = company.is_condemned(&deaths, || BODY, (2, LOOK), &marks);
        assert!(condemned.await.is_some());
    }

    /// It answers no handshake, so that a connection with TLS would not come about.
    #[tokio::test]
    async fn a_worker_that_is_frozen_lives_and_one_whose_port_is_closed_is_gone() {
        let listener = listener().await;
        let worker = worker_at(&listener);
        assert!(worker.address.server_name.is_some(), "with TLS");
        assert!(!worker.is_gone(LOOK).await);
        drop(listener);
        assert!(worker.is_gone(LOOK).await);
    }

    #[tokio::test(start_paused = true)]
    async fn ends_of_others_count_for_a_moment_and_once_each() {
        let (deaths, workers) = (Deaths::default(), workers());
        let see = |index: usize| deaths.saw(&workers[index], Sign::Word, None, Instant::now());
        let others = || deaths.others(&workers[..2], BODY, Instant::now()).len();
        for index in [0, 1, 2, 2] {
            see(index);
        }
        assert_eq!(others(), 1);
        tokio::time::advance(TOGETHER / 2).await;
        see(3);
        assert_eq!(others(), OTHERS);
        deaths.forget(&workers[3..], Instant::now());
        assert_eq!(others(), 1, "another request is known to have ended it");
        tokio::time::advance(TOGETHER).await;
        assert_eq!(others(), 0);
    }
}
