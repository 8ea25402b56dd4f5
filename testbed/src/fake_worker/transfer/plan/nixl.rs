//! NIXL: `nixl/pull_scheduler.py` and `nixl/push_scheduler.py`.

use serde_json::Value;

use super::{Give, Plan, Source, block_ids, is_true, number, text};

/// Decode reads. Blocks are known by the engine's own id of the prefill leg.
pub(super) fn pull(params: &Value, request_id: &str) -> Plan {
    if is_true(params, "do_remote_decode") {
        return Plan::Give(Give {
            key: request_id.to_owned(),
            ..Give::default()
        });
    }
    if !is_true(params, "do_remote_prefill") {
        return Plan::Alone;
    }
    // An external prompt without blocks: `assert num_external_tokens == 0`.
    let Some(blocks) = block_ids(&params["remote_block_ids"]) else {
        return Plan::Crash("AssertionError: num_external_tokens == 0");
    };
    // A warning in the log, and nobody ever reads for the request, which waits for the read.
    let Some(key) = text(params, "remote_request_id") else {
        return Plan::Hang;
    };
    match source(params, key) {
        Some(source) => Plan::Take(Source {
            blocks: Some(blocks),
            ..source
        }),
        None => Plan::Hang,
    }
}

/// Prefill writes. Both legs have the same request id, without the random suffix of their engines.
pub(super) fn push(params: &Value, base_id: &str) -> Plan {
    let key = base_id.to_owned();
    if is_true(params, "do_remote_decode") {
        return Plan::Give(Give {
            key,
            ..Give::default()
        });
    }
    if !is_true(params, "do_remote_prefill") {
        return Plan::Alone;
    }
    // These are read without a check.
    let named = |field| params.get(field).is_some();
    let source = source(params, key).filter(|_| named("tp_size") && named("remote_request_id"));
    match source {
        Some(source) => Plan::Take(Source {
            early: true,
            ..source
        }),
        None => Plan::Crash("KeyError"),
    }
}

/// The fields that both ways share; `None` if one is missing.
fn source(params: &Value, key: String) -> Option<Source> {
    let host = text(params, "remote_host")?;
    let port = params["remote_port"].as_u64()?;
    Some(Source {
        address: format!("{host}:{port}"),
        engine_id: Some(text(params, "remote_engine_id")?),
        key,
        tensor_parallel: Some(number(&params["tp_size"]).unwrap_or(1)),
        prefill_cached: number(&params["remote_prefill_cached_tokens"]),
        ..Source::default()
    })
}
