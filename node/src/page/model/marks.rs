//! Rows of what happened. Pure.

use std::time::Duration;

use super::Listed;
use crate::page::history::Moment;
use crate::page::history::marks::{Kind, Mark, Subject};
use crate::shown::seconds;

/// Marks in the list.
pub const MARKS_SHOWN: usize = 30;
/// One mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkRow {
    /// When, since the start of the replica.
    pub at: Duration,
    /// Seconds since 1970.
    pub unix_s: u64,
    /// How long ago.
    pub ago: String,
    /// Which kind.
    pub kind: Kind,
    /// Of whom there is a page: `workers` or `replicas`, and the id.
    pub link: Option<(&'static str, String)>,
    /// Whom it is about.
    pub who: String,
    /// What happened to it.
    pub text: String,
}

/// The latest first.
pub fn listed<'a>(
    marks: impl DoubleEndedIterator<Item = &'a Mark> + Clone,
    now: Moment,
) -> Listed<MarkRow> {
    let all = marks.clone().count();
    let rows: Vec<_> = marks
        .rev()
        .take(MARKS_SHOWN)
        .map(|of| row(of, now))
        .collect();
    Listed {
        more: all - rows.len(),
        rows,
    }
}

fn row(mark: &Mark, now: Moment) -> MarkRow {
    let link = match &mark.subject {
        Subject::Worker(id) => Some(("workers", id.clone())),
        Subject::Replica(id) => Some(("replicas", id.clone())),
        Subject::Workers(..) | Subject::Models(..) => None,
    };
    let ago = now.at.saturating_sub(mark.at).as_secs();
    MarkRow {
        at: mark.at,
        unix_s: now.unix_s(mark.at),
        ago: seconds(ago),
        kind: mark.kind,
        link,
        who: mark.who(),
        text: mark.text.clone(),
    }
}
