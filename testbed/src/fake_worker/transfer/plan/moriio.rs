//! MoRI-IO: `moriio/moriio_connector.py` and `moriio/moriio_common.py`.
//!
//! The address of the other side is in the parameters, or else in the request id:
//! `___prefill_addr_{zmq}___decode_addr_{zmq}_{32 hex digits}`, where `{zmq}` is `host:IP,handshake:PORT,notify:PORT`.

use serde_json::Value;

use super::{Give, Plan, Source, Told, block_ids, is_true, number, text};
use crate::fake_worker::transfer::config::Role;

pub(super) fn plan(role: Role, writes: bool, params: Option<&Value>, request_id: &str) -> Plan {
    let empty = |params: &&Value| params.as_object().is_none_or(|fields| !fields.is_empty());
    let Some(params) = params.filter(empty) else {
        // A consumer takes every prompt for computed elsewhere, whatever the request says.
        return match (role, writes) {
            (Role::Decode, true) => Plan::Hang,
            (Role::Decode, false) => Plan::Garbage,
            _ => Plan::Alone,
        };
    };
    let Some(key) = text(params, "transfer_id") else {
        return Plan::Crash("KeyError: 'transfer_id'");
    };
    if is_true(params, "do_remote_decode") {
        return give(key, writes, params, request_id);
    }
    if !is_true(params, "do_remote_prefill") {
        return Plan::Alone;
    }
    take(key, writes, params, request_id)
}

fn give(key: String, writes: bool, params: &Value, request_id: &str) -> Plan {
    let Some(peer) = peer(params, decode_address(request_id)) else {
        return Plan::Crash("ValueError: could not resolve peer host/ports");
    };
    let size = |field: &str| number(&params[field]);
    let told = Told {
        address: peer.handshake,
        data_parallel: size("remote_dp_size").unwrap_or(1),
        tensor_parallel: size("tp_size")
            .or_else(|| size("remote_tp_size"))
            .unwrap_or(1),
    };
    Plan::Give(Give {
        key,
        at_length_only: true,
        // Only who writes shakes hands with the other side.
        reader: writes.then_some(told),
        ..Give::default()
    })
}

fn take(key: String, writes: bool, params: &Value, request_id: &str) -> Plan {
    let blocks = block_ids(&params["remote_block_ids"]);
    let engine_id = text(params, "remote_engine_id");
    // Without blocks nothing is read, and the prompt is taken for computed.
    if !writes && (blocks.is_none() || engine_id.is_none()) {
        return Plan::Garbage;
    }
    let Some(peer) = peer(params, prefill_address(request_id)) else {
        return Plan::Crash("ValueError: could not resolve peer host/ports");
    };
    let size = |field: &str| number(&params[field]);
    Plan::Take(Source {
        address: if writes { peer.notify } else { peer.handshake },
        engine_id: engine_id.filter(|_| !writes),
        key,
        blocks: blocks.filter(|_| !writes),
        tensor_parallel: Some(
            size("tp_size")
                .or_else(|| size("remote_tp_size"))
                .unwrap_or(1),
        ),
        data_parallel: Some(size("remote_dp_size").unwrap_or(1)),
        rank: Some(size("remote_dp_rank").unwrap_or(0)),
        early: writes,
        ..Source::default()
    })
}

/// Both addresses of the other side, `host:port`.
struct Peer {
    handshake: String,
    notify: String,
}

fn peer(params: &Value, in_id: Option<&str>) -> Option<Peer> {
    let host = text(params, "remote_host");
    let ports = [
        &params["remote_handshake_port"],
        &params["remote_notify_port"],
    ];
    let [handshake, notify] = ports.map(number);
    match (host, handshake, notify) {
        (Some(host), Some(handshake), Some(notify)) => Some(Peer {
            handshake: format!("{host}:{handshake}"),
            notify: format!("{host}:{notify}"),
        }),
        _ => zmq_address(in_id.or_else(|| params["remote_zmq_address"].as_str())?),
    }
}

/// `host:IP,handshake:PORT,notify:PORT`, in any order.
fn zmq_address(text: &str) -> Option<Peer> {
    let part = |name: &str| {
        let mut parts = text.split(',').filter_map(|part| part.split_once(':'));
        let found = parts.find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim())
    };
    let host = part("host")?;
    let port = |name| part(name)?.parse::<u16>().ok();
    let (handshake, notify) = (port("handshake")?, port("notify")?);
    Some(Peer {
        handshake: format!("{host}:{handshake}"),
        notify: format!("{host}:{notify}"),
    })
}

/// `___prefill_addr_(.+?)___decode_addr_`.
fn prefill_address(request_id: &str) -> Option<&str> {
    let (_, rest) = request_id.split_once("___prefill_addr_")?;
    let (address, _) = rest.split_once("___decode_addr_")?;
    (!address.is_empty()).then_some(address)
}

/// `___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$`.
fn decode_address(request_id: &str) -> Option<&str> {
    let (_, rest) = request_id.split_once("___decode_addr_")?;
    let is_end = |end: &str| {
        let hex = end.as_bytes().get(..32);
        let is_hex = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        hex.is_some_and(|hex| hex.iter().all(is_hex))
            && matches!(end.as_bytes().get(32), None | Some(b'-'))
    };
    let ends = rest
        .rmatch_indices('_')
        .filter(|(at, _)| is_end(&rest[at + 1..]));
    let address = ends.map(|(at, _)| &rest[..at]).next();
    address.filter(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_request_ids() {
        let (p, d) = (
            "host:10.0.0.1,handshake:6301,notify:61005",
            "host:::1,handshake:1,notify:2",
        );
        let uuid = "0123456789abcdef0123456789abcdef";
        let id = format!("chatcmpl-___prefill_addr_{p}___decode_addr_{d}_{uuid}-1a2b3c4d");
        assert_eq!(
            (prefill_address(&id), decode_address(&id)),
            (Some(p), Some(d))
        );
        let peer = zmq_address(d).expect("an address");
        assert_eq!(
            (peer.handshake.as_str(), peer.notify.as_str()),
            ("::1:1", "::1:2")
        );
        for wrong in [
            format!("chatcmpl-___decode_addr_{d}-1a2b3c4d"),
            format!("chatcmpl-___decode_addr_{d}_{}", &uuid[1..]),
            format!("chatcmpl-___decode_addr_{d}_{uuid}x"),
        ] {
            assert_eq!(decode_address(&wrong), None, "{wrong}");
        }
        assert!(zmq_address("127.0.0.1:5000").is_none());
    }
}
