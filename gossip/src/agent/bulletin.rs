//! Bulletins: this replica's own posted to the peers, theirs kept as long as they are renewed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::core::Core;
use super::evidence::lock;
use crate::bulletin::{Bulletin, PAUSE, Posted, Poster, Rack, Taken};
use crate::evidence::Roster;
use crate::firewall::Reason;
use crate::frame::Header;
use crate::metrics::Fate;
use crate::replica::ReplicaId;
use crate::view::View;
use crate::wire::Message;

/// The agent's part of the plane. Its locks are taken after the agent's own, never before it; readers
/// take none.
#[derive(Default)]
pub(super) struct BulletinDesk {
    poster: Mutex<Poster>,
    rack: Mutex<Rack>,
    posted: ArcSwap<Posted>,
    /// Something of ours is to be sent.
    news: Notify,
    /// Something of the others changed.
    changed: watch::Sender<()>,
}

impl BulletinDesk {
    pub(super) fn posted(&self) -> Arc<Posted> {
        self.posted.load_full()
    }

    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Takes over the workers of a new view.
    pub(super) fn follow(&self, view: &View) {
        let mut rack = lock(&self.rack);
        if rack.follow(Roster::new(view)) {
            self.show(&rack);
        }
    }

    /// A peer connected: it need not wait for the next renewal.
    pub(super) fn say_again(&self) {
        let mut poster = lock(&self.poster);
        poster.say_again();
        if poster.has_news() {
            self.news.notify_one();
        }
    }

    /// A peer said that it leaves.
    pub(super) fn left(&self, id: &ReplicaId) {
        let mut rack = lock(&self.rack);
        if rack.left(id) {
            self.show(&rack);
        }
    }

    /// Publishes; called under the rack's lock, so that the latest is what stays.
    fn show(&self, rack: &Rack) {
        self.posted.store(Arc::new(rack.posted()));
        self.changed.send_replace(());
    }
}

impl Core {
    pub(super) fn post(&self, bulletin: Bulletin) {
        if self.net.is_none() {
            return;
        }
        let now = Instant::now().into_std();
        let mut poster = lock(&self.bulletins.poster);
        let cut = poster.post(bulletin, now);
        if poster.has_news() {
            self.bulletins.news.notify_one();
        }
        drop(poster);
        self.metrics.bulletin_cut("health", cut.claims);
        self.metrics.bulletin_cut("usage", cut.tenants);
        self.metrics.bulletin_cut("quarantine", cut.quarantined);
    }

    /// Takes a part that a peer pushed. A flood counts against it.
    pub(super) fn take_bulletin(&self, from: &ReplicaId, header: Header, message: Message) {
        let now = Instant::now().into_std();
        let order = (header.generation, header.seq);
        let mut rack = lock(&self.bulletins.rack);
        let taken = match message {
            Message::Health(claims) => rack.health(from, order, Arc::unwrap_or_clone(claims), now),
            Message::Usage(usage) => rack.usage(from, order, Arc::unwrap_or_clone(usage), now),
            Message::Quarantine(entries) => {
                rack.quarantine(from, order, Arc::unwrap_or_clone(entries), now)
            }
            _ => return,
        };
        if taken == Taken::Fresh {
            self.bulletins.show(&rack);
        }
        drop(rack);
        let fate = match taken {
            Taken::Fresh => "fresh",
            Taken::Stale => "stale",
            Taken::Gone => "gone",
            Taken::Flood => "flood",
            Taken::TooManySenders => "too_many_senders",
        };
        self.metrics
            .bulletin_parts
            .get_or_create(&Fate { fate })
            .inc();
        if taken == Taken::Flood
            && let Some(net) = &self.net
        {
            net.transport.strike(from, Reason::TooMany);
        }
    }
}

/// Sends what is due, and lets go of what is old, until the transport closes.
pub(super) async fn rounds(core: Arc<Core>) {
    let Some(net) = &core.net else {
        return;
    };
    let desk = &core.bulletins;
    loop {
        // Woken by news, else to renew and to notice silence.
        let _ = timeout(TICK, desk.news.notified()).await;
        let now = Instant::now().into_std();
        let due = lock(&desk.poster).due(now);
        for message in &due {
            net.transport.send_bulletin(message);
        }
        {
            let mut rack = lock(&desk.rack);
            if rack.expire(now) {
                desk.show(&rack);
            }
        }
        core.metrics
            .bulletins
            .set(desk.posted().peers().len() as i64);
        if !due.is_empty() {
            sleep(PAUSE).await;
        }
    }
}

/// How often it is looked what must be renewed and what has grown old.
const TICK: Duration = Duration::from_millis(200);
