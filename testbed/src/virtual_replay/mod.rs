//! Virtual replay: a trace through the real placement code in virtual time, against engine models.
//!
//! No sockets and no real time: arrivals, steps of engines, load frames and evidence are events. All rules but the two
//! references run through `grapevine-placement`, and `grapevine-gossip`'s load plane carries the load. These are the
//! only parts of the router that the testbed uses, and only here.

mod contender;
mod gaps;
mod generate;
mod grid;
mod kv_events;
mod measure;
mod news;
mod pools;
mod rates;
mod replica;
mod report;
mod scenario;
mod search;
mod sim;
mod split;
mod split_grid;
mod timed_engine;
mod workload;

pub use contender::{Contender, Evidence, Rule, Shared};
pub use generate::{Generated, copies};
pub use grid::{Line, Setting, compare};
pub use kv_events::{Extent, KvEvents};
pub use measure::Outcome;
pub use pools::WORKERS_MAX;
pub use report::{csv, svg, table};
pub use scenario::Scenario;
pub use search::capacity;
pub use sim::run;
pub use split::{Link, Split};
pub use split_grid::{Layout, SplitLine, compare_layouts, split_table};
pub use timed_engine::CacheSize;
pub use workload::{Chain, Form, Request, Workload};

#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod tests;
