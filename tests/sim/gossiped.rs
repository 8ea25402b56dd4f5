//! Evidence and peer states that a schedule sends, and the replicas that must have them when all is quiet.

use std::collections::BTreeMap;
use std::time::Duration;

use grapevine_gossip::evidence::Evidence;
use grapevine_gossip::peer_state::{PeerState, TenantUse};
use grapevine_gossip::worker::WorkerId;

use crate::cluster::Cluster;

/// One record of evidence: its link is its number.
#[derive(Debug)]
struct Told {
    link: u64,
    by: usize,
    /// Replicas that the sender had met before, and their lives: later ones get a snapshot instead.
    met: Vec<(usize, u64)>,
    life: u64,
}

/// Records sent since the last quiet time, and the lives of their senders.
#[derive(Debug)]
pub(crate) struct Gossiped {
    /// How often each replica was started.
    lives: Vec<u64>,
    /// Pairs that saw each other as alive, in which lives, since when.
    met: BTreeMap<(usize, usize), (u64, u64, Duration)>,
    told: Vec<Told>,
    links: u64,
    /// How often a replica had to have a record, at the ends of quiet times.
    due: u64,
    /// The last peer state of each replica since its start: a count that is different each time.
    published: BTreeMap<usize, u32>,
    count: u32,
}

impl Gossiped {
    pub(crate) fn new(replicas: usize) -> Self {
        Self {
            lives: vec![0; replicas],
            met: BTreeMap::new(),
            told: Vec::new(),
            links: 0,
            due: 0,
            published: BTreeMap::new(),
            count: 0,
        }
    }

    /// A replica ended: its records may be lost with it.
    pub(crate) fn died(&mut self, at: usize) {
        self.lives[at] += 1;
        self.published.remove(&at);
    }

    /// Records which replicas have met.
    pub(crate) fn observe(&mut self, cluster: &Cluster) {
        let now = cluster.elapsed();
        let running = cluster.running();
        let sees = |at: usize, other: usize| {
            let own = cluster.view(other);
            let name = format!("r{other}");
            let generation = own.replicas().iter().find(|seen| seen.id.as_str() == name);
            let generation = generation.map(|seen| seen.generation);
            let view = cluster.view(at);
            let mut replicas = view.replicas().iter();
            replicas.any(|seen| {
                seen.id.as_str() == name && seen.live && Some(seen.generation) == generation
            })
        };
        for &a in &running {
            for &b in running.iter().filter(|&&b| b != a) {
                let lives = (self.lives[a], self.lives[b]);
                let known = self.met.get(&(a, b)).map(|&(a, b, _)| (a, b));
                if known != Some(lives) && sees(a, b) && sees(b, a) {
                    self.met.insert((a, b), (lives.0, lives.1, now));
                }
            }
        }
    }

    /// Sends so many records through `at`, about a worker that is always there.
    pub(crate) fn tell(
        &mut self,
        cluster: &mut Cluster,
        at: usize,
        worker: &WorkerId,
        count: usize,
    ) {
        let now = cluster.elapsed();
        let met: Vec<_> = (0..self.lives.len())
            .filter_map(|other| {
                let &(own, others, since) = self.met.get(&(at, other))?;
                let is_current = (own, others) == (self.lives[at], self.lives[other]);
                (is_current && now >= since + SETTLED).then_some((other, others))
            })
            .collect();
        let mut records = Vec::new();
        for _ in 0..count {
            self.links += 1;
            records.push(Evidence {
                worker: worker.clone(),
                epoch: 0,
                links: vec![self.links],
            });
            self.told.push(Told {
                link: self.links,
                by: at,
                met: met.clone(),
                life: self.lives[at],
            });
        }
        cluster.call(at, move |agent| async move {
            records
                .into_iter()
                .for_each(|record| agent.send_evidence(record));
        });
    }

    /// Publishes another peer state through `at`.
    pub(crate) fn publish(&mut self, cluster: &mut Cluster, at: usize) {
        self.count += 1;
        let usage = vec![TenantUse {
            tenant: TENANT,
            in_flight: self.count,
            queued: 0,
        }];
        self.published.insert(at, self.count);
        let health = Vec::new();
        cluster.call(at, move |agent| async move {
            agent.publish_state(PeerState {
                health,
                usage,
                ..PeerState::default()
            });
        });
    }

    /// Records that a replica should have received, and that it neither received nor knows to be lost.
    pub(crate) fn missing(&self, cluster: &Cluster) -> Vec<String> {
        let mut missing = Vec::new();
        for at in cluster.running() {
            let received = cluster.received(at);
            for told in &self.told {
                let by = format!("r{}", told.by).parse().expect("an id");
                let is_known = received.lost.contains(&by)
                    || received
                        .links
                        .get(&by)
                        .is_some_and(|heard| heard.contains(&told.link));
                if self.is_due(told, at) && !is_known {
                    missing.push(format!("r{at} lacks link {} of {by}", told.link));
                }
            }
            let states = cluster.peer_states(at);
            for (&by, &count) in self.published.iter().filter(|(by, _)| **by != at) {
                let name = format!("r{by}");
                let mut peers = states.peers();
                let peer = peers.find(|peer| peer.replica.as_str() == name);
                let seen = peer.and_then(|peer| Some(peer.usage.first()?.in_flight));
                if seen != Some(count) {
                    missing.push(format!("r{at} has {seen:?} for {count} of {name}"));
                }
            }
        }
        missing
    }

    /// Whether this replica had met the record's sender, and neither has ended since.
    fn is_due(&self, told: &Told, at: usize) -> bool {
        self.lives[told.by] == told.life && told.met.contains(&(at, self.lives[at]))
    }

    /// Resets everything after a quiet time.
    pub(crate) fn settle(&mut self, cluster: &Cluster) {
        let running = cluster.running().into_iter();
        let due = |at| {
            self.told
                .iter()
                .filter(|told| self.is_due(told, at))
                .count() as u64
        };
        self.due += running.map(due).sum::<u64>();
        self.told.clear();
        cluster.clear_received();
    }

    /// How often a replica had to have a record.
    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// Records sent in all.
    pub(crate) fn records(&self) -> u64 {
        self.links
    }
}

const TENANT: u64 = 7;
/// Time after which two replicas that see each other also use both connections for evidence.
const SETTLED: Duration = Duration::from_secs(1);
