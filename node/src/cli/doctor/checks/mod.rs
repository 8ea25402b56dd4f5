//! The checks: facts in, findings out. Pure.

mod certificates;
mod clocks;
mod config;
mod engines;
mod exposure;
mod machine;
mod models;
mod paths;
mod replicas;
mod settings;
mod workers;

use super::facts::Facts;
use super::finding::{Finding, sort};

/// Everything that is found in these facts, the worst first.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(cluster) = &facts.cluster {
        replicas::check(cluster, &mut found);
        settings::check(cluster, &mut found);
        paths::check(cluster, &mut found);
        clocks::check(cluster, &mut found);
        workers::check(cluster, &mut found);
        models::check(cluster, &mut found);
        engines::check(&cluster.engines, &mut found);
        certificates::check(cluster, &mut found);
        machine::check(cluster, &mut found);
        exposure::check(cluster, &mut found);
    }
    if let Some(config) = &facts.config {
        config::check(config, &mut found);
        // The workers of the cluster have these among them.
        if facts.cluster.is_none() {
            engines::check(&config.engines, &mut found);
        }
    }
    if let (Some(config), Some(cluster)) = (&facts.config, &facts.cluster) {
        settings::check_file(config, cluster, &mut found);
    }
    sort(&mut found);
    found
}

#[cfg(test)]
mod tests;
