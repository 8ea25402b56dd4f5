//! A store that both engines share: the prefill puts the prompt's blocks there, the decode finds them by their hashes.
//! Nothing is said to either.

use crate::half::Half;
use crate::leg::{Begin, Leg};

pub(crate) fn begin(prefill: &Half) -> Begin {
    Begin::PrefillFirst(Leg::prefill(prefill))
}

pub(crate) fn decode_leg(decode: &Half) -> Leg {
    Leg::decode(decode)
}
