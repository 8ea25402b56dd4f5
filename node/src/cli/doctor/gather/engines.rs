//! Where the engines of workers are: what their names mean on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use grapevine_gossip::worker::WorkerUrl;
use tokio::task::JoinSet;

use super::net;
use crate::cli::doctor::facts::EngineFact;

/// Names that are looked up; of more, the others are not compared.
const NAMES_MAX: usize = 256;

/// A worker: its name for people, its address, and when its process started (0: not known).
pub(super) type Known = (String, WorkerUrl, u64);

/// Looks up each name once. Workers whose name has no address here are left out.
pub(super) async fn engines(workers: Vec<Known>) -> Vec<EngineFact> {
    let names: BTreeSet<&str> = workers.iter().map(|(_, url, _)| url.authority()).collect();
    // Addresses need no look-up and are all compared.
    let is_address = |name: &&str| name.parse::<SocketAddr>().is_ok();
    let (addresses, names): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_address);
    let mut looking = JoinSet::new();
    for name in names.into_iter().take(NAMES_MAX) {
        let name = name.to_owned();
        looking.spawn(async move {
            let found = net::addresses(&name).await.unwrap_or_default();
            (name, found)
        });
    }
    let own = addresses.into_iter();
    let own = own.filter_map(|name| Some((name.to_owned(), vec![name.parse().ok()?])));
    let mut known: BTreeMap<String, Vec<SocketAddr>> = own.collect();
    known.extend(looking.join_all().await);
    let fact = |(worker, url, epoch): Known| {
        let mut addresses = known.get(url.authority()).cloned().unwrap_or_default();
        addresses.sort();
        addresses.dedup();
        EngineFact {
            worker,
            addresses,
            path: url.path().to_owned(),
            rank: url.rank(),
            epoch,
        }
    };
    workers.into_iter().map(fact).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_and_its_address_are_one_place() {
        let known = |url: &str| (url.to_owned(), url.parse().expect("an address"), 0);
        let urls = [
            "http://localhost:8000",
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:8000@1",
        ];
        let found = engines(urls.map(known).into()).await;
        assert!(
            found[0].addresses.contains(&found[1].addresses[0]),
            "{found:?}"
        );
        assert_eq!((found[1].rank, found[2].rank), (None, Some(1)));
    }
}
