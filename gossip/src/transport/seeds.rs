//! Seeds: addresses to ask for the cluster, for ever.
//!
//! chitchat is given no seeds. It resolves names only once a minute, and it would gossip with any process that
//! answers at an address. Here a seed is asked for its identity; the answer makes it a peer like any other,
//! and the connection to that peer makes chitchat greet it. A seed that is a connected peer
//! already, under its own or another address, is left in peace.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::hello::{self, DialError, Dialled};
use super::{Close, Receiver, Shared, limits, peer};
use crate::replica::ReplicaId;

/// A seed at none of whose addresses a replica lets this one in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentSeed {
    /// As it is configured.
    pub seed: String,
    /// Since it was heard, or was asked for the first time.
    pub lasts: Duration,
    /// Why the latest round brought no connection; none where nothing answered, or its name has no address.
    pub why: Option<String>,
}

/// Since when a seed lets this replica in no more, and why.
pub(super) type Silent = (Instant, Option<String>);

/// What all seeds together showed.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Seeds none of whose rounds is over yet.
    waiting: AtomicUsize,
    /// When one last answered with whom no certificates fit.
    unfit: Mutex<Option<Instant>>,
}

impl Asked {
    /// So many are about to be asked.
    pub(super) fn begin(&self, seeds: usize) {
        self.waiting.store(seeds, Ordering::Release);
    }

    /// Whether each was asked once, at all of its addresses.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Whether one answers with whom no certificates fit.
    pub(super) fn is_unfit(&self) -> bool {
        self.unfit.lock().is_some_and(|at| at.elapsed() < UNFIT_FOR)
    }
}

/// Asks one seed until the transport stops.
pub(super) async fn ask(shared: Arc<Shared>, receiver: Arc<dyn Receiver>, seed: String) {
    let stop = shared.stop.clone();
    let task = Seed {
        shared,
        receiver,
        name: seed,
        addresses: Vec::new(),
        resolved: None,
        answered: HashMap::new(),
        met_itself: None,
        why: None,
    };
    stop.run_until_cancelled(task.run()).await;
}

struct Seed {
    shared: Arc<Shared>,
    receiver: Arc<dyn Receiver>,
    name: String,
    /// What the name meant when it was last resolved, and when that was.
    addresses: Vec<SocketAddr>,
    resolved: Option<Instant>,
    /// The replica that answered at each address; this replica's own id among them.
    answered: HashMap<SocketAddr, ReplicaId>,
    /// When this replica last met itself at one of them. A balancer's address leads to another one the next time.
    met_itself: Option<Instant>,
    /// Why the latest round brought no connection, where anything answered.
    why: Option<String>,
}

/// Who answers at one address of a seed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Peer,
    Itself,
    Nothing,
}

impl Seed {
    async fn run(mut self) {
        let mut heard = Instant::now();
        let mut is_first = true;
        loop {
            // Again and again: a name may mean other replicas by now.
            if self.resolved.is_none_or(|at| at.elapsed() >= RESOLVE_EVERY) {
                self.resolve().await;
            }
            let (mut is_heard, mut is_missed) = (false, self.addresses.is_empty());
            self.why = None;
            for address in self.addresses.clone() {
                let answer = match self.settled(address) {
                    Some(answer) => answer,
                    None => self.ask(address).await,
                };
                is_heard |= answer == Answer::Peer;
                is_missed |= answer == Answer::Nothing;
            }
            // A name that means this replica as well, which always answers, is silent where all the others are.
            if is_heard || !is_missed {
                heard = Instant::now();
                self.shared.silent_seeds.lock().remove(&self.name);
            } else {
                let mut silent = self.shared.silent_seeds.lock();
                let known = silent.entry(self.name.clone());
                known.or_insert((heard, None)).1 = self.why.take();
            }
            if std::mem::take(&mut is_first) {
                self.shared.seeds.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            sleep(limits::pause(heard.elapsed(), rand::random()).max(ROUND)).await;
        }
    }

    async fn resolve(&mut self) {
        self.resolved = Some(Instant::now());
        let found = timeout(RESOLVE, self.shared.network.resolve(&self.name)).await;
        let problem = match found {
            Ok(Ok(mut addresses)) => {
                let found = addresses.len();
                addresses.retain(|address| self.may_be_dialled(*address));
                let is_lost = addresses.is_empty() && found > 0;
                addresses.truncate(ADDRESSES_MAX);
                self.answered
                    .retain(|address, _| addresses.contains(address));
                self.addresses = addresses;
                if !is_lost {
                    return;
                }
                "it has IPv6 addresses only, and gossip-host is an IPv4 address".to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer in {RESOLVE:?}"),
        };
        // Keyed by our own address: there is none to name yet. The last known addresses stay.
        if self.shared.log_limit.due(self.shared.address, "resolve") {
            tracing::warn!(seed = self.name, "seed does not resolve: {problem}");
        }
    }

    /// An IPv4 socket sends to no IPv6 address; the other way it does where the system lets it.
    fn may_be_dialled(&self, address: SocketAddr) -> bool {
        let socket = self.shared.endpoint.local_addr();
        address.is_ipv4() || socket.map_or(true, |socket| socket.is_ipv6())
    }

    /// What is known of an address without asking: it is this replica's own, or that of a peer that is connected.
    fn settled(&self, address: SocketAddr) -> Option<Answer> {
        if address == self.shared.address {
            return Some(Answer::Itself);
        }
        let peers = self.shared.peers.lock();
        if peers.at(address).is_some() {
            return Some(Answer::Peer);
        }
        let id = self.answered.get(&address)?;
        if *id == self.shared.own {
            let is_young = |at: Instant| at.elapsed() < ITSELF_EVERY;
            return self
                .met_itself
                .is_some_and(is_young)
                .then_some(Answer::Itself);
        }
        peers.connection(id).is_some().then_some(Answer::Peer)
    }

    async fn ask(&mut self, address: SocketAddr) -> Answer {
        match hello::dial(&self.shared, address, None).await {
            Ok(Dialled {
                connection,
                member,
                hints,
                ..
            }) => {
                connection.close(Close::Done.code(), b"");
                peer::learn(&self.shared, &self.receiver, &member, &hints);
                self.answered.insert(address, member.id);
                Answer::Peer
            }
            Err(DialError::Myself) => {
                self.answered.insert(address, self.shared.own.clone());
                self.met_itself = Some(Instant::now());
                Answer::Itself
            }
            Err(error) => {
                hello::report(&self.shared, address, &self.name, &error);
                if error.is_unfit() {
                    *self.shared.seeds.unfit.lock() = Some(Instant::now());
                }
                if !matches!(error, DialError::Silent) {
                    self.why = Some(error.to_string());
                }
                if let DialError::Outrun { seen, .. } = error {
                    self.receiver.outrun(seen);
                }
                // Another way to a peer, maybe: one that is connected is not asked there, whatever it would say.
                let by = error.answered_by().filter(|by| **by != self.shared.own);
                if let Some(by) = by {
                    self.answered.insert(address, by.clone());
                }
                Answer::Nothing
            }
        }
    }
}

const RESOLVE: Duration = Duration::from_secs(2);
const RESOLVE_EVERY: Duration = Duration::from_secs(3);
/// How often an address is asked again at which this replica met itself.
const ITSELF_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at a seed, at least.
const ROUND: Duration = Duration::from_millis(200);
/// Longer than the greatest pause between two looks at a seed, with an answer that is lost.
const UNFIT_FOR: Duration = Duration::from_secs(15);
/// Addresses of one name that are asked.
const ADDRESSES_MAX: usize = 64;
