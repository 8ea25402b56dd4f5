//! Which of many lists is the longest, while they grow and shrink by one entry at a time.
//!
//! A tree of matches: each list is a leaf, and each node above has the longer of the two below it. A change climbs only
//! as far as it changes who is ahead, so most of them end after a few steps, and none takes more than the tree has levels.

/// How long a list is, and which one it is. Of two that are equally long the later one is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Length {
    entries: u32,
    list: u32,
}

/// The lengths of lists that are numbered from 0 on.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    lists: u32,
    /// Node 1 is the top, and below node `n` are `2n` and `2n + 1`. The second half are the leaves, of which those
    /// without a list come last.
    nodes: Vec<Length>,
}

impl Lengths {
    /// One more list, which is empty.
    pub(super) fn add_list(&mut self) {
        let list = self.lists;
        self.lists += 1;
        if self.leaves() < self.lists as usize {
            self.widen();
        }
        self.set(Length { entries: 0, list });
    }

    /// The longest list, the last of them if several are; none if there is no list.
    pub(super) fn longest(&self) -> Option<u32> {
        self.nodes.get(1).map(|top| top.list)
    }

    /// The list has one entry more.
    pub(super) fn grow(&mut self, list: u32) {
        let entries = self.of(list) + 1;
        self.set(Length { entries, list });
    }

    /// The list, which is not empty, has one entry less.
    pub(super) fn shrink(&mut self, list: u32) {
        let entries = self.of(list) - 1;
        self.set(Length { entries, list });
    }

    fn of(&self, list: u32) -> u32 {
        self.nodes[self.leaves() + list as usize].entries
    }

    fn leaves(&self) -> usize {
        self.nodes.len() / 2
    }

    fn set(&mut self, length: Length) {
        let mut at = self.leaves() + length.list as usize;
        let mut ahead = length;
        // Node 0 is above the top, and nobody looks at it.
        while at > 0 && self.nodes[at] != ahead {
            self.nodes[at] = ahead;
            ahead = ahead.max(self.nodes[at ^ 1]);
            at /= 2;
        }
    }

    /// Room for all lists, which doubles it: on the whole, a list costs a few steps.
    fn widen(&mut self) {
        let leaves = self.nodes.split_off(self.leaves());
        let width = (self.lists as usize).next_power_of_two();
        self.nodes = vec![Length::default(); 2 * width];
        self.nodes[width..][..leaves.len()].copy_from_slice(&leaves);
        for at in (1..width).rev() {
            self.nodes[at] = self.nodes[2 * at].max(self.nodes[2 * at + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_longest_is_the_last_of_the_longest(
            steps in prop::collection::vec((0_u8..8, any::<prop::sample::Index>()), 0..400)
        ) {
            let (mut lengths, mut plain) = (Lengths::default(), Vec::<u32>::new());
            for (step, which) in steps {
                let list = (!plain.is_empty()).then(|| which.index(plain.len()));
                match (step, list) {
                    (0, _) | (_, None) => {
                        plain.push(0);
                        lengths.add_list();
                    }
                    (1..=3, Some(list)) if plain[list] > 0 => {
                        plain[list] -= 1;
                        lengths.shrink(list as u32);
                    }
                    (_, Some(list)) => {
                        plain[list] += 1;
                        lengths.grow(list as u32);
                    }
                }
                let longest = (0_u32..).zip(&plain).max_by_key(|&(_, entries)| entries);
                prop_assert_eq!(lengths.longest(), longest.map(|(list, _)| list));
            }
        }
    }

    #[test]
    fn without_lists_none_is_the_longest() {
        assert_eq!(Lengths::default().longest(), None);
    }
}
