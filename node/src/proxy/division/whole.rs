//! A request that could be divided, and that one worker takes all the same.

use grapevine_gossip::worker::Role;
use grapevine_placement::{Divide, Key};

use crate::cluster::{Cluster, Halves, Pool};

/// Whether one worker of `pool`, which the request found, is to take all of it; the name of that way. `tried`: workers of
/// the pool, by index, that were asked before: what they hold of the prompt is no reason. A preview: load may change
/// before the request is placed.
pub fn stays_whole(
    cluster: &Cluster,
    pool: &Pool,
    halves: &Halves,
    key: &Key,
    divide: &Divide,
    tried: &[usize],
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
    let whole = cluster.preview(pool, key, tried).ok()?;
    if divide.is_short(whole.prefill_tokens()) {
        return Some(short);
    }
    if !takes_whole {
        return None;
    }
    let prefill = cluster.preview(&halves.prefill, key, &[]).ok()?;
    let is_sooner = divide.is_sooner_whole(&whole, &prefill);
    is_sooner.then_some("whole_sooner")
}
