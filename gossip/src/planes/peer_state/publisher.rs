//! This replica's own peer state: brought into form, and sent when it is due.

use std::sync::Arc;
use std::time::Instant;

use crate::peer_state::{
    HealthClaim, Heard, Pace, PartEntry, PeerState, Quarantined, RENEW_AFTER, Sighting, TenantUse,
};
use crate::wire::Message;

/// What is sent to the others, and when it was sent last.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    health: Part<HealthClaim>,
    usage: Part<TenantUse>,
    quarantine: Part<Quarantined>,
    paces: Part<Pace>,
    sightings: Part<Sighting>,
    heard: Part<Heard>,
}

/// One part; none of it before the first peer state, and while it has no entries.
#[derive(Debug)]
struct Part<T>(Option<Published<T>>);

#[derive(Debug)]
struct Published<T> {
    entries: Vec<T>,
    at: Instant,
    /// It was not sent yet.
    is_news: bool,
    sent: Option<Instant>,
}

/// What is done with each part alike.
trait Sent {
    fn has_news(&self) -> bool;
    fn send_again(&mut self);
    fn due(&mut self, now: Instant) -> Option<Message>;
}

/// An entry, and the message that carries its part.
trait Carried: PartEntry {
    const MESSAGE: fn(Arc<Vec<Self>>) -> Message;
}

macro_rules! carried {
    ($($message:ident: $entry:ty)*) => {$(
        impl Carried for $entry {
            const MESSAGE: fn(Arc<Vec<Self>>) -> Message = Message::$message;
        }
    )*};
}

carried!(Health: HealthClaim Usage: TenantUse Quarantine: Quarantined Paces: Pace Sightings: Sighting Heard: Heard);

impl Publisher {
    /// Replaces the peer state. Ages alone are no news: they go with the next renewal. Returns for each part how many
    /// entries do not fit a frame.
    pub(crate) fn publish(&mut self, state: PeerState, now: Instant) -> [(&'static str, usize); 6] {
        [
            self.health.replace(state.health, now),
            self.usage.replace(state.usage, now),
            self.quarantine.replace(state.quarantine, now),
            self.paces.replace(state.paces, now),
            self.sightings.replace(state.sightings, now),
            self.heard.replace(state.heard, now),
        ]
    }

    /// True if something changed that was not sent yet.
    pub(crate) fn has_news(&mut self) -> bool {
        self.parts().iter().any(|part| part.has_news())
    }

    /// A peer connected that has received nothing yet: everything is sent again.
    pub(crate) fn send_again(&mut self) {
        self.parts().into_iter().for_each(Sent::send_again);
    }

    /// The parts that are due, for all peers: those that changed, and those last sent
    /// [`RENEW_AFTER`] ago. None before the first peer state.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Message> {
        let parts = self.parts().into_iter();
        parts.filter_map(|part| part.due(now)).collect()
    }

    fn parts(&mut self) -> [&mut dyn Sent; 6] {
        let Self {
            health,
            usage,
            quarantine,
            paces,
            sightings,
            heard,
        } = self;
        [health, usage, quarantine, paces, sightings, heard]
    }
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartEntry> Part<T> {
    fn replace(&mut self, entries: Vec<T>, now: Instant) -> (&'static str, usize) {
        let (entries, cut) = T::fit(entries);
        let former = self.0.take();
        if !entries.is_empty() || !T::ENDS_WHEN_EMPTY {
            let is_same = |old: &Published<T>| {
                let mut pairs = old.entries.iter().zip(&entries);
                old.entries.len() == entries.len()
                    && pairs.all(|(old, new)| old.is_the_same_as(new))
            };
            let is_news = |old: &Published<T>| old.is_news || !is_same(old);
            self.0 = Some(Published {
                is_news: former.as_ref().is_none_or(is_news),
                sent: former.and_then(|old| old.sent),
                entries,
                at: now,
            });
        }
        (T::PART, cut)
    }
}

impl<T: Carried> Sent for Part<T> {
    fn has_news(&self) -> bool {
        self.0.as_ref().is_some_and(|part| part.is_news)
    }

    fn send_again(&mut self) {
        if let Some(part) = &mut self.0 {
            part.is_news = true;
        }
    }

    fn due(&mut self, now: Instant) -> Option<Message> {
        let part = self.0.as_mut()?;
        let is_old = |sent| now.saturating_duration_since(sent) >= RENEW_AFTER;
        if !part.is_news && !part.sent.is_none_or(is_old) {
            return None;
        }
        part.is_news = false;
        part.sent = Some(now);
        let since = now.saturating_duration_since(part.at);
        let entries = part.entries.iter().map(|entry| entry.later(since));
        Some(T::MESSAGE(Arc::new(entries.collect())))
    }
}
