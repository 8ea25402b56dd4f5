//! What the agent does by the clock: rounds of membership and anti-entropy, frames of load, the ends of
//! warm-ups.

use std::sync::Arc;
use std::time::Duration;

use rand::seq::IndexedRandom;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::core::{Core, Net};
use super::exchange;
use super::settling::Settling;
use super::twins;
use super::unlike::Pair;
use crate::config::{ALONE_AFTER, ROUND, SNAPSHOT_WITHIN, SYNC_EVERY};
use crate::load::middle;
use crate::membership::{Sighting, fact};
use crate::replica::ReplicaId;

/// Follows membership, compares registries, keeps readiness. Ends with the transport.
pub(super) async fn membership(core: Arc<Core>) {
    let Some(net) = &core.net else {
        return;
    };
    let mut sightings = net.membership.sightings();
    let mut alive = net.membership.alive();
    let mut tick = interval(ROUND);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut slow = Slow {
        second: Instant::now(),
        exchange: Instant::now(),
        settling: Settling::new(Instant::now().into_std()),
    };
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            Ok(()) = sightings.changed() => {}
            Ok(()) = alive.changed() => {}
        }
        let seen = sightings.borrow_and_update().clone();
        let is_alive = *alive.borrow_and_update();
        round(&core, net, seen, is_alive, &mut slow);
    }
}

/// When the rarer duties were last done.
struct Slow {
    second: Instant,
    exchange: Instant,
    settling: Settling,
}

fn round(core: &Arc<Core>, net: &Net, seen: Vec<Sighting>, is_alive: bool, slow: &mut Slow) {
    // Only the generation that a replica proved to us counts: former ones linger in chitchat.
    let proven = |seen: &Sighting| net.transport.generation_of(&seen.id) == Some(seen.generation);
    let others: Vec<_> = seen.into_iter().filter(proven).collect();
    let linked = net.transport.linked();
    let live: Vec<_> = others.iter().filter(|seen| seen.live).cloned().collect();
    core.metrics.peers_live.set(live.len() as i64);
    core.metrics.peers_linked.set(linked.len() as i64);
    core.metrics.isolated.set(i64::from(live.is_empty()));
    twins::look(core, net, &others);

    let one_way = middle(&mut net.transport.one_ways());
    let (own_digest, knows_nobody) = {
        let mut state = core.state();
        state.plane.set_live(1 + live.len() as u32);
        if let Some(time) = one_way {
            state.plane.set_one_way(time);
        }
        let generation = net.transport.generation();
        if state.others != others || state.generation != generation {
            state.others = others;
            state.generation = generation;
            core.refresh(&mut state);
        }
        let elapsed = slow.second.elapsed();
        if elapsed >= SECOND {
            slow.second = Instant::now();
            // Paused for long: whatever the last sightings say, nobody was heard.
            let heard = if elapsed > 10 * SECOND { 0 } else { live.len() };
            let contact = state.contact.add(heard, elapsed);
            if state.registry.advance(contact) > 0 {
                core.refresh(&mut state);
            }
            greet_silent(net, &linked, &live, &state.others);
        }
        let digest = state.registry.digest();
        (digest.to_string(), digest.count == 0)
    };

    let waited = core.started.elapsed();
    // Without a single worker nothing can be served: whoever has seeds to ask had better be late.
    let waits_on = knows_nobody && net.has_seeds;
    let is_alone = linked.is_empty() && waited >= ALONE_AFTER && !waits_on;
    if !*core.synced.borrow() && (is_alone || waited >= SNAPSHOT_WITHIN) {
        core.synced.send_replace(true);
    }
    for (peer, differing) in partners(core, &linked, &live, &own_digest, slow) {
        exchange::begin(core, peer, differing);
    }
    let is_ready = is_alive && *core.synced.borrow();
    core.ready
        .send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
}

/// A connected replica that chitchat does not hold for alive is greeted again: the first greeting may
/// have been lost, and chitchat forgets the dead after a minute.
fn greet_silent(net: &Net, linked: &[ReplicaId], live: &[Sighting], others: &[Sighting]) {
    for id in linked
        .iter()
        .filter(|id| live.iter().all(|seen| seen.id != **id))
    {
        let known = others
            .iter()
            .find(|seen| seen.id == *id)
            .map(|seen| seen.address);
        if let Some(address) = known.or_else(|| net.transport.address_of(id)) {
            net.membership.greet(address);
        }
    }
}

/// With whom to compare registries in this round, and the digests that differ if that is why.
fn partners<'a>(
    core: &Core,
    linked: &'a [ReplicaId],
    live: &[Sighting],
    own_digest: &str,
    slow: &mut Slow,
) -> Vec<(&'a ReplicaId, Option<Pair>)> {
    if !*core.synced.borrow() {
        // With anybody: one that hangs, or whose registry is refused, must not be asked for ever.
        let anybody = linked.choose(&mut rand::rng());
        return anybody.into_iter().map(|peer| (peer, None)).collect();
    }
    let differing = |id: &'a ReplicaId| {
        let seen = live.iter().find(|seen| seen.id == *id)?;
        let theirs = seen.facts.get(fact::REGISTRY)?;
        (theirs != own_digest).then(|| {
            let pair = Pair {
                ours: own_digest.to_owned(),
                theirs: theirs.clone(),
            };
            (id, pair)
        })
    };
    let mut differing: Vec<_> = linked.iter().filter_map(differing).collect();
    core.metrics.registry_differing.set(differing.len() as i64);
    let now = Instant::now().into_std();
    if !slow
        .settling
        .compares(own_digest, !differing.is_empty(), now)
    {
        differing.clear();
    }
    let mut state = core.state();
    state.unlike.retain(|id| linked.contains(id));
    let worth_it = differing
        .into_iter()
        .filter(|(id, pair)| state.unlike.is_worth_it(id, pair, now, SYNC_EVERY));
    let mut partners: Vec<_> = worth_it.map(|(id, pair)| (id, Some(pair))).collect();
    // Once in a while with anybody: a digest that is equal by accident, or told by a liar.
    if slow.exchange.elapsed() >= SYNC_EVERY {
        slow.exchange = Instant::now();
        let anybody = linked.choose(&mut rand::rng());
        partners.extend(anybody.map(|peer| (peer, None)));
    }
    partners
}

/// Sends changed load counts, writes the others' sums to the board, and what of ours they know by now.
pub(super) async fn load(core: Arc<Core>) {
    let Some(net) = &core.net else {
        return;
    };
    let mut look = Instant::now();
    let mut settles: Option<std::time::Instant> = None;
    loop {
        let settle = settles.map(Instant::from_std);
        sleep_until(settle.map_or(look, |settle| settle.min(look))).await;
        let now = Instant::now();
        let frame = {
            let mut state = core.state();
            let plane = &mut state.plane;
            let frame = (now >= look).then(|| {
                if plane.must_sum(now.into_std()) {
                    plane.aggregate(now.into_std());
                    core.metrics.load_cut.set(i64::from(plane.cut()));
                }
                let frame = plane.collect(now.into_std());
                look = Instant::from_std(plane.next_look(now.into_std()));
                frame
            });
            settles = plane.settle(now.into_std());
            frame.flatten()
        };
        if let Some(frame) = frame {
            net.transport.send_load(frame);
        }
    }
}

/// Publishes a new view when a warm-up ends, although nobody said anything. Never ends.
pub(super) async fn warm_ups(core: Arc<Core>) {
    let mut views = core.view.subscribe();
    loop {
        let next = core.state().warmups.next_end().map(Instant::from_std);
        let end = async {
            match next {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The agent holds the sender, and this task the agent: it cannot be gone.
            _ = views.changed() => {}
            () = end => {
                let mut state = core.state();
                // Not later: what is over by the clock would be over again and again until then.
                core.publish(&mut state);
            }
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
