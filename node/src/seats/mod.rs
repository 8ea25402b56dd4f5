//! Seats: which connections may stay when they run out. The places of one port, and their holders.
//!
//! A port has `capacity` places, and a few to spare, in which new connections are served at once. Whenever more than
//! `capacity` are taken, connections that are idle (between two requests, or without one so far) are asked to leave,
//! longest idle first; before all others those of addresses that hold more than their share, so that no client drives
//! the rest out by coming back faster. A connection with a request in progress is never asked to leave. Where none is
//! idle, a connection in a spare place is read all the same, and [`Seat::must_turn_away`] reports that it cannot be
//! served. One whose request was turned away leaves behind that answer ([`Seat::turn_away`]), so that the place is another
//! one's, and its client may find another replica.
//!
//! Who was asked to leave counts no more, for it is gone in a moment; but its client may have asked for more before it
//! heard the word. Such a request takes a place again as a newcomer would, in one of a few of the spare places where all
//! others are busy, so that it is seldom turned away, and never leaves too few places for whoever comes.

mod metrics;
mod table;
#[cfg(test)]
mod tests;

use std::future::ready;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

pub use self::metrics::{Counts, TrafficMetrics};
use self::table::{Holder, Table, TakenSeat};
use crate::http::progress::Progress;

/// Of so many places one is spare, within the two limits below.
const PLACES_PER_SPARE: u32 = 16;
const SPARE_MIN: u32 = 4;
const SPARE_MAX: u32 = 256;
/// Of the spare places, one of so many may be taken by requests that crossed the word to leave.
const SPARE_PER_CROSSING: u32 = 2;
/// Of so many places one more is emptied than is needed now: to look for the longest idle costs a look at all.
const PLACES_PER_EXTRA: usize = 128;
/// Of so many places one is emptied when something else than places is short.
const PLACES_PER_RELIEF: usize = 16;
/// After so long an answer has been read by a client that reads.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// For the goodbye of a connection that was asked to leave (GOAWAY, `close_notify`).
const LEAVE_WITHIN: Duration = Duration::from_millis(500);
/// The same where a request was turned away, also behind the word: its body is taken for so long, so that the answer
/// arrives.
const TURNED_AWAY_WITHIN: Duration = Duration::from_secs(2);

/// How many connections a port takes, in all and of one address.
#[derive(Debug)]
pub struct SeatLimits {
    /// Connections at once.
    pub capacity: u32,
    /// Percent of them that one address may have before its idle ones are the first to go.
    pub share_percent: u32,
    /// Connections of one address at once; none: no limit.
    pub per_address: Option<u32>,
    /// Proxies and balancers, which stand for many clients: they have neither share nor limit.
    pub proxies: Vec<IpNet>,
}

/// The places of one port.
#[derive(Debug)]
pub struct Seats {
    limits: SeatLimits,
    permits: Arc<Semaphore>,
    table: Mutex<Table>,
    counts: Counts,
}

/// An idle connection that may be asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Idle {
    /// Its address does not hold more than its share; false comes first.
    is_within_share: bool,
    since: Instant,
    id: u64,
}

/// The first of those that may be asked to leave.
fn choose(idle: impl Iterator<Item = Idle>, count: usize) -> Vec<u64> {
    let mut idle: Vec<Idle> = idle.collect();
    if count < idle.len() {
        idle.select_nth_unstable(count);
        idle.truncate(count);
    }
    idle.into_iter().map(|idle| idle.id).collect()
}

impl Seats {
    /// All free.
    pub fn new(limits: SeatLimits, counts: Counts) -> Arc<Self> {
        let all = limits.capacity + spare(limits.capacity);
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(all as usize)),
            limits,
            table: Mutex::default(),
            counts,
        })
    }

    /// A place for the next connection. Cancel safe.
    pub(crate) async fn place(&self) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&self.permits);
        permits.acquire_owned().await.expect("nobody closes it")
    }

    /// Whether the next one has to wait for a place.
    pub(crate) fn is_full(&self) -> bool {
        self.permits.available_permits() == 0
    }

    /// Seats a connection from this address; none where the address has its limit, all of them busy.
    pub(crate) fn take(
        self: &Arc<Self>,
        place: OwnedSemaphorePermit,
        address: IpAddr,
    ) -> Option<Seat> {
        let holder = self.holder(address);
        let mut table = self.table.lock();
        if !self.admits(&mut table, holder, |_| true) {
            return None;
        }
        if table.staying() >= self.capacity() {
            self.counts.full.inc();
            self.make_room(&mut table, 1, |taken| !taken.is_unheard());
        }
        let progress = Progress::default();
        let is_spare = table.staying() >= self.capacity();
        let id = table.seat(progress.clone(), holder, is_spare);
        Some(Seat {
            id,
            progress,
            is_spare: AtomicBool::new(is_spare),
            turned_away: OnceLock::new(),
            seats: Arc::clone(self),
            _place: place,
        })
    }

    /// Whether one more of this holder may come; at its limit for its longest idle that `may` leave.
    fn admits(&self, table: &mut Table, holder: Holder, may: impl Fn(&TakenSeat) -> bool) -> bool {
        let Some(most) = self.limits.per_address.filter(|_| holder.is_some()) else {
            return true;
        };
        let surplus = (table.held_by(holder) + 1).saturating_sub(most) as usize;
        surplus == 0
            || self.shed(table, surplus, |taken| taken.holder == holder && may(taken)) == surplus
    }

    /// Gives a place again to a connection whose request came although it was asked to leave; else says what is short.
    /// Nobody leaves for it who came a moment ago: they have as good a claim.
    fn take_back(&self, table: &mut Table, id: u64) -> Result<(), Short> {
        let Some(holder) = table.leaver(id) else {
            return Ok(());
        };
        if !self.admits(table, holder, |taken| !taken.is_new()) {
            return Err(Short::PlacesOfAddress);
        }
        self.make_room(table, 1, |taken| !taken.is_new());
        let crossing = spare(self.limits.capacity) / SPARE_PER_CROSSING;
        if table.staying() >= self.capacity() + crossing as usize {
            return Err(Short::Places);
        }
        table.keep(id);
        Ok(())
    }

    /// Frees a place when even the spare ones are taken, whichever is idle in them.
    pub(crate) fn free_one(&self) {
        let mut table = self.table.lock();
        if table.about_to_go() == 0 {
            let count = 1 + self.extra();
            self.shed(&mut table, count, |_| true);
        }
    }

    /// Asks some idle connections to leave, because something else than places is short; false: none is idle.
    pub fn relieve(&self) -> bool {
        let mut table = self.table.lock();
        let count = table.seats.len().div_ceil(PLACES_PER_RELIEF);
        let going = table.about_to_go();
        self.shed(&mut table, count.saturating_sub(going), |_| true) + going > 0
    }

    /// Asks as many to leave as are here, or coming, above the limit.
    fn make_room(&self, table: &mut Table, coming: usize, may: impl Fn(&TakenSeat) -> bool) {
        let surplus = (table.staying() + coming).saturating_sub(self.capacity());
        if surplus > 0 {
            let count = surplus + self.extra();
            self.shed(table, count, may);
        }
    }

    fn extra(&self) -> usize {
        self.capacity() / PLACES_PER_EXTRA
    }

    /// How many were asked to leave.
    fn shed(&self, table: &mut Table, count: usize, may: impl Fn(&TakenSeat) -> bool) -> usize {
        let share = u64::from(self.limits.capacity) * u64::from(self.limits.share_percent) / 100;
        let idle = table.seats.iter().filter_map(|(&id, taken)| {
            // First what stands in the table itself: the progress of each seat is memory of its own.
            if taken.is_leaving() || !may(taken) {
                return None;
            }
            let since = taken.progress.idle_since()?;
            let held = u64::from(table.held_by(taken.holder));
            Some(Idle {
                is_within_share: taken.holder.is_none() || held <= share,
                since,
                id,
            })
        });
        let chosen = choose(idle, count);
        for id in &chosen {
            table.tell_to_leave(*id);
        }
        self.counts.shed.inc_by(chosen.len() as u64);
        chosen.len()
    }

    /// Clients with IPv6 have a whole /64 of addresses each.
    fn holder(&self, address: IpAddr) -> Holder {
        let address = address.to_canonical();
        if self.limits.proxies.iter().any(|net| net.contains(&address)) {
            return None;
        }
        Some(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => {
                let network = u128::from(address) >> 64 << 64;
                Ipv6Addr::from(network).into()
            }
        })
    }

    fn capacity(&self) -> usize {
        self.limits.capacity as usize
    }
}

/// Connections above the limit that are served at once.
pub(crate) fn spare(capacity: u32) -> u32 {
    (capacity / PLACES_PER_SPARE).clamp(SPARE_MIN, SPARE_MAX)
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    progress: Progress,
    seats: Arc<Seats>,
    /// It came above the limit, and has no request that was served all the same.
    is_spare: AtomicBool,
    turned_away: OnceLock<Short>,
    _place: OwnedSemaphorePermit,
}

/// What there is too little of for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// Places of the port: all are busy.
    Places,
    /// Places of the client's address: it has its limit, all of them busy.
    PlacesOfAddress,
}

/// What became of a connection that was asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goodbye<R> {
    /// It has ended by itself.
    Ended(R),
    /// It says nothing; nothing is lost with it.
    Idle,
    /// A request had come in before, and is answered first. Unless it was turned away the connection counts again among
    /// those that are here, and may be asked again.
    Busy,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table.lock().free(self.id);
    }
}

impl Seat {
    /// What the connection is doing.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Counts a balancer's connection as one of this client's; false: the client has its limit, all of them busy.
    pub fn belongs_to(&self, client: IpAddr) -> bool {
        let holder = self.seats.holder(client);
        let mut table = self.seats.table.lock();
        let is_admitted = self.seats.admits(&mut table, holder, |_| true);
        if is_admitted {
            table.hand_over(self.id, holder);
        }
        is_admitted
    }

    /// Why a request that has come cannot be served. Its connection came above the limit and none left for it, or was asked
    /// to leave, and that is still so; or it was turned away before. One whose request is served has its place from then
    /// on.
    pub fn must_turn_away(&self) -> Option<Short> {
        if let Some(short) = self.turned_away.get() {
            return Some(*short);
        }
        let is_spare = self.is_spare.load(Ordering::Relaxed);
        if !is_spare && !self.progress.is_told() {
            return None;
        }
        let mut table = self.seats.table.lock();
        if table.leaver(self.id).is_some() {
            if let Err(short) = self.seats.take_back(&mut table, self.id) {
                return Some(short);
            }
        } else if is_spare {
            self.seats
                .make_room(&mut table, 0, |taken| !taken.is_unheard());
            if table.staying() > self.seats.capacity() {
                return Some(Short::Places);
            }
        }
        self.is_spare.store(false, Ordering::Relaxed);
        None
    }

    /// Asks the connection to leave, because its request is turned away. It counts no more among those that are here.
    pub fn turn_away(&self, short: Short) {
        let _ = self.turned_away.set(short);
        self.seats.table.lock().tell_to_leave(self.id);
    }

    /// Whether the connection was asked to leave, and has answered nothing lately that its end could destroy.
    pub fn is_wanted(&self) -> bool {
        self.progress.is_told() && self.progress.ended().elapsed() >= READ_WITHIN
    }

    /// What the future gives; none if the connection is asked to leave before.
    pub async fn unless_told<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        tokio::select! {
            // In this order: what came before the word counts.
            biased;
            done = &mut future => return Some(done),
            () = self.progress.told_to_leave() => {}
        }
        // What has come may not have been told yet: the system is asked between two turns of the runtime.
        yield_now().await;
        tokio::select! {
            biased;
            done = future => {
                // It goes on, and leaves behind what has come: the word is for whoever serves that.
                self.progress.tell_to_leave();
                Some(done)
            }
            () = ready(()) => None,
        }
    }

    /// Lets a connection that was asked to leave say goodbye. Whatever it ends with is handed on: it may have become one of
    /// another protocol in that moment.
    pub async fn goodbye<R>(&self, connection: impl Future<Output = R>) -> Goodbye<R> {
        let mut connection = pin!(connection);
        let mut ended = timeout(LEAVE_WITHIN, connection.as_mut()).await;
        let is_turned_away = self.turned_away.get().is_some();
        if ended.is_err() && is_turned_away {
            ended = timeout(TURNED_AWAY_WITHIN - LEAVE_WITHIN, connection).await;
        }
        match ended {
            Ok(ended) => Goodbye::Ended(ended),
            Err(_) if self.progress.idle_since().is_some() => Goodbye::Idle,
            Err(_) => {
                if !is_turned_away {
                    self.seats.table.lock().keep(self.id);
                }
                Goodbye::Busy
            }
        }
    }
}
