//! Which workers of a pool a request may have, and when they will take requests again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::worker::Role;

use crate::cluster::{Pool, PoolMember, shortest_pause};

/// The workers of a pool that a request may have: all of them, unless something about the request limits it.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    pool: Arc<Pool>,
    /// Not these, by index, in ascending order.
    but: Vec<usize>,
    /// It may go to a pair, but not with these prefill workers.
    but_prefill: Option<Vec<usize>>,
    /// One worker is to have all of it, although the model's requests may go to pairs.
    undivided: bool,
    /// One worker alone has what the request is about.
    held: bool,
}

impl From<&Arc<Pool>> for Reach {
    fn from(pool: &Arc<Pool>) -> Self {
        Self::new(Arc::clone(pool), Vec::new())
    }
}

impl Deref for Reach {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl Reach {
    /// All workers of a pool but these, by index.
    pub(super) fn new(pool: Arc<Pool>, mut but: Vec<usize>) -> Self {
        but.sort_unstable();
        but.dedup();
        Self {
            pool,
            but,
            but_prefill: None,
            undivided: false,
            held: false,
        }
    }

    /// The one worker that is left has what the request is about.
    pub(super) fn of_holder(mut self) -> Self {
        self.held = true;
        self
    }

    /// No other worker would do.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// One worker is to have all of it.
    pub(super) fn undivided(mut self) -> Self {
        self.undivided = self.pool.halves().is_some();
        self
    }

    /// It may go to a pair, but not with these prefill workers.
    pub(super) fn but_prefill(mut self, mut tried: Vec<usize>) -> Self {
        tried.sort_unstable();
        self.but_prefill = Some(tried);
        self
    }

    /// The name of the queue in which it waits for one of them: requests that may have the same workers wait in one
    /// queue, in their order. One that nothing limits waits in its model's.
    pub(super) fn queue(&self) -> Arc<str> {
        let (pool, undivided) = (&self.pool, self.undivided);
        let but_prefill = self.but_prefill.as_deref().unwrap_or_default();
        let has_all = self.but.is_empty() && but_prefill.is_empty() && !undivided;
        if has_all && pool.name() == pool.model() {
            return pool.label();
        }
        // A thousand workers are not to be spelt out. By name: requests that came before a change of the fleet wait with
        // those that came after it.
        let mut hasher = DefaultHasher::new();
        let mut names = |pool: &Pool, indices: &[usize]| {
            for &index in indices {
                pool.members()[index].worker.id.hash(&mut hasher);
            }
            (indices.len(), undivided).hash(&mut hasher);
        };
        names(pool, &self.but);
        match pool.halves() {
            Some(halves) => names(&halves.prefill, but_prefill),
            None => but_prefill.hash(&mut hasher),
        }
        format!("{}\0{:x}", pool.name(), hasher.finish()).into()
    }

    /// The shortest time for which usable workers want to be left alone; `None` as soon as one asks for nothing, or one
    /// of each half where a pair could have it.
    pub(super) fn shortest_pause(&self) -> Option<Duration> {
        self.shortest(shortest_pause)
    }

    /// The shortest time for which a breaker lets no request pass, or a worker wants to be left alone, where none that is
    /// left is usable; of a half, where a pair could have it.
    pub(super) fn shortest_rest(&self) -> Option<Duration> {
        self.shortest(shortest_rest_of)
    }

    /// The shortest time of its workers, given that of some.
    fn shortest(
        &self,
        of: fn(&mut dyn Iterator<Item = &PoolMember>) -> Option<Duration>,
    ) -> Option<Duration> {
        let own = of(&mut self.members());
        let (Some(tried), Some(halves)) = (&self.but_prefill, self.pool.halves()) else {
            return own;
        };
        let prefill = halves.prefill.members().iter().enumerate();
        let prefill = prefill.filter(|(index, _)| tried.binary_search(index).is_err());
        let prefill = of(&mut prefill.map(|(_, member)| member));
        if self.pool.role() != Role::Any {
            return own.max(prefill);
        }
        // One worker or two.
        let pair = of(&mut halves.decode.members().iter()).max(prefill);
        own.and_then(|own| Some(own.min(pair?)))
    }

    fn members(&self) -> impl Iterator<Item = &PoolMember> {
        let members = self.pool.members().iter().enumerate();
        let in_reach = members.filter(|(index, _)| self.but.binary_search(index).is_err());
        in_reach.map(|(_, member)| member)
    }
}

/// The shortest time until one of these may be asked; `None` as soon as one is usable.
fn shortest_rest_of(members: &mut dyn Iterator<Item = &PoolMember>) -> Option<Duration> {
    let mut shortest: Option<Duration> = None;
    for member in members.filter(|member| !member.is_out()) {
        let look = member.worker.health.look();
        if look.is_usable {
            return None;
        }
        // One that is unreachable is asked as the last resort, whatever its breaker says, but not while it wants to be
        // left alone: it may have said so since.
        let holds = look.is_resting && !look.is_unreachable;
        let rest = holds.then(|| member.worker.health.shut_for());
        if let Some(rest) = rest.max(member.worker.pause()) {
            shortest = Some(shortest.map_or(rest, |before| before.min(rest)));
        }
    }
    shortest
}
