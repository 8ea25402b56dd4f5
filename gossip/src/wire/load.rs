//! Load frames as they travel: sparse or dense, whichever is shorter.

use crate::frame::{Decode, Encode, FrameError};
use crate::load::{Coverage, Load, LoadFrame, SlotLoad};

#[derive(Encode, Decode)]
pub(super) struct WireSparse {
    roster: u32,
    /// Gap to the slot after the one before, and load.
    slots: Vec<(u32, WireLoad)>,
}

#[derive(Encode, Decode)]
pub(super) struct WireDense {
    roster: u32,
    /// Loads of all slots up to the last one that is not zero.
    loads: Vec<WireLoad>,
}

/// Requests, prefill tokens, context tokens.
type WireLoad = (u32, u64, u64);

impl From<&LoadFrame> for WireSparse {
    fn from(frame: &LoadFrame) -> Self {
        let mut next = 0;
        let gap_and_load = |slot: &SlotLoad| {
            let gap = slot.slot - next;
            next = slot.slot + 1;
            (gap, wire_load(slot.load))
        };
        Self {
            roster: frame.roster,
            slots: frame.slots.iter().map(gap_and_load).collect(),
        }
    }
}

impl WireSparse {
    pub(super) fn checked(self, coverage: Coverage) -> Result<LoadFrame, FrameError> {
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
            roster: self.roster,
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
            roster: frame.roster,
            loads,
        }
    }
}

impl From<WireDense> for LoadFrame {
    fn from(wire: WireDense) -> Self {
        let loads = (0..).zip(wire.loads.into_iter().map(core_load));
        let slots = loads.map(|(slot, load)| SlotLoad { slot, load });
        Self {
            roster: wire.roster,
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
