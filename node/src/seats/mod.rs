//! Seats: which connections may stay when they run out. The places of one port, and their holders.
//!
//! A port has `capacity` places, and a few to spare, in which new connections are served at once. Whenever more than
//! `capacity` are taken, connections that are idle (between two requests, or without one so far) are asked to leave,
//! longest idle first; before all others those of addresses that hold more than their share, so that no client drives
//! the rest out by coming back faster. A connection with a request in progress is never asked to leave. Where none is
//! idle, a connection in a spare place is read all the same, and [`Seat::must_turn_away`] reports that it cannot be
//! served. One whose request was turned away leaves behind that answer ([`Seat::turn_away`]), so that the place is another
//! one's, and its client may find another replica.

mod metrics;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::ready;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

pub use self::metrics::{Counts, TrafficMetrics};
use crate::http::progress::Progress;

/// Of so many places one is spare, within the two limits below.
const PLACES_PER_SPARE: u32 = 16;
const SPARE_MIN: u32 = 4;
const SPARE_MAX: u32 = 256;
/// Of so many places one more is emptied than is needed now: to look for the longest idle costs a look at all.
const PLACES_PER_EXTRA: usize = 128;
/// Of so many places one is emptied when something else than places is short.
const PLACES_PER_RELIEF: usize = 16;
/// Time for a new connection in a spare place to send a request, before it counts as idle.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// After so long an answer has been read by a client that reads.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// For the goodbye of a connection that was asked to leave (GOAWAY, `close_notify`).
const LEAVE_WITHIN: Duration = Duration::from_millis(500);
/// The same where a request was turned away, whose body is taken for so long, so that the answer arrives.
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

#[derive(Debug, Default)]
struct Table {
    seats: HashMap<u64, TakenSeat>,
    next: u64,
    /// Of the seats, those that were asked to leave.
    leaving: usize,
    /// The others, by holder.
    held: HashMap<Holder, u32>,
}

/// The address whose connections are counted together; none: a proxy's.
type Holder = Option<IpAddr>;

#[derive(Debug)]
struct TakenSeat {
    progress: Progress,
    holder: Holder,
    is_spare: bool,
    is_leaving: bool,
}

impl TakenSeat {
    /// Whether it has just come, had no answer so far, and no other has left for it.
    fn is_unheard(&self) -> bool {
        self.is_spare
            && !self.progress.has_answered()
            && self.progress.ended().elapsed() < HEARD_WITHIN
    }
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
        let mut table = self.table();
        if !self.admits(&mut table, holder) {
            return None;
        }
        if table.staying() >= self.capacity() {
            self.counts.full.inc();
            self.make_room(&mut table, 1);
        }
        let progress = Progress::default();
        let id = table.next;
        table.next += 1;
        let is_spare = table.staying() >= self.capacity();
        let taken = TakenSeat {
            progress: progress.clone(),
            holder,
            is_spare,
            is_leaving: false,
        };
        table.seats.insert(id, taken);
        *table.held.entry(holder).or_default() += 1;
        Some(Seat {
            id,
            progress,
            is_spare,
            is_turned_away: AtomicBool::new(false),
            seats: Arc::clone(self),
            _place: place,
        })
    }

    /// Whether one more of this holder may come; at its limit for its longest idle.
    fn admits(&self, table: &mut Table, holder: Holder) -> bool {
        let held = table.held.get(&holder).copied().unwrap_or_default();
        holder.is_none()
            || self.limits.per_address.is_none_or(|most| held < most)
            || self.shed(table, 1, |taken| taken.holder == holder) > 0
    }

    /// Frees a place when even the spare ones are taken, whichever is idle in them.
    pub(crate) fn free_one(&self) {
        let mut table = self.table();
        if table.about_to_go() == 0 {
            let count = 1 + self.extra();
            self.shed(&mut table, count, |_| true);
        }
    }

    /// Asks some idle connections to leave, because something else than places is short; false: none is idle.
    pub fn relieve(&self) -> bool {
        let mut table = self.table();
        let count = table.seats.len().div_ceil(PLACES_PER_RELIEF);
        let going = table.about_to_go();
        self.shed(&mut table, count.saturating_sub(going), |_| true) + going > 0
    }

    /// Asks as many to leave as are here, or coming, above the limit.
    fn make_room(&self, table: &mut Table, coming: usize) {
        let surplus = (table.staying() + coming).saturating_sub(self.capacity());
        if surplus > 0 {
            let count = surplus + self.extra();
            self.shed(table, count, |taken| !taken.is_unheard());
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
            if taken.is_leaving || !may(taken) {
                return None;
            }
            let since = taken.progress.idle_since()?;
            let held = u64::from(table.held.get(&taken.holder).copied().unwrap_or_default());
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

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections above the limit that are served at once.
pub(crate) fn spare(capacity: u32) -> u32 {
    (capacity / PLACES_PER_SPARE).clamp(SPARE_MIN, SPARE_MAX)
}

impl Table {
    /// Seats whose connections were not asked to leave.
    fn staying(&self) -> usize {
        self.seats.len() - self.leaving
    }

    /// Of the seats that were asked to leave, those that are free in a moment. One that got a request before it heard the
    /// word stays to the end of that answer, which may be hours away: nobody may wait for it.
    fn about_to_go(&self) -> usize {
        if self.leaving == 0 {
            return 0;
        }
        let seats = self.seats.values();
        let is_going =
            |taken: &&TakenSeat| taken.is_leaving && taken.progress.idle_since().is_some();
        seats.filter(is_going).count()
    }

    fn tell_to_leave(&mut self, id: u64) {
        let Some(taken) = self.seats.get_mut(&id).filter(|taken| !taken.is_leaving) else {
            return;
        };
        taken.is_leaving = true;
        taken.progress.tell_to_leave();
        let holder = taken.holder;
        self.leaving += 1;
        self.release(holder);
    }

    fn hand_over(&mut self, id: u64, to: Holder) {
        let Some(taken) = self.seats.get_mut(&id) else {
            return;
        };
        let from = std::mem::replace(&mut taken.holder, to);
        if !taken.is_leaving {
            self.release(from);
            *self.held.entry(to).or_default() += 1;
        }
    }

    fn free(&mut self, id: u64) {
        match self.seats.remove(&id) {
            None => {}
            Some(taken) if taken.is_leaving => self.leaving -= 1,
            Some(taken) => self.release(taken.holder),
        }
    }

    fn release(&mut self, holder: Holder) {
        if let Some(held) = self.held.get_mut(&holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&holder);
            }
        }
    }
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    progress: Progress,
    seats: Arc<Seats>,
    is_spare: bool,
    is_turned_away: AtomicBool,
    _place: OwnedSemaphorePermit,
}

/// What became of a connection that was asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goodbye<R> {
    /// It has ended by itself.
    Ended(R),
    /// It says nothing; nothing is lost with it.
    Idle,
    /// A request had come in before, and is answered first.
    Busy,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table().free(self.id);
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
        let mut table = self.seats.table();
        let is_admitted = holder.is_none() || self.seats.admits(&mut table, holder);
        if is_admitted {
            table.hand_over(self.id, holder);
        }
        is_admitted
    }

    /// Whether it came above the limit, none left for it, and that is still so, or was when it was turned away.
    pub fn must_turn_away(&self) -> bool {
        if self.is_turned_away() {
            return true;
        }
        if !self.is_spare {
            return false;
        }
        let mut table = self.seats.table();
        self.seats.make_room(&mut table, 0);
        table.staying() > self.seats.capacity()
    }

    /// Asks the connection to leave, because its request is turned away. It counts no more among those that are here.
    pub fn turn_away(&self) {
        self.is_turned_away.store(true, Ordering::Relaxed);
        self.seats.table().tell_to_leave(self.id);
    }

    fn is_turned_away(&self) -> bool {
        self.is_turned_away.load(Ordering::Relaxed)
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
        let within = match self.is_turned_away() {
            true => TURNED_AWAY_WITHIN,
            false => LEAVE_WITHIN,
        };
        match timeout(within, connection).await {
            Ok(ended) => Goodbye::Ended(ended),
            Err(_) if self.progress.idle_since().is_some() => Goodbye::Idle,
            Err(_) => Goodbye::Busy,
        }
    }
}
