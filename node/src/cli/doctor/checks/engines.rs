//! One engine that is there as several workers: it gets the share of all of them, and its cache is counted as often.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::cli::doctor::facts::EngineFact;
use crate::cli::doctor::finding::Finding;
use crate::shown::words::named;

/// What tells two engines apart, beside their ranks: address and path.
type Place<'a> = (SocketAddr, &'a str);

pub(super) fn check(engines: &[EngineFact], found: &mut Vec<Finding>) {
    let mut at: BTreeMap<Place<'_>, Vec<&EngineFact>> = BTreeMap::new();
    for engine in engines {
        for address in &engine.addresses {
            let place = (*address, engine.path.as_str());
            at.entry(place).or_default().push(engine);
        }
    }
    // A name with several addresses may meet another one at each of them.
    let mut told = BTreeSet::new();
    for ((address, ..), engines) in at {
        let may_be_one = |engine: &&&EngineFact| {
            let mut others = engines.iter().filter(|other| other.worker != engine.worker);
            others.any(|other| may_be_one(engine, other))
        };
        let same: Vec<&String> = engines
            .iter()
            .filter(may_be_one)
            .map(|engine| &engine.worker)
            .collect();
        if same.is_empty() || !told.insert(same.clone()) {
            continue;
        }
        let what = format!(
            "{} workers have one address as seen from here, {address}: {}; if it is one engine, it gets the requests of \
             {} workers",
            same.len(),
            named(&same),
            same.len()
        );
        let todo = "keep one of them, and take the others out (grapevine workers remove URL, or the file); nothing to do \
                    where a proxy tells their names apart";
        found.push(Finding::advice("worker", what).of(same).todo(todo));
    }
}

/// Processes that started at different times are two. A worker without a rank is all ranks of its address.
fn may_be_one(one: &EngineFact, other: &EngineFact) -> bool {
    let is_one_rank = one.rank.is_none() || other.rank.is_none() || one.rank == other.rank;
    is_one_rank && (one.epoch == 0 || other.epoch == 0 || one.epoch == other.epoch)
}
