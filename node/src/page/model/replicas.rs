//! Rows of replicas. Pure.

use serde_json::Value;

use super::{Listed, REPLICAS_SHOWN, Standing};
use crate::shown::trouble::{is_state, replica_rank, trouble_of_replica};
use crate::shown::{field, rows, seconds};

/// A certificate that holds for so many days or fewer is somebody's work by now.
const DAYS_SHORT: i64 = 14;

/// One replica, as the replica that shows the page sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaRow {
    /// Its name.
    pub id: String,
    /// It shows this page.
    pub is_this: bool,
    /// How it stands.
    pub standing: Standing,
    /// The same in words: `dead for 40 s`.
    pub state: String,
    /// How it is heard from here.
    pub heard: String,
    /// It is not heard, though it is said to live.
    pub is_silent: bool,
    /// Digest of its ring, as it reports; a dash for one that is dead.
    pub ring: String,
    /// The ring is not this replica's.
    pub is_other_ring: bool,
    /// Its settings are not this replica's.
    pub is_other_settings: bool,
    /// Digest of its registry.
    pub registry: String,
    /// Its release.
    pub version: String,
    /// The release is not this replica's.
    pub is_other_version: bool,
    /// What its certificate still holds: `80 days`.
    pub certificate: String,
    /// That is short.
    pub is_certificate_short: bool,
    /// Its admin port, as it reports.
    pub admin: String,
}

/// The worst first.
pub fn listed(cluster: &Value) -> Listed<ReplicaRow> {
    let listed = Listed::first(sorted(cluster), REPLICAS_SHOWN);
    let row = |replica| row(cluster, replica);
    Listed {
        rows: listed.rows.into_iter().map(row).collect(),
        more: listed.more,
    }
}

/// The worst first.
pub fn sorted(cluster: &Value) -> Vec<&Value> {
    let mut replicas: Vec<_> = rows(cluster, "replicas").iter().collect();
    replicas.sort_by_key(|replica| replica_rank(cluster, replica));
    replicas
}

/// One replica of a cluster.
pub fn row(cluster: &Value, replica: &Value) -> ReplicaRow {
    let id = field(replica, "id");
    let is_this = id == field(cluster, "replica");
    let is_live = replica["live"] == true;
    let trouble = trouble_of_replica(cluster, replica);
    let (standing, what) = match trouble {
        Some("dead") => (Standing::Bad, "dead"),
        Some(what) => (Standing::Doubtful, what),
        None if !is_live => (
            Standing::Meant,
            replica["absent"].as_str().unwrap_or("gone"),
        ),
        None if replica["leaving"] == true => (Standing::Meant, "leaving"),
        None => (Standing::Well, "well"),
    };
    let lasts = trouble.is_none_or(is_state);
    let lasts = lasts.then(|| replica["for_s"].as_u64()).flatten();
    let state = match lasts {
        Some(for_s) => format!("{what} for {}", seconds(for_s)),
        None => what.to_owned(),
    };
    let own = rows(cluster, "replicas").iter();
    let own = own.filter(|of| field(of, "id") == field(cluster, "replica"));
    let own_version = own.map(|own| field(own, "version")).next();
    let days = replica["certificate_days"].as_i64();
    let heard_ms = replica["heard_ms"].as_u64();
    let is_linked = !replica["round_trip_ms"].is_null();
    ReplicaRow {
        heard: heard(
            is_this,
            is_linked,
            heard_ms,
            replica["round_trip_ms"].as_f64(),
        ),
        is_silent: !is_this && is_live && (!is_linked || heard_ms.is_none_or(|ms| ms > 2_000)),
        ring: match is_live {
            true => field(replica, "ring"),
            false => "-".to_owned(),
        },
        is_other_ring: is_live && field(replica, "ring") != field(cluster, "digest"),
        is_other_settings: is_live && field(replica, "settings") != field(cluster, "settings"),
        registry: field(replica, "registry"),
        is_other_version: own_version.is_some_and(|own| own != field(replica, "version")),
        version: field(replica, "version"),
        certificate: match days {
            None => "-".to_owned(),
            Some(days) if days < 0 => "ended".to_owned(),
            Some(1) => "1 day".to_owned(),
            Some(days) => format!("{days} days"),
        },
        is_certificate_short: days.is_some_and(|days| days <= DAYS_SHORT),
        admin: field(replica, "admin"),
        id,
        is_this,
        standing,
        state,
    }
}

fn heard(is_this: bool, is_linked: bool, heard_ms: Option<u64>, round_trip: Option<f64>) -> String {
    if is_this {
        return "this replica".to_owned();
    }
    let ago = match heard_ms {
        // Seldom more than one report, and nobody waits for tenths of a second.
        Some(ms @ 0..=2_000) if ms < 1_000 => "heard within 1 s".to_owned(),
        Some(ms @ 0..120_000) => format!("heard {} s ago", ms / 1_000),
        Some(ms) => format!("heard {} min ago", ms / 60_000),
        None => "not heard for over a minute".to_owned(),
    };
    match round_trip {
        Some(ms) if is_linked => format!("{ago}, round trip {} ms", super::workers::short(ms)),
        _ => format!("{ago}, no connection"),
    }
}
