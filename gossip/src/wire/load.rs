//! Load frames as they travel: sparse or dense, whichever is shorter.

use super::body::{Body, Frame};
use crate::frame::{self, Decode, Encode, FrameError};
use crate::load::{Coverage, Load, LoadFrame, SlotLoad};

#[derive(Encode, Decode)]
pub(super) struct WireSparse {
    workers_digest: u32,
    /// Gap to the slot after the one before, and load.
    slots: Vec<(u32, WireLoad)>,
}

#[derive(Encode, Decode)]
struct WireDense {
    workers_digest: u32,
    /// Loads of all slots up to the last one that is not zero.
    loads: Vec<WireLoad>,
}

/// Requests, prefill tokens, context tokens.
type WireLoad = (u32, u64, u64);

/// Codes of the three forms.
mod code {
    pub(super) const CHANGES: u8 = 7;
    pub(super) const FULL_SPARSE: u8 = 8;
    pub(super) const FULL_DENSE: u8 = 9;
}

impl Body for LoadFrame {
    type Wire = WireSparse;

    fn to_wire(&self) -> WireSparse {
        WireSparse::from(self)
    }

    /// Of all load, as in a snapshot.
    fn from_wire(wire: WireSparse, _: &mut usize) -> Result<Self, FrameError> {
        wire.checked(Coverage::Full)
    }

    fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
        match self.coverage {
            _ if self.is_dense_shorter() => frame.put(code::FULL_DENSE, &WireDense::from(self)),
            Coverage::Changes => frame.put(code::CHANGES, &self.to_wire()),
            Coverage::Full => frame.put(code::FULL_SPARSE, &self.to_wire()),
        }
    }

    fn read(code: u8, body: &mut &[u8], _: &mut usize) -> Result<Self, FrameError> {
        match code {
            code::CHANGES => frame::decode::<WireSparse>(body)?.checked(Coverage::Changes),
            code::FULL_SPARSE => frame::decode::<WireSparse>(body)?.checked(Coverage::Full),
            _ => Ok(frame::decode::<WireDense>(body)?.into()),
        }
    }
}

impl From<&LoadFrame> for WireSparse {
    fn from(frame: &LoadFrame) -> Self {
        let mut next = 0;
        let gap_and_load = |slot: &SlotLoad| {
            let gap = slot.slot - next;
            next = slot.slot + 1;
            (gap, wire_load(slot.load))
        };
        Self {
            workers_digest: frame.workers_digest,
            slots: frame.slots.iter().map(gap_and_load).collect(),
        }
    }
}

impl WireSparse {
    fn checked(self, coverage: Coverage) -> Result<LoadFrame, FrameError> {
        let mut next = 0u32;
        let mut slots = Vec::with_capacity(self.slots.len());
        for (gap, load) in self.slots {
            // One below the end, so that the next slot is a number too.
            let slot = next.checked_add(gap).filter(|slot| *slot < u32::MAX);
            let slot = slot.ok_or(FrameError::Value("slot"))?;
            next = slot + 1;
            slots.push(SlotLoad {
                slot,
                load: core_load(load),
            });
        }
        Ok(LoadFrame {
            workers_digest: self.workers_digest,
            coverage,
            slots,
        })
    }
}

impl From<&LoadFrame> for WireDense {
    fn from(frame: &LoadFrame) -> Self {
        let mut loads = vec![wire_load(Load::default()); frame.dense_slots()];
        for slot in &frame.slots {
            loads[slot.slot as usize] = wire_load(slot.load);
        }
        Self {
            workers_digest: frame.workers_digest,
            loads,
        }
    }
}

impl From<WireDense> for LoadFrame {
    fn from(wire: WireDense) -> Self {
        let loads = (0..).zip(wire.loads.into_iter().map(core_load));
        let slots = loads.map(|(slot, load)| SlotLoad { slot, load });
        Self {
            workers_digest: wire.workers_digest,
            coverage: Coverage::Full,
            slots: slots.filter(|slot| slot.load != Load::default()).collect(),
        }
    }
}

fn wire_load(load: Load) -> WireLoad {
    (load.requests, load.prefill_tokens, load.context_tokens)
}

fn core_load((requests, prefill_tokens, context_tokens): WireLoad) -> Load {
    Load {
        requests,
        prefill_tokens,
        context_tokens,
    }
}
