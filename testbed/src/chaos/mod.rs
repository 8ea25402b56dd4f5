//! Named and random faults against a running cluster under load, and a verdict.
//!
//! A [`scenario`] lists the faults and their times. A [`fleet`] injects them, either into processes of this
//! machine ([`local`]) or into containers ([`compose`]). [`promise`] judges what clients saw, what the
//! replicas report and what is in their logs. The router has no code for this: it is asked over HTTP like by
//! any client, and faults are injected from outside.

pub(crate) mod compose;
mod excuse;
pub(crate) mod fault;
pub(crate) mod fleet;
pub(crate) mod local;
mod logs;
pub(crate) mod observe;
mod placement;
mod promise;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod scenario;
pub(crate) mod scenarios;
mod schedule;
mod seat;
pub(crate) mod traffic;
pub(crate) mod trend;
