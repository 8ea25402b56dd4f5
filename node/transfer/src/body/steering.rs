//! Whether a client tries to say itself where blocks come from.

use crate::ids::names_peers;
use crate::object::{self, Member};

/// Fields by which engines are told where blocks, or a picture's encoding, come from or go.
const STEERING: [&str; 6] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disagg_prefill_dp_rank",
];
/// Objects whose members an engine takes as if they stood there, or with its own.
const ARGUMENTS: [&str; 2] = ["vllm_xargs", "extra_args"];

/// Whether the client's body says itself where blocks come from or go. Refused where workers have roles: with the block
/// numbers of other tenants it would read their prompts.
///
/// A body that cannot be read carries nothing: it is refused for that.
pub fn carries_transfer(body: &[u8]) -> bool {
    let mut carries = false;
    let shown = object::each(body, |member| carries |= steers(&member));
    shown.is_ok() && carries
}

/// Whether a member at the top level does so.
pub(super) fn steers(member: &Member<'_>) -> bool {
    match &*member.name {
        "sampling_params" => holds(member.value, |inner| {
            is_steering(&inner) || is_argument(&inner)
        }),
        // The engine's id for the request, where no header names one.
        "request_id" => object::text(member.value).is_some_and(|id| names_peers(&id)),
        _ => is_steering(member) || is_argument(member),
    }
}

fn is_steering(member: &Member<'_>) -> bool {
    member.value != "null" && STEERING.contains(&&*member.name)
}

fn is_argument(member: &Member<'_>) -> bool {
    ARGUMENTS.contains(&&*member.name) && holds(member.value, |inner| is_steering(&inner))
}

/// Whether an object has such a member.
fn holds(json: &str, mut is_such: impl FnMut(Member<'_>) -> bool) -> bool {
    let mut found = false;
    let shown = object::each(json.as_bytes(), |member| found |= is_such(member));
    shown.is_ok() && found
}
