//! How much of the cache each tenant holds, so that one cannot crowd out the others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Bytes by tenant; a tenant without answers has no entry, so there are never more entries than answers.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<Box<[u8]>, u64>>);

impl Shares {
    /// Books an answer of `bytes`; false, and no change, when the tenant would have more than `bytes_max`.
    pub(super) fn take(&self, tenant: &[u8], bytes: u64, bytes_max: u64) -> bool {
        let mut shares = self.shares();
        let held = shares.get(tenant).copied().unwrap_or(0) + bytes;
        let fits = held <= bytes_max;
        if fits {
            shares.insert(tenant.into(), held);
        }
        fits
    }

    /// An answer left.
    pub(super) fn give_back(&self, tenant: &[u8], bytes: u64) {
        let mut shares = self.shares();
        if let Some(held) = shares.get_mut(tenant) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                shares.remove(tenant);
            }
        }
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, u64>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_share_and_no_more() {
        let shares = Shares::default();
        assert!(shares.take(b"a", 60, 100));
        assert!(!shares.take(b"a", 60, 100));
        assert!(shares.take(b"b", 60, 100));
        shares.give_back(b"a", 60);
        assert!(shares.take(b"a", 100, 100));
        shares.give_back(b"a", 100);
        shares.give_back(b"b", 60);
        assert!(shares.shares().is_empty());
    }
}
