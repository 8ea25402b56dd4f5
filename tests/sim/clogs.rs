//! Swizzle-clogging (FoundationDB): links are stopped one by one and restored in random order: G13.

use crate::invariants::agree;
use crate::network::Link;
use crate::probe::{LIMIT, SECOND, joined, quantile, setting, whole};
use crate::rng;

/// Seeds in one run, unless `SIM_CLOGS` asks for more.
const SEEDS: u64 = 5;
const FIRST: u64 = 4000;

#[test]
fn clogged_links_that_return_in_random_order_end_in_agreement() {
    let seeds = setting("SIM_CLOGS", SEEDS);
    let taken: Vec<_> = (FIRST..FIRST + seeds).map(swizzle).collect();
    println!(
        "G13: {seeds} seeds, equal digests after the last link: p50 {:?} p99 {:?} max {:?}",
        quantile(&taken, 0.5),
        quantile(&taken, 0.99),
        quantile(&taken, 1.0)
    );
}

fn swizzle(seed: u64) -> std::time::Duration {
    let mut cluster = joined(4, seed);
    let mut links: Vec<(usize, usize)> = (0..4)
        .flat_map(|a| (0..4).filter(move |&b| b != a).map(move |b| (a, b)))
        .collect();
    // Some links stay up.
    shuffle(&mut links);
    links.truncate(4 + rng::below(links.len() - 3));
    let mut number = 8000;
    for clog in [true, false] {
        shuffle(&mut links);
        for &(from, to) in &links {
            let link = Link {
                loss: if clog { 1.0 } else { 0.0 },
                ..Link::default()
            };
            let names = (format!("r{from}"), format!("r{to}"));
            cluster.link_faults().between(&names.0, &names.1, link);
            number += 1;
            let (id, _) = cluster.add_worker(rng::below(4), number);
            if rng::below(3) == 0 {
                let holder = (0..4).find(|&at| cluster.view(at).worker(&id).is_some());
                cluster.remove_worker(holder.expect("who added it has it"), &id);
            }
            cluster.run(SECOND * u32::try_from(rng::below(1500)).expect("small") / 1000);
        }
    }
    let taken = cluster.until("equal digests after the last link", LIMIT, agree);
    assert!(taken <= 2 * SECOND, "seed {seed}: {taken:?}");
    cluster.until("all alive again", LIMIT, whole);
    taken
}

/// Fisher and Yates.
fn shuffle<T>(items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, rng::below(at + 1));
    }
}
