//! What all connections share: store, access and rules behind one lock, and signals that wake watches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::watch;

use super::access::{Access, GRANTS_MAX, Grant};
use super::config::Config;
use super::fault::{Network, Rules};
use super::store::{Bounds, Fresh, Store};

/// Counts since the start; `open_watches` and `connections` are of now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Answers by verb and status, as `list 200`.
    pub answers: BTreeMap<String, u64>,
    /// Watches that are open.
    pub open_watches: usize,
    /// Open connections.
    pub connections: usize,
    /// Connections that were closed because there were too many.
    pub connections_refused: u64,
    /// Pods that are kept.
    pub pods: usize,
    /// The revision of the last write.
    pub revision: u64,
}

pub(super) struct State {
    pub(super) config: Config,
    inner: Mutex<Inner>,
    /// Revision of the last write; wakes watches.
    pub(super) revision: watch::Sender<u64>,
    /// Bookmarks that were commanded.
    pub(super) bookmarks: watch::Sender<u64>,
    /// While true, watches send no byte and do not end.
    pub(super) stalled: watch::Sender<bool>,
    pub(super) network: watch::Sender<Network>,
    /// Connections that were opened before this many commands `half-open` are silent.
    pub(super) silenced: AtomicU64,
    /// Connections that were opened before this many commands `reset` are reset.
    pub(super) resets: watch::Sender<u64>,
    pub(super) open_watches: AtomicUsize,
    pub(super) connections: AtomicUsize,
    pub(super) connections_refused: AtomicU64,
}

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) access: Access,
    pub(super) rules: Rules,
    answers: BTreeMap<String, u64>,
}

impl State {
    pub(super) fn new(config: Config) -> anyhow::Result<Arc<Self>> {
        let mut store = Store::new(Bounds {
            pods_max: config.pods_max,
            namespaces_max: config.namespaces_max,
            history_max: config.history_max,
        });
        for name in &config.namespaces {
            let added = store.add_namespace(name, &fresh());
            added.map_err(|refusal| anyhow::anyhow!(refusal.message))?;
        }
        let access = Access {
            user: config.user.clone(),
            token: token(),
            grants: None,
        };
        Ok(Arc::new(Self {
            revision: watch::Sender::new(store.revision()),
            inner: Mutex::new(Inner {
                store,
                access,
                rules: Rules::default(),
                answers: BTreeMap::new(),
            }),
            config,
            bookmarks: watch::Sender::new(0),
            stalled: watch::Sender::new(false),
            network: watch::Sender::new(Network::Open),
            silenced: AtomicU64::new(0),
            resets: watch::Sender::new(0),
            open_watches: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            connections_refused: AtomicU64::new(0),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another request does not make the store wrong: writes are one step.
        self.inner.lock()
    }

    /// Does something to the store, and wakes watches if that was a write.
    pub(super) fn write<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        let mut inner = self.lock();
        let done = act(&mut inner.store);
        let revision = inner.store.revision();
        drop(inner);
        self.revision.send_if_modified(|seen| {
            let moved = *seen < revision;
            *seen = revision.max(*seen);
            moved
        });
        done
    }

    /// Forgets the history; watches that lag are told by the next look.
    pub(super) fn compact(&self) {
        self.lock().store.compact();
        self.revision.send_modify(|_| {});
    }

    /// A new token, valid from now on; the old one is refused.
    pub(super) fn rotate(&self) -> String {
        let token = token();
        self.lock().access.token.clone_from(&token);
        token
    }

    pub(super) fn grant(&self, grants: Option<Vec<Grant>>) -> Result<(), String> {
        if grants
            .as_ref()
            .is_some_and(|grants| grants.len() > GRANTS_MAX)
        {
            return Err(format!("at most {GRANTS_MAX} grants"));
        }
        self.lock().access.grants = grants;
        Ok(())
    }

    pub(super) fn set_network(&self, network: Network) {
        if network == Network::Silent {
            self.silence();
        }
        self.network.send_replace(network);
    }

    /// All connections that are open now fall silent for ever; new ones work.
    pub(super) fn silence(&self) {
        self.silenced.fetch_add(1, Ordering::SeqCst);
    }

    /// All connections that are open now are reset.
    pub(super) fn reset(&self) {
        self.resets.send_modify(|count| *count += 1);
    }

    pub(super) fn count(&self, verb: &str, status: u16) {
        let mut inner = self.lock();
        // Verbs and statuses are few, so the table is.
        *inner.answers.entry(format!("{verb} {status}")).or_default() += 1;
    }

    pub(super) fn stats(&self) -> Stats {
        let inner = self.lock();
        Stats {
            answers: inner.answers.clone(),
            open_watches: self.open_watches.load(Ordering::SeqCst),
            connections: self.connections.load(Ordering::SeqCst),
            connections_refused: self.connections_refused.load(Ordering::SeqCst),
            pods: inner.store.pod_count(),
            revision: inner.store.revision(),
        }
    }
}

/// Identity and time for a new object.
pub(super) fn fresh() -> Fresh {
    let bits = format!("{:032x}", rand::random::<u128>());
    let uid = [
        &bits[..8],
        &bits[8..12],
        &bits[12..16],
        &bits[16..20],
        &bits[20..],
    ]
    .join("-");
    Fresh {
        uid,
        suffix: format!("{:05x}", rand::random::<u32>() & 0xf_ffff),
        now: SystemTime::now(),
    }
}

fn token() -> String {
    format!("fake-{:032x}", rand::random::<u128>())
}

/// Removes pods when their grace has passed; runs as long as the server.
pub(super) async fn kubelet(state: Arc<State>) {
    let mut revision = state.revision.subscribe();
    loop {
        let next = state.lock().store.next_end();
        let Some(next) = next else {
            if revision.changed().await.is_err() {
                return;
            }
            continue;
        };
        let left = next.duration_since(SystemTime::now()).unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep(left) => state.write(|store| store.expire(SystemTime::now())),
            _ = revision.changed() => {}
        }
    }
}
