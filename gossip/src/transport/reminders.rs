//! Lines in the log about certificates that end: this replica's, its authority's, its peers'.
//!
//! Open connections outlive a certificate's end, new ones do not: an operator that reads the log late has a
//! cluster that falls apart with its first restart.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::{Shared, credentials};
use crate::identity::{AUTHORITY, OWN, Reminders, Urgency};

/// Looks each hour, when something ends, and when a certificate was replaced.
pub(super) async fn remind(shared: Arc<Shared>) {
    let mut reminders = Reminders::default();
    loop {
        let now = SystemTime::now();
        let [own, authority] = shared.identity.ends();
        shared.metrics.expires(own);
        shared.metrics.authority_expires(authority);
        if let Some(urgency) = reminders.due(OWN, own, now) {
            of_own(&shared, urgency, own, now);
        }
        if let Some(urgency) = reminders.due(AUTHORITY, authority, now) {
            of_authority(urgency, authority, now);
        }
        of_peers(&shared, &mut reminders, now);
        let until_end = own.duration_since(now).ok();
        let next = until_end.map_or(EVERY, |left| EVERY.min(left + Duration::from_secs(1)));
        tokio::select! {
            () = sleep(next) => {}
            () = shared.identity.replaced.notified() => {}
        }
    }
}

fn of_own(shared: &Shared, urgency: Urgency, end: SystemTime, now: SystemTime) {
    let replica = &shared.own;
    let days = days_left(end, now);
    if urgency == Urgency::Expired {
        tracing::error!(%replica, "the certificate of this replica has expired: peers refuse new connections, and it will not start again; run `grapevine ca issue {replica} --force` and replace its files, no restart is needed (where single files of a Secret are mounted, as by the Helm chart: restart the pod)");
    } else if urgency == Urgency::Day {
        tracing::error!(%replica, days, "the certificate of this replica ends within a day; run `grapevine ca issue {replica} --force` and replace its files, no restart is needed (where single files of a Secret are mounted, as by the Helm chart: restart the pod)");
    } else {
        tracing::warn!(%replica, days, "the certificate of this replica ends soon; run `grapevine ca issue {replica} --force` and replace its files, no restart is needed (where single files of a Secret are mounted, as by the Helm chart: restart the pod)");
    }
}

fn of_authority(urgency: Urgency, end: SystemTime, now: SystemTime) {
    let days = days_left(end, now);
    if urgency >= Urgency::Day {
        tracing::error!(
            days,
            "the cluster's authority ends within a day or has ended, and all certificates with it; `grapevine ca rotate` says how to replace it"
        );
    } else {
        tracing::warn!(
            days,
            "the cluster's authority ends soon, and all certificates with it; `grapevine ca rotate` says how to replace it"
        );
    }
}

/// One line for each peer that is connected; its own log has the same line, but may be read by nobody.
fn of_peers(shared: &Shared, reminders: &mut Reminders, now: SystemTime) {
    for (id, connection) in shared.peers.lock().links() {
        let Some(leaf) = credentials::leaf_of(&connection) else {
            continue;
        };
        if let Some(urgency) = reminders.due(id.as_str(), leaf.until, now) {
            let days = days_left(leaf.until, now);
            let expired = urgency == Urgency::Expired;
            tracing::warn!(replica = %id, days, expired, "the certificate of another replica ends soon or has ended; run `grapevine ca issue {id} --force` and replace its files");
        }
    }
}

/// Whole days; 0 if less than one is left, or none.
fn days_left(end: SystemTime, now: SystemTime) -> u64 {
    let left = end.duration_since(now).unwrap_or_default();
    left.as_secs() / (24 * 60 * 60)
}

const EVERY: Duration = Duration::from_secs(60 * 60);
