//! P2P NCCL: `p2p/p2p_nccl_connector.py`. The addresses of both sides are in the request id, and nothing else counts.
//!
//! Both engines are taken to run with `VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1`: without it no pair works.

use super::{Give, Plan};
use crate::fake_worker::transfer::config::Role;

/// `id` is the engine's id of the request, which both legs share.
pub(super) fn plan(role: Role, id: &str) -> Plan {
    match role {
        Role::Both => Plan::Alone,
        Role::Prefill => match decode_address(id) {
            Some(address) => Plan::Give(Give {
                key: id.to_owned(),
                send_to: Some(address),
                ..Give::default()
            }),
            None => Plan::Crash("ValueError: Request id does not contain hostname and port"),
        },
        // A consumer takes every prompt for computed elsewhere.
        Role::Decode => match prefill_address(id) {
            Some(_) => Plan::Await(id.to_owned()),
            None => Plan::Hang,
        },
    }
}

/// `___decode_addr_(.*):(\d+)`.
fn decode_address(id: &str) -> Option<String> {
    let (_, rest) = id.split_once("___decode_addr_")?;
    last_port(rest, "")
}

/// `___prefill_addr_(.*):(\d+)___`.
fn prefill_address(id: &str) -> Option<String> {
    let (_, rest) = id.split_once("___prefill_addr_")?;
    last_port(rest, "___")
}

/// `host:port` up to the last colon with digits and `end` behind it.
fn last_port(text: &str, end: &str) -> Option<String> {
    let address = |(at, _): (usize, &str)| {
        let after = &text[at + 1..];
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let is_port = digits > 0 && after[digits..].starts_with(end);
        is_port.then(|| format!("{}:{}", &text[..at], &after[..digits]))
    };
    text.rmatch_indices(':').find_map(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_request_ids() {
        let id =
            "cmpl-___prefill_addr_10.0.0.1:21001___decode_addr_10.0.0.2:22001_0123456789abcdef";
        assert_eq!(prefill_address(id).as_deref(), Some("10.0.0.1:21001"));
        assert_eq!(decode_address(id).as_deref(), Some("10.0.0.2:22001"));
        for wrong in [
            "cmpl-r",
            "cmpl-___decode_addr_host_",
            "cmpl-___decode_addr_host:x",
        ] {
            assert_eq!(decode_address(wrong), None, "{wrong}");
        }
        assert_eq!(prefill_address("___prefill_addr_h:1__decode"), None);
    }
}
