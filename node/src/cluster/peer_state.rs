//! What this replica reports to the others about workers and tenants, and what it makes of their reports.
//!
//! Only what was found out here is sent, so no replica gets an own claim back. What others claim lowers a worker's rank
//! here, it never takes a worker away; a replica that calls more than half of a pool bad is not believed about that
//! pool, unless the pool is one worker alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use grapevine_gossip::peer_state::{
    Claim as WireClaim, HealthClaim, Heard, PAUSE, PeerState, PeerStates, Sighting, TenantUse,
};
use grapevine_gossip::worker::WorkerId;
use grapevine_gossip::{Agent, ReplicaId};
use grapevine_placement::{Claim, is_believable};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Cluster;
use super::fleet::Fleet;
use super::metrics::{ClusterMetrics, QuarantineMetrics};
use super::pool::PoolMember;
use super::quarantine::Quarantine;
use crate::metrics::ClaimLabels;
use crate::metrics::refusals::RefusalMetrics;
use crate::shutdown::Phase;
use crate::upstream::Worker;

/// What this replica has in hand for tenants, now.
pub type OwnUse = Arc<dyn Fn() -> Vec<TenantUse> + Send + Sync>;

/// What sources of workers show this replica, now.
pub type Sightings = Box<dyn Fn() -> Vec<Sighting> + Send + Sync>;

/// The task that publishes this replica's peer state and reads that of the others.
pub struct PeerStateTask {
    /// Where peer states go and come from.
    pub agent: Arc<Agent>,
    /// The cluster with the workers that they are about.
    pub cluster: Arc<Cluster>,
    /// What is reported about tenants.
    pub own_use: OwnUse,
    /// Requests that no worker gets, to send and to receive.
    pub quarantine: Arc<Quarantine>,
    /// What sources of workers show.
    pub sightings: Sightings,
    /// Where claims are counted.
    pub metrics: ClusterMetrics,
    /// Where marks are counted.
    pub marks: QuarantineMetrics,
    /// Where limits are counted.
    pub refusals: RefusalMetrics,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

impl PeerStateTask {
    /// Publishes and reads until the replica ends.
    pub async fn run(self) {
        // There from the start, so that nothing received is a zero and not a gap.
        Counts::default().publish(&self.metrics);
        let mut changes = self.agent.watch_peer_states();
        let mut tick = interval(PAUSE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.phase.closed() => return,
                _ = tick.tick() => {}
            }
            self.publish();
            // Not at each change: with many replicas there are more of them than need to be read.
            match changes.has_changed() {
                Ok(true) => {
                    changes.mark_unchanged();
                    self.read();
                }
                Ok(false) => {}
                Err(_) => return,
            }
        }
    }

    /// Publishes what was found out here; the agent sees what of it is new.
    fn publish(&self) {
        let fleet = self.cluster.fleet();
        let paces = self.cluster.learn_rates();
        let claim = |worker: &Arc<Worker>| {
            let (claim, age) = worker.health.claim()?;
            Some(HealthClaim {
                worker: worker.id.clone(),
                epoch: worker.epoch.load(Ordering::Relaxed),
                claim: encode(claim),
                age,
            })
        };
        self.agent.publish_state(PeerState {
            health: fleet.workers().filter_map(claim).collect(),
            usage: (self.own_use)(),
            quarantine: self.quarantine.to_send(),
            paces,
            sightings: (self.sightings)(),
            heard: self.heard(),
        });
    }

    /// Whom this replica hears.
    fn heard(&self) -> Vec<Heard> {
        let heard = self.agent.heard().into_iter();
        heard.map(|(replica, age)| Heard { replica, age }).collect()
    }

    /// Gives each worker what the others claim of it now.
    fn read(&self) {
        let states = self.agent.peer_states();
        let fleet = self.cluster.fleet();
        let unbelieved = unbelieved(&fleet, &states);
        let is_believed = |from, worker| {
            let of_replica = unbelieved.get(from);
            of_replica.is_none_or(|workers| !workers.contains(worker))
        };
        let mut counts = Counts::default();
        for worker in fleet.workers() {
            let claims = states.claims_on(&worker.id);
            worker.health.heard(claims.filter_map(|(from, said, age)| {
                let claim = decode(said.claim);
                let believed = is_believed(from, &worker.id);
                counts.add(claim, believed);
                believed.then_some((claim, age))
            }));
        }
        counts.publish(&self.metrics);
        let now = Instant::now().into_std();
        for peer in states.peers() {
            let marks: Vec<_> = peer.quarantined(now).collect();
            let (new, gone) = self.quarantine.receive(&peer.replica, &marks);
            for _ in 0..new {
                self.marks.query_of_death("reported");
            }
            for _ in 0..gone {
                self.refusals.limit_reached("quarantine");
            }
        }
    }
}

/// By replica, the workers that it calls bad without being believed: those of pools of which it calls too many so. What
/// drains counts on neither side: a worker that was stopped is bad in truth.
fn unbelieved<'a>(
    fleet: &Fleet,
    states: &'a PeerStates,
) -> BTreeMap<&'a ReplicaId, BTreeSet<&'a WorkerId>> {
    let mut unbelieved = BTreeMap::new();
    for peer in states.peers() {
        let bad = peer
            .health
            .iter()
            .filter(|said| decode(said.claim).is_bad());
        let bad: BTreeSet<&WorkerId> = bad.map(|said| &said.worker).collect();
        if bad.is_empty() {
            continue;
        }
        let mut of_peer = BTreeSet::new();
        for pool in fleet.all_pools() {
            let is_named = |member: &&PoolMember| bad.contains(&member.worker.id);
            let staying = || pool.members().iter().filter(|member| !member.is_out());
            if !is_believable(staying().filter(is_named).count(), staying().count()) {
                let named = pool.members().iter();
                of_peer.extend(named.filter_map(|member| bad.get(&member.worker.id).copied()));
            }
        }
        if !of_peer.is_empty() {
            unbelieved.insert(&peer.replica, of_peer);
        }
    }
    unbelieved
}

/// Claims that were read, by what they claim and whether they are believed.
#[derive(Debug, Default)]
struct Counts([[i64; 2]; Claim::ALL.len()]);

impl Counts {
    fn add(&mut self, claim: Claim, believed: bool) {
        self.0[claim as usize][usize::from(believed)] += 1;
    }

    fn publish(&self, metrics: &ClusterMetrics) {
        for claim in Claim::ALL {
            for (believed, count) in ["no", "yes"].into_iter().zip(self.0[claim as usize]) {
                let claim = claim.as_str();
                let labels = ClaimLabels { claim, believed };
                metrics.health_claims.get_or_create(&labels).set(count);
            }
        }
    }
}

/// A claim in the words of gossip.
fn encode(claim: Claim) -> WireClaim {
    match claim {
        Claim::Good => WireClaim::Good,
        Claim::Unreachable => WireClaim::Unreachable,
        Claim::Unhealthy => WireClaim::Unhealthy,
        Claim::Stalled => WireClaim::Stalled,
        Claim::Ejected => WireClaim::Ejected,
    }
}

/// A claim in the words of placement.
fn decode(claim: WireClaim) -> Claim {
    match claim {
        WireClaim::Good => Claim::Good,
        WireClaim::Unreachable => Claim::Unreachable,
        WireClaim::Unhealthy => Claim::Unhealthy,
        WireClaim::Stalled => Claim::Stalled,
        WireClaim::Ejected => Claim::Ejected,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grapevine_gossip::peer_state::ReceivedState;
    use grapevine_gossip::worker::State;

    use super::super::tests::{MODEL, WORKERS, house};
    use super::*;
    use crate::alone::{Alone, worker, worker_with};
    use crate::config::KvEventsConfig;

    /// What a replica claims of the first workers, in order.
    fn says(replica: &str, claims: &[WireClaim]) -> ReceivedState {
        let said = |(number, claim): (usize, &WireClaim)| HealthClaim {
            worker: format!("w{number}").parse().expect("an id"),
            epoch: 0,
            claim: *claim,
            age: Duration::from_secs(1),
        };
        let now = Instant::now().into_std();
        ReceivedState {
            health: claims.iter().enumerate().map(said).collect(),
            ..ReceivedState::silent(replica.parse().expect("an id"), now)
        }
    }

    #[test]
    fn who_calls_more_than_half_of_a_pool_bad_is_not_believed_about_it() {
        use WireClaim::{Ejected, Good, Stalled, Unhealthy};
        let house = house();
        let fleet = house.cluster.fleet();
        assert_eq!(fleet.pool(MODEL).expect("served").members().len(), WORKERS);
        for (claims, expected) in [
            (&[Good, Good, Good, Good][..], 0),
            (&[Good, Stalled, Good, Ejected][..], 0),
            (&[Unhealthy, Stalled, Good, Ejected][..], 3),
            (&[Stalled, Stalled, Stalled, Stalled][..], 4),
        ] {
            let other = says("r3", &[Good, Stalled]);
            let states = PeerStates::from_iter([other, says("r2", claims)]);
            let unbelieved = unbelieved(&fleet, &states);
            let of = |replica: &str| {
                let replica: ReplicaId = replica.parse().expect("an id");
                unbelieved.get(&replica).map_or(0, BTreeSet::len)
            };
            assert_eq!((of("r2"), of("r3")), (expected, 0), "{claims:?}");
        }
    }

    /// They ended, and are removed in a while: that they are called bad shows nothing of who calls them so.
    #[test]
    fn drained_workers_make_no_replica_unbelievable() {
        use WireClaim::{Good, Stalled, Unreachable};
        let drained = |number: usize| {
            worker_with(&format!("w{number}"), MODEL, |raw| {
                raw.state = State::Draining;
            })
        };
        let workers = [drained(0), drained(1), worker(2, MODEL), worker(3, MODEL)];
        let house = Alone::new("r1", workers, &KvEventsConfig::default(), WORKERS);
        let fleet = house.cluster.fleet();
        for (claims, expected) in [
            ([Unreachable, Unreachable, Stalled, Good], 0),
            ([Unreachable, Unreachable, Stalled, Stalled], 4),
        ] {
            let states = PeerStates::from_iter([says("r2", &claims)]);
            let replica: ReplicaId = "r2".parse().expect("an id");
            let unbelieved = unbelieved(&fleet, &states);
            let found = unbelieved.get(&replica).map_or(0, BTreeSet::len);
            assert_eq!(found, expected, "{claims:?}");
        }
    }

    /// It may be one of many that serve another model.
    #[test]
    fn who_calls_the_only_worker_of_a_pool_bad_is_believed() {
        let mut workers: Vec<_> = (0..WORKERS).map(|number| worker(number, MODEL)).collect();
        workers[0] = worker_with("w0", MODEL, |raw| raw.models.push("alone".to_owned()));
        let house = Alone::new("r1", workers, &KvEventsConfig::default(), WORKERS);
        let fleet = house.cluster.fleet();
        assert_eq!(fleet.pool("alone").expect("served").members().len(), 1);
        let of_one = PeerStates::from_iter([says("r2", &[WireClaim::Stalled])]);
        assert!(unbelieved(&fleet, &of_one).is_empty());
        let of_most = PeerStates::from_iter([says("r2", &[WireClaim::Stalled; 3])]);
        let replica: ReplicaId = "r2".parse().expect("an id");
        assert_eq!(unbelieved(&fleet, &of_most)[&replica].len(), 3);
    }

    #[test]
    fn claims_are_the_same_in_both_words() {
        for claim in Claim::ALL {
            assert_eq!(decode(encode(claim)), claim);
            assert_eq!(encode(claim).as_str(), claim.as_str());
        }
    }
}
