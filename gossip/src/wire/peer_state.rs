//! Peer states as they travel. Hashes take eight bytes each, as in evidence.

use std::time::Duration;

use super::body::Body;
use crate::frame::{Decode, Encode, FrameError};
use crate::peer_state::{
    AGE_MAX, CLAIMS_MAX, Claim, HEARD_MAX, HealthClaim, Heard, PACES_MAX, Pace, QUARANTINE_MAX,
    Quarantined, SIGHTINGS_MAX, Sighting, TENANTS_MAX, TenantUse,
};
use crate::registry::millis;

/// Worker, epoch, number of the claim, age in milliseconds; strictly rising by worker.
#[derive(Encode, Decode)]
pub(super) struct WireHealth(Vec<(String, u64, u8, u64)>);

/// Hash of the tenant, requests in flight, requests waiting; strictly rising by hash.
#[derive(Encode, Decode)]
pub(super) struct WireUsage(Vec<([u8; 8], u32, u32)>);

/// Bytes of the body, hash, age in milliseconds; strictly rising by the first two.
#[derive(Encode, Decode)]
pub(super) struct WireQuarantine(Vec<(u64, [u8; 16], u64)>);

/// Hash of the worker's id, sums of its answers; strictly rising by hash.
#[derive(Encode, Decode)]
pub(super) struct WirePaces(Vec<([u8; 8], [f32; 6])>);

/// Hash of the source's name, hash of the worker's id, what is seen, hash of the description.
type WireSighting = ([u8; 8], [u8; 8], u8, [u8; 4]);

/// Strictly rising by the first two.
#[derive(Encode, Decode)]
pub(super) struct WireSightings(Vec<WireSighting>);

/// Replica, age in milliseconds of what was heard of it; strictly rising by replica.
#[derive(Encode, Decode)]
pub(super) struct WireHeard(Vec<(String, u64)>);

/// Refuses a list that is too long, or of which an entry is not `below` the next one: nothing can be spoken of twice.
fn rising<T>(
    list: Vec<T>,
    most: usize,
    what: &'static str,
    below: fn(&T, &T) -> bool,
) -> Result<Vec<T>, FrameError> {
    if list.len() > most || !list.is_sorted_by(below) {
        return Err(FrameError::Value(what));
    }
    Ok(list)
}

impl Body for Vec<HealthClaim> {
    type Wire = WireHealth;

    fn to_wire(&self) -> WireHealth {
        let wire = |said: &HealthClaim| {
            let (code, age_ms) = (said.claim as u8, millis(said.age));
            (said.worker.to_string(), said.epoch, code, age_ms)
        };
        WireHealth(self.iter().map(wire).collect())
    }

    fn from_wire(WireHealth(wire): WireHealth, refused: &mut usize) -> Result<Self, FrameError> {
        let wire = rising(wire, CLAIMS_MAX, "list of claims", |a, b| a.0 < b.0)?;
        let mut claims = Vec::with_capacity(wire.len());
        for (worker, epoch, code, age_ms) in wire {
            let worker = worker.parse();
            let worker = worker.map_err(|_| FrameError::Value("worker id"))?;
            let Some(claim) = Claim::ALL.get(usize::from(code)) else {
                *refused += 1;
                continue;
            };
            claims.push(HealthClaim {
                worker,
                epoch,
                claim: *claim,
                age: Duration::from_millis(age_ms).min(AGE_MAX),
            });
        }
        Ok(claims)
    }
}

impl Body for Vec<TenantUse> {
    type Wire = WireUsage;

    fn to_wire(&self) -> WireUsage {
        let wire = |used: &TenantUse| (used.tenant.to_le_bytes(), used.in_flight, used.queued);
        WireUsage(self.iter().map(wire).collect())
    }

    fn from_wire(WireUsage(wire): WireUsage, _: &mut usize) -> Result<Self, FrameError> {
        let used = |(tenant, in_flight, queued)| TenantUse {
            tenant: u64::from_le_bytes(tenant),
            in_flight,
            queued,
        };
        let (usage, what) = (wire.into_iter().map(used).collect(), "list of tenants");
        rising(usage, TENANTS_MAX, what, |a, b| a.tenant < b.tenant)
    }
}

impl Body for Vec<Quarantined> {
    type Wire = WireQuarantine;

    fn to_wire(&self) -> WireQuarantine {
        let wire = |entry: &Quarantined| (entry.length, entry.hash, millis(entry.age));
        WireQuarantine(self.iter().map(wire).collect())
    }

    fn from_wire(WireQuarantine(wire): WireQuarantine, _: &mut usize) -> Result<Self, FrameError> {
        let entry = |(length, hash, age_ms)| Quarantined {
            length,
            hash,
            age: Duration::from_millis(age_ms).min(AGE_MAX),
        };
        let what = "list of quarantined requests";
        let entries = wire.into_iter().map(entry).collect();
        rising(entries, QUARANTINE_MAX, what, |a, b| a.id() < b.id())
    }
}

impl Body for Vec<Pace> {
    type Wire = WirePaces;

    fn to_wire(&self) -> WirePaces {
        let wire = |pace: &Pace| (pace.worker.to_le_bytes(), pace.sums);
        WirePaces(self.iter().map(wire).collect())
    }

    fn from_wire(WirePaces(wire): WirePaces, _: &mut usize) -> Result<Self, FrameError> {
        let pace = |(worker, sums)| Pace {
            worker: u64::from_le_bytes(worker),
            sums,
        };
        let (paces, what) = (wire.into_iter().map(pace).collect(), "list of paces");
        let paces = rising(paces, PACES_MAX, what, |a, b| a.worker < b.worker)?;
        let are_numbers = |pace: &Pace| pace.sums.iter().all(|sum| sum.is_finite());
        let is_right = paces.iter().all(are_numbers);
        is_right.then_some(paces).ok_or(FrameError::Value(what))
    }
}

impl Body for Vec<Sighting> {
    type Wire = WireSightings;

    fn to_wire(&self) -> WireSightings {
        let wire = |sighting: &Sighting| {
            let (source, worker) = (sighting.source.to_le_bytes(), sighting.worker.to_le_bytes());
            (source, worker, sighting.what, sighting.seen.to_le_bytes())
        };
        WireSightings(self.iter().map(wire).collect())
    }

    fn from_wire(WireSightings(wire): WireSightings, _: &mut usize) -> Result<Self, FrameError> {
        let sighting = |(source, worker, what, seen)| Sighting {
            source: u64::from_le_bytes(source),
            worker: u64::from_le_bytes(worker),
            what,
            seen: u32::from_le_bytes(seen),
        };
        let sightings = wire.into_iter().map(sighting).collect();
        rising(sightings, SIGHTINGS_MAX, "list of sightings", |a, b| {
            (a.source, a.worker) < (b.source, b.worker)
        })
    }
}

impl Body for Vec<Heard> {
    type Wire = WireHeard;

    fn to_wire(&self) -> WireHeard {
        let wire = |of: &Heard| (of.replica.to_string(), millis(of.age));
        WireHeard(self.iter().map(wire).collect())
    }

    fn from_wire(WireHeard(wire): WireHeard, _: &mut usize) -> Result<Self, FrameError> {
        let wire = rising(wire, HEARD_MAX, "list of replicas", |a, b| a.0 < b.0)?;
        let heard = |(replica, age_ms): (String, u64)| {
            let replica = replica.parse();
            Ok(Heard {
                replica: replica.map_err(|_| FrameError::Value("replica id"))?,
                age: Duration::from_millis(age_ms).min(AGE_MAX),
            })
        };
        wire.into_iter().map(heard).collect()
    }
}
