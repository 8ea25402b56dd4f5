//! SGLang: both legs go out at once and name one room at the prefill's bootstrap server, where the engines meet.
//!
//! Both bodies are the client's own with three fields more: SGLang's prefill stops by itself after the prompt, and a
//! request that is cut short there would not be the one that the decode awaits. A port that is not known is `null`: the
//! decode's engine then takes its own setting.

use crate::half::Half;
use crate::ids::Ids;
use crate::leg::{Begin, Leg};

pub(crate) fn begin(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Begin {
    let first = Leg {
        one_token: false,
        ..Leg::prefill(prefill)
    };
    Begin::Together {
        prefill: in_room(first, prefill, ids),
        decode: decode_leg(prefill, decode, ids),
    }
}

pub(crate) fn decode_leg(prefill: &Half, decode: &Half, ids: &Ids<'_>) -> Leg {
    in_room(Leg::decode(decode), prefill, ids)
}

fn in_room(leg: Leg, prefill: &Half, ids: &Ids<'_>) -> Leg {
    let room = ids.room(prefill.dp_size.unwrap_or(1), prefill.rank);
    leg.with("bootstrap_host", &prefill.host)
        .with("bootstrap_port", &prefill.bootstrap_port)
        .with("bootstrap_room", &room)
}
