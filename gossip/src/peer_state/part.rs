//! The parts of a peer state: what differs between them. That only the latest of each counts, for as long as it is renewed, is
//! the same for all: `planes/peer_state/publisher.rs` sends them so, `received.rs` keeps them so.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::spells::Spells;
use super::{
    AGE_MAX, CLAIMS_MAX, Claim, HEARD_MAX, HealthClaim, Heard, PACES_MAX, PART_BYTES_MAX, Pace,
    QUARANTINE_MAX, Quarantined, SIGHTINGS_MAX, Sighting, TENANTS_MAX, TenantUse,
};
use crate::evidence::KnownWorkers;

/// One entry of a part.
pub(crate) trait PartEntry: Clone + PartialEq {
    /// What a receiver keeps of former ones, also when they count no more and when the sender started again.
    type Memory: Default + Debug;
    /// Name of the part, as in metrics.
    const PART: &'static str;
    /// Whether nothing is sent while there are no entries: what is not renewed ends by itself.
    const ENDS_WHEN_EMPTY: bool;

    /// Brings entries into the order of the wire, and leaves out what does not fit; how many that are.
    fn fit(entries: Vec<Self>) -> (Vec<Self>, usize);

    /// Whether the others would learn nothing from the one that they do not know from the other. Ages alone are no news.
    fn is_the_same_as(&self, other: &Self) -> bool {
        self == other
    }

    /// The same, so much later.
    fn later(&self, _since: Duration) -> Self {
        self.clone()
    }

    /// The same within what is believable after all that `memory` holds.
    fn believed(
        entries: Vec<Self>,
        _memory: &mut Self::Memory,
        _known_workers: &KnownWorkers,
        _now: Instant,
    ) -> Vec<Self> {
        entries
    }
}

impl PartEntry for HealthClaim {
    type Memory = Spells;
    const PART: &'static str = "health";
    const ENDS_WHEN_EMPTY: bool = false;

    /// Brings claims into the order of the wire, and leaves out what does not fit: good ones before bad
    /// ones, of the same kind the oldest. Returns how many.
    fn fit(mut claims: Vec<Self>) -> (Vec<Self>, usize) {
        // Of two about one worker the worse one stays.
        claims.sort_by(|a, b| a.worker.cmp(&b.worker).then(b.claim.cmp(&a.claim)));
        claims.dedup_by(|later, kept| later.worker == kept.worker);
        for claim in &mut claims {
            claim.age = clamped(claim.age);
        }
        let is_fit = claims.len() <= CLAIMS_MAX
            && claims.iter().map(wire_len).sum::<usize>() + COUNT_BYTES <= PART_BYTES_MAX;
        if is_fit {
            return (claims, 0);
        }
        let before = claims.len();
        claims.sort_by_key(|claim| (claim.claim == Claim::Good, claim.age));
        claims.truncate(CLAIMS_MAX);
        let mut bytes = COUNT_BYTES;
        let fitting = claims.iter().take_while(|claim| {
            bytes += wire_len(claim);
            bytes <= PART_BYTES_MAX
        });
        claims.truncate(fitting.count());
        let cut = before - claims.len();
        claims.sort_by(|a, b| a.worker.cmp(&b.worker));
        (claims, cut)
    }

    fn is_the_same_as(&self, other: &Self) -> bool {
        (&self.worker, self.epoch, self.claim) == (&other.worker, other.epoch, other.claim)
    }

    fn later(&self, since: Duration) -> Self {
        Self {
            age: clamped(self.age.saturating_add(since)),
            ..self.clone()
        }
    }

    fn believed(
        mut claims: Vec<Self>,
        spells: &mut Spells,
        known_workers: &KnownWorkers,
        now: Instant,
    ) -> Vec<Self> {
        spells.date(&mut claims, known_workers, now);
        claims
    }
}

impl PartEntry for TenantUse {
    type Memory = ();
    const PART: &'static str = "usage";
    const ENDS_WHEN_EMPTY: bool = false;

    /// Brings counts into the order of the wire, and leaves out the least beyond [`TENANTS_MAX`].
    fn fit(mut usage: Vec<Self>) -> (Vec<Self>, usize) {
        usage.sort_by_key(|used| used.tenant);
        usage.dedup_by(|later, kept| {
            let is_same = later.tenant == kept.tenant;
            if is_same {
                kept.add(*later);
            }
            is_same
        });
        let mut usage: Vec<_> = usage.into_iter().map(TenantUse::clamped).collect();
        // Nothing in hand is what a tenant that is not named has.
        usage.retain(|used| (used.in_flight, used.queued) != (0, 0));
        let cut = usage.len().saturating_sub(TENANTS_MAX);
        if cut > 0 {
            usage.sort_by_key(|used| std::cmp::Reverse(used.in_flight + used.queued));
            usage.truncate(TENANTS_MAX);
            usage.sort_by_key(|used| used.tenant);
        }
        (usage, cut)
    }

    fn believed(entries: Vec<Self>, (): &mut (), _: &KnownWorkers, _: Instant) -> Vec<Self> {
        entries.into_iter().map(Self::clamped).collect()
    }
}

impl PartEntry for Quarantined {
    type Memory = ();
    const PART: &'static str = "quarantine";
    /// Mostly there is none to send.
    const ENDS_WHEN_EMPTY: bool = true;

    /// Brings quarantined requests into the order of the wire, and leaves out the oldest beyond [`QUARANTINE_MAX`].
    fn fit(mut quarantine: Vec<Self>) -> (Vec<Self>, usize) {
        quarantine.sort_by_key(|entry| (entry.id(), std::cmp::Reverse(entry.age)));
        quarantine.dedup_by_key(|entry| entry.id());
        let cut = quarantine.len().saturating_sub(QUARANTINE_MAX);
        if cut > 0 {
            quarantine.sort_by_key(|entry| entry.age);
            quarantine.truncate(QUARANTINE_MAX);
            quarantine.sort_by_key(Quarantined::id);
        }
        (quarantine, cut)
    }

    fn is_the_same_as(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    fn later(&self, since: Duration) -> Self {
        Self {
            age: clamped(self.age.saturating_add(since)),
            ..*self
        }
    }
}

impl PartEntry for Pace {
    type Memory = ();
    const PART: &'static str = "paces";
    const ENDS_WHEN_EMPTY: bool = true;

    /// Brings paces into the order of the wire, one for each worker, and leaves out the last beyond [`PACES_MAX`].
    fn fit(mut paces: Vec<Self>) -> (Vec<Self>, usize) {
        let cut = paces.len().saturating_sub(PACES_MAX);
        paces.truncate(PACES_MAX);
        paces.sort_by_key(|pace| pace.worker);
        paces.dedup_by_key(|pace| pace.worker);
        (paces, cut)
    }
}

impl PartEntry for Sighting {
    type Memory = ();
    const PART: &'static str = "sightings";
    /// A replica that watches no source has none.
    const ENDS_WHEN_EMPTY: bool = true;

    /// Brings sightings into the order of the wire, one for each worker of a source, and leaves out those beyond
    /// [`SIGHTINGS_MAX`]: the last ones of the sources that have most, so that one with many costs the others nothing.
    fn fit(mut sightings: Vec<Self>) -> (Vec<Self>, usize) {
        sightings.sort();
        sightings.dedup_by_key(|sighting| (sighting.source, sighting.worker));
        let cut = sightings.len().saturating_sub(SIGHTINGS_MAX);
        if cut > 0 {
            let of_source = sightings.chunk_by(|a, b| a.source == b.source);
            let mut ranked: Vec<_> = of_source
                .flat_map(|of_source| of_source.iter().copied().enumerate())
                .collect();
            ranked.sort();
            ranked.truncate(SIGHTINGS_MAX);
            sightings = ranked.into_iter().map(|(_, sighting)| sighting).collect();
            sightings.sort();
        }
        (sightings, cut)
    }
}

impl PartEntry for Heard {
    type Memory = ();
    const PART: &'static str = "heard";
    /// To hear nobody is news.
    const ENDS_WHEN_EMPTY: bool = false;

    /// Brings replicas into the order of the wire, once each, and leaves out the last beyond [`HEARD_MAX`].
    fn fit(mut heard: Vec<Self>) -> (Vec<Self>, usize) {
        heard.sort_by(|a, b| (&a.replica, a.age).cmp(&(&b.replica, b.age)));
        heard.dedup_by(|later, kept| later.replica == kept.replica);
        let cut = heard.len().saturating_sub(HEARD_MAX);
        heard.truncate(HEARD_MAX);
        for of in &mut heard {
            of.age = clamped(of.age);
        }
        (heard, cut)
    }

    fn is_the_same_as(&self, other: &Self) -> bool {
        (&self.replica, self.is_silent()) == (&other.replica, other.is_silent())
    }

    fn later(&self, since: Duration) -> Self {
        Self {
            age: clamped(self.age.saturating_add(since)),
            ..self.clone()
        }
    }
}

pub(super) fn clamped(age: Duration) -> Duration {
    age.min(AGE_MAX)
}

/// Greatest length of a claim on the wire, whatever its age becomes.
fn wire_len(claim: &HealthClaim) -> usize {
    const LENGTH_BYTES: usize = 3;
    const EPOCH_BYTES: usize = 9;
    const CLAIM_BYTES: usize = 1;
    const AGE_BYTES: usize = 5;
    LENGTH_BYTES + claim.worker.as_str().len() + EPOCH_BYTES + CLAIM_BYTES + AGE_BYTES
}

/// Length of the number of entries on the wire, at most.
const COUNT_BYTES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(source: u64, worker: u64) -> Sighting {
        Sighting {
            source,
            worker,
            what: 1,
            seen: 0,
        }
    }

    #[test]
    fn a_source_with_many_sightings_costs_the_others_nothing() {
        let many = (0..5_000).map(|worker| sighting(1, worker));
        let few = (0..40).map(|worker| sighting(2, worker));
        let alone = [sighting(3, 0)];
        let all: Vec<_> = many.chain(few).chain(alone).collect();
        let (fit, cut) = Sighting::fit(all);
        assert_eq!((fit.len(), cut), (SIGHTINGS_MAX, 5_041 - SIGHTINGS_MAX));
        assert!(fit.is_sorted());
        let of = |source| fit.iter().filter(move |one| one.source == source);
        assert_eq!((of(2).count(), of(3).count()), (40, 1));
        // What is left of a source begins with what is about the source itself.
        assert_eq!(of(1).next(), Some(&sighting(1, 0)));
        assert_eq!(of(1).count(), SIGHTINGS_MAX - 41);
    }
}
