//! Rings, and who owns which share of them. Pure.

use serde_json::Value;

use super::{Listed, RINGS_SHOWN, texts};
use crate::shown::{field, rows};

/// Owners of a ring that are listed, the greatest share first.
pub const OWNERS_SHOWN: usize = 16;

/// The ring of one model, or of a part of its requests.
#[derive(Debug, Clone, PartialEq)]
pub struct RingRow {
    /// The model.
    pub model: String,
    /// `any`, or the part of a request that its workers are there for.
    pub role: String,
    /// Its digest.
    pub digest: String,
    /// How workers are chosen.
    pub policy: String,
    /// More than half of its workers are bad, and health is not believed.
    pub panics: bool,
    /// Its workers.
    pub count: u64,
    /// Who is the home of which part of all prefixes, 0 to 1.
    pub owners: Listed<(String, f64)>,
    /// The part of those that are not listed.
    pub rest: f64,
}

/// In the order of the models.
pub fn listed(rings: &Value) -> Listed<RingRow> {
    let rings = rows(rings, "pools").iter().map(row).collect();
    Listed::first(rings, RINGS_SHOWN)
}

fn row(pool: &Value) -> RingRow {
    let shares = rows(pool, "shares").iter();
    let shares = shares.map(|share| share.as_f64().unwrap_or(0.0));
    let mut owners: Vec<(String, f64)> = texts(pool, "workers").into_iter().zip(shares).collect();
    owners.sort_by(|a, b| b.1.total_cmp(&a.1));
    let count = pool["count"].as_u64().unwrap_or(0);
    let mut owners = Listed::first(owners, OWNERS_SHOWN);
    // A list of the admin API ends, too.
    owners.more = (count as usize).saturating_sub(owners.rows.len());
    RingRow {
        model: field(pool, "model"),
        role: field(pool, "role"),
        digest: field(pool, "digest"),
        policy: field(pool, "policy"),
        panics: pool["panic"] == true,
        count,
        rest: 1.0 - owners.rows.iter().map(|(_, share)| share).sum::<f64>(),
        owners,
    }
}
