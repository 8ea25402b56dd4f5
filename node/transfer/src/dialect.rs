//! What of a worker decides with whom it can work: equal for thousands of workers.

use crate::connector::{Connector, Mode};
use crate::half::Half;

/// The facts by which [`pair`](crate::pair) judges, and nothing else: two workers of one dialect can work with the same
/// others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dialect {
    connector: Connector,
    mode: Option<Mode>,
    version: Option<String>,
    sizes: [Option<u32>; 3],
    rank: Option<u32>,
}

impl Half {
    /// The dialect of this worker.
    pub fn dialect(&self) -> Dialect {
        Dialect {
            connector: self.connector,
            mode: self.mode,
            version: self.version.clone(),
            sizes: [self.block_size, self.tp_size, self.dp_size],
            rank: match self.connector {
                // Both legs go to one rank there.
                Connector::MoriIo => self.rank,
                _ => None,
            },
        }
    }
}
