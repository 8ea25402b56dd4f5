//! Checks from outside, by `POST /explain` and `GET /ring`, whether the replicas agree.

use serde::Serialize;

use super::cluster::Cluster;
use crate::processes::MODEL;
use grapevine_bench::client::Ask;
use grapevine_bench::load::{Endpoint, Prompts};

/// Number of prompts that every replica would send to the same worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Agreement {
    /// Prompts asked about.
    pub(super) asked: usize,
    /// Prompts for which all replicas named the same worker.
    pub(super) equal: usize,
}

impl Agreement {
    pub(super) fn is_full(&self) -> bool {
        self.asked > 0 && self.equal == self.asked
    }

    pub(super) fn percent(&self) -> f64 {
        100.0 * grapevine_bench::tally::share(self.equal as u64, self.asked as u64)
    }
}

/// Prompts that no client sends: asking about them changes nothing for later requests.
pub(super) fn samples(seed: u64, count: u64) -> Vec<Ask> {
    let prompts = Prompts {
        seed,
        groups: count,
        shared_bytes: 3_000,
        own_bytes: 300,
        model: Some(MODEL.to_owned()),
        endpoint: Endpoint::Chat,
        ..Prompts::default()
    };
    (0..count).map(|number| prompts.ask(number)).collect()
}

/// Where each replica would send one request.
type Placement = Vec<Option<String>>;

/// Asks all replicas about all samples; one entry a sample.
pub(super) async fn placements(
    cluster: &Cluster,
    samples: &[Ask],
) -> anyhow::Result<Vec<Placement>> {
    let mut placements = Vec::with_capacity(samples.len());
    for ask in samples {
        let explained = cluster.explain(ask).await?;
        placements.push(explained.into_iter().map(|one| one.worker).collect());
    }
    Ok(placements)
}

/// Counts the prompts on which all replicas agree.
pub(super) fn among_replicas(placements: &[Placement]) -> Agreement {
    let equal = |one: &&Placement| one[0].is_some() && one.iter().all(|worker| *worker == one[0]);
    Agreement {
        asked: placements.len(),
        equal: placements.iter().filter(equal).count(),
    }
}

/// Counts the prompts for which every remaining replica names the worker that the first one named before.
pub(super) fn over_time(before: &[Placement], after: &[Placement]) -> Agreement {
    let same = |(before, after): &(&Placement, &Placement)| {
        before[0].is_some() && after.iter().all(|worker| *worker == before[0])
    };
    Agreement {
        asked: before.len(),
        equal: before.iter().zip(after).filter(same).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(workers: &[&str]) -> Placement {
        let worker = |name: &&str| Some((*name).to_owned()).filter(|name| !name.is_empty());
        workers.iter().map(worker).collect()
    }

    #[test]
    fn agreement_needs_an_answer_and_the_same_one() {
        let all = [
            placement(&["a", "a"]),
            placement(&["a", "b"]),
            placement(&["", ""]),
        ];
        assert_eq!(among_replicas(&all), Agreement { asked: 3, equal: 1 });
        assert!(
            !Agreement::default().is_full(),
            "nothing asked is nothing shown"
        );
    }

    #[test]
    fn survivors_must_say_what_was_said_before() {
        let before = [placement(&["a", "a", "a"]), placement(&["b", "b", "b"])];
        let after = [placement(&["a", "a"]), placement(&["b", "c"])];
        assert_eq!(over_time(&before, &after), Agreement { asked: 2, equal: 1 });
    }
}
