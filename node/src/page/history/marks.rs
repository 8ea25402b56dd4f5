//! What happened, on the same axis as the samples: faults, repairs, changes. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use grapevine_placement::named;

/// Marks that are kept; the oldest goes first.
pub const MARKS_MAX: usize = 256;

named! {
    /// What a mark says.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Kind {
        /// Something stopped working.
        Fault = "fault",
        /// It works again.
        Repair = "repair",
        /// Somebody changed something.
        Change = "change",
    }
}

/// What a mark is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A worker, by id.
    Worker(String),
    /// A replica, by id.
    Replica(String),
    /// Several workers at once: the first of them, and how many more.
    Workers(Vec<String>, usize),
    /// Models, by name: the first of them, and how many more.
    Models(Vec<String>, usize),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// When, since the start of the replica.
    pub at: Duration,
    /// Which kind.
    pub kind: Kind,
    /// To whom.
    pub subject: Subject,
    /// What, behind the subject's name: `is dead`.
    pub text: String,
}

/// The latest marks.
#[derive(Debug, Clone, Default)]
pub struct Marks(VecDeque<Mark>);

impl Marks {
    pub(super) fn push(&mut self, mark: Mark) {
        if self.0.len() == MARKS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(mark);
    }

    pub(super) fn forget_before(&mut self, oldest: Duration) {
        while self.0.front().is_some_and(|mark| mark.at < oldest) {
            self.0.pop_front();
        }
    }

    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mark> + Clone {
        self.0.iter()
    }
}

/// Names of a mark about many workers.
const NAMED: usize = 3;

impl Mark {
    /// Whom it is about, for people.
    pub fn who(&self) -> String {
        match &self.subject {
            Subject::Worker(id) | Subject::Replica(id) => id.clone(),
            Subject::Workers(ids, more) | Subject::Models(ids, more) => {
                let named: Vec<&str> = ids.iter().take(NAMED).map(String::as_str).collect();
                let all = named.join(", ");
                match ids.len() - named.len() + more {
                    0 => all,
                    more => format!("{all} and {more} more"),
                }
            }
        }
    }

    /// Whether it is about this worker.
    pub fn is_of_worker(&self, id: &str) -> bool {
        match &self.subject {
            Subject::Worker(worker) => worker == id,
            Subject::Workers(workers, _) => workers.iter().any(|worker| worker == id),
            Subject::Replica(_) | Subject::Models(..) => false,
        }
    }

    /// Whether it is about this replica.
    pub fn is_of_replica(&self, id: &str) -> bool {
        matches!(&self.subject, Subject::Replica(replica) if replica == id)
    }
}
