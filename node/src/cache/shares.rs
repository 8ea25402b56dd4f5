//! How much of the cache each tenant holds, so that one cannot crowd out the others.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use super::key::CacheKey;

/// Answers by tenant; one without answers has no entry, so there are never more entries than answers.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<Tenants>);

#[derive(Debug, Default)]
struct Tenants {
    holding: HashMap<Box<[u8]>, Share>,
    /// Number of the latest answer.
    latest: u64,
}

#[derive(Debug, Default)]
struct Share {
    bytes: u64,
    /// By number, the oldest first.
    answers: BTreeMap<u64, (CacheKey, u32)>,
}

/// An answer that was booked.
#[derive(Debug, Default)]
pub(super) struct Booked {
    /// Its number, for [`Shares::give_back`].
    pub(super) number: u64,
    /// The tenant's oldest answers: they have to leave for it, and are booked out.
    pub(super) leaving: Vec<CacheKey>,
}

impl Shares {
    /// Books an answer of `bytes`; none where it alone is more than the `bytes_max` of its tenant.
    pub(super) fn take(
        &self,
        tenant: &[u8],
        key: CacheKey,
        bytes: u32,
        bytes_max: u64,
    ) -> Option<Booked> {
        let room = bytes_max.checked_sub(bytes.into())?;
        let mut tenants = self.0.lock();
        tenants.latest += 1;
        let number = tenants.latest;
        let share = tenants.holding.entry(tenant.into()).or_default();
        let mut leaving = Vec::new();
        while share.bytes > room
            && let Some((_, (key, bytes))) = share.answers.pop_first()
        {
            share.bytes -= u64::from(bytes);
            leaving.push(key);
        }
        share.bytes += u64::from(bytes);
        share.answers.insert(number, (key, bytes));
        Some(Booked { number, leaving })
    }

    /// An answer left. False: for a newer one of its tenant, by [`Booked::leaving`].
    pub(super) fn give_back(&self, tenant: &[u8], number: u64) -> bool {
        let mut tenants = self.0.lock();
        let Some(share) = tenants.holding.get_mut(tenant) else {
            return false;
        };
        let Some((_, bytes)) = share.answers.remove(&number) else {
            return false;
        };
        share.bytes -= u64::from(bytes);
        if share.answers.is_empty() {
            tenants.holding.remove(tenant);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> CacheKey {
        CacheKey([number; 32])
    }

    #[test]
    fn a_tenant_has_its_share_of_its_newest_answers() {
        let shares = Shares::default();
        let take = |tenant: &[u8], number, bytes| {
            let booked = shares.take(tenant, key(number), bytes, 100);
            let booked = booked.expect("it is no larger than all of a share");
            (booked.number, booked.leaving)
        };
        let (first, none) = take(b"a", 1, 30);
        assert_eq!(none, []);
        let (second, none) = take(b"a", 2, 70);
        assert_eq!(none, []);
        let (others, none) = take(b"b", 3, 100);
        assert_eq!(none, []);
        let (third, leaving) = take(b"a", 4, 40);
        assert_eq!(leaving, [key(1), key(2)], "the oldest first");
        assert!(!shares.give_back(b"a", first) && !shares.give_back(b"a", second));
        assert!(shares.take(b"a", key(5), 101, 100).is_none());
        assert_eq!(take(b"a", 6, 60).1, [], "what is too large takes nothing");
        assert!(shares.give_back(b"a", third));
        assert!(!shares.give_back(b"a", third), "once");
        let (last, leaving) = take(b"a", 7, 100);
        assert_eq!(leaving, [key(6)]);
        assert!(shares.give_back(b"a", last) && shares.give_back(b"b", others));
        assert!(shares.0.lock().holding.is_empty());
    }
}
