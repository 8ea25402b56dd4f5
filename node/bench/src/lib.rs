//! Load for any OpenAI endpoint, and what came back: `grapevine bench`, and the load of tests, demo and chaos runs.
//!
//! [`client`] sends one request and measures it, [`load`] decides when requests are sent, [`tally`] and [`windows`] sum
//! up, [`charts`] draws, [`run`] puts them together for one endpoint or for two in turn, and [`report`] shows the
//! result. It shares no code with the router: a measure that shares code shares bugs.

pub mod charts;
pub mod cli;
pub mod client;
pub mod load;
pub mod progress;
pub mod report;
pub mod run;
mod stats;
pub mod tally;
pub mod windows;
