//! Store: the hot prompts in memory. Bounded in entries and bytes; the coldest give way.
//!
//! Pure: how hot a prefix is comes from the hot set at each call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grapevine_placement::HotSet;

use super::prompt::HotPrompt;

/// Prefixes that cannot be kept, and are not tried again soon.
const REFUSED_MAX: usize = 1_024;

/// Hot prompts by the mark at which their warm part ends.
pub(super) struct Store {
    entries_max: usize,
    bytes_max: usize,
    prompts: BTreeMap<u64, Arc<HotPrompt>>,
    bytes: usize,
    refused: BTreeSet<u64>,
    /// While it is full: how hot the coldest is. What is no hotter need not be looked at.
    floor: u64,
}

impl Store {
    pub(super) fn new(entries_max: usize, bytes_max: usize) -> Self {
        Self {
            entries_max,
            bytes_max,
            prompts: BTreeMap::new(),
            bytes: 0,
            refused: BTreeSet::new(),
            floor: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.prompts.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a prefix of this heat would be kept and is not yet.
    pub(super) fn wants(&self, mark: u64, heat: u64) -> bool {
        heat > self.floor && !self.prompts.contains_key(&mark) && !self.refused.contains(&mark)
    }

    /// Notes that a prefix cannot be kept.
    pub(super) fn refuse(&mut self, mark: u64) {
        if self.refused.len() == REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert(mark);
    }

    /// Keeps a prompt if there is room, or colder ones can make it. Returns which of the two, for the counter.
    pub(super) fn keep(&mut self, prompt: HotPrompt, hot: &HotSet) -> &'static str {
        let (mark, bytes) = (prompt.mark, prompt.bytes());
        let heat = hot.count(mark);
        if bytes > self.bytes_max {
            self.refuse(mark);
            return "too_large";
        }
        if self.prompts.contains_key(&mark) {
            return "kept_already";
        }
        let Some(colder) = self.colder_for(bytes, heat, hot) else {
            return "no_room";
        };
        let evicted = !colder.is_empty();
        for coldest in colder {
            self.remove(coldest);
        }
        self.bytes += bytes;
        self.prompts.insert(mark, Arc::new(prompt));
        if evicted { "kept_for_a_colder" } else { "kept" }
    }

    /// The prompts that have to go for one of so many bytes and this heat, the coldest first; none where one of them is not
    /// colder, so that none goes in vain.
    fn colder_for(&mut self, bytes: usize, heat: u64, hot: &HotSet) -> Option<Vec<u64>> {
        let (mut count, mut sum, mut colder) = (self.prompts.len(), self.bytes, Vec::new());
        let is_full = |count, sum| count >= self.entries_max || sum + bytes > self.bytes_max;
        if !is_full(count, sum) {
            return Some(colder);
        }
        let mut all: Vec<(u64, u64, usize)> = self
            .prompts
            .iter()
            .map(|(&mark, prompt)| (hot.count(mark), mark, prompt.bytes()))
            .collect();
        all.sort_unstable();
        self.floor = all.first().map_or(0, |(least, ..)| *least);
        let is_full = |count, sum| count >= self.entries_max || sum + bytes > self.bytes_max;
        for (least, mark, freed) in all {
            if !is_full(count, sum) {
                break;
            }
            if least >= heat {
                return None;
            }
            (count, sum) = (count - 1, sum - freed);
            colder.push(mark);
        }
        Some(colder)
    }

    /// Forgets prompts whose prefix is not warm any more; returns how many.
    pub(super) fn forget_cooled(&mut self, hot: &HotSet) -> usize {
        let before = self.prompts.len();
        self.prompts.retain(|&mark, _| hot.count(mark) > 0);
        self.bytes = self.prompts.values().map(|prompt| prompt.bytes()).sum();
        self.refused.retain(|&mark| hot.count(mark) > 0);
        let is_full = self.prompts.len() >= self.entries_max || self.bytes * 8 > self.bytes_max * 7;
        let coldest = self.coldest(hot).filter(|_| is_full);
        self.floor = coldest.map_or(0, |(_, heat)| heat);
        before - self.prompts.len()
    }

    /// Forgets everything; returns how many prompts there were.
    pub(super) fn forget_all(&mut self) -> usize {
        let before = self.prompts.len();
        self.prompts = Default::default();
        self.refused = Default::default();
        (self.bytes, self.floor) = (0, 0);
        before
    }

    /// Whether there is a prompt for one of these models; for any, if there are none.
    pub(super) fn has_any_of(&self, models: &[String]) -> bool {
        let is_served = |prompt: &Arc<HotPrompt>| {
            models.is_empty() || models.iter().any(|model| **model == *prompt.model)
        };
        self.prompts.values().any(is_served)
    }

    /// All prompts, the hottest first; of equal heat, the longest.
    pub(super) fn hottest(&self, hot: &HotSet) -> Vec<Arc<HotPrompt>> {
        let mut prompts: Vec<_> = self.prompts.values().map(Arc::clone).collect();
        let tokens = |prompt: &HotPrompt| prompt.key.prompt_tokens();
        prompts.sort_by_key(|p| std::cmp::Reverse((hot.count(p.mark), tokens(p))));
        prompts
    }

    fn coldest(&self, hot: &HotSet) -> Option<(u64, u64)> {
        let heats = self.prompts.keys().map(|&mark| (mark, hot.count(mark)));
        heats.min_by_key(|&(_, heat)| heat)
    }

    fn remove(&mut self, mark: u64) {
        if let Some(prompt) = self.prompts.remove(&mark) {
            self.bytes -= prompt.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use grapevine_placement::{HeatReport, KeyBuilder, KeySettings};

    use super::*;
    use crate::api::Endpoint;

    fn prompt(mark: u64, bytes: usize) -> HotPrompt {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        builder.text("short");
        HotPrompt {
            mark,
            model: "m".into(),
            endpoint: Endpoint::Completions,
            body: Bytes::from(vec![b' '; bytes]),
            key: builder.finish(),
        }
    }

    fn hot(counts: &[(u64, u32)]) -> HotSet {
        HotSet::sum([&HeatReport {
            version: 1,
            counts: counts.to_vec(),
            total: 0,
        }])
    }

    #[test]
    fn memory_is_bounded() {
        let warm = hot(&[(1, 10), (2, 20), (3, 30), (4, 40)]);
        let mut store = Store::new(2, 1 << 20);
        assert_eq!(store.keep(prompt(2, 100), &warm), "kept");
        assert_eq!(store.keep(prompt(2, 100), &warm), "kept_already");
        assert_eq!(store.keep(prompt(1, 100), &warm), "kept");
        assert_eq!(store.keep(prompt(3, 100), &warm), "kept_for_a_colder");
        assert_eq!(store.keep(prompt(1, 100), &warm), "no_room");
        assert!(!store.wants(1, 10), "no hotter than the coldest");
        assert!(!store.wants(3, 30), "kept already");
        assert!(store.wants(4, 40));
        let marks: Vec<u64> = store.hottest(&warm).iter().map(|p| p.mark).collect();
        assert_eq!(marks, [3, 2]);
        assert_eq!(store.forget_all(), 2);
        assert_eq!((store.len(), store.bytes()), (0, 0));
        assert!(store.wants(1, 10), "as at first");

        let mut store = Store::new(100, 1_000);
        assert_eq!(store.keep(prompt(1, 2_000), &warm), "too_large");
        assert!(!store.wants(1, 10), "not tried again");
        for mark in 2..=4 {
            store.keep(prompt(mark, 500), &warm);
            assert!(store.bytes() <= 1_000, "{}", store.bytes());
        }
        let marks: Vec<u64> = store.hottest(&warm).iter().map(|p| p.mark).collect();
        assert_eq!(marks, [4]);
        // What would not make room enough stays.
        let each = prompt(1, 3_000).bytes();
        let mut store = Store::new(100, 3 * each);
        let warm = hot(&[(1, 10), (2, 20), (3, 30), (4, 50)]);
        for mark in [1, 2, 4] {
            assert_eq!(store.keep(prompt(mark, 3_000), &warm), "kept");
        }
        assert_eq!(store.keep(prompt(3, 7_000), &warm), "no_room");
        assert_eq!((store.len(), store.bytes()), (3, 3 * each));
        assert!(
            store.wants(5, 40),
            "a small one would take the coldest one's place"
        );
        assert_eq!(store.keep(prompt(3, 6_000), &warm), "kept_for_a_colder");
        assert_eq!(store.len(), 2);
        for mark in 0..5_000 {
            store.refuse(mark);
            assert!(store.refused.len() <= REFUSED_MAX);
        }
    }

    #[test]
    fn what_cooled_is_forgotten() {
        let mut store = Store::new(2, 1 << 20);
        let warm = hot(&[(1, 10), (2, 20)]);
        store.keep(prompt(1, 100), &warm);
        store.keep(prompt(2, 100), &warm);
        store.refuse(7);
        store.forget_cooled(&warm);
        assert!(!store.wants(3, 10) && store.wants(3, 11), "full");
        assert!(store.has_any_of(&[]) && store.has_any_of(&["x".into(), "m".into()]));
        assert!(!store.has_any_of(&["x".into()]));
        assert_eq!(store.forget_cooled(&hot(&[(2, 20)])), 1);
        assert_eq!(store.len(), 1);
        assert!(store.wants(3, 1), "there is room again");
        assert_eq!(store.forget_cooled(&HotSet::EMPTY), 1);
        assert_eq!((store.len(), store.bytes()), (0, 0));
        assert!(!store.has_any_of(&[]));
    }
}
