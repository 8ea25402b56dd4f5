//! SGLang's disaggregation: both legs name a room at the prefill worker's bootstrap server.

use serde_json::Value;

use super::{Give, Plan, Source};
use crate::fake_worker::transfer::config::{Role, TransferConfig};

/// SGLang's `--disaggregation-bootstrap-port`.
const BOOTSTRAP_PORT: u16 = 8998;

pub(super) fn plan(config: &TransferConfig, [host, port, room]: &[Value; 3]) -> Plan {
    if config.role == Role::Both {
        return Plan::Alone;
    }
    let Some(room) = room.as_u64() else {
        return Plan::Refused(
            "Invalid request: Disaggregated request received without boostrap room id.".into(),
        );
    };
    let key = format!("room {room}");
    if config.role == Role::Prefill {
        return Plan::Give(Give {
            key,
            until_read: true,
            ..Give::default()
        });
    }
    let own = match config.side_channel_port {
        0 => BOOTSTRAP_PORT,
        port => port,
    };
    let port = port.as_u64().unwrap_or(u64::from(own));
    let Some(host) = host.as_str() else {
        return Plan::Refused("Invalid request: bootstrap_host is missing.".into());
    };
    Plan::Take(Source {
        address: format!("{host}:{port}"),
        key,
        early: true,
        ..Source::default()
    })
}
