//! Blocks that a worker keeps for others, and what became of those before.
//!
//! A hold begins when a prompt is computed and ends when its blocks were read, expired, or were lost in a restart. The
//! blocks occupy the engine's cache all that time. Bounded by the cache; the history by [`HISTORY_MAX`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::plan::Told;
use crate::fake_worker::pacer::Kept;

/// Ended holds that are remembered.
const HISTORY_MAX: usize = 10_000;
/// Parcels that wait for their request.
const INBOX_MAX: usize = 1_000;

/// What became of kept blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    /// They are kept.
    Held,
    /// The other worker read them, and they are free.
    Read,
    /// The other worker gave them up unread, and they are free.
    Released,
    /// Nobody came in time.
    Expired,
    /// The worker was restarted.
    Lost,
}

/// Blocks of one prompt that a worker kept for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Name by which the other worker asks for them.
    pub key: String,
    /// `x-request-id` of the leg that computed them.
    pub request_id: Option<String>,
    /// Engine of the worker that computed them.
    pub engine_id: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// Block ids.
    pub blocks: Vec<u64>,
    /// Prompt tokens.
    pub tokens: u32,
    /// Hash of the prompt, so that a reader notices blocks of another one.
    pub content: u64,
    /// The only reader that they fit.
    #[serde(skip)]
    pub(in crate::fake_worker) reader: Option<Told>,
    /// What became of them.
    pub state: HoldState,
}

/// Keys and values that a prefill worker sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fake_worker) struct Parcel {
    pub(in crate::fake_worker) blocks: u32,
    pub(in crate::fake_worker) content: u64,
}

/// A hold and what ends with it.
struct Shelved {
    hold: Hold,
    /// Dropped with the hold: the blocks become free.
    _kept: Kept,
    _expiry: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct State {
    engine_ids: Vec<String>,
    held: HashMap<String, Shelved>,
    history: VecDeque<Hold>,
    /// What prefill workers sent and nobody has taken.
    inbox: VecDeque<(String, Parcel)>,
    /// Engines of other workers with which this one has shaken hands.
    known: HashSet<String>,
    next_block: u64,
    expired: u64,
}

/// The blocks that one worker keeps.
pub(in crate::fake_worker) struct Shelf {
    state: Mutex<State>,
    changed: Notify,
    /// Block ids stay below it.
    blocks: u64,
}

impl Shelf {
    /// An empty one for `ranks` engines, with `blocks` blocks each.
    pub(in crate::fake_worker) fn new(ranks: u32, blocks: u32) -> Arc<Self> {
        let state = State {
            engine_ids: engine_ids(ranks),
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            blocks: u64::from(blocks.max(2)),
        })
    }

    /// Ids of all engines, by rank.
    pub(in crate::fake_worker) fn engine_ids(&self) -> Vec<String> {
        self.state.lock().engine_ids.clone()
    }

    pub(in crate::fake_worker) fn engine_id(&self, rank: u32) -> String {
        let state = self.state.lock();
        state.engine_ids[rank as usize % state.engine_ids.len()].clone()
    }

    /// Rank of an engine, if it is one of this worker.
    pub(in crate::fake_worker) fn rank_of(&self, engine_id: &str) -> Option<u32> {
        let state = self.state.lock();
        let at = state.engine_ids.iter().position(|id| id == engine_id)?;
        u32::try_from(at).ok()
    }

    /// Ids for so many new blocks.
    pub(in crate::fake_worker) fn block_ids(&self, count: u32) -> Vec<u64> {
        let mut state = self.state.lock();
        let first = state.next_block;
        state.next_block += u64::from(count);
        // Block 0 is vLLM's null block.
        let id = |n: u64| 1 + (first + n) % (self.blocks - 1);
        (0..u64::from(count)).map(id).collect()
    }

    /// Keeps blocks for at most `limit`. Older blocks under the same key are given up.
    pub(in crate::fake_worker) fn keep(self: &Arc<Self>, hold: Hold, kept: Kept, limit: Duration) {
        let key = hold.key.clone();
        let shelf = Arc::downgrade(self);
        // Before the expiry begins, which must find what it is for.
        let mut state = self.state.lock();
        let expiry = tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            if let Some(shelf) = shelf.upgrade() {
                shelf.free(&key, HoldState::Expired);
            }
        });
        let shelved = Shelved {
            hold,
            _kept: kept,
            _expiry: AbortOnDropHandle::new(expiry),
        };
        let key = shelved.hold.key.clone();
        if let Some(older) = state.held.insert(shelved.hold.key.clone(), shelved) {
            state.remember(older, HoldState::Released);
        }
        drop(state);
        if limit.is_zero() {
            self.free(&key, HoldState::Expired);
        }
        self.changed.notify_waiters();
    }

    /// What is kept under a key.
    pub(in crate::fake_worker) fn find(&self, key: &str) -> Option<Hold> {
        self.state
            .lock()
            .held
            .get(key)
            .map(|kept| kept.hold.clone())
    }

    /// The same, waiting until it is computed.
    pub(in crate::fake_worker) async fn wait_for(&self, key: &str) -> Hold {
        loop {
            let changed = self.changed.notified();
            if let Some(hold) = self.find(key) {
                return hold;
            }
            changed.await;
        }
    }

    /// Waits until nothing is kept under a key; the last state of what was.
    pub(in crate::fake_worker) async fn gone(&self, key: &str) -> Option<HoldState> {
        loop {
            let changed = self.changed.notified();
            if self.find(key).is_none() {
                let state = self.state.lock();
                let mut ended = state.history.iter().rev();
                return ended.find(|hold| hold.key == key).map(|hold| hold.state);
            }
            changed.await;
        }
    }

    /// Takes in what a prefill worker sent; the oldest goes when there is too much.
    pub(in crate::fake_worker) fn deliver(&self, key: String, parcel: Parcel) {
        let mut state = self.state.lock();
        if state.inbox.len() >= INBOX_MAX {
            state.inbox.pop_front();
        }
        state.inbox.push_back((key, parcel));
        drop(state);
        self.changed.notify_waiters();
    }

    fn take_delivered(&self, key: &str) -> Option<Parcel> {
        let mut state = self.state.lock();
        let at = state.inbox.iter().position(|(found, _)| found == key)?;
        state.inbox.remove(at).map(|(_, parcel)| parcel)
    }

    /// Waits for what is sent under a key, and takes it out.
    pub(in crate::fake_worker) async fn delivered(&self, key: &str) -> Parcel {
        loop {
            let changed = self.changed.notified();
            if let Some(parcel) = self.take_delivered(key) {
                return parcel;
            }
            changed.await;
        }
    }

    /// Frees what is kept under a key; false if nothing is.
    pub(in crate::fake_worker) fn free(&self, key: &str, how: HoldState) -> bool {
        let mut state = self.state.lock();
        let found = state.held.remove(key);
        let is_found = found.is_some();
        if let Some(kept) = found {
            state.expired += u64::from(how == HoldState::Expired);
            state.remember(kept, how);
        }
        drop(state);
        self.changed.notify_waiters();
        is_found
    }

    /// Everything that is kept expires now; how many holds that were.
    pub(in crate::fake_worker) fn expire_all(&self) -> usize {
        let keys: Vec<String> = self.state.lock().held.keys().cloned().collect();
        let expired = |key: &&String| self.free(key, HoldState::Expired);
        keys.iter().filter(expired).count()
    }

    /// As after a restart: new engine ids, nothing kept, nobody known.
    pub(in crate::fake_worker) fn restart(&self) {
        let keys: Vec<String> = self.state.lock().held.keys().cloned().collect();
        for key in keys {
            self.free(&key, HoldState::Lost);
        }
        let mut state = self.state.lock();
        let ranks = state.engine_ids.len() as u32;
        state.engine_ids = engine_ids(ranks);
        state.known.clear();
        state.inbox.clear();
        state.next_block = 0;
    }

    /// Remembers that a handshake with this engine worked.
    pub(in crate::fake_worker) fn know(&self, engine_id: &str) {
        self.state.lock().known.insert(engine_id.to_owned());
    }

    pub(in crate::fake_worker) fn knows(&self, engine_id: &str) -> bool {
        self.state.lock().known.contains(engine_id)
    }

    /// Holds that expired since the start.
    pub(in crate::fake_worker) fn expired(&self) -> u64 {
        self.state.lock().expired
    }

    /// All holds: ended ones first, in the order in which they ended.
    pub(in crate::fake_worker) fn holds(&self) -> Vec<Hold> {
        let state = self.state.lock();
        let held = state.held.values().map(|kept| kept.hold.clone());
        state.history.iter().cloned().chain(held).collect()
    }
}

impl State {
    fn remember(&mut self, mut kept: Shelved, state: HoldState) {
        kept.hold.state = state;
        if self.history.len() >= HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(kept.hold.clone());
    }
}

/// New ids: a random UUID; with several ranks the rank behind it, as vLLM writes it.
fn engine_ids(ranks: u32) -> Vec<String> {
    let hex = format!("{:032x}", rand::random::<u128>());
    let uuid = format!(
        "{}-{}-4{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..]
    );
    match ranks {
        0 | 1 => vec![uuid],
        _ => (0..ranks).map(|rank| format!("{uuid}_dp{rank}")).collect(),
    }
}
