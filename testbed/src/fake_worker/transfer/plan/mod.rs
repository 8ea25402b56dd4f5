//! What the parameters of a request make the engine do.
//!
//! Pure. One file for each way; the rules are those of the connectors in vLLM
//! (`vllm/distributed/kv_transfer/kv_connector/v1`, read) and of SGLang's disaggregation: which fields they look at, and
//! what becomes of a request that lacks one. Some of that is rude: a field that the connector takes for granted ends the
//! engine, a missing address makes the request wait for ever.

mod mooncake;
mod moriio;
mod nixl;
mod p2p_nccl;
mod sglang;

use serde_json::Value;

use super::config::{Connector, TransferConfig};

/// What a request asks of the transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fake_worker) enum Plan {
    /// Nothing: the engine computes the prompt.
    Alone,
    /// The prompt is read from the shared store as far as it is there, and what is computed goes there.
    Stored,
    /// The blocks are kept for another worker.
    Give(Give),
    /// The prompt comes from another worker.
    Take(Source),
    /// The prompt comes by itself, under this key.
    Await(String),
    /// The engine believes that the prompt is here, and nobody has loaded it.
    Garbage,
    /// The request waits for blocks that nobody sends.
    Hang,
    /// A check inside the engine fails, and the engine ends.
    Crash(&'static str),
    /// The request is refused (400).
    Refused(String),
}

/// How blocks are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::fake_worker) struct Give {
    /// Name under which they are asked for.
    pub(in crate::fake_worker) key: String,
    /// Only an answer that ended by `max_tokens` keeps them.
    pub(in crate::fake_worker) at_length_only: bool,
    /// The leg is answered when they were read, after one token.
    pub(in crate::fake_worker) until_read: bool,
    /// They are sent to this address instead, `host:port`, and not kept.
    pub(in crate::fake_worker) send_to: Option<String>,
    /// The only reader that they fit.
    pub(in crate::fake_worker) reader: Option<Told>,
}

/// What a leg was told of the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fake_worker) struct Told {
    /// `host:port` of its side channel.
    pub(in crate::fake_worker) address: String,
    pub(in crate::fake_worker) data_parallel: u32,
    pub(in crate::fake_worker) tensor_parallel: u32,
}

/// Where blocks are to be fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::fake_worker) struct Source {
    /// `host:port` of the side channel, or of the bootstrap server that knows it.
    pub(in crate::fake_worker) address: String,
    /// `address` is a bootstrap server, to be asked for the engine's side channel.
    pub(in crate::fake_worker) bootstrap: bool,
    /// `None`: whichever engine is there.
    pub(in crate::fake_worker) engine_id: Option<String>,
    pub(in crate::fake_worker) key: String,
    /// Block ids that the reader expects; `None`: the other side knows them.
    pub(in crate::fake_worker) blocks: Option<Vec<u64>>,
    pub(in crate::fake_worker) tensor_parallel: Option<u32>,
    pub(in crate::fake_worker) data_parallel: Option<u32>,
    pub(in crate::fake_worker) rank: Option<u32>,
    /// The blocks need not be computed yet.
    pub(in crate::fake_worker) early: bool,
    /// Cached tokens to report instead of the own count.
    pub(in crate::fake_worker) prefill_cached: Option<u32>,
}

/// What a plan is made from.
pub(in crate::fake_worker) struct Asked<'a> {
    /// `kv_transfer_params` of the body, if it is an object.
    pub(in crate::fake_worker) params: Option<&'a Value>,
    /// `bootstrap_host`, `bootstrap_port` and `bootstrap_room` of the body.
    pub(in crate::fake_worker) bootstrap: &'a [Value; 3],
    /// The engine's id of the request: the prefix of its API, the client's id, eight random hex digits.
    pub(in crate::fake_worker) request_id: &'a str,
}

/// What the worker's connector makes of a request.
pub(in crate::fake_worker) fn plan(config: &TransferConfig, asked: &Asked<'_>) -> Plan {
    let (role, id) = (config.role, asked.request_id);
    match (config.connector, asked.params) {
        (Connector::Store, _) => Plan::Stored,
        (Connector::P2pNccl, _) => p2p_nccl::plan(role, base_id(id)),
        (Connector::Sglang, _) => sglang::plan(config, asked.bootstrap),
        (Connector::MoriioRead, params) => moriio::plan(role, false, params, id),
        (Connector::MoriioWrite, params) => moriio::plan(role, true, params, id),
        (_, None) => Plan::Alone,
        (Connector::Nixl, Some(params)) => nixl::pull(params, id),
        (Connector::NixlPush, Some(params)) => nixl::push(params, base_id(id)),
        (Connector::Mooncake, Some(params)) => mooncake::plan(role, params),
    }
}

fn is_true(params: &Value, field: &str) -> bool {
    params[field].as_bool().unwrap_or(false)
}

fn text(params: &Value, field: &str) -> Option<String> {
    params[field].as_str().map(str::to_owned)
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

/// Ids of all cache groups; `None` for anything but a list with at least one id.
fn block_ids(value: &Value) -> Option<Vec<u64>> {
    let groups = value.as_array()?;
    let mut ids = Vec::new();
    for group in groups {
        match group.as_array() {
            Some(group) => ids.extend(group.iter().filter_map(Value::as_u64)),
            None => ids.extend(group.as_u64()),
        }
    }
    (!ids.is_empty()).then_some(ids)
}

/// A request id without the random suffix of its engine: vLLM's `get_base_request_id`.
fn base_id(request_id: &str) -> &str {
    match request_id.rsplit_once('-') {
        Some((base, suffix)) if suffix.len() == 8 => base,
        _ => request_id,
    }
}
