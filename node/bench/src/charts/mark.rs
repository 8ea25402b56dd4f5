//! What happened during a run, on the axis of time of its charts.

use serde::{Deserialize, Serialize};

/// Something that the scenario did, at an instant or over a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub at_ms: u64,
    /// `None`: an instant; a fault without an end lasted until the end of the run, a phase until the next
    /// one.
    pub until_ms: Option<u64>,
    pub kind: MarkKind,
    /// The replica or worker concerned, if it is one.
    pub node: Option<String>,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A fault is there from here to the mark's end.
    Fault,
    /// A fault is repaired.
    Heal,
    /// A part of the scenario: "before", "cut off".
    Phase,
    /// An action of an operator: a worker added, the cluster scaled.
    Note,
}

impl MarkKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Heal => "heal",
            Self::Phase => "phase",
            Self::Note => "note",
        }
    }
}
