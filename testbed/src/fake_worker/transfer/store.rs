//! The store that all workers share: which blocks of prompts are in it.
//!
//! In the memory of this process, for workers started in one test, or as empty files in a directory, for workers in
//! processes of their own. Nothing is ever removed; it takes no more when it is full.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use parking_lot::{Mutex, MutexGuard};

/// Blocks that the memory of a process takes.
const BLOCKS_MAX: usize = 1 << 20;

static SHARED: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(Mutex::default);

/// A way to the store.
#[derive(Debug, Clone)]
pub(in crate::fake_worker) struct Store {
    directory: Option<PathBuf>,
}

impl Store {
    pub(in crate::fake_worker) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    /// How many of these blocks, from the first on, are in the store.
    pub(in crate::fake_worker) fn matched(&self, chain: &[u64]) -> usize {
        let is_there = |block: &&u64| match &self.directory {
            Some(directory) => directory.join(name(**block)).exists(),
            None => shared().contains(*block),
        };
        chain.iter().take_while(is_there).count()
    }

    /// Puts blocks into it. Fails when the directory cannot be written.
    pub(in crate::fake_worker) fn save(&self, chain: &[u64]) -> std::io::Result<()> {
        let Some(directory) = &self.directory else {
            let mut shared = shared();
            let room = BLOCKS_MAX.saturating_sub(shared.len());
            shared.extend(chain.iter().take(room));
            return Ok(());
        };
        std::fs::create_dir_all(directory)?;
        let mut blocks = chain.iter();
        blocks.try_for_each(|block| std::fs::File::create(directory.join(name(*block))).map(drop))
    }
}

fn shared() -> MutexGuard<'static, HashSet<u64>> {
    SHARED.lock()
}

fn name(block: u64) -> String {
    format!("{block:016x}")
}
