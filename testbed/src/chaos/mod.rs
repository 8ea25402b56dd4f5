//! Named and random faults against a running cluster under load, and a verdict.
//!
//! A [`scenario`] says what is done and when; a [`fleet`] does it, either to processes of this
//! machine ([`local`]) or to containers ([`compose`]); [`promise`] judges what clients saw, what the
//! replicas say and what is in their logs. Nothing here is known to the router: it is asked over
//! HTTP as anybody would, and hurt from outside.

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
pub(crate) mod traffic;
pub(crate) mod trend;
