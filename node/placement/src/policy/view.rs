//! What replicas share when they decide: the ring and the hot set.

use crate::{heat::HotSet, ring::Ring};

/// A pool's ring, and what is hot in the cluster. A ring alone is a view in which nothing is hot.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The pool's workers.
    pub ring: &'a Ring,
    /// Heat of all models.
    pub hot: &'a HotSet,
}

/// What a ring alone is viewed with.
static NOTHING_HOT: HotSet = HotSet::EMPTY;

impl<'a> From<&'a Ring> for View<'a> {
    fn from(ring: &'a Ring) -> Self {
        Self {
            ring,
            hot: &NOTHING_HOT,
        }
    }
}
