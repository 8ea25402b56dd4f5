//! One engine under several names.

use super::{check, found, well};
use crate::cli::doctor::facts::EngineFact;
use crate::cli::doctor::finding::Severity::Advice;

fn engine(worker: &str, addresses: &[&str]) -> EngineFact {
    let addresses = addresses
        .iter()
        .map(|address| address.parse().expect("an address"));
    EngineFact {
        worker: worker.to_owned(),
        addresses: addresses.collect(),
        ..EngineFact::default()
    }
}

#[test]
fn an_engine_under_two_names_is_told_once() {
    let by_name = engine("http://localhost:1", &["127.0.0.1:1", "[::1]:1"]);
    let by_address = engine("http://127.0.0.1:1", &["127.0.0.1:1"]);
    let parts = [
        "2 workers have one address",
        "http://localhost:1, http://127.0.0.1:1",
        "workers remove",
    ];
    let both = vec![by_name.clone(), by_address.clone()];
    check(|facts| facts.engines = both, Advice, "worker", &parts);
    let again = vec![
        by_name.clone(),
        engine("http://other:1", &["127.0.0.1:1", "[::1]:1"]),
    ];
    check(
        |facts| facts.engines = again,
        Advice,
        "worker",
        &["http://localhost:1, http://other:1"],
    );
}

#[test]
fn what_cannot_be_one_engine_is_not_told() {
    let engine = || engine("http://a:1", &["10.0.0.5:1"]);
    let others: [fn(&mut EngineFact); 3] = [
        |other| other.path = "/b".to_owned(),
        |other| other.addresses = vec!["10.0.0.5:2".parse().expect("an address")],
        |other| other.epoch = 6,
    ];
    for change in others {
        let (mut one, mut other) = (engine(), engine());
        one.epoch = 5;
        other.worker = "http://b:1".to_owned();
        change(&mut other);
        let mut cluster = well();
        cluster.engines = vec![one, other];
        assert_eq!(found(cluster), []);
    }
}

#[test]
fn ranks_are_engines_and_a_worker_without_one_is_all_of_them() {
    let ranked = |worker: &str, rank: Option<u32>| EngineFact {
        rank,
        ..engine(worker, &["10.0.0.5:1"])
    };
    let ranks = || {
        vec![
            ranked("http://a:1@0", Some(0)),
            ranked("http://a:1@1", Some(1)),
        ]
    };
    let mut cluster = well();
    cluster.engines = ranks();
    assert_eq!(found(cluster), []);
    let whole = [ranks(), vec![ranked("http://a:1", None)]].concat();
    let parts = [
        "3 workers have one address",
        "http://a:1@0, http://a:1@1, http://a:1;",
    ];
    check(|facts| facts.engines = whole, Advice, "worker", &parts);
}
