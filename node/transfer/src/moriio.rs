//! MoRI-IO: vLLM's `MoRIIOConnector`, for AMD's devices.
//!
//! Both legs name one transfer, and each engine reads the other's address out of the request id. Read: the prefill's
//! answer names the blocks, the decode leg repeats it. Write: both legs go out at once, and the prefill's engine writes
//! the blocks where the decode's tells it. Which of the two an engine does is its own setting; nothing is sent before it
//! is known, because an engine of the other mode waits for ever or answers nonsense.
//!
//! With several data-parallel ranks both legs go to the same one: the decode's engine notifies the prefill from the rank
//! that computed it.

use serde::Serialize;

use crate::answer::{BadAnswer, Params};
use crate::connector::Mode;
use crate::half::Half;
use crate::ids::Ids;
use crate::label;
use crate::leg::{Begin, Leg, Missing, PARAMS};
use crate::object;

/// The engine's ports, unless they are set otherwise.
const HANDSHAKE_PORT: u16 = 6301;
const NOTIFY_PORT: u16 = 61005;

/// What either leg says; `remote` is the other side.
#[derive(Serialize)]
struct Transfer<'a> {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    remote_engine_id: (),
    remote_block_ids: (),
    transfer_id: &'a str,
    remote_dp_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_tp_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_dp_rank: Option<u32>,
}

impl<'a> Transfer<'a> {
    fn of(pair: &'a Pair<'_>, remote: &Half) -> Self {
        let is_write = pair.mode == Mode::Write;
        Self {
            do_remote_decode: true,
            do_remote_prefill: false,
            remote_engine_id: (),
            remote_block_ids: (),
            transfer_id: &pair.transfer_id,
            remote_dp_size: remote.dp_size.unwrap_or(1),
            remote_tp_size: is_write.then(|| remote.tp_size.unwrap_or(1)),
            remote_dp_rank: pair.rank.filter(|_| is_write),
        }
    }
}

/// What both legs of a pair share.
struct Pair<'h> {
    prefill: &'h Half,
    decode: &'h Half,
    mode: Mode,
    transfer_id: String,
    request_id: String,
    /// None where there is one rank only.
    rank: Option<u32>,
}

impl<'h> Pair<'h> {
    fn new(prefill: &'h Half, decode: &'h Half, ids: &Ids<'_>) -> Result<Self, Missing> {
        let (side, name) = ("prefill", label::MODE);
        let mode = prefill.mode.or(decode.mode);
        let ranks = prefill.dp_size.unwrap_or(1);
        let drawn = || (ranks > 1).then(|| (ids.random % u128::from(ranks)) as u32);
        Ok(Self {
            prefill,
            decode,
            mode: mode.ok_or(Missing { side, name })?,
            transfer_id: format!("tx-{}", ids.hex()),
            request_id: ids.with_peers(&address(prefill), &address(decode)),
            rank: prefill.rank.or(decode.rank).or_else(drawn),
        })
    }

    fn leg(&self, leg: Leg) -> Leg {
        let rank = self.rank;
        Leg { rank, ..leg }.with_id(Some(self.request_id.clone()))
    }

    fn prefill_leg(&self) -> Leg {
        let params = Transfer::of(self, self.decode);
        self.leg(Leg::prefill(self.prefill)).with(PARAMS, &params)
    }

    fn decode_leg(&self) -> Leg {
        let params = Transfer {
            do_remote_decode: false,
            do_remote_prefill: true,
            ..Transfer::of(self, self.prefill)
        };
        self.leg(Leg::decode(self.decode)).with(PARAMS, &params)
    }
}

pub(crate) fn begin(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Result<Begin, Missing> {
    let pair = Pair::new(prefill, decode, ids)?;
    Ok(match pair.mode {
        Mode::Write => Begin::Together {
            prefill: pair.prefill_leg(),
            decode: pair.decode_leg(),
        },
        _ => Begin::PrefillFirst(pair.prefill_leg()),
    })
}

pub(crate) fn decode_leg(
    prefill: &Half,
    decode: &Half,
    ids: &Ids<'_>,
    answer: &[u8],
) -> Result<Leg, BadAnswer> {
    let pair = Pair::new(prefill, decode, ids)?;
    let params = Params::read(answer)?;
    for name in ["remote_engine_id", "remote_block_ids"] {
        params.need(name)?;
    }
    let told = params.get("transfer_id");
    if told.is_some_and(|told| object::text(told).as_deref() != Some(&pair.transfer_id)) {
        return Err(BadAnswer::AnotherTransfer);
    }
    let mut members = Vec::with_capacity(3);
    if told.is_none() {
        members.push(("transfer_id", format!("\"{}\"", pair.transfer_id)));
    }
    members.push(("remote_dp_size", prefill.dp_size.unwrap_or(1).to_string()));
    if let Some(rank) = pair.rank {
        members.push(("remote_dp_rank", rank.to_string()));
    }
    let leg = pair.leg(Leg::decode(decode));
    Ok(leg.with_json(PARAMS, params.with(&members)))
}

/// What the engine calls its side channel, or what that is unless it is set otherwise.
fn address(half: &Half) -> String {
    let bare = half.host.trim_start_matches('[').trim_end_matches(']');
    let usual = || format!("host:{bare},handshake:{HANDSHAKE_PORT},notify:{NOTIFY_PORT}");
    half.address.clone().unwrap_or_else(usual)
}
