//! A setting that may change while the replica runs.
//!
//! Parts hold a [`Live`] of their section and read it where something begins: a request, a connection, a check. What has
//! begun goes on with what it read. Who changes it: `reload.rs`, through what `app` registered.

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

/// A value that is replaced as a whole; clones share it.
pub struct Live<T>(Arc<ArcSwap<T>>);

impl<T> Live<T> {
    /// The value, until it is replaced.
    pub fn new(value: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(value)))
    }

    /// What it is now. For a look; not to be held across an await.
    pub fn look(&self) -> Guard<Arc<T>> {
        self.0.load()
    }

    /// What it is now, to be kept.
    pub fn now(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Another value from now on.
    pub fn set(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> From<T> for Live<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: Default> Default for Live<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Live<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look().fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_follow_and_what_was_read_stays() {
        let setting = Live::new(1);
        let (other, kept) = (setting.clone(), setting.now());
        setting.set(2);
        assert_eq!((*kept, *other.now(), **other.look()), (1, 2, 2));
    }
}
