//! Which addresses may begin a handshake: few at once, and under pressure only those that prove themselves.
//!
//! A handshake costs this side a signature before it knows anything of the other. With a Retry the
//! other side must receive at the address that it claims, at no cost here; and one address cannot
//! take all places, because everybody may prove one of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Handshakes under way, by address.
#[derive(Debug, Default)]
pub(super) struct HandshakeLimiter {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// What to do with a connection that begins.
#[derive(Debug)]
pub(super) enum Admit {
    /// Shake hands, and keep this until that has ended.
    Accept(Place),
    /// Let it prove its address first.
    Retry,
    /// Do nothing; it comes again by itself.
    Ignore,
}

/// A handshake under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    limiter: Arc<HandshakeLimiter>,
    address: IpAddr,
}

impl HandshakeLimiter {
    /// Somebody begins; `is_proven`: it has received what was sent to its address.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, is_proven: bool) -> Admit {
        let mut waiting = self.waiting.lock();
        if !is_proven && waiting.all >= UNPROVEN {
            return Admit::Retry;
        }
        let of_address = waiting.by_address.get(&address).copied().unwrap_or(0);
        if waiting.all >= HANDSHAKES || of_address >= HANDSHAKES_PER_ADDRESS {
            return Admit::Ignore;
        }
        waiting.all += 1;
        waiting.by_address.insert(address, of_address + 1);
        Admit::Accept(Place {
            limiter: self.clone(),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.limiter.waiting.lock();
        waiting.all -= 1;
        if let Some(of_address) = waiting.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                waiting.by_address.remove(&self.address);
            }
        }
    }
}

/// Handshakes under way above which addresses must prove themselves. A cluster of 64 whose replicas
/// all come back at once passes through it; the others pay one more round trip.
const UNPROVEN: usize = 16;
/// Handshakes under way at once; each lasts a second at most.
const HANDSHAKES: usize = 256;
/// Those of one address: many replicas may share one machine.
const HANDSHAKES_PER_ADDRESS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn under_pressure_addresses_must_prove_themselves() {
        let limiter = Arc::<HandshakeLimiter>::default();
        let mut places = Vec::new();
        for _ in 0..UNPROVEN {
            let Admit::Accept(place) = limiter.enter(address(1), false) else {
                panic!("there is room");
            };
            places.push(place);
        }
        assert!(matches!(limiter.enter(address(2), false), Admit::Retry));
        assert!(matches!(limiter.enter(address(2), true), Admit::Accept(_)));
        places.pop();
        assert!(matches!(limiter.enter(address(2), false), Admit::Accept(_)));
        drop(places);
        assert_eq!(limiter.waiting.lock().all, 0);
        assert!(limiter.waiting.lock().by_address.is_empty());
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let limiter = Arc::<HandshakeLimiter>::default();
        let enter = |from| limiter.enter(address(from), true);
        let places: Vec<_> = (0..2 * HANDSHAKES)
            .filter_map(|_| match enter(1) {
                Admit::Accept(place) => Some(place),
                _ => None,
            })
            .collect();
        assert_eq!(places.len(), HANDSHAKES_PER_ADDRESS);
        assert!(matches!(enter(2), Admit::Accept(_)));
        let crowd: Vec<_> = (2..)
            .map_while(|from| (from < 250).then(|| enter(from)))
            .collect();
        let came = crowd.iter().filter(|turn| matches!(turn, Admit::Accept(_)));
        assert_eq!(came.count() + places.len(), HANDSHAKES);
    }
}
