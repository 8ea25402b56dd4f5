//! Two processes under one id: what this replica and its peers saw, said in the log and to the peers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::core::{Core, Net};
use crate::membership::{Sighting, fact};
use crate::replica::ReplicaId;
use crate::twin::{Twin, fact_of, told_by};

/// What is known now, by id.
#[derive(Debug, Default)]
pub(super) struct TwinDesk {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Each with the time at which the log said so last.
    twins: BTreeMap<ReplicaId, (Twin, Instant)>,
    kept_instead: Option<SocketAddr>,
    /// What the peers were told last.
    told: String,
}

impl TwinDesk {
    /// All that is known, sorted by id.
    pub(super) fn list(&self) -> Vec<Twin> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.twins.values().map(|(twin, _)| twin.clone()).collect()
    }

    /// The process that the cluster keeps instead of this one.
    pub(super) fn kept_instead(&self) -> Option<SocketAddr> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.kept_instead
    }

    /// Whether the peers have to be told this fact.
    fn is_news(&self, fact: &str) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = known.told != fact;
        if is_news {
            fact.clone_into(&mut known.told);
        }
        is_news
    }

    /// Takes what is known now; those whom the log has to name, and those of whom there is one left.
    fn update(
        &self,
        twins: BTreeMap<ReplicaId, Twin>,
        kept_instead: Option<SocketAddr>,
    ) -> (Vec<Twin>, Vec<Twin>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.kept_instead = kept_instead;
        let mut to_say = Vec::new();
        let mut over = Vec::new();
        known.twins.retain(|id, (twin, _)| {
            let goes_on = twins.contains_key(id);
            if !goes_on {
                over.push(twin.clone());
            }
            goes_on
        });
        for (id, twin) in twins {
            let said = known.twins.get(&id).map(|(_, said)| *said);
            let is_due = said.is_none_or(|said| said.elapsed() >= SAY_EACH);
            if is_due {
                to_say.push(twin.clone());
            }
            let said = said.filter(|_| !is_due).unwrap_or_else(Instant::now);
            known.twins.insert(id, (twin, said));
        }
        (to_say, over)
    }
}

/// Called each round: tells the peers what this replica saw, and the operator what anybody saw.
pub(super) fn look(core: &Core, net: &Net, others: &[Sighting]) {
    let own = net.transport.twins();
    let told = fact_of(&own);
    if core.twins.is_news(&told) {
        core.tell(fact::TWINS, &told);
    }
    let kept_instead = net.transport.kept_instead();
    // Whom everybody refuses hears nothing else of it.
    let refused = kept_instead.map(|kept| Twin {
        replica: core.replica.clone(),
        kept,
        cut_off: net.transport.address(),
    });
    let facts = others.iter().filter(|seen| seen.live);
    let facts = facts.filter_map(|seen| seen.facts.get(fact::TWINS));
    // What this replica saw itself comes last and wins.
    let all = facts
        .flat_map(|fact| told_by(fact))
        .chain(own)
        .chain(refused);
    let twins: BTreeMap<_, _> = all.map(|twin| (twin.replica.clone(), twin)).collect();
    core.metrics.twins.set(twins.len() as i64);
    let (to_say, over) = core.twins.update(twins, kept_instead);
    for Twin {
        replica,
        kept,
        cut_off,
    } in to_say
    {
        let this = kept_instead.filter(|_| replica == core.replica);
        let what = match this {
            Some(_) => {
                "two processes run under this replica's id; this one is not ready until one of them ends"
            }
            None => {
                "two processes run under one replica id; the earlier one is cut off until one of them ends"
            }
        };
        tracing::error!(%replica, %kept, %cut_off, "{what}");
    }
    for Twin { replica, .. } in over {
        tracing::info!(%replica, "one process is left under this replica id");
    }
}

/// A twin that stays is named again.
const SAY_EACH: Duration = Duration::from_secs(60);
