//! Which clients may ask: their keys, and the tenants that these belong to.
//!
//! The file holds hashes; a key itself is looked at once, in [`Keys::caller`], and is in no log, metric or message.
//! A changed file replaces the whole list at once; counts of tenants and rates of keys that stay go on.

pub mod bucket;
pub mod metrics;
mod offered;
pub mod secret;
mod tenant;
#[cfg(test)]
mod tests;
pub mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use grapevine_gossip::peer_state::TenantUse;
use http::{HeaderMap, HeaderName, header};
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use self::offered::take_offered_keys;
pub use self::tenant::{Gossiped, OthersUse, Seat, Tenant};

use self::bucket::{Bucket, Quota, Rate};
use self::metrics::TenantMetrics;
use crate::api::Priority;
use crate::api::error::{ApiError, ErrorKind};
use crate::config::{Expiry, KeyConfig, KeyHash};

/// Where a client may send its key beside `Authorization: Bearer`, as clients of other APIs do.
pub const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Where a client's key may be; no worker gets them where there are keys.
pub const KEY_HEADERS: [HeaderName; 2] = [header::AUTHORIZATION, X_API_KEY];

/// A key that is served.
#[derive(Debug)]
pub struct ApiKey {
    config: KeyConfig,
    tenant: Arc<Tenant>,
    models: HashSet<String>,
    buckets: Arc<Buckets>,
}

/// What a key has left of its rates; it stays when the key's entry is read anew.
#[derive(Debug)]
struct Buckets {
    requests: Mutex<Bucket>,
    tokens: Mutex<Bucket>,
}

impl Buckets {
    fn new(now: Instant) -> Self {
        Self {
            requests: Mutex::new(Bucket::new(now)),
            tokens: Mutex::new(Bucket::new(now)),
        }
    }
}

/// Tokens that a request took of its key's rate. Dropped unsettled, it used none of them.
#[derive(Debug)]
pub struct Charge {
    buckets: Arc<Buckets>,
    rate: Rate,
    taken: u32,
    bytes_per_token: u8,
}

impl Charge {
    /// Tokens of a prompt in so many bytes of a body, where nobody says how many there are.
    pub fn tokens_of(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.bytes_per_token.max(1))
    }

    /// So many tokens were used.
    pub fn settle(mut self, used: u64) {
        self.give_back(used);
    }

    fn give_back(&mut self, used: u64) {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            self.buckets.tokens.lock().settle(self.rate, taken, used);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back(0);
    }
}

impl ApiKey {
    /// Its name in the file.
    pub fn name(&self) -> &str {
        self.config.name.as_str()
    }

    /// The tenant that the key belongs to.
    pub fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    /// Class of its requests that name none, and the most urgent that they may claim.
    pub fn priority(&self) -> Priority {
        self.config.priority
    }

    /// Share of its requests in a queue, in thousandths.
    pub fn weight_milli(&self) -> u32 {
        (self.config.weight * 1_000.0).round() as u32
    }

    /// May it ask for a model by this name? `None`: the request names no model.
    pub fn may_ask_for(&self, model: Option<&str>) -> bool {
        self.models.is_empty() || model.is_some_and(|model| self.models.contains(model))
    }

    /// Are there models that it may not ask for?
    pub fn is_limited(&self) -> bool {
        !self.models.is_empty()
    }

    /// Requests of its tenant at once.
    pub fn requests_max(&self) -> Option<u32> {
        self.config.max_requests
    }

    /// Are its limits those of the whole cluster?
    pub fn is_cluster_wide(&self) -> bool {
        self.config.cluster
    }

    /// Takes one request from its rate; none: it has no limit.
    pub fn take(&self, now: Instant, others: &dyn OthersUse) -> Option<Quota> {
        let rate = self.rate(self.config.requests_per_minute?, others);
        Some(self.buckets.requests.lock().take(now, rate))
    }

    /// Takes what a request is expected to use from its rate of tokens; none: it has no such limit. `bytes_per_token`: how
    /// prompts are measured of which no worker says it.
    ///
    /// # Errors
    /// Nothing is left of it.
    pub fn take_tokens(
        &self,
        now: Instant,
        others: &dyn OthersUse,
        expected: u32,
        bytes_per_token: u8,
    ) -> Option<Result<(Quota, Charge), Quota>> {
        let rate = self.rate(self.config.tokens_per_minute?, others);
        let (quota, taken) = self.buckets.tokens.lock().borrow(now, rate, expected);
        if quota.next_in.is_some() {
            return Some(Err(quota));
        }
        let buckets = Arc::clone(&self.buckets);
        let charge = Charge {
            buckets,
            rate,
            taken,
            bytes_per_token,
        };
        Some(Ok((quota, charge)))
    }

    fn rate(&self, limit: u32, others: &dyn OthersUse) -> Rate {
        let replicas = match self.config.cluster {
            true => others.ready_replicas(),
            false => 1,
        };
        Rate { limit, replicas }
    }

    fn has_ended(&self) -> bool {
        let ended = |Expiry(end): Expiry| SystemTime::now() >= end;
        self.config.expires.is_some_and(ended)
    }
}

/// A list of keys, by their hashes.
type List = HashMap<KeyHash, Arc<ApiKey>>;

/// All keys; none are configured: all clients may ask.
#[derive(Debug)]
pub struct Keys {
    list: ArcSwapOption<List>,
    /// Tenants that have a key or a request: one that comes back finds its counts.
    tenants: Mutex<HashMap<Arc<str>, Weak<Tenant>>>,
    metrics: TenantMetrics,
}

impl Keys {
    /// All clients may ask, until a list is set.
    pub fn open(metrics: TenantMetrics) -> Self {
        Self {
            list: ArcSwapOption::empty(),
            tenants: Mutex::default(),
            metrics,
        }
    }

    /// Only these keys are served from now on.
    pub fn set(&self, configs: Vec<KeyConfig>, now: Instant) {
        let old = self.list.load_full().unwrap_or_default();
        let mut tenants = self.tenants.lock();
        let mut list = List::with_capacity(configs.len());
        for config in configs {
            let name = config.tenant_name();
            let tenant = tenants.get(name).and_then(Weak::upgrade);
            let tenant = tenant.unwrap_or_else(|| {
                let tenant = Arc::new(Tenant::new(name, &self.metrics));
                tenants.insert(Arc::clone(tenant.name()), Arc::downgrade(&tenant));
                tenant
            });
            let buckets = old.get(&config.hash).map(|key| Arc::clone(&key.buckets));
            let key = ApiKey {
                tenant,
                models: config.models.iter().cloned().collect(),
                buckets: buckets.unwrap_or_else(|| Arc::new(Buckets::new(now))),
                config,
            };
            list.insert(key.config.hash, Arc::new(key));
        }
        self.metrics
            .keys
            .set(i64::try_from(list.len()).unwrap_or(i64::MAX));
        self.list.store(Some(Arc::new(list)));
        drop(old);
        tenants.retain(|_, tenant| tenant.strong_count() > 0);
    }

    /// The key of a request; `None`: no keys are configured, and every client is served.
    /// Errors: 401 without a key, with two, or with one that is unknown or has ended; which of these, only the metrics
    /// show.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Option<Arc<ApiKey>>, ApiError> {
        let list = self.list.load();
        let Some(list) = list.as_ref() else {
            return Ok(None);
        };
        let found = match sent(headers) {
            Sent::Key(key) => list.get(&secret::hash_of(key)).ok_or("unknown"),
            Sent::Nothing => Err("missing"),
            Sent::Unreadable => Err("unreadable"),
        };
        let found = found.and_then(|key| match key.has_ended() {
            false => Ok(key),
            true => Err("expired"),
        });
        match found {
            Ok(key) => Ok(Some(Arc::clone(key))),
            Err(reason) => {
                self.metrics.key_refused(reason);
                Err(ApiError::new(
                    ErrorKind::InvalidApiKey,
                    match reason {
                        "missing" => {
                            "an API key is needed: send it as `Authorization: Bearer <key>`, or as `x-api-key` (a browser's WebSocket: as the subprotocol `openai-insecure-api-key.<key>`)"
                        }
                        "unreadable" => {
                            "send one API key, and once: as `Authorization: Bearer <key>`, or as `x-api-key`"
                        }
                        _ => "this API key is not served; check it, or ask for a new one",
                    },
                ))
            }
        }
    }

    /// Each tenant of the list with the most requests that one of its keys allows it at once, none where one has no limit;
    /// sorted by name.
    pub fn tenants(&self) -> Vec<(Arc<Tenant>, Option<u32>)> {
        let list = self.list.load();
        let keys = list.iter().flat_map(|list| list.values());
        let mut tenants: BTreeMap<Arc<str>, (Arc<Tenant>, Option<u32>)> = BTreeMap::new();
        for key in keys {
            let allowed = key.requests_max();
            let row = tenants
                .entry(Arc::clone(key.tenant.name()))
                .or_insert_with(|| (Arc::clone(&key.tenant), allowed));
            row.1 = row.1.zip(allowed).map(|(most, here)| most.max(here));
        }
        tenants.into_values().collect()
    }

    /// Whether there is a list of keys, be it empty; without one every client is served.
    pub fn are_configured(&self) -> bool {
        self.list.load().is_some()
    }

    /// What each tenant has at this replica, for the others; tenants without requests are left out.
    pub fn in_use(&self) -> Vec<TenantUse> {
        let list = self.list.load();
        let mut uses: Vec<TenantUse> = list
            .iter()
            .flat_map(|list| list.values())
            .map(|key| key.tenant.in_use())
            .filter(|used| used.in_flight + used.queued > 0)
            .collect();
        uses.sort_by_key(|used| used.tenant);
        uses.dedup_by_key(|used| used.tenant);
        uses
    }
}

/// The token of `Authorization: Bearer <token>`; the scheme in any case (RFC 9110, section 11.1).
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// What a request has for a key.
enum Sent<'a> {
    Key(&'a [u8]),
    Nothing,
    Unreadable,
}

fn sent(headers: &HeaderMap) -> Sent<'_> {
    let mut values = KEY_HEADERS
        .into_iter()
        .flat_map(|name| headers.get_all(name).iter());
    let key = match (values.next(), values.next()) {
        (None, _) => return Sent::Nothing,
        (Some(_), Some(_)) => return Sent::Unreadable,
        (Some(_), None) if headers.contains_key(header::AUTHORIZATION) => match bearer(headers) {
            Some(key) => key,
            None => return Sent::Unreadable,
        },
        (Some(key), None) => key.as_bytes(),
    };
    if key.is_empty() || key.len() > secret::KEY_BYTES_MAX {
        return Sent::Unreadable;
    }
    Sent::Key(key)
}
