//! Looks at all replicas again and again while a scenario runs, and records when the scenario did what.
//!
//! A replica that is down is a result, not an error. Memory is bounded: when there are too many samples,
//! those far from any mark are dropped first ([`thin`]).

mod look;
mod thin;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::fault::Node;
use super::record::{Agreement, Mark, MarkKind, Origin, ReplicaSample, ReplicaState, Sample};
use super::seat::{Seat, SeatState};
use grapevine_bench::client::Ask;
use look::{Eye, Look, Placements};
use thin::Thinner;

/// Marks that are kept; further ones are counted.
const MARKS_MAX: usize = 2_000;
/// Least time between two rounds of questions about where prompts would go.
const AGREEMENT_EVERY: Duration = Duration::from_secs(1);

/// Watches until it is finished or dropped.
pub(crate) struct Observer {
    state: Arc<Mutex<State>>,
    latest: watch::Receiver<Option<Arc<Sample>>>,
    origin: Origin,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct State {
    marks: Vec<Mark>,
    marks_beyond: u64,
    samples: Vec<Sample>,
    thinner: Thinner,
}

/// Names a mark, to end it later; `None` when there were too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MarkId(Option<usize>);

/// The marks and samples of an observer.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    /// By time.
    pub(crate) marks: Vec<Mark>,
    /// By time.
    pub(crate) samples: Vec<Sample>,
    /// Notes on marks and samples that were left out.
    pub(crate) notes: Vec<String>,
}

impl Observer {
    /// Looks at the replicas among `seats` every `every`, and asks them where `prompts` would go. No client
    /// may send these prompts: then asking about them changes nothing for later requests.
    pub(crate) fn start(
        seats: watch::Receiver<Vec<Seat>>,
        every: Duration,
        prompts: Vec<Ask>,
        origin: Origin,
    ) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (tell, latest) = watch::channel(None);
        let task = tokio::spawn(watch_seats(
            seats,
            every,
            prompts.into(),
            origin,
            Arc::clone(&state),
            tell,
        ));
        Self {
            state,
            latest,
            origin,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Records that something begins, or happens, now.
    pub(crate) fn mark(
        &self,
        kind: MarkKind,
        node: Option<&str>,
        text: impl Into<String>,
    ) -> MarkId {
        let at_ms = self.origin.elapsed_ms();
        let mut state = self.state.lock();
        if state.marks.len() >= MARKS_MAX {
            state.marks_beyond += 1;
            return MarkId(None);
        }
        state.marks.push(Mark {
            at_ms,
            until_ms: None,
            kind,
            node: node.map(str::to_owned),
            text: text.into(),
        });
        MarkId(Some(state.marks.len() - 1))
    }

    /// Records that it ends now; a second call changes nothing.
    pub(crate) fn end(&self, id: MarkId) {
        let now = self.origin.elapsed_ms();
        let mut state = self.state.lock();
        if let Some(mark) = id.0.and_then(|index| state.marks.get_mut(index)) {
            mark.until_ms.get_or_insert(now);
        }
    }

    /// The latest sample.
    pub(crate) fn latest(&self) -> Option<Arc<Sample>> {
        self.latest.borrow().clone()
    }

    /// Waits for a sample taken from now on of which `wanted` is true; `None` when there is none within
    /// `limit`.
    pub(crate) async fn until(
        &self,
        limit: Duration,
        mut wanted: impl FnMut(&Sample) -> bool,
    ) -> Option<Arc<Sample>> {
        let from = self.origin.elapsed_ms();
        let mut latest = self.latest.clone();
        let found = latest.wait_for(|sample| {
            let sample = sample.as_ref();
            sample.is_some_and(|sample| sample.at_ms >= from && wanted(sample))
        });
        let sample = tokio::time::timeout(limit, found).await.ok()?.ok()?;
        (*sample).clone()
    }

    /// Ends the observation and returns what was seen. Faults that were not ended stay open.
    pub(crate) fn finish(self) -> Observed {
        let mut state = self.state.lock();
        let mut notes = Vec::new();
        if state.marks_beyond > 0 {
            notes.push(format!(
                "{} further marks were not kept",
                state.marks_beyond
            ));
        }
        if state.thinner.dropped > 0 {
            notes.push(format!(
                "{} samples were dropped to bound memory: mostly those far from any mark",
                state.thinner.dropped
            ));
        }
        Observed {
            marks: std::mem::take(&mut state.marks),
            samples: std::mem::take(&mut state.samples),
            notes,
        }
    }
}

async fn watch_seats(
    seats: watch::Receiver<Vec<Seat>>,
    every: Duration,
    prompts: Arc<[Ask]>,
    origin: Origin,
    state: Arc<Mutex<State>>,
    tell: watch::Sender<Option<Arc<Sample>>>,
) {
    let mut ticks = interval(every);
    // After a slow round the next one waits its turn: no burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut eyes: BTreeMap<String, Eye> = BTreeMap::new();
    let mut asked: Option<Instant> = None;
    loop {
        ticks.tick().await;
        let now: Vec<Seat> = seats.borrow().clone();
        let replicas: Vec<&Seat> = now
            .iter()
            .filter(|seat| matches!(seat.node, Node::Replica(_)))
            .collect();
        eyes.retain(|name, _| replicas.iter().any(|seat| seat.name == *name));
        let ask = !prompts.is_empty() && asked.is_none_or(|at| at.elapsed() >= AGREEMENT_EVERY);
        if ask {
            asked = Some(Instant::now());
        }
        let prompts = if ask {
            Arc::clone(&prompts)
        } else {
            Arc::default()
        };
        let at_ms = origin.elapsed_ms();
        let looks = look_at_all(&replicas, &mut eyes, &prompts).await;
        let sample = Arc::new(sample(at_ms, &replicas, looks, ask));
        {
            let mut state = state.lock();
            let State {
                marks,
                samples,
                thinner,
                ..
            } = &mut *state;
            samples.push((*sample).clone());
            thinner.bound(samples, marks);
        }
        tell.send_replace(Some(sample));
    }
}

/// Looks at all replicas at once; one entry for each, in the same order.
async fn look_at_all(
    replicas: &[&Seat],
    eyes: &mut BTreeMap<String, Eye>,
    prompts: &Arc<[Ask]>,
) -> Vec<Option<Look>> {
    let mut tasks = JoinSet::new();
    for (index, seat) in replicas.iter().enumerate() {
        // A paused process is asked as well: its silence is observed, not assumed.
        if seat.state != SeatState::Stopped
            && let Some(client) = Eye::of(eyes, seat)
        {
            let prompts = Arc::clone(prompts);
            tasks.spawn(async move { (index, look::look(&client, &prompts).await) });
        }
    }
    let mut looks: Vec<Option<Look>> = Vec::new();
    looks.resize_with(replicas.len(), || None);
    while let Some(done) = tasks.join_next().await {
        let (index, look) = done.expect("looking does not panic");
        looks[index] = look;
    }
    looks
}

fn sample(at_ms: u64, seats: &[&Seat], looks: Vec<Option<Look>>, asked: bool) -> Sample {
    let answers = looks.iter().flatten().map(|look| &look.placements);
    let answers: Vec<&Placements> = answers.collect();
    let compared = |part| asked.then(|| agreement(&answers, part));
    let now = compared(|placement| &placement.now);
    let idle = compared(|placement| &placement.idle);
    let replica = |(seat, look): (&&Seat, Option<Look>)| {
        let process = seat.pid.and_then(look::process).unwrap_or_default();
        let (seen, resident) = look.map(|look| (look.seen, look.resident_bytes)).unzip();
        ReplicaSample {
            name: seat.name.clone(),
            state: match (&seen, seat.state) {
                (_, SeatState::Stopped) => ReplicaState::Stopped,
                (Some(_), _) => ReplicaState::Up,
                (None, _) => ReplicaState::Silent,
            },
            seen,
            pid: seat.pid,
            rss_bytes: process.rss_bytes.or(resident.flatten()),
            open_files: process.open_files,
            cpu_s: process.cpu_s,
        }
    };
    Sample {
        at_ms,
        replicas: seats.iter().zip(looks).map(replica).collect(),
        agreement: now,
        agreement_idle: idle,
    }
}

/// Agreement over the prompts about which all answering replicas were asked; 0 prompts where fewer than two
/// answer.
fn agreement(answers: &[&Placements], part: fn(&look::Placement) -> &Option<String>) -> Agreement {
    if answers.len() < 2 {
        return Agreement::default();
    }
    let asked = answers.iter().map(|answer| answer.len()).min().unwrap_or(0);
    let equal = |prompt: &usize| {
        let first = part(&answers[0][*prompt]);
        first.is_some() && answers.iter().all(|answer| part(&answer[*prompt]) == first)
    };
    Agreement {
        asked,
        equal: (0..asked).filter(equal).count(),
    }
}

#[cfg(test)]
mod tests;
