//! Bulletins as they travel. Hashes take eight bytes each, as in evidence.

use std::time::Duration;

use crate::bulletin::{
    AGE_MAX, CLAIMS_MAX, Claim, HealthClaim, PART_BYTES_MAX, QUARANTINE_MAX, Quarantined,
    TENANTS_MAX, TenantUse,
};
use crate::frame::{Decode, Encode, FrameError};

/// Worker, epoch, code of [`code`], age in milliseconds; strictly rising by worker.
#[derive(Encode, Decode)]
pub(super) struct WireHealth(Vec<(String, u64, u8, u64)>);

/// Hash of the tenant, requests in flight, requests waiting; strictly rising by hash.
#[derive(Encode, Decode)]
pub(super) struct WireUsage(Vec<([u8; 8], u32, u32)>);

/// Bytes of the body, hash, age in milliseconds; strictly rising by the first two.
#[derive(Encode, Decode)]
pub(super) struct WireQuarantine(Vec<(u64, [u8; 16], u64)>);

/// A number for each claim: one that a later release adds costs its entry only.
mod code {
    pub(super) const GOOD: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 1;
    pub(super) const UNHEALTHY: u8 = 2;
    pub(super) const STALLED: u8 = 3;
    pub(super) const EJECTED: u8 = 4;
}

/// The body of a part is not longer than any honest one.
pub(super) fn bounded(body: &[u8]) -> Result<(), FrameError> {
    if body.len() <= PART_BYTES_MAX {
        Ok(())
    } else {
        Err(FrameError::Value("length of a bulletin"))
    }
}

impl From<&[HealthClaim]> for WireHealth {
    fn from(claims: &[HealthClaim]) -> Self {
        let wire = |said: &HealthClaim| {
            let code = match said.claim {
                Claim::Good => code::GOOD,
                Claim::Unreachable => code::UNREACHABLE,
                Claim::Unhealthy => code::UNHEALTHY,
                Claim::Stalled => code::STALLED,
                Claim::Ejected => code::EJECTED,
            };
            let age_ms = super::body::wire_ms(said.age);
            (said.worker.to_string(), said.epoch, code, age_ms)
        };
        Self(claims.iter().map(wire).collect())
    }
}

impl WireHealth {
    pub(super) fn checked(self, refused: &mut usize) -> Result<Vec<HealthClaim>, FrameError> {
        // Once each, so that one worker cannot be spoken of twice.
        if self.0.len() > CLAIMS_MAX || !self.0.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(FrameError::Value("list of claims"));
        }
        let mut claims = Vec::with_capacity(self.0.len());
        for (worker, epoch, code, age_ms) in self.0 {
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

impl From<&[TenantUse]> for WireUsage {
    fn from(usage: &[TenantUse]) -> Self {
        let wire = |used: &TenantUse| (used.tenant.to_le_bytes(), used.in_flight, used.queued);
        Self(usage.iter().map(wire).collect())
    }
}

impl WireUsage {
    pub(super) fn checked(self) -> Result<Vec<TenantUse>, FrameError> {
        let used = |(tenant, in_flight, queued)| TenantUse {
            tenant: u64::from_le_bytes(tenant),
            in_flight,
            queued,
        };
        let usage: Vec<_> = self.0.into_iter().map(used).collect();
        if usage.len() > TENANTS_MAX || !usage.is_sorted_by(|a, b| a.tenant < b.tenant) {
            return Err(FrameError::Value("list of tenants"));
        }
        Ok(usage)
    }
}

impl From<&[Quarantined]> for WireQuarantine {
    fn from(quarantine: &[Quarantined]) -> Self {
        let wire =
            |entry: &Quarantined| (entry.length, entry.hash, super::body::wire_ms(entry.age));
        Self(quarantine.iter().map(wire).collect())
    }
}

impl WireQuarantine {
    pub(super) fn checked(self) -> Result<Vec<Quarantined>, FrameError> {
        let entry = |(length, hash, age_ms)| Quarantined {
            length,
            hash,
            age: Duration::from_millis(age_ms).min(AGE_MAX),
        };
        let entries: Vec<_> = self.0.into_iter().map(entry).collect();
        if entries.len() > QUARANTINE_MAX || !entries.is_sorted_by(|a, b| a.id() < b.id()) {
            return Err(FrameError::Value("list of quarantined requests"));
        }
        Ok(entries)
    }
}
