//! `GET /events`.

use serde::Serialize;

use crate::admin::Admin;

/// `GET /events`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct EventsView {
    replica: String,
    /// Oldest first.
    events: Vec<EventView>,
}

/// Something that happened.
#[derive(Debug, Serialize)]
struct EventView {
    /// Seconds since 1970.
    at_s: u64,
    /// Milliseconds since the start of this replica: names the event, with its text.
    noted_ms: u64,
    /// `fault`, `repair` or `change`.
    kind: &'static str,
    who: String,
    text: String,
}

impl Admin {
    pub(in crate::admin) fn describe_events(&self) -> EventsView {
        let events = self.recorder.show(|history, now| {
            let events = history.marks.iter().map(|mark| EventView {
                at_s: now.unix_s(mark.at),
                noted_ms: u64::try_from(mark.at.as_millis()).unwrap_or(u64::MAX),
                kind: mark.kind.as_str(),
                who: mark.who(),
                text: mark.text.clone(),
            });
            events.collect()
        });
        EventsView {
            replica: self.agent.replica().to_string(),
            events,
        }
    }
}
