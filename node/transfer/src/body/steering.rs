//! Whether a client tries to say itself where blocks come from.

use crate::ids::names_peers;
use crate::object;

/// Fields by which engines are told where blocks, or a picture's encoding, come from or go.
const STEERING: [&str; 6] = [
    PARAMS,
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disagg_prefill_dp_rank",
];
/// The one that may also hold hints.
const PARAMS: &str = "kv_transfer_params";
/// What LMCache's hints begin with (`lmcache.tag.*`, `lmcache.ttl`, `lmcache.skip_save`): what a request leaves in its
/// store, and for how long.
const HINT: &str = "lmcache.";
/// Objects whose members an engine takes as if they stood there, or with its own.
const ARGUMENTS: [&str; 2] = ["vllm_xargs", "extra_args"];
const SAMPLING: &str = "sampling_params";
/// Parts of all of these names, and the escape without which none can be written otherwise.
const SIGNS: [&str; 4] = ["transfer", "bootstrap", "disagg", "\\u"];

/// What a client says of blocks that are not at the worker which gets its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Steers {
    /// Nothing.
    #[default]
    Nothing,
    /// Hints for a store of blocks, which name no place.
    Hints,
    /// Where blocks are or go: an engine connects to what it is told.
    Places,
}

/// Whether the client's body says itself where blocks come from or go, be it by hints. Refused where workers have roles:
/// with the block numbers of other tenants it would read their prompts.
///
/// A body that cannot be read carries nothing: it is refused for that.
pub fn carries_transfer(body: &[u8]) -> bool {
    all(body, steering_of) > Steers::Nothing
}

/// The same of one member at the top of a body. Of other names than [`steering_names`] it is nothing.
pub fn steering_of(name: &str, json: &str) -> Steers {
    let of_inner = |of_member: fn(&str, &str) -> Steers| {
        let may_steer = SIGNS.iter().any(|sign| json.contains(sign));
        let inner = || all(json.as_bytes(), of_member);
        may_steer.then(inner).unwrap_or_default()
    };
    match name {
        SAMPLING => of_inner(|name, json| match ARGUMENTS.contains(&name) {
            true => all(json.as_bytes(), of_field),
            false => of_field(name, json),
        }),
        // The engine's id for the request, where no header names one.
        "request_id" => match object::text(json).is_some_and(|id| names_peers(&id)) {
            true => Steers::Places,
            false => Steers::Nothing,
        },
        _ if ARGUMENTS.contains(&name) => of_inner(of_field),
        _ => of_field(name, json),
    }
}

/// Names of members that may steer.
pub fn steering_names() -> impl Iterator<Item = &'static str> {
    let others = [SAMPLING, "request_id"];
    STEERING.into_iter().chain(ARGUMENTS).chain(others)
}

fn of_field(name: &str, json: &str) -> Steers {
    if json == "null" || !STEERING.contains(&name) {
        return Steers::Nothing;
    }
    let mut are_hints = name == PARAMS;
    let shown = object::each(json.as_bytes(), |member| {
        are_hints &= member.name.starts_with(HINT)
    });
    match shown.is_ok() && are_hints {
        true => Steers::Hints,
        false => Steers::Places,
    }
}

/// The most that a member of an object says; nothing of what is no object.
fn all(json: &[u8], of_member: impl Fn(&str, &str) -> Steers) -> Steers {
    let mut most = Steers::Nothing;
    let shown = object::each(json, |member| {
        most = most.max(of_member(&member.name, member.value));
    });
    shown.map_or(Steers::Nothing, |()| most)
}
