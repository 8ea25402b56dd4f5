//! For how long a sender has spoken ill of each worker. Pure.
//!
//! Bad claims of one sender about one worker are one spell, whichever of them it makes: all of them count from the first one.
//! Else a sender that says `Stalled` and `Ejected` in turns, names epochs that nobody has seen, is silent for a moment or
//! starts again would outdo, each time, every token that was delivered here since. A spell ends
//!
//! - once the sender has claimed nothing bad of the worker for [`FORGET_AFTER`];
//! - when the registry, not the sender, has a later epoch of the worker, or has it no more: what is bad of its new process is
//!   believed at once. A first epoch is no restart.
//!
//! So a worker that recovers and is bad again within the minute, without a restart, is believed of another sender, or where no
//! token was delivered since the spell began; the others find out by themselves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{AGE_MAX, Claim, FORGET_AFTER, HealthClaim};
use crate::evidence::KnownWorkers;
use crate::worker::WorkerId;

/// The spells of one sender, one for each worker at most.
#[derive(Debug, Default)]
pub(crate) struct Spells(BTreeMap<WorkerId, Spell>);

/// Bad claims about one worker in one of its lives.
#[derive(Debug)]
struct Spell {
    /// Of the worker, by the registry; 0: not known.
    epoch: u64,
    /// When the latest of them came.
    heard: Instant,
    /// How long before that the first one was found out.
    age: Duration,
}

impl Spells {
    /// Makes the bad ones of the claims that came now as old as their spells.
    pub(super) fn date(
        &mut self,
        claims: &mut [HealthClaim],
        known_workers: &KnownWorkers,
        now: Instant,
    ) {
        self.0.retain(|worker, spell| {
            let lives_on = |epoch| spell.epoch == 0 || spell.epoch == epoch;
            known_workers.epoch(worker).is_some_and(lives_on)
                && now.saturating_duration_since(spell.heard) < FORGET_AFTER
        });
        for claim in claims {
            let Some(epoch) = known_workers.epoch(&claim.worker) else {
                continue;
            };
            if claim.claim == Claim::Good || claim.epoch < epoch {
                continue;
            }
            if let Some(spell) = self.0.get(&claim.worker) {
                let since = now.saturating_duration_since(spell.heard);
                claim.age = claim.age.max(spell.age + since).min(AGE_MAX);
            }
            let spell = Spell {
                epoch,
                heard: now,
                age: claim.age,
            };
            self.0.insert(claim.worker.clone(), spell);
        }
    }
}
