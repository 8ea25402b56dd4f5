//! Where the requests of a run come from: made from a seed, or read from a file.

use std::sync::Arc;

use super::prompts::Prompts;
use super::recorded::Recorded;
use crate::client::Ask;

/// The requests of a run, by number.
#[derive(Debug, Clone)]
pub enum Source {
    /// Made from a seed.
    Made(Prompts),
    /// Bodies of a file, from its beginning again when it has ended.
    Recorded(Arc<Recorded>),
}

impl From<Prompts> for Source {
    fn from(prompts: Prompts) -> Self {
        Self::Made(prompts)
    }
}

impl Source {
    /// Request number `number`: always the same bytes.
    pub fn ask(&self, number: u64) -> Ask {
        match self {
            Self::Made(prompts) => prompts.ask(number),
            Self::Recorded(recorded) => recorded.ask(number),
        }
    }

    /// Requests of one session, at least 1: number n belongs to session n / turns.
    pub fn turns(&self) -> u64 {
        match self {
            Self::Made(prompts) => prompts.turns.max(1),
            Self::Recorded(_) => 1,
        }
    }
}
