//! Rules and board beside real clusters: a real Prometheus scrapes them and runs every expression.
//!
//! Grafana is not run; its board's expressions are, with the variables filled in. `faults` lists which fault each alarm is
//! for, and what else may fire then.

mod expressions;
mod faults;
mod forms;
mod members;
mod prometheus;
mod quiet;
mod requests;
mod sources;

use std::time::Duration;

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/monitoring");
/// Alarms wait two seconds here, and evidence of a fault some more; on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
