//! Mooncake: `mooncake/mooncake_connector.py`.

use serde_json::Value;

use super::{Give, Plan, Source, is_true, text};
use crate::fake_worker::transfer::config::Role;

/// Both legs name one transfer; decode asks the bootstrap server for the engine.
pub(super) fn plan(role: Role, params: &Value) -> Plan {
    if is_true(params, "do_remote_prefill") {
        if role == Role::Prefill {
            return Plan::Crash("AssertionError: not self.is_kv_producer");
        }
        // A warning in the log, and the request waits for blocks that nobody asks for.
        return source(params).map_or(Plan::Hang, Plan::Take);
    }
    if !is_true(params, "do_remote_decode") {
        return Plan::Alone;
    }
    if role == Role::Decode {
        return Plan::Crash("AssertionError: not self.is_kv_consumer");
    }
    // Without an id the blocks are computed and not kept, with a warning in the log.
    text(params, "transfer_id").map_or(Plan::Alone, |key| {
        Plan::Give(Give {
            key,
            at_length_only: true,
            ..Give::default()
        })
    })
}

fn source(params: &Value) -> Option<Source> {
    let address = text(params, "remote_bootstrap_addr")?;
    Some(Source {
        address: address.strip_prefix("http://")?.to_owned(),
        bootstrap: true,
        engine_id: Some(text(params, "remote_engine_id")?),
        key: text(params, "transfer_id")?,
        early: true,
        ..Source::default()
    })
}
