//! What was found, how bad it is, and what to do about it.

use std::cmp::Reverse;

use clap::ValueEnum;
use grapevine_placement::named;
use serde_json::{Value, json};

named! {
    /// How bad a finding is; later ones are worse.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
    pub(super) enum Severity {
        /// Good to know; nothing needs to be done.
        Info = "info",
        /// It works, and should be otherwise.
        Advice = "advice",
        /// Something does not work, or soon will not.
        Problem = "problem",
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Which check found it: one of a fixed set of names, which stay.
    pub(super) check: &'static str,
    /// Replicas, workers or files that it is about, as they are named elsewhere.
    pub(super) about: Vec<String>,
    /// What is so.
    pub(super) what: String,
    /// What to do; empty where nothing needs to be done.
    pub(super) todo: String,
}

impl Finding {
    pub(super) fn problem(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Problem, check, what.into())
    }

    pub(super) fn advice(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Advice, check, what.into())
    }

    pub(super) fn info(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Info, check, what.into())
    }

    fn new(severity: Severity, check: &'static str, what: String) -> Self {
        Self {
            severity,
            check,
            about: Vec::new(),
            what,
            todo: String::new(),
        }
    }

    /// Names whom it is about.
    pub(super) fn of(mut self, about: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.about.extend(about.into_iter().map(Into::into));
        self
    }

    /// Says what to do.
    pub(super) fn todo(mut self, todo: impl Into<String>) -> Self {
        self.todo = todo.into();
        self
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "severity": self.severity.as_str(),
            "check": self.check,
            "about": self.about,
            "what": self.what,
            "todo": self.todo,
        })
    }
}

/// The worst first; of the same severity in the order in which they were found.
pub(super) fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| Reverse(finding.severity));
}
