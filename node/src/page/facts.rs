//! What one rendering of the page is made from. Pure data, as the admin API answers it.

use serde_json::Value;

/// What there is at one moment.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// `GET /cluster`.
    pub cluster: Value,
    /// Every row of `GET /workers`.
    pub workers: Vec<Value>,
    /// `GET /links`.
    pub links: Value,
    /// `GET /ring`.
    pub rings: Value,
    /// Every row of `GET /discovery`.
    pub sources: Vec<Value>,
    /// Keys are configured; without, every client is served.
    pub has_keys: bool,
    /// Prompts are those of tenants: keys are configured, or a header names them.
    pub has_tenants: bool,
    /// Tenants that have a key, by name.
    pub tenants: Vec<TenantUse>,
    /// What is limited.
    pub limits: Limits,
}

/// What a tenant has at once.
#[derive(Debug, Clone, Default)]
pub struct TenantUse {
    /// Its name.
    pub name: String,
    /// Requests at this replica.
    pub here: u32,
    /// Of these, requests that wait.
    pub waiting_here: u32,
    /// Requests at the other replicas.
    pub elsewhere: u32,
    /// Most requests at once; none: not limited.
    pub most: Option<u32>,
}

/// What this replica has in use of its limits.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Requests in progress.
    pub requests: u32,
    /// Most of them.
    pub requests_max: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Bytes of bodies that are held.
    pub body_bytes: u64,
    /// Most of them.
    pub body_bytes_max: u64,
    /// Requests that no worker gets, for a time.
    pub quarantined: u32,
    /// Limits that were reached since the start, and how often; the most frequent first.
    pub reached: Vec<(String, u64)>,
}
