//! Named and random faults against a running cluster under load, and a verdict.
//!
//! A [`scenario`] says what is done and when; a [`fleet`] does it, either to processes of this
//! machine ([`local`]) or to containers ([`compose`]); [`promise`] judges what clients saw, what the
//! replicas say and what is in their logs. Nothing here is known to the router: it is asked over
//! HTTP as anybody would, and hurt from outside.

pub(crate) mod compose;
pub(crate) mod fleet;
pub(crate) mod local;
pub(crate) mod observe;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod traffic;
pub(crate) mod trend;
