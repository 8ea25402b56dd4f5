//! Impairments of links: loss, delay, reordering, duplicates, damage.
//!
//! turmoil itself does cuts, kills and restarts. Each packet's fate is drawn separately when it is sent.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::AsyncUdpSocket;
use turmoil::net::UdpSocket;

use crate::{rng, socket};

/// Impairments in one direction of a link, in addition to turmoil's 1 to 5 ms. Shares are 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Link {
    /// Least extra travel time.
    pub(crate) delay: Duration,
    /// Up to so much more, drawn uniformly: packets overtake each other.
    pub(crate) jitter: Duration,
    /// Share that is lost.
    pub(crate) loss: f64,
    /// Share that arrives twice, each copy after its own delay.
    pub(crate) duplicates: f64,
    /// Share of which one bit arrives flipped.
    pub(crate) flips: f64,
}

/// The conditions of every link. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LinkFaults(Arc<Mutex<Conditions>>);

#[derive(Debug, Default)]
struct Conditions {
    everywhere: Link,
    /// Exceptions by names of sender and receiver.
    links: BTreeMap<(String, String), Link>,
    tally: Tally,
}

/// Packets that were impaired so far, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) flipped: u64,
}

impl LinkFaults {
    /// The same on every link, exceptions forgotten.
    pub(crate) fn everywhere(&self, link: Link) {
        let mut conditions = self.lock();
        conditions.everywhere = link;
        conditions.links.clear();
    }

    /// Sets one direction between two hosts; the other direction stays as it is.
    pub(crate) fn between(&self, from: &str, to: &str, link: Link) {
        let key = (from.to_owned(), to.to_owned());
        self.lock().links.insert(key, link);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.lock().tally
    }

    /// The copies of one packet that arrive, each with its travel time.
    fn fate(&self, from: &str, to: IpAddr, packet: &[u8]) -> Vec<(Duration, Vec<u8>)> {
        let mut conditions = self.lock();
        let link = conditions.between(from, to);
        let tally = &mut conditions.tally;
        tally.sent += 1;
        if rng::happens(link.loss) {
            tally.lost += 1;
            return Vec::new();
        }
        let is_doubled = rng::happens(link.duplicates);
        tally.doubled += u64::from(is_doubled);
        let copies = 0..=usize::from(is_doubled);
        let fates = copies.map(|_| {
            let mut copy = packet.to_vec();
            if rng::happens(link.flips) && !copy.is_empty() {
                tally.flipped += 1;
                let bit = rng::below(8 * copy.len());
                copy[bit / 8] ^= 1 << (bit % 8);
            }
            let extra = if link.jitter.is_zero() {
                Duration::ZERO
            } else {
                link.jitter.mul_f64(rng::share())
            };
            (link.delay + extra, copy)
        });
        fates.collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Conditions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Conditions {
    fn between(&self, from: &str, to: IpAddr) -> Link {
        if self.links.is_empty() {
            return self.everywhere;
        }
        let exception =
            turmoil::reverse_lookup(to).and_then(|to| self.links.get(&(from.to_owned(), to)));
        exception.map_or(self.everywhere, |link| *link)
    }
}

/// The network of one simulated host.
#[derive(Debug, Clone)]
pub(crate) struct SimNetwork {
    pub(crate) host: String,
    pub(crate) link_faults: LinkFaults,
}

impl SimNetwork {
    pub(crate) async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let Self { host, link_faults } = self.clone();
        let send = move |socket: &Arc<UdpSocket>, packet: &[u8], to: SocketAddr| {
            for (time, packet) in link_faults.fate(&host, to.ip(), packet) {
                if time.is_zero() {
                    socket::send_now(socket, &packet, to);
                    continue;
                }
                let socket = socket.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    socket::send_now(&socket, &packet, to);
                });
            }
        };
        socket::bind(address, Box::new(send)).await
    }
}
