//! The index against maps and sets that say the same slowly.

use std::collections::{BTreeMap, BTreeSet};

use grapevine_kv_events::index::{Holder, Index, Limits, PARTS, Search, StoreResult, digest_of};
use grapevine_kv_events::{BlockHash, Tier};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Open,
    Close(usize),
    Store(usize, Tier, u64),
    Remove(usize, Tier, u64),
    Sweep(usize),
}

/// Few blocks, so that holders share them; names in steps, so that they are no small numbers alone.
fn block(number: u64) -> BlockHash {
    BlockHash(number.wrapping_mul(0x1_0000_0001))
}

fn op(holders: usize, blocks: u64) -> impl Strategy<Value = Op> {
    let tier =
        || prop_oneof![4 => Just(Tier::Gpu), 1 => Just(Tier::Host), 1 => Just(Tier::Storage)];
    prop_oneof![
        2 => Just(Op::Open),
        1 => (0..holders).prop_map(Op::Close),
        30 => (0..holders, tier(), 0..blocks).prop_map(|(h, t, b)| Op::Store(h, t, b)),
        15 => (0..holders, tier(), 0..blocks).prop_map(|(h, t, b)| Op::Remove(h, t, b)),
        1 => (1..300_usize).prop_map(Op::Sweep),
    ]
}

#[derive(Default)]
struct Model {
    /// Copies by tier and block.
    open: BTreeMap<Holder, BTreeMap<(Tier, u64), u32>>,
    holders: Vec<Holder>,
}

impl Model {
    fn step(&mut self, op: &Op, index: &mut Index) {
        let at = |at: usize| self.holders.get(at % self.holders.len().max(1)).copied();
        match *op {
            Op::Open => {
                if let Some(holder) = index.open() {
                    assert!(self.open.insert(holder, BTreeMap::new()).is_none());
                    self.holders.push(holder);
                }
            }
            Op::Close(one) => {
                if let Some(holder) = at(one) {
                    index.close(holder);
                    self.open.remove(&holder);
                }
            }
            Op::Store(one, tier, number) => {
                let Some(holder) = at(one) else { return };
                let result = index.store(holder, tier, block(number));
                let expected = match self.open.get_mut(&holder) {
                    None => StoreResult::Full,
                    Some(blocks) => {
                        let copies = blocks.entry((tier, number)).or_default();
                        *copies += 1;
                        if *copies == 1 {
                            StoreResult::Stored
                        } else {
                            StoreResult::Copy
                        }
                    }
                };
                assert_eq!(result, expected);
            }
            Op::Remove(one, tier, number) => {
                let Some(holder) = at(one) else { return };
                index.remove(holder, tier, block(number));
                if let Some(blocks) = self.open.get_mut(&holder)
                    && let Some(copies) = blocks.get_mut(&(tier, number))
                {
                    *copies -= 1;
                    if *copies == 0 {
                        blocks.remove(&(tier, number));
                    }
                }
            }
            Op::Sweep(parts) => index.sweep(parts),
        }
    }

    fn check(&self, index: &Index, chain: &[u64], search: &mut Search) {
        for (holder, blocks) in &self.open {
            let all = blocks.keys().map(|(tier, number)| (*tier, block(*number)));
            assert_eq!(index.digest(*holder), digest_of(all));
            for tier in Tier::ALL {
                let held = blocks.keys().filter(|(of, _)| *of == tier).count();
                assert_eq!(index.held(*holder, tier) as usize, held);
                for number in 0..20 {
                    let has = blocks.contains_key(&(tier, number));
                    assert_eq!(index.has(*holder, tier, block(number)), has);
                }
            }
        }
        let mut visited: BTreeMap<usize, BTreeSet<(Tier, BlockHash)>> = BTreeMap::new();
        for part in 0..PARTS {
            index.visit(part, |holder, tier, block| {
                assert!(visited.entry(holder).or_default().insert((tier, block)));
            });
        }
        for (holder, blocks) in &self.open {
            let own = blocks.keys().map(|(tier, number)| (*tier, block(*number)));
            let told = visited.remove(&holder.number()).unwrap_or_default();
            assert_eq!(told, own.collect());
            let several = blocks.iter().filter(|(_, copies)| **copies > 1);
            let several =
                several.map(|((tier, number), copies)| (*tier, block(*number), copies - 1));
            let told: BTreeSet<_> = index.copies(*holder).collect();
            assert_eq!(told, several.collect());
        }
        assert!(visited.is_empty(), "of closed ones");
        let mut alone = Vec::new();
        (0..PARTS).for_each(|part| index.count_alone(part, &mut alone));
        for (holder, blocks) in &self.open {
            let own: BTreeSet<_> = blocks.keys().map(|(_, number)| *number).collect();
            let others = self.open.iter().filter(|(other, _)| *other != holder);
            let others: BTreeSet<_> = others
                .flat_map(|(_, blocks)| blocks.keys().map(|(_, number)| *number))
                .collect();
            let told = alone.get(holder.number()).copied().unwrap_or(0);
            assert_eq!(told as usize, own.difference(&others).count());
        }
        let names: Vec<_> = chain.iter().map(|number| block(*number)).collect();
        let found: BTreeMap<_, _> = index
            .search(&names, search)
            .iter()
            .map(|found| (found.holder, (found.blocks, found.by_tier)))
            .collect();
        let mut expected = BTreeMap::new();
        for (holder, blocks) in &self.open {
            let tier_of = |number: u64| {
                Tier::ALL
                    .into_iter()
                    .find(|t| blocks.contains_key(&(*t, number)))
            };
            let mut by_tier = [0; 3];
            let run: Vec<_> = chain.iter().map_while(|number| tier_of(*number)).collect();
            run.iter().for_each(|tier| by_tier[*tier as usize] += 1);
            if !run.is_empty() {
                expected.insert(*holder, (run.len() as u32, by_tier));
            }
        }
        assert_eq!(found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn it_says_what_maps_and_sets_say(
        ops in prop::collection::vec(op(80, 40), 1..400),
        chain in prop::collection::vec(0..40_u64, 0..70),
        seed in any::<u64>(),
    ) {
        let mut index = Index::new(Limits::default(), seed);
        let (mut model, mut search) = (Model::default(), Search::default());
        for (at, op) in ops.iter().enumerate() {
            model.step(op, &mut index);
            if at % 50 == 0 {
                model.check(&index, &chain, &mut search);
            }
        }
        model.check(&index, &chain, &mut search);
        // Once nobody is left, nothing is.
        model.open.keys().for_each(|holder| index.close(*holder));
        index.sweep(256);
        prop_assert_eq!(index.blocks(), 0);
    }
}

#[test]
fn many_holders_share_a_chain_and_each_part_of_it_is_found() {
    let mut index = Index::new(Limits::default(), 7);
    let chain: Vec<_> = (0..1_000).map(block).collect();
    let holders: Vec<_> = (0..240).map(|_| index.open().expect("room")).collect();
    for (at, holder) in holders.iter().enumerate() {
        for block in &chain[..at * 4] {
            assert_eq!(index.store(*holder, Tier::Gpu, *block), StoreResult::Stored);
        }
    }
    let mut search = Search::default();
    let found: BTreeMap<_, _> = index
        .search(&chain, &mut search)
        .iter()
        .map(|found| (found.holder, found.blocks as usize))
        .collect();
    assert_eq!(found.len(), 239, "the first one has nothing");
    for (at, holder) in holders.iter().enumerate().skip(1) {
        assert_eq!(found[holder], at * 4);
    }
}

#[test]
fn at_its_limit_it_refuses_new_blocks_and_keeps_what_it_has() {
    let limits = Limits {
        bytes: 300_000,
        ..Limits::default()
    };
    let mut index = Index::new(limits, 7);
    let holders = [(); 70].map(|()| index.open().expect("room"));
    let mut stored = BTreeSet::new();
    let mut refused = 0;
    for number in 0..40_000_u64 {
        let holder = (number % 70) as usize;
        for holder in [holder, (holder + 1) % 70] {
            match index.store(holders[holder], Tier::Gpu, block(number)) {
                StoreResult::Stored => assert!(stored.insert((holder, number))),
                StoreResult::Full => refused += 1,
                StoreResult::Copy => panic!("a block of its own"),
            }
        }
        assert!(index.bytes() <= limits.bytes, "{}", index.bytes());
    }
    assert!(
        refused > 10_000 && stored.len() > 5_000,
        "{refused} {}",
        stored.len()
    );
    for (holder, number) in &stored {
        assert!(index.has(holders[*holder], Tier::Gpu, block(*number)));
    }
    // What is removed makes room again.
    let (holder, number) = *stored.first().expect("some");
    index.remove(holders[holder], Tier::Gpu, block(number));
    let again = index.store(holders[holder], Tier::Gpu, block(number));
    assert_eq!(again, StoreResult::Stored);
    // So does all of a holder that is closed, before anything of another one is refused.
    let newcomer = holders[1];
    holders
        .iter()
        .filter(|holder| **holder != newcomer)
        .for_each(|holder| index.close(*holder));
    for number in 50_000..53_000 {
        let result = index.store(newcomer, Tier::Gpu, block(number));
        assert_eq!(result, StoreResult::Stored, "{number}");
    }
}

#[test]
fn numbers_of_closed_holders_are_used_again_after_the_sweep() {
    let limits = Limits {
        holders: 3,
        ..Limits::default()
    };
    let mut index = Index::new(limits, 7);
    let first = [(); 3].map(|()| index.open().expect("room"));
    assert_eq!(index.open(), None);
    index.store(first[1], Tier::Gpu, block(1));
    index.close(first[1]);
    let next = index.open().expect("room again");
    assert_ne!(next, first[1]);
    assert!(!index.has(next, Tier::Gpu, block(1)) && !index.has(first[1], Tier::Gpu, block(1)));
    assert_eq!(
        index.store(first[1], Tier::Gpu, block(2)),
        StoreResult::Full
    );
}

#[test]
fn copies_beyond_their_limit_count_as_one_so_that_nothing_is_claimed_that_is_gone() {
    let limits = Limits {
        copies: 1,
        ..Limits::default()
    };
    let mut index = Index::new(limits, 7);
    let holder = index.open().expect("room");
    for number in [1, 2] {
        index.store(holder, Tier::Gpu, block(number));
        assert_eq!(
            index.store(holder, Tier::Gpu, block(number)),
            StoreResult::Copy
        );
    }
    for number in [1, 2] {
        index.remove(holder, Tier::Gpu, block(number));
        // The one has a copy left, the other one may have.
        assert_eq!(index.has(holder, Tier::Gpu, block(number)), number == 1);
    }
}

#[test]
fn copies_that_are_told_at_once_are_as_if_each_had_been_stored() {
    let limits = Limits {
        copies: 2,
        ..Limits::default()
    };
    let mut index = Index::new(limits, 7);
    let [one, other] = [(); 2].map(|()| index.open().expect("room"));
    for holder in [one, other] {
        index.store(holder, Tier::Gpu, block(1));
    }
    index.store_copies(one, Tier::Gpu, block(1), 2);
    index.store_copies(one, Tier::Gpu, block(1), u32::MAX);
    index.store_copies(other, Tier::Gpu, block(1), 0);
    // What it does not have has no copies.
    index.store_copies(one, Tier::Host, block(1), 1);
    index.store_copies(one, Tier::Gpu, block(2), 1);
    let copies: Vec<_> = index.copies(one).collect();
    assert_eq!(copies, [(Tier::Gpu, block(1), u32::MAX)]);
    assert_eq!((index.held(one, Tier::Gpu), index.blocks()), (1, 1));
    index.remove(other, Tier::Gpu, block(1));
    assert!(!index.has(other, Tier::Gpu, block(1)));
    index.store_copies(other, Tier::Gpu, block(1), 1);
    for left in [true, false] {
        // Of two copies both are removed.
        index.store(other, Tier::Gpu, block(3));
        index.store_copies(other, Tier::Gpu, block(3), u32::from(left));
        index.remove(other, Tier::Gpu, block(3));
        assert_eq!(index.has(other, Tier::Gpu, block(3)), left);
        index.remove(other, Tier::Gpu, block(3));
    }
    index.close(one);
    index.store_copies(one, Tier::Gpu, block(1), 1);
    assert_eq!(index.copies(one).count(), 0);
}

#[test]
fn a_search_that_is_used_again_remembers_no_tiers() {
    let (mut index, mut search) = (Index::new(Limits::default(), 3), Search::default());
    let holder = index.open().expect("room");
    index.store(holder, Tier::Host, block(1));
    let found = index.search(&[block(1)], &mut search);
    assert_eq!(found[0].by_tier, [0, 1, 0]);
    index.remove(holder, Tier::Host, block(1));
    index.store(holder, Tier::Gpu, block(1));
    let found = index.search(&[block(1)], &mut search);
    assert_eq!(found[0].by_tier, [1, 0, 0]);
}
