//! When a worker of a pool will take requests again.

use std::time::Duration;

use crate::cluster::Pool;

/// The shortest time that a usable worker wants to be left alone; `None` as soon as one asks for nothing.
pub(super) fn shortest_pause(pool: &Pool) -> Option<Duration> {
    let usable = pool
        .members()
        .iter()
        .filter(|member| !member.draining && member.worker.health.is_usable());
    usable
        .map(|member| member.worker.pause().unwrap_or_default())
        .min()
        .filter(|pause| !pause.is_zero())
}

/// The shortest time for which a breaker lets no request pass, where that keeps requests from every worker that is
/// left.
pub(super) fn shortest_rest(pool: &Pool) -> Option<Duration> {
    let mut shortest: Option<Duration> = None;
    for member in pool.members().iter().filter(|member| !member.draining) {
        let look = member.worker.health.look();
        if look.is_usable {
            return None;
        }
        if look.is_resting && !look.is_unreachable {
            let rest = member.worker.health.shut_for();
            shortest = Some(shortest.map_or(rest, |before| before.min(rest)));
        }
    }
    shortest
}
