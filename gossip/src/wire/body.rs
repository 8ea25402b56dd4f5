//! How a core type becomes the body of a frame, and back.

use std::sync::Arc;

use crate::frame::{self, Decode, Encode, FrameError};
use crate::replica::ReplicaId;

/// The body of one kind of message. The type that travels ([`Body::Wire`]) stays when the core type changes.
pub(super) trait Body: Sized {
    /// What travels. Fields are never changed or removed; a later release puts new ones behind them.
    type Wire: Encode + Decode<()>;

    fn to_wire(&self) -> Self::Wire;

    /// Checks every limit. Counts what is left out because only a later release can read it, or because it breaks a
    /// rule and the rest is sound.
    fn from_wire(wire: Self::Wire, refused: &mut usize) -> Result<Self, FrameError>;

    /// Appends the frame. Overridden by what travels in several forms, each under a code of its own.
    fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
        let code = frame.codes[0];
        frame.put(code, &self.to_wire())
    }

    /// Reads what this release knows of a body, and leaves the rest.
    fn read(_code: u8, body: &mut &[u8], refused: &mut usize) -> Result<Self, FrameError> {
        Self::from_wire(frame::decode(body)?, refused)
    }
}

/// A frame that is about to be written.
pub(super) struct Frame<'a> {
    pub(super) out: &'a mut Vec<u8>,
    /// Those of its kind.
    pub(super) codes: &'static [u8],
    pub(super) generation: u64,
    pub(super) seq: u64,
}

impl Frame<'_> {
    pub(super) fn put(self, code: u8, body: &impl Encode) -> Result<(), FrameError> {
        frame::seal(self.out, code, self.generation, self.seq, body)
    }

    /// Under the first code. `later`: a number that the first release does not know, behind the fields that it does; read
    /// by [`later`].
    pub(super) fn put_with(self, body: &impl Encode, later: Option<u64>) -> Result<(), FrameError> {
        let code = self.codes[0];
        match later {
            Some(number) => self.put(code, &(body, number)),
            None => self.put(code, body),
        }
    }
}

/// The number behind the fields of a body; none from a release that does not say it.
pub(super) fn later(body: &mut &[u8]) -> Result<Option<u64>, FrameError> {
    (!body.is_empty()).then(|| frame::decode(body)).transpose()
}

/// What is shared or boxed travels as what it holds.
macro_rules! behind_a_pointer {
    ($($pointer:ident)*) => {$(
        impl<T: Body> Body for $pointer<T> {
            type Wire = T::Wire;

            fn to_wire(&self) -> T::Wire {
                T::to_wire(self)
            }

            fn from_wire(wire: T::Wire, refused: &mut usize) -> Result<Self, FrameError> {
                T::from_wire(wire, refused).map(Self::new)
            }

            fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
                T::seal(self, frame)
            }

            fn read(code: u8, body: &mut &[u8], refused: &mut usize) -> Result<Self, FrameError> {
                T::read(code, body, refused).map(Self::new)
            }
        }
    )*};
}

behind_a_pointer!(Arc Box);

/// A number, or a body without contents, travels as it is.
macro_rules! as_it_is {
    ($($plain:ty)*) => {$(
        impl Body for $plain {
            type Wire = Self;

            fn to_wire(&self) -> Self {
                *self
            }

            fn from_wire(wire: Self, _: &mut usize) -> Result<Self, FrameError> {
                Ok(wire)
            }
        }
    )*};
}

as_it_is!(() u64);

pub(super) fn replica(text: &str) -> Result<ReplicaId, FrameError> {
    text.parse().map_err(|_| FrameError::Value("replica id"))
}
