//! Load generator: closed loop (a number of clients, each with one request at a time) or open loop (a rate
//! that does not depend on the answers).
//!
//! Bounded in count *and* time. In the open loop latency counts from the moment a request was due,
//! so a stalled system cannot hide its stall by slowing the generator down (coordinated omission);
//! requests beyond `in_flight_max` are not sent but counted as shed.
//!
//! What is started is a session: one request, or the turns of a conversation one after the other. A turn after the
//! first is due when the one before it has ended, since nobody replies to what they have not read.

mod active;
mod arrivals;
mod prompts;
mod recorded;
mod session;
mod source;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use arrivals::{Arrivals, Pacing};
pub use prompts::{Endpoint, Prompts, words};
pub use recorded::{Form, Recorded, RecordedError};
pub use source::Source;

use crate::client::{Client, Outcome};
use crate::tally::{Summary, Tally, Took};
use active::Active;
use session::Sessions;

/// Ended requests that wait to be counted.
const ENDED_MAX: usize = 1_024;

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// Requests after which the run ends.
    pub requests: u64,
    /// Time after which nothing new is sent.
    pub duration: Duration,
    /// Limit of one request; what is in flight when the run ends is waited for up to this.
    pub timeout: Duration,
    /// The requests.
    pub source: Source,
    /// Sessions of the source that are left out before the first: other runs have them.
    pub first_session: u64,
    /// Ask the router which worker answered.
    pub explain: bool,
    /// Seed of the arrivals.
    pub seed: u64,
}

/// How a run is ended before its time; what was sent is counted in any case.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Nothing new is sent once this is cancelled; what is in flight is waited for.
    pub sending: CancellationToken,
    /// What is in flight is dropped once this is cancelled, and counted as unfinished.
    pub waiting: CancellationToken,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Sums over the requests sent.
    #[serde(flatten)]
    pub summary: Summary,
    /// The times in it.
    #[serde(skip)]
    pub took: Took,
    /// Open loop: requests that were due but not sent.
    pub shed: u64,
    /// Requests that were sent and dropped before their end, because somebody ended the run.
    pub unfinished: u64,
}

/// A request that has ended, and when.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The result of the request.
    pub outcome: Outcome,
    /// When it was due.
    pub due: Instant,
    /// Time from when it was due until it was sent.
    pub waited: Duration,
}

impl Ended {
    /// When it was sent.
    pub fn sent(&self) -> Instant {
        self.due + self.waited
    }

    /// When it ended.
    pub fn at(&self) -> Instant {
        self.sent() + self.outcome.latency
    }
}

/// Runs a plan against a client's targets. `observe` gets each outcome as it comes, and the sums so
/// far.
pub async fn run(
    client: Arc<Client>,
    plan: Plan,
    mut observe: impl FnMut(&Outcome, &Tally),
) -> Report {
    run_until(client, plan, &Stop::default(), |ended, tally| {
        observe(&ended.outcome, tally);
    })
    .await
}

/// As [`run`], and it can be ended.
pub async fn run_until(
    client: Arc<Client>,
    plan: Plan,
    stop: &Stop,
    mut observe: impl FnMut(&Ended, &Tally),
) -> Report {
    let start = Instant::now();
    let (send, mut ended) = mpsc::channel(ENDED_MAX);
    let arrivals = plan.arrivals;
    let sessions = Arc::new(Sessions::new(client, plan, start, stop, send));
    let sending = async {
        let shed = match arrivals {
            Arrivals::Closed { clients } => closed(&sessions, clients).await,
            Arrivals::Open {
                rate,
                pacing,
                in_flight_max,
            } => open(&sessions, rate, pacing, in_flight_max).await,
        };
        sessions.close();
        shed
    };
    let (mut tally, mut active) = (Tally::default(), Active::new(start));
    let counting = async {
        while let Some(one) = ended.recv().await {
            tally.add(&one.outcome, one.waited);
            active.add(&one);
            observe(&one, &tally);
        }
    };
    let (shed, ()) = tokio::join!(sending, counting);
    let took = active.took(Instant::now());
    Report {
        summary: tally.summary(took),
        took,
        shed,
        unfinished: sessions.sent().saturating_sub(tally.requests()),
    }
}

/// Each client takes the next session when it has ended one. Nothing is shed.
async fn closed(sessions: &Arc<Sessions>, clients: usize) -> u64 {
    let mut tasks = JoinSet::new();
    for _ in 0..clients.max(1) {
        let sessions = Arc::clone(sessions);
        tasks.spawn(async move {
            while let Some(session) = sessions.take() {
                sessions.hold(session, Instant::now()).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("requests do not panic");
    }
    0
}

/// Sessions start at their times, whatever became of those before. Returns the requests that were shed.
async fn open(sessions: &Arc<Sessions>, rate: f64, pacing: Pacing, in_flight_max: usize) -> u64 {
    let mut times = pacing.times(rate, sessions.plan.seed);
    let mut in_flight = JoinSet::new();
    let mut shed = 0;
    let mut due = Instant::now();
    while let Some(session) = sessions.take_due(due) {
        loop {
            tokio::select! {
                () = sessions.stop.sending.cancelled() => break,
                () = sleep_until(due) => break,
                Some(done) = in_flight.join_next() => done.expect("requests do not panic"),
            }
        }
        if sessions.stop.sending.is_cancelled() {
            break;
        }
        if has_room(&mut in_flight, in_flight_max) {
            let sessions = Arc::clone(sessions);
            in_flight.spawn(async move { sessions.hold(session, due).await });
        } else {
            shed += sessions.length(session);
        }
        due += times.next().expect("arrivals do not end");
    }
    while let Some(done) = in_flight.join_next().await {
        done.expect("requests do not panic");
    }
    shed
}

/// Is there room for one more request? Those that have ended make room, also where nobody has looked at them yet.
fn has_room(in_flight: &mut JoinSet<()>, in_flight_max: usize) -> bool {
    while let Some(done) = in_flight.try_join_next() {
        done.expect("requests do not panic");
    }
    in_flight.len() < in_flight_max
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_request_that_has_ended_makes_room() {
        let mut in_flight = JoinSet::new();
        in_flight.spawn(std::future::pending());
        let ended = in_flight.spawn(async {});
        while !ended.is_finished() {
            yield_now().await;
        }
        assert!(has_room(&mut in_flight, 2));
        assert!(!has_room(&mut in_flight, 1), "one does not end");
    }
}
