//! No replica panics or logs an ERROR that the test did not provoke.

use crate::cluster::Cluster;

pub(super) fn are_quiet(cluster: &Cluster, expected_errors: &[&str]) {
    for replica in &cluster.replicas {
        let log = replica.log();
        let loud = |line: &&str| {
            let expected = expected_errors.iter().any(|part| line.contains(part));
            (line.contains(" ERROR ") || line.contains("panicked at")) && !expected
        };
        let found: Vec<&str> = log.lines().filter(loud).collect();
        assert!(found.is_empty(), "{} said: {found:#?}", replica.name);
    }
}
