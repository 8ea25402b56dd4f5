//! The weather on the way: loss, delay, reordering, duplicates, damage.
//!
//! Cuts, kills and restarts are turmoil's own. Each packet draws its fate by itself when it is sent.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::AsyncUdpSocket;
use turmoil::net::UdpSocket;

use crate::{chance, socket};

/// What happens to packets in one direction of a link, beside turmoil's 1 to 5 ms. Shares are 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Link {
    /// Least extra time on the way.
    pub(crate) delay: Duration,
    /// Up to so much more, drawn evenly: packets overtake each other.
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
pub(crate) struct Weather(Arc<Mutex<Conditions>>);

#[derive(Debug, Default)]
struct Conditions {
    everywhere: Link,
    /// Exceptions by names of sender and receiver.
    links: BTreeMap<(String, String), Link>,
    tally: Tally,
}

/// What the weather did so far, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) flipped: u64,
}

impl Weather {
    /// The same on every link, exceptions forgotten.
    pub(crate) fn everywhere(&self, link: Link) {
        let mut conditions = self.lock();
        conditions.everywhere = link;
        conditions.links.clear();
    }

    /// From now on so from one host to another; the other direction stays as it is.
    pub(crate) fn between(&self, from: &str, to: &str, link: Link) {
        let key = (from.to_owned(), to.to_owned());
        self.lock().links.insert(key, link);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.lock().tally
    }

    /// What becomes of one packet: the copies that arrive, each with its time on the way.
    fn fate(&self, from: &str, to: IpAddr, packet: &[u8]) -> Vec<(Duration, Vec<u8>)> {
        let mut conditions = self.lock();
        let link = conditions.between(from, to);
        let tally = &mut conditions.tally;
        tally.sent += 1;
        if chance::happens(link.loss) {
            tally.lost += 1;
            return Vec::new();
        }
        let is_doubled = chance::happens(link.duplicates);
        tally.doubled += u64::from(is_doubled);
        let copies = 0..=usize::from(is_doubled);
        let fates = copies.map(|_| {
            let mut copy = packet.to_vec();
            if chance::happens(link.flips) && !copy.is_empty() {
                tally.flipped += 1;
                let bit = chance::below(8 * copy.len());
                copy[bit / 8] ^= 1 << (bit % 8);
            }
            let extra = if link.jitter.is_zero() {
                Duration::ZERO
            } else {
                link.jitter.mul_f64(chance::share())
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
    pub(crate) weather: Weather,
}

impl SimNetwork {
    pub(crate) async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let Self { host, weather } = self.clone();
        let send = move |socket: &Arc<UdpSocket>, packet: &[u8], to: SocketAddr| {
            for (time, packet) in weather.fate(&host, to.ip(), packet) {
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
