//! Rates of workers: what their answers to this replica show is sent to the others, and decisions go by what all have
//! sent, this one included. So all replicas decide by the same rates, but for the moments in which a change
//! is on its way.

use std::time::Duration;

use grapevine_gossip::peer_state::{PACES_MAX, Pace, PeerStates};
use grapevine_placement::{HashAlgorithm, Observed, Rate};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::fleet::Fleet;
use crate::upstream::Worker;

/// What was sent last, and learned from.
#[derive(Debug, Default)]
pub(super) struct Rates {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    told: Vec<Pace>,
    /// Answers behind what was sent.
    answers: f64,
    at: Option<Instant>,
    learned: Option<Instant>,
    faded: Option<Instant>,
}

impl Rates {
    /// Gives all workers of the fleet the rates that all replicas have sent, and returns what this one sends: the same
    /// as before until it has more to send, and not more often than each second once there is enough of it.
    pub(super) fn learn(&self, fleet: &Fleet, states: &PeerStates, now: Instant) -> Vec<Pace> {
        let mut last = self.last.lock();
        last.fade(fleet, now);
        let is_news = last.refresh(fleet, now);
        let is_due = last
            .learned
            .is_none_or(|at| now.saturating_duration_since(at) >= LATE);
        // Called many times a second, with thousands of workers: what others send changes as seldom as what is sent.
        if !is_news && !is_due {
            return last.told.clone();
        }
        last.learned = Some(now);
        last.give(fleet, states);
        last.told.clone()
    }

    /// Gives the workers of a new fleet their rates at once. One that has come, moved, or ended its warm-up would go by
    /// [`Rate::TYPICAL`] until the next time that something is learned: beside workers that are known to be faster,
    /// nothing would be sent there, and what went to others instead would stay with them.
    pub(super) fn give(&self, fleet: &Fleet, states: &PeerStates) {
        let last = self.last.lock();
        last.give(fleet, states);
    }
}

impl Last {
    fn give(&self, fleet: &Fleet, states: &PeerStates) {
        let of = |worker: &Worker| {
            let number = number_of(worker);
            let own = self.told.binary_search_by_key(&number, |pace| pace.worker);
            let own = own.ok().map(|at| self.told[at].sums);
            // Of a replica that sends what cannot be, nothing counts.
            let all = states
                .paces_of(number)
                .chain(own)
                .filter_map(Observed::from_parts);
            all.fold(Observed::default(), |sum, one| sum.merged(&one))
        };
        // A worker of several models goes by the last one's, on every replica.
        for pool in std::iter::once(&fleet.whole()).chain(fleet.all_pools()) {
            let seen: Vec<_> = pool
                .members()
                .iter()
                .map(|member| of(&member.worker))
                .collect();
            let all = seen
                .iter()
                .fold(Observed::default(), |sum, one| sum.merged(one));
            let rate = Rate::of_pool(&all);
            for (member, seen) in pool.members().iter().zip(&seen) {
                member.worker.glance.set_rate(rate.of_worker(seen));
            }
        }
    }

    /// Seldom, since what has changed is sent.
    fn fade(&mut self, fleet: &Fleet, now: Instant) {
        let since = now.saturating_duration_since(*self.faded.get_or_insert(now));
        if since >= FADES {
            let part = 0.5_f64.powf(since.as_secs_f64() / HALF_LIFE.as_secs_f64());
            fleet.workers().for_each(|worker| worker.pace.fade(part));
            self.faded = Some(now);
        }
    }

    /// Whether there is more to send.
    fn refresh(&mut self, fleet: &Fleet, now: Instant) -> bool {
        let since = self
            .at
            .map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        if since < SOON {
            return false;
        }
        let mut seen: Vec<_> = fleet
            .workers()
            .map(|worker| (number_of(worker), worker.pace.seen()))
            .filter(|(_, seen)| seen.count() > 0.0)
            .collect();
        let answers = seen.iter().map(|(_, seen)| seen.count()).sum();
        if since < LATE && answers <= self.answers * GROWN {
            return false;
        }
        if seen.len() > PACES_MAX {
            seen.sort_by(|(_, a), (_, b)| b.count().total_cmp(&a.count()));
            seen.truncate(PACES_MAX);
        }
        let told = seen.into_iter().map(|(worker, seen)| Pace {
            worker,
            sums: seen.parts(),
        });
        self.told = told.collect();
        self.told.sort_by_key(|pace| pace.worker);
        self.answers = answers;
        self.at = Some(now);
        true
    }
}

/// The same on every replica and in every release.
fn number_of(worker: &Worker) -> u64 {
    HashAlgorithm::Xxh3.hash(0, worker.id.as_str().as_bytes())
}

/// What is new is sent so soon while there is little of it, ...
const SOON: Duration = Duration::from_millis(50);
/// ... if there is so much more of it ...
const GROWN: f64 = 1.25;
/// ... and so late at most.
const LATE: Duration = Duration::from_secs(1);
/// What was seen fades this often, ...
const FADES: Duration = Duration::from_secs(60);
/// ... so that half of it is left after this.
///
/// Lower: quiet clusters do not know their workers' rates. Higher: a worker that was slow once is passed over for longer.
const HALF_LIFE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use grapevine_gossip::peer_state::ReceivedState;
    use grapevine_gossip::worker::{RawWorker, Source, State, WorkerId, WorkerSpec};

    use super::super::tests::{MODEL, WORKERS, house};
    use super::*;
    use crate::alone::{Alone, worker};

    fn states_of(replica: &str, paces: Vec<Pace>, now: Instant) -> PeerStates {
        let now = now.into_std();
        PeerStates::from_iter([ReceivedState {
            paces,
            ..ReceivedState::silent(replica.parse().expect("an id"), now)
        }])
    }

    /// So many answers of each worker to this replica, after about the same time.
    fn answers(house: &Alone, count: u32, millis: f64) {
        for worker in house.cluster.fleet().workers() {
            for answer in 0..count {
                let noise = f64::from(answer * 5 % 7);
                worker
                    .pace
                    .answered(u64::from(answer) * 100, millis + noise);
            }
        }
    }

    fn rates(house: &Alone) -> Vec<u64> {
        let fleet = house.cluster.fleet();
        let rates = fleet
            .workers()
            .map(|worker| worker.glance.rate().millis().to_bits());
        rates.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_that_saw_different_answers_decide_by_the_same_rates() {
        let (one, other) = (house(), house());
        answers(&one, 60, 40.0);
        answers(&other, 20, 41.0);
        let (of_one, of_other) = (Rates::default(), Rates::default());
        let now = Instant::now();
        let nobody = PeerStates::default();
        let told = of_one.learn(&one.cluster.fleet(), &nobody, now);
        let heard = of_other.learn(&other.cluster.fleet(), &nobody, now);
        assert_eq!((told.len(), heard.len()), (WORKERS, WORKERS));
        assert_ne!(rates(&one), rates(&other));
        of_one.learn(
            &one.cluster.fleet(),
            &states_of("r2", heard, now),
            now + LATE,
        );
        of_other.learn(
            &other.cluster.fleet(),
            &states_of("r1", told, now),
            now + LATE,
        );
        let close =
            |(a, b): (&u64, &u64)| (f64::from_bits(*a) / f64::from_bits(*b) - 1.0).abs() < 1e-6;
        assert!(rates(&one).iter().zip(&rates(&other)).all(close));
        let slowest = rates(&one)
            .into_iter()
            .map(f64::from_bits)
            .fold(0.0, f64::max);
        assert!(
            slowest < Rate::TYPICAL.millis() / 5.0,
            "no queue costs anything: {slowest}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn more_is_told_when_there_is_more_and_what_cannot_be_counts_for_nothing() {
        let house = house();
        let rates_of = Rates::default();
        let (now, nobody) = (Instant::now(), PeerStates::default());
        let learn = |states: &PeerStates, now| rates_of.learn(&house.cluster.fleet(), states, now);
        assert_eq!(learn(&nobody, now), Vec::new());
        answers(&house, 20, 40.0);
        let first = learn(&nobody, now + SOON);
        assert_eq!(first.len(), WORKERS);
        answers(&house, 2, 40.0);
        assert_eq!(
            learn(&nobody, now + SOON * 2),
            first,
            "a tenth more is not worth it yet"
        );
        assert_ne!(learn(&nobody, now + SOON + LATE), first);
        let before = rates(&house);
        let lies = first.iter().map(|pace| Pace {
            sums: [1.0, -1.0, 0.0, 0.0, 1e9, 0.0],
            ..*pace
        });
        learn(&states_of("r2", lies.collect(), now), now + SOON + LATE * 2);
        assert_eq!(rates(&house), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_was_slow_goes_by_the_rate_of_its_pool_once_it_starts_again_or_time_has_passed()
     {
        for starts_again in [true, false] {
            let house = house();
            let fleet = house.cluster.fleet();
            let (rates_of, nobody) = (Rates::default(), PeerStates::default());
            let mut now = Instant::now();
            answers(&house, 60, 40.0);
            let slow = fleet.workers().next().expect("there are some");
            slow.pace.forget();
            for answer in 0..60_u32 {
                let tokens = answer * 37 % 60 * 100;
                slow.pace.answered(tokens.into(), 40.0 + f64::from(tokens));
            }
            rates_of.learn(&fleet, &nobody, now);
            assert!(slow.glance.rate().millis() > 0.4, "a millisecond a token");
            if starts_again {
                slow.restarted();
                now += LATE;
            } else {
                now += HALF_LIFE * 12;
            }
            let told = rates_of.learn(&fleet, &nobody, now);
            let others = fleet.workers().skip(1).map(|worker| worker.glance.rate());
            assert!(others.into_iter().all(|rate| rate == slow.glance.rate()));
            assert_eq!(told.len(), if starts_again { WORKERS - 1 } else { 0 });
        }
    }

    /// Of a replica that has learned something.
    fn slowest(house: &Alone) -> f64 {
        let rates = rates(house).into_iter().map(f64::from_bits);
        rates.fold(0.0, f64::max)
    }

    fn described(url: &str, state: State) -> WorkerSpec {
        let raw = RawWorker {
            models: vec![MODEL.to_owned()],
            state,
            ..RawWorker::at(url)
        };
        WorkerSpec::new(raw).expect("a worker")
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_moves_goes_by_the_rate_of_its_pool_at_once() {
        let house = house();
        answers(&house, 60, 40.0);
        house.cluster.learn_rates();
        let before = slowest(&house);
        assert!(before < Rate::TYPICAL.millis() / 5.0);
        let (id, _) = worker(0, MODEL);
        let moved = described("http://elsewhere:8000", State::Active);
        house.agent.configure(id, moved).expect("there is room");
        house.cluster.update(&house.agent.view());
        assert!(slowest(&house) <= before * 1.01);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_ends_its_warm_up_goes_by_the_rate_of_its_pool_at_once() {
        let house = house();
        answers(&house, 60, 40.0);
        house.cluster.learn_rates();
        let before = slowest(&house);
        let agent = &house.agent;
        let id: WorkerId = "new".parse().expect("an id");
        let until_ms = agent.hybrid_ms() + 60_000;
        let joining = described("http://new:8000", State::Warming { until_ms });
        let put = agent.put_worker(id.clone(), Source::Admin, joining);
        put.await.expect("there is room");
        house.cluster.update(&agent.view());
        let view = agent.view();
        let warming = view.worker(&id).and_then(|worker| worker.warming.as_ref());
        let stamp = warming.expect("it is warming").stamp;
        let finished = agent.finish_warming(&id, stamp).await;
        finished.expect("there is room").expect("it was warming");
        house.cluster.update(&agent.view());
        assert!(slowest(&house) <= before * 1.01);
    }
}
