//! Decides what happens to a packet between two replicas. Pure: time and randomness are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng;

use crate::chaos::fault::Link;

/// Extra delay of a packet that later ones are to overtake.
const HELD_BACK: Duration = Duration::from_millis(40);

/// The state of all links between replicas, which are named by their numbers.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// No packet passes from the first to the second.
    cuts: BTreeSet<(usize, usize)>,
    isolated: BTreeSet<usize>,
    impaired: BTreeMap<usize, Link>,
}

/// Delays after which copies of a packet are sent on; none: the packet is lost.
pub(super) type Copies = [Option<Duration>; 2];

impl Links {
    pub(super) fn cut(&mut self, from: usize, to: usize, one_way: bool) {
        self.cuts.insert((from, to));
        if !one_way {
            self.cuts.insert((to, from));
        }
    }

    pub(super) fn isolate(&mut self, replica: usize) {
        self.isolated.insert(replica);
    }

    /// Replaces the state of this replica's links.
    pub(super) fn impair(&mut self, replica: usize, link: Link) {
        self.impaired.insert(replica, link);
    }

    pub(super) fn heal(&mut self) {
        *self = Self::default();
    }

    /// Copies of one packet. `None` stands for an address that belongs to no replica (yet); the links of the
    /// other end decide.
    pub(super) fn copies(
        &self,
        from: Option<usize>,
        to: Option<usize>,
        random: &mut impl Rng,
    ) -> Copies {
        let ends = [from, to];
        let ends = ends.iter().flatten();
        let is_cut =
            matches!((from, to), (Some(from), Some(to)) if self.cuts.contains(&(from, to)));
        if is_cut || ends.clone().any(|end| self.isolated.contains(end)) {
            return [None; 2];
        }
        let mut delay = Duration::ZERO;
        let mut twice = false;
        for link in ends.filter_map(|end| self.impaired.get(end)) {
            if random.random_bool(link.loss) {
                return [None; 2];
            }
            let jitter = link.jitter.mul_f64(2.0 * random.random::<f64>());
            delay += (link.delay + jitter).saturating_sub(link.jitter);
            if random.random_bool(link.reorder) {
                delay += HELD_BACK;
            }
            twice |= random.random_bool(link.duplicate);
        }
        [Some(delay), twice.then_some(delay)]
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const WHOLE: Copies = [Some(Duration::ZERO), None];
    const LOST: Copies = [None; 2];

    fn random() -> StdRng {
        StdRng::seed_from_u64(7)
    }

    #[test]
    fn a_cut_concerns_its_own_direction_alone() {
        let mut links = Links::default();
        links.cut(1, 2, true);
        let copies = |links: &Links, from, to| links.copies(Some(from), Some(to), &mut random());
        assert_eq!(copies(&links, 1, 2), LOST);
        assert_eq!(copies(&links, 2, 1), WHOLE);
        assert_eq!(copies(&links, 1, 3), WHOLE);
        links.cut(2, 3, false);
        assert_eq!(copies(&links, 3, 2), LOST);
        links.heal();
        for pair in [(1, 2), (2, 3), (3, 2)] {
            assert_eq!(copies(&links, pair.0, pair.1), WHOLE);
        }
    }

    #[test]
    fn an_isolated_replica_is_cut_from_all_others_and_from_strangers() {
        let mut links = Links::default();
        links.isolate(2);
        for ends in [
            (Some(1), Some(2)),
            (Some(2), Some(3)),
            (None, Some(2)),
            (Some(2), None),
        ] {
            assert_eq!(links.copies(ends.0, ends.1, &mut random()), LOST);
        }
        assert_eq!(links.copies(Some(1), Some(3), &mut random()), WHOLE);
    }

    #[test]
    fn shares_and_delays_are_as_asked_for() {
        let mut links = Links::default();
        let link = Link {
            loss: 0.2,
            delay: Duration::from_millis(200),
            jitter: Duration::from_millis(150),
            reorder: 0.1,
            duplicate: 0.3,
        };
        links.impair(1, link);
        let mut random = random();
        let all: Vec<Copies> = (0..10_000)
            .map(|_| links.copies(Some(1), Some(2), &mut random))
            .collect();
        let share = |count: usize, of: usize| count as f64 / of as f64;
        let arrived: Vec<_> = all.iter().filter_map(|copies| copies[0]).collect();
        assert!((share(arrived.len(), all.len()) - 0.8).abs() < 0.02);
        let twice = all.iter().filter(|copies| copies[1].is_some()).count();
        assert!((share(twice, arrived.len()) - 0.3).abs() < 0.02);
        let range = Duration::from_millis(50)..=Duration::from_millis(350) + HELD_BACK;
        assert!(arrived.iter().all(|delay| range.contains(delay)));
        let late = arrived.iter().filter(|d| **d > Duration::from_millis(350));
        assert!(late.count() > 0, "some are held back");
        assert_eq!(links.copies(Some(2), Some(3), &mut random), WHOLE);
    }

    #[test]
    fn the_links_of_both_ends_count() {
        let mut links = Links::default();
        let slow = |ms| Link {
            delay: Duration::from_millis(ms),
            ..Link::default()
        };
        links.impair(1, slow(10));
        links.impair(2, slow(20));
        let copies = links.copies(Some(1), Some(2), &mut random());
        assert_eq!(copies, [Some(Duration::from_millis(30)), None]);
    }
}
