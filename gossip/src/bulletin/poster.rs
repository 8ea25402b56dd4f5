//! This replica's own bulletin: brought into form, and sent when it is due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    AGE_MAX, Bulletin, CLAIMS_MAX, Claim, HealthClaim, PART_BYTES_MAX, QUARANTINE_MAX, Quarantined,
    RENEW_AFTER, TENANTS_MAX, TenantUse,
};
use crate::wire::Message;

/// What the others are told, and when they were last told.
#[derive(Debug, Default)]
pub(crate) struct Poster {
    health: Option<Part<HealthClaim>>,
    usage: Option<Part<TenantUse>>,
    /// Mostly there is nothing to say.
    quarantine: Option<Part<Quarantined>>,
}

#[derive(Debug)]
struct Part<T> {
    entries: Vec<T>,
    posted: Instant,
    /// Nobody was told of it yet.
    is_news: bool,
    sent: Option<Instant>,
}

/// Entries that do not fit a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) claims: usize,
    pub(crate) tenants: usize,
    pub(crate) quarantined: usize,
}

impl Poster {
    /// Replaces the bulletin. Ages alone are no news: they go with the next renewal.
    pub(crate) fn post(&mut self, bulletin: Bulletin, now: Instant) -> Cut {
        let Bulletin {
            health,
            usage,
            quarantine,
        } = bulletin;
        let (health, claims) = fit_claims(health);
        let (usage, tenants) = fit_usage(usage);
        replace(&mut self.health, health, now, |a, b| {
            (&a.worker, a.epoch, a.claim) == (&b.worker, b.epoch, b.claim)
        });
        replace(&mut self.usage, usage, now, PartialEq::eq);
        let (quarantine, quarantined) = fit_quarantine(quarantine);
        if quarantine.is_empty() {
            // What is not renewed ends by itself.
            self.quarantine = None;
        } else {
            replace(&mut self.quarantine, quarantine, now, |a, b| {
                a.id() == b.id()
            });
        }
        Cut {
            claims,
            tenants,
            quarantined,
        }
    }

    /// True if something changed that nobody was told yet.
    pub(crate) fn has_news(&self) -> bool {
        self.health.as_ref().is_some_and(|part| part.is_news)
            || self.usage.as_ref().is_some_and(|part| part.is_news)
            || self.quarantine.as_ref().is_some_and(|part| part.is_news)
    }

    /// A peer connected that was told nothing yet: everything is news.
    pub(crate) fn say_again(&mut self) {
        if let Some(part) = &mut self.health {
            part.is_news = true;
        }
        if let Some(part) = &mut self.usage {
            part.is_news = true;
        }
        if let Some(part) = &mut self.quarantine {
            part.is_news = true;
        }
    }

    /// The parts that are due, for all peers: those that changed, and those last said
    /// [`RENEW_AFTER`] ago. None before the first bulletin.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Message> {
        let mut due = Vec::new();
        if let Some(part) = &mut self.health
            && part.is_due(now)
        {
            let since = now.saturating_duration_since(part.posted);
            let aged = part.entries.iter().map(|claim| HealthClaim {
                age: clamped(claim.age.saturating_add(since)),
                ..claim.clone()
            });
            due.push(Message::Health(Arc::new(aged.collect())));
        }
        if let Some(part) = &mut self.usage
            && part.is_due(now)
        {
            due.push(Message::Usage(Arc::new(part.entries.clone())));
        }
        if let Some(part) = &mut self.quarantine
            && part.is_due(now)
        {
            let since = now.saturating_duration_since(part.posted);
            let aged = part.entries.iter().map(|entry| Quarantined {
                age: clamped(entry.age.saturating_add(since)),
                ..*entry
            });
            due.push(Message::Quarantine(Arc::new(aged.collect())));
        }
        due
    }
}

impl<T> Part<T> {
    fn is_due(&mut self, now: Instant) -> bool {
        let is_old = |sent| now.saturating_duration_since(sent) >= RENEW_AFTER;
        let is_due = self.is_news || self.sent.is_none_or(is_old);
        if is_due {
            self.is_news = false;
            self.sent = Some(now);
        }
        is_due
    }
}

fn replace<T>(
    part: &mut Option<Part<T>>,
    entries: Vec<T>,
    now: Instant,
    says_the_same: impl Fn(&T, &T) -> bool,
) {
    let is_same = |old: &Part<T>| {
        let mut pairs = old.entries.iter().zip(&entries);
        old.entries.len() == entries.len() && pairs.all(|(old, new)| says_the_same(old, new))
    };
    let is_news = part.as_ref().is_none_or(|old| old.is_news || !is_same(old));
    *part = Some(Part {
        entries,
        posted: now,
        is_news,
        sent: part.as_ref().and_then(|old| old.sent),
    });
}

/// Brings claims into the order of the wire, and leaves out what does not fit: good ones before bad
/// ones, of the same kind the oldest. Returns how many.
fn fit_claims(mut claims: Vec<HealthClaim>) -> (Vec<HealthClaim>, usize) {
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

/// Brings counts into the order of the wire, and leaves out the least beyond [`TENANTS_MAX`].
fn fit_usage(mut usage: Vec<TenantUse>) -> (Vec<TenantUse>, usize) {
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

/// Brings quarantined requests into the order of the wire, and leaves out the oldest beyond [`QUARANTINE_MAX`].
fn fit_quarantine(mut quarantine: Vec<Quarantined>) -> (Vec<Quarantined>, usize) {
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

fn clamped(age: Duration) -> Duration {
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
