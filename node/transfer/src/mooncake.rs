//! Mooncake: vLLM's `MooncakeConnector`.
//!
//! Both legs name one transfer. The prefill's engine keeps the blocks under that name and says nothing about them in its
//! answer; the decode's asks the prefill's bootstrap server for the engine, by its id, and has them sent. A data-parallel
//! rank is an engine with an id of its own, so an unknown id is a pair that cannot work: `begin` refuses it.

use serde::Serialize;

use crate::answer::BadAnswer;
use crate::half::Half;
use crate::ids::Ids;
use crate::label;
use crate::leg::{Begin, Leg, Missing, PARAMS};

/// The port of vLLM's bootstrap server, unless it is set otherwise.
const BOOTSTRAP_PORT: u16 = 8998;

#[derive(Serialize)]
struct Keep {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    transfer_id: String,
}

#[derive(Serialize)]
struct Fetch<'a> {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    transfer_id: String,
    remote_bootstrap_addr: String,
    remote_engine_id: &'a str,
}

pub(crate) fn begin(prefill: &Half, ids: &Ids<'_>) -> Result<Begin, Missing> {
    engine_id(prefill)?;
    let keep = Keep {
        do_remote_decode: true,
        do_remote_prefill: false,
        transfer_id: ids.transfer(),
    };
    Ok(Begin::PrefillFirst(
        Leg::prefill(prefill).with(PARAMS, &keep),
    ))
}

pub(crate) fn decode_leg(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Result<Leg, BadAnswer> {
    let port = prefill.bootstrap_port.unwrap_or(BOOTSTRAP_PORT);
    let fetch = Fetch {
        do_remote_decode: false,
        do_remote_prefill: true,
        transfer_id: ids.transfer(),
        remote_bootstrap_addr: format!("http://{}:{port}", prefill.host),
        remote_engine_id: engine_id(prefill)?,
    };
    Ok(Leg::decode(decode).with(PARAMS, &fetch))
}

fn engine_id(prefill: &Half) -> Result<&str, Missing> {
    let (side, name) = ("prefill", label::ENGINE_ID);
    let id = prefill.engine_id.as_deref();
    id.ok_or(Missing { side, name })
}
