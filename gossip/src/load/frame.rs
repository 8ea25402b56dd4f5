//! The load that one replica reports: absolute values by slot.

/// Load that one replica has on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight.
    pub requests: u32,
    /// Prompt tokens in flight that the worker has still to compute.
    pub prefill_tokens: u64,
    /// Tokens of context held by the requests in flight.
    pub context_tokens: u64,
}

impl Load {
    /// Greatest number of requests believed of one replica on one worker.
    pub const REQUESTS_MAX: u32 = 1_000_000;
    /// Greatest number of tokens believed of one replica on one worker.
    pub const TOKENS_MAX: u64 = 1 << 40;

    /// The same within what is believable: a broken peer must not make a worker look infinitely
    /// loaded.
    pub fn clamped(self) -> Self {
        Self {
            requests: self.requests.min(Self::REQUESTS_MAX),
            prefill_tokens: self.prefill_tokens.min(Self::TOKENS_MAX),
            context_tokens: self.context_tokens.min(Self::TOKENS_MAX),
        }
    }

    /// The smaller of each number.
    pub(super) fn least(self, other: Self) -> Self {
        Self {
            requests: self.requests.min(other.requests),
            prefill_tokens: self.prefill_tokens.min(other.prefill_tokens),
            context_tokens: self.context_tokens.min(other.context_tokens),
        }
    }

    /// Whether any of the numbers is greater than in `before`.
    pub(super) fn is_above(self, before: Self) -> bool {
        self.least(before) != self
    }

    /// Length on the wire in bytes.
    fn wire_len(&self) -> usize {
        varint_len(u64::from(self.requests))
            + varint_len(self.prefill_tokens)
            + varint_len(self.context_tokens)
    }
}

/// Load on the worker at one position of the sorted list of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLoad {
    /// Position in that list.
    pub slot: u32,
    /// The sender's own load on that worker.
    pub load: Load,
}

/// What a frame means for the slots that it does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// They are unchanged.
    Changes,
    /// They are zero.
    Full,
}

/// When a frame was sent, and when it is to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Microseconds of the sender's monotonic clock, from a zero that stays through a generation.
    pub sent_us: u64,
    /// Microseconds after that, when every replica takes the frame over.
    pub hold_us: u32,
}

/// One message of the load plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFrame {
    /// Digest of the list of workers that the slots are positions in (`View::workers_digest`).
    pub workers_digest: u32,
    /// What holds for slots not listed.
    pub coverage: Coverage,
    /// Loads in rising order of slots, without repetitions.
    pub slots: Vec<SlotLoad>,
    /// Without one it counts when it comes: from releases before 0.2, and in a snapshot.
    pub moment: Option<Moment>,
    /// The changes of frames before it, once more, should those have been lost; the oldest first. At most
    /// [`EARLIER_MAX`].
    pub earlier: Vec<Earlier>,
}

/// The changes of an earlier frame: they count when that frame does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Microseconds before this frame at which it was sent.
    pub before_us: u32,
    /// Loads in rising order of slots, without repetitions.
    pub slots: Vec<SlotLoad>,
}

/// Greatest number of frames whose changes one repeats.
pub const EARLIER_MAX: usize = 8;

impl LoadFrame {
    /// Length of the shorter form on the wire in bytes, and of what stands behind it.
    pub fn wire_len(&self) -> usize {
        let form = if self.is_dense_shorter() {
            self.dense_len()
        } else {
            sparse_len(&self.slots)
        };
        let Some(Moment { sent_us, hold_us }) = self.moment else {
            return form;
        };
        let moment = varint_len(sent_us) + varint_len(hold_us.into());
        let earlier = self.earlier.iter();
        let earlier = earlier.map(|e| varint_len(e.before_us.into()) + sparse_len(&e.slots));
        form + moment + varint_len(self.earlier.len() as u64) + earlier.sum::<usize>()
    }

    /// Whether the dense form is possible and shorter.
    pub(crate) fn is_dense_shorter(&self) -> bool {
        self.coverage == Coverage::Full && self.dense_len() < sparse_len(&self.slots)
    }

    /// Length of the dense form on the wire in bytes: all slots up to the last one listed, so it
    /// exists for full frames only.
    fn dense_len(&self) -> usize {
        let slots = self.dense_slots();
        let zeroes = (slots - self.slots.len()) * Load::default().wire_len();
        let loads = self.slots.iter().map(|slot| slot.load.wire_len());
        varint_len(slots as u64) + zeroes + loads.sum::<usize>()
    }

    /// Number of slots in the dense form.
    pub(crate) fn dense_slots(&self) -> usize {
        self.slots.last().map_or(0, |last| last.slot as usize + 1)
    }
}

/// Length of the sparse form on the wire in bytes: gap and load of each listed slot.
fn sparse_len(slots: &[SlotLoad]) -> usize {
    let mut next = 0;
    let mut len = varint_len(slots.len() as u64);
    for SlotLoad { slot, load } in slots {
        len += varint_len(u64::from(slot - next)) + load.wire_len();
        next = slot + 1;
    }
    len
}

/// Length of a number in the codec's variable-length form.
fn varint_len(number: u64) -> usize {
    match number {
        0..=250 => 1,
        251..=0xffff => 3,
        0x1_0000..=0xffff_ffff => 5,
        _ => 9,
    }
}
