//! Serial: tells values that are built once and then shared apart, without a look at their contents.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unlike every other one of this process, but for copies. 0 is [`Serial::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Serial(u64);

impl fmt::Debug for Serial {
    /// Values with equal contents look equal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serial")
    }
}

impl Serial {
    /// Of what is constant.
    pub(crate) const NONE: Self = Self(0);

    /// One that nothing has yet.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
