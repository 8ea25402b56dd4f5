//! Load frames as they travel: sparse or dense, whichever is shorter.

use super::body::{Body, Frame};
use crate::frame::{self, Decode, Encode, FrameError};
use crate::load::{Coverage, Earlier, Load, LoadFrame, Moment, SlotLoad};

#[derive(Encode, Decode)]
pub(super) struct WireSparse {
    workers_digest: u32,
    slots: WireSlots,
}

/// Gap to the slot after the one before, and load.
type WireSlots = Vec<(u32, WireLoad)>;

#[derive(Encode, Decode)]
struct WireDense {
    workers_digest: u32,
    /// Loads of all slots up to the last one that is not zero.
    loads: Vec<WireLoad>,
}

/// Requests, prefill tokens, context tokens.
type WireLoad = (u32, u64, u64);

/// Behind each of the forms, since 0.2.
#[derive(Encode, Decode)]
struct WireMoment {
    /// When it was sent, and how long after that it counts, in microseconds.
    sent_us: u64,
    hold_us: u32,
    /// Of earlier frames, microseconds before this one, and their changes.
    earlier: Vec<(u32, WireSlots)>,
}

/// A form, and what stands behind it.
#[derive(Encode)]
struct WithMoment<T: Encode>(T, WireMoment);

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
            _ if self.is_dense_shorter() => {
                self.put(frame, code::FULL_DENSE, WireDense::from(self))
            }
            Coverage::Changes => self.put(frame, code::CHANGES, self.to_wire()),
            Coverage::Full => self.put(frame, code::FULL_SPARSE, self.to_wire()),
        }
    }

    fn read(code: u8, body: &mut &[u8], _: &mut usize) -> Result<Self, FrameError> {
        let mut load = match code {
            code::CHANGES => frame::decode::<WireSparse>(body)?.checked(Coverage::Changes)?,
            code::FULL_SPARSE => frame::decode::<WireSparse>(body)?.checked(Coverage::Full)?,
            _ => Self::from(frame::decode::<WireDense>(body)?),
        };
        if !body.is_empty() {
            let WireMoment {
                sent_us,
                hold_us,
                earlier,
            } = frame::decode(body)?;
            load.moment = Some(Moment { sent_us, hold_us });
            let earlier = earlier.into_iter().map(|(before_us, slots)| {
                let slots = core_slots(slots)?;
                Ok(Earlier { before_us, slots })
            });
            load.earlier = earlier.collect::<Result<_, FrameError>>()?;
        }
        Ok(load)
    }
}

impl LoadFrame {
    fn put(&self, frame: Frame<'_>, code: u8, form: impl Encode) -> Result<(), FrameError> {
        let Some(Moment { sent_us, hold_us }) = self.moment else {
            return frame.put(code, &form);
        };
        let earlier = self.earlier.iter();
        let earlier = earlier.map(|earlier| (earlier.before_us, wire_slots(&earlier.slots)));
        let moment = WireMoment {
            sent_us,
            hold_us,
            earlier: earlier.collect(),
        };
        frame.put(code, &WithMoment(form, moment))
    }
}

impl From<&LoadFrame> for WireSparse {
    fn from(frame: &LoadFrame) -> Self {
        Self {
            workers_digest: frame.workers_digest,
            slots: wire_slots(&frame.slots),
        }
    }
}

impl WireSparse {
    fn checked(self, coverage: Coverage) -> Result<LoadFrame, FrameError> {
        Ok(LoadFrame {
            workers_digest: self.workers_digest,
            coverage,
            slots: core_slots(self.slots)?,
            moment: None,
            earlier: Vec::new(),
        })
    }
}

fn wire_slots(slots: &[SlotLoad]) -> WireSlots {
    let mut next = 0;
    let gap_and_load = |slot: &SlotLoad| {
        let gap = slot.slot - next;
        next = slot.slot + 1;
        (gap, wire_load(slot.load))
    };
    slots.iter().map(gap_and_load).collect()
}

fn core_slots(wire: WireSlots) -> Result<Vec<SlotLoad>, FrameError> {
    let mut next = 0u32;
    let mut slots = Vec::with_capacity(wire.len());
    for (gap, load) in wire {
        // One below the end, so that the next slot is a number too.
        let slot = next.checked_add(gap).filter(|slot| *slot < u32::MAX);
        let slot = slot.ok_or(FrameError::Value("slot"))?;
        next = slot + 1;
        slots.push(SlotLoad {
            slot,
            load: core_load(load),
        });
    }
    Ok(slots)
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
            moment: None,
            earlier: Vec::new(),
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
