//! P2P NCCL: vLLM's `P2pNcclConnector`.
//!
//! Each engine reads the other's address out of the request id, which is the same for both legs; the body says nothing
//! that it reads. The prefill's engine sends the blocks as it computes them, the decode's waits for them, so the decode
//! leg follows the prefill's answer.
//!
//! Blocks are found by the whole request id. vLLM puts a random end behind it unless
//! `VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1` is set for both engines; without that the decode waits for ever.

use crate::answer::{BadAnswer, Params};
use crate::half::Half;
use crate::ids::Ids;
use crate::leg::{Begin, Leg, PARAMS};
use crate::nixl::Keep;

pub(crate) fn begin(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Begin {
    // The engine does not look at it; it is what vllm-project/router sends.
    let keep = Keep::for_somebody(None);
    let leg = Leg::prefill(prefill).with(PARAMS, &keep);
    Begin::PrefillFirst(leg.with_id(Some(request_id(prefill, decode, ids))))
}

pub(crate) fn decode_leg(
    prefill: &Half,
    decode: &Half,
    ids: &Ids<'_>,
    answer: &[u8],
) -> Result<Leg, BadAnswer> {
    let leg = Leg::decode(decode).with_id(Some(request_id(prefill, decode, ids)));
    match Params::read(answer) {
        Ok(params) => Ok(leg.with_json(PARAMS, params.repeat())),
        Err(BadAnswer::NoParams) => Ok(leg),
        Err(error) => Err(error),
    }
}

fn request_id(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> String {
    ids.with_peers(&prefill.zmq_address(), &decode.zmq_address())
}
