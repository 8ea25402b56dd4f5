//! Asks each replica, before and after the faults, where it would send prompts that no client sends. Load is
//! left aside, so membership and memory alone decide.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;

use super::fault::Node;
use super::seat::{Seat, SeatState};
use crate::processes::MODEL;
use grapevine_bench::client::{Ask, Client};
use grapevine_bench::load::{Endpoint, Prompts};

/// Limit of one question.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// One worker for each prompt, on which all running replicas agree.
pub(crate) type Placements = Vec<String>;

#[derive(Deserialize)]
struct Explained {
    worker: Option<String>,
}

/// Prompts of a seed that no load uses.
pub(crate) fn samples(seed: u64, count: u64) -> Vec<Ask> {
    let prompts = Prompts {
        seed,
        groups: u64::MAX,
        shared_bytes: 1_500,
        own_bytes: 300,
        model: Some(MODEL.to_owned()),
        endpoint: Endpoint::Chat,
        ..Prompts::default()
    };
    (0..count).map(|number| prompts.ask(number)).collect()
}

/// Asks every running replica about every sample.
/// Errors: when one does not answer, knows no worker, or names another worker than the others.
pub(crate) async fn placements(seats: &[Seat], samples: &[Ask]) -> anyhow::Result<Placements> {
    let runs =
        |seat: &&Seat| matches!(seat.node, Node::Replica(_)) && seat.state == SeatState::Running;
    let mut asked = Vec::new();
    for seat in seats.iter().filter(runs).cloned() {
        let (name, samples) = (seat.name.clone(), samples.to_vec());
        let said = tokio::spawn(async move { of_replica(&seat, &samples).await });
        asked.push((name, AbortOnDropHandle::new(said)));
    }
    let mut agreed: Option<(String, Placements)> = None;
    for (name, said) in asked {
        let said = said.await.context("asking does not panic")??;
        let Some((first, expected)) = &agreed else {
            agreed = Some((name, said));
            continue;
        };
        let differing = expected.iter().zip(&said).filter(|(a, b)| a != b).count();
        anyhow::ensure!(
            differing == 0,
            "{first} and {name} differ on {differing} of {} prompts",
            samples.len()
        );
    }
    let (_, placements) = agreed.context("no replica runs")?;
    Ok(placements)
}

async fn of_replica(seat: &Seat, samples: &[Ask]) -> anyhow::Result<Placements> {
    let admin = seat.admin.clone().context("a replica has an admin API")?;
    let mut client = Client::one(admin);
    if let Some(token) = &seat.token {
        client = client.with_token(token)?;
    }
    let mut placements = Vec::with_capacity(samples.len());
    for ask in samples {
        let path = format!("/explain?load=ignore&path={}", ask.path);
        let text = client.text(Method::POST, &path, ask.body.clone(), ASK_TIMEOUT);
        let text = text
            .await
            .with_context(|| format!("{} was asked", seat.name))?;
        let explained: Explained = serde_json::from_str(&text).context("reply of /explain")?;
        let worker = explained.worker;
        placements.push(worker.with_context(|| format!("{} knows no worker", seat.name))?);
    }
    Ok(placements)
}

/// Prompts that moved although their old worker did not leave and the new one was not added.
pub(crate) fn moved_wrongly(
    before: &Placements,
    after: &Placements,
    left: &BTreeSet<String>,
    came: &BTreeSet<String>,
) -> usize {
    let pairs = before.iter().zip(after);
    let wrong = pairs.filter(|(b, a)| a != b && !left.contains(*b) && !came.contains(*a));
    wrong.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_move_only_to_who_came_and_from_who_left() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let set = |of: &[&str]| names(of).into_iter().collect::<BTreeSet<_>>();
        let before = names(&["w1", "w2", "w3", "w4"]);
        for (after, left, came, wrong) in [
            (["w1", "w2", "w3", "w4"], &[][..], &[][..], 0),
            (["w2", "w2", "w3", "w4"], &[], &[], 1),
            (["w2", "w2", "w3", "w4"], &["w1"], &[], 0),
            (["w5", "w2", "w5", "w4"], &[], &["w5"], 0),
            (["w5", "w2", "w4", "w4"], &["w1"], &["w5"], 1),
        ] {
            let after = names(&after);
            let moved = moved_wrongly(&before, &after, &set(left), &set(came));
            assert_eq!(moved, wrong, "{after:?}");
        }
    }

    #[test]
    fn samples_are_all_different() {
        let bodies: BTreeSet<_> = samples(3, 50).into_iter().map(|ask| ask.body).collect();
        assert_eq!(bodies.len(), 50);
    }
}
