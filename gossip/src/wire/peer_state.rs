//! Peer states as they travel. Hashes take eight bytes each, as in evidence.

use std::time::Duration;

use super::body::{Body, wire_ms};
use crate::frame::{Decode, Encode, FrameError};
use crate::peer_state::{
    AGE_MAX, CLAIMS_MAX, Claim, HEARD_MAX, HealthClaim, Heard, PACES_MAX, Pace, QUARANTINE_MAX,
    Quarantined, SIGHTINGS_MAX, Sighting, TENANTS_MAX, TenantUse,
};

/// Worker, epoch, code of [`code`], age in milliseconds; strictly rising by worker.
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

/// A number for each claim: one that a later release adds costs its entry only.
mod code {
    pub(super) const GOOD: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 1;
    pub(super) const UNHEALTHY: u8 = 2;
    pub(super) const STALLED: u8 = 3;
    pub(super) const EJECTED: u8 = 4;
}

impl Body for Vec<HealthClaim> {
    type Wire = WireHealth;

    fn to_wire(&self) -> WireHealth {
        let wire = |said: &HealthClaim| {
            let code = match said.claim {
                Claim::Good => code::GOOD,
                Claim::Unreachable => code::UNREACHABLE,
                Claim::Unhealthy => code::UNHEALTHY,
                Claim::Stalled => code::STALLED,
                Claim::Ejected => code::EJECTED,
            };
            let age_ms = wire_ms(said.age);
            (said.worker.to_string(), said.epoch, code, age_ms)
        };
        WireHealth(self.iter().map(wire).collect())
    }

    fn from_wire(WireHealth(wire): WireHealth, refused: &mut usize) -> Result<Self, FrameError> {
        // Once each, so that one worker cannot be spoken of twice.
        if wire.len() > CLAIMS_MAX || !wire.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(FrameError::Value("list of claims"));
        }
        let mut claims = Vec::with_capacity(wire.len());
        for (worker, epoch, code, age_ms) in wire {
            let worker = worker.parse();
            let worker = worker.map_err(|_| FrameError::Value("worker id"))?;
            let claim = match code {
                code::GOOD => Claim::Good,
                code::UNREACHABLE => Claim::Unreachable,
                code::UNHEALTHY => Claim::Unhealthy,
                code::STALLED => Claim::Stalled,
                code::EJECTED => Claim::Ejected,
                _ => {
                    *refused += 1;
                    continue;
                }
            };
            claims.push(HealthClaim {
                worker,
                epoch,
                claim,
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
        let usage: Vec<_> = wire.into_iter().map(used).collect();
        if usage.len() > TENANTS_MAX || !usage.is_sorted_by(|a, b| a.tenant < b.tenant) {
            return Err(FrameError::Value("list of tenants"));
        }
        Ok(usage)
    }
}

impl Body for Vec<Quarantined> {
    type Wire = WireQuarantine;

    fn to_wire(&self) -> WireQuarantine {
        let wire = |entry: &Quarantined| (entry.length, entry.hash, wire_ms(entry.age));
        WireQuarantine(self.iter().map(wire).collect())
    }

    fn from_wire(WireQuarantine(wire): WireQuarantine, _: &mut usize) -> Result<Self, FrameError> {
        let entry = |(length, hash, age_ms)| Quarantined {
            length,
            hash,
            age: Duration::from_millis(age_ms).min(AGE_MAX),
        };
        let entries: Vec<_> = wire.into_iter().map(entry).collect();
        if entries.len() > QUARANTINE_MAX || !entries.is_sorted_by(|a, b| a.id() < b.id()) {
            return Err(FrameError::Value("list of quarantined requests"));
        }
        Ok(entries)
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
        let paces: Vec<_> = wire.into_iter().map(pace).collect();
        let are_numbers = |pace: &Pace| pace.sums.iter().all(|sum| sum.is_finite());
        if paces.len() > PACES_MAX
            || !paces.is_sorted_by(|a, b| a.worker < b.worker)
            || !paces.iter().all(are_numbers)
        {
            return Err(FrameError::Value("list of paces"));
        }
        Ok(paces)
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
        let sightings: Vec<_> = wire.into_iter().map(sighting).collect();
        let key = |sighting: &Sighting| (sighting.source, sighting.worker);
        if sightings.len() > SIGHTINGS_MAX || !sightings.is_sorted_by(|a, b| key(a) < key(b)) {
            return Err(FrameError::Value("list of sightings"));
        }
        Ok(sightings)
    }
}

impl Body for Vec<Heard> {
    type Wire = WireHeard;

    fn to_wire(&self) -> WireHeard {
        let wire = |of: &Heard| (of.replica.to_string(), wire_ms(of.age));
        WireHeard(self.iter().map(wire).collect())
    }

    fn from_wire(WireHeard(wire): WireHeard, _: &mut usize) -> Result<Self, FrameError> {
        if wire.len() > HEARD_MAX || !wire.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(FrameError::Value("list of replicas"));
        }
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
