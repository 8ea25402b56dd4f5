//! A request that could be divided, and that one worker takes all the same.

use grapevine_gossip::worker::Role;
use grapevine_placement::{Divide, Key};

use crate::cluster::{Cluster, Halves, Pool};

/// Whether one worker of `pool`, which the request found, is to take all of it; the name of that way. `tried`: workers of
/// the pool, by index, that were asked before: what they hold of the prompt is no reason; behind them the prefill workers
/// that are not to compute it again. `with_load` false: as in a quiet cluster. A preview: load may change before the request
/// is placed.
pub fn stays_whole(
    cluster: &Cluster,
    pool: &Pool,
    halves: &Halves,
    key: &Key,
    divide: &Divide,
    (tried, tried_prefill): (&[usize], &[usize]),
    with_load: bool,
) -> Option<&'static str> {
    let takes_whole = pool.role() == Role::Any;
    let short = match takes_whole {
        true => "whole_short",
        false => "alone_short",
    };
    if divide.is_short(key.prompt_tokens()) {
        return Some(short);
    }
    // Nothing else is decided by it.
    if !takes_whole && divide.short_prompt_tokens == 0 {
        return None;
    }
    let whole = cluster.preview(pool, key, tried, &[], with_load).ok()?;
    if divide.is_short(whole.prefill_tokens()) {
        return Some(short);
    }
    if !takes_whole {
        return None;
    }
    // One that no decode worker understands is in no pair, however idle it is.
    let silent = halves.pairs.silent();
    let prefill = cluster.preview(&halves.prefill, key, tried_prefill, silent, with_load);
    let prefill = prefill.ok()?;
    let is_sooner = divide.is_sooner_whole(&whole, &prefill);
    is_sooner.then_some("whole_sooner")
}

#[cfg(test)]
mod tests {
    use grapevine_placement::{ClusterSettings, KeyBuilder};

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::config::{KvEventsConfig, TransferConfig};
    use crate::upstream::InFlight;

    const MODEL: &str = "m";

    fn key(number: usize) -> Key {
        let mut builder = KeyBuilder::new(&ClusterSettings::default().key, MODEL, b"");
        builder.text(format!("{number} {}", "word ".repeat(1_600)));
        builder.finish()
    }

    /// The queue of the pairs is that of the prefill workers that can be in one, not of those that are idle for want of a
    /// partner.
    #[test]
    fn only_prefill_workers_that_a_pair_may_have_are_asked() {
        let member = |id, role, zone: &str| {
            let zone = Some(zone.to_owned());
            worker_with(id, MODEL, |raw| (raw.role, raw.zone) = (role, zone))
        };
        let workers = [
            member("d0", Role::Decode, "a"),
            member("p0", Role::Prefill, "a"),
            member("p1", Role::Prefill, "b"),
            member("p2", Role::Prefill, "a"),
            member("w0", Role::Any, "a"),
        ];
        let house = Alone::new("r1", workers, &KvEventsConfig::default(), 5);
        let cluster = &house.cluster;
        let pool = cluster.fleet().pool(MODEL).expect("it is served");
        let halves = pool.halves().expect("both are there");
        assert_eq!(halves.pairs.silent(), [1], "no pair spans zones here");
        let divide = TransferConfig::default().divide();
        let way_at = |tried: &[usize], with_load| {
            let tried = (&[][..], tried);
            stays_whole(cluster, &pool, halves, &key(0), &divide, tried, with_load)
        };
        let way = |tried: &[usize]| way_at(tried, true);
        assert_eq!(way(&[]), None, "a pair is idle");
        let busy = (1..).take(20).map(|number| {
            let placed = cluster.place(&halves.prefill, &key(number), &[], &[1, 2]);
            let placed = placed.expect("one is left");
            InFlight::begin(&placed.worker, &placed.decision).expect("it is usable")
        });
        let _busy: Vec<InFlight> = busy.collect();
        assert_eq!(way(&[]), None, "the other one is idle");
        assert_eq!(way(&[2]), Some("whole_sooner"), "it was tried");
        assert_eq!(way_at(&[2], false), None, "nothing is under way");
    }
}
