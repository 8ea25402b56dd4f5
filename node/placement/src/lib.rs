//! Placement: which worker takes a request, and why. Pure: no IO, no clock, no hidden randomness, but for a seed of tables
//! that shows nowhere.
//!
//! Same settings, workers, key, loads and draw in; same worker and reason out, on every replica,
//! platform and release. The parts, in the order in which a request meets them:
//!
//! - [`key`]: request text → chain of links → [`Key`] (where its prefix lives, how long it is);
//! - [`ring`]: workers → [`Ring`]; key → home, and an [`Order`] of all other workers behind it;
//! - [`heat`]: which prefixes carry so much traffic that several workers share them;
//! - [`evidence`]: which worker is known to hold which prefix;
//! - [`load`]: what is in flight on a worker, over the whole cluster, damped by its age;
//! - [`rate`]: how long a worker needs for a token, learned from its answers;
//! - [`policy`]: [`decide`] joins them, [`explain`] shows its work;
//! - [`health`]: what is known of one worker's health; it says which to skip, never where they are;
//! - [`models`]: aliases, weighted splits, and policies of single models;
//! - [`settings`]: what all replicas must agree on, and its fingerprint.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[macro_use]
mod named;

mod canonical;
pub mod evidence;
pub mod hash;
pub mod health;
pub mod heat;
pub mod key;
pub mod load;
mod logarithm;
mod mark_map;
pub mod models;
pub mod order;
pub mod policy;
pub mod rate;
mod ratio;
pub mod ring;
mod serial;
pub mod settings;
pub mod weight;

pub use canonical::Digest;
pub use evidence::{
    PrefixIndex, PrefixIndexCounters, PrefixIndexSettings, Recorded, Slot, Slots, is_far_below,
};
pub use hash::HashAlgorithm;
pub use health::{
    AttemptOutcome, Breaker, BreakerSettings, BreakerState, Claim, Health, Penalty, Permit,
    ProbeSettings, ProbeState, duty, is_believable, slow_start,
};
pub use heat::{HeatCounter, HeatReport, HeatSettings, HotSet};
pub use key::{Key, KeyBuilder, KeyParts, KeyPartsError, KeySettings, Link};
pub use load::Load;
pub use models::{ModelFault, ModelSettings, Models, ModelsError, Target};
pub use order::Order;
pub use policy::{
    Bound, CacheAware, Candidate, DECODE_POLICY, Decision, Divide, Explanation, HashBound,
    NoWorker, Policy, PolicySettings, Price, Reason, RolePolicies, Row, Standing, Told, Verdict,
    View, decide, explain,
};
pub use rate::{Observed, Rate};
pub use ratio::{Ratio, RatioError};
pub use ring::{Member, Ring, RingError, RingSettings, total_digest};
pub use settings::ClusterSettings;
pub use weight::{Weight, WeightError};
