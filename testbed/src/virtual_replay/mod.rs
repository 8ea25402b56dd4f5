//! Virtual replay: a trace through the real placement code in virtual time, against engine models.
//!
//! No sockets and no real time: arrivals, steps of engines, load frames and evidence are events. All rules but the
//! two references run through `grapevine-placement`, and load is told by `grapevine-gossip`'s load plane: the only parts
//! of the router that the testbed knows, and only here.

mod cache;
mod contender;
mod engine;
mod generate;
mod grid;
mod measure;
mod news;
mod replica;
mod report;
mod search;
mod sim;
mod workload;

pub use contender::{Contender, Evidence, Rule, Shared};
pub use engine::CacheSize;
pub use generate::{Generated, copies};
pub use grid::{Line, Setting, compare};
pub use measure::Outcome;
pub use report::{csv, svg, table};
pub use search::capacity;
pub use sim::{Scenario, run};
pub use workload::{Chain, Form, Request, Workload};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin_tests;
