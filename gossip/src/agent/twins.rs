//! Two processes under one id: what this replica and its peers saw, said in the log and to the peers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::core::{Core, Net};
use crate::firewall::REPLICAS_MAX;
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
    twins: BTreeMap<ReplicaId, Noted>,
    kept_instead: Option<SocketAddr>,
    /// What the peers were told last.
    told: String,
    /// What each teller had the log say lately.
    shares: BTreeMap<ReplicaId, Share>,
}

#[derive(Debug)]
struct Noted {
    twin: Twin,
    /// When the log said so last; never, if those who tell of it tell of too many.
    said: Option<Instant>,
}

/// Lines of the log for the sake of one teller, since a moment at most [`SAY_EACH`] ago.
#[derive(Debug)]
struct Share {
    since: Instant,
    lines: usize,
    /// The log said that there are no more.
    is_over: bool,
}

/// What is told of one id: one of the twins that were named, and everybody who names any.
type Told = (Twin, Vec<ReplicaId>);

/// What the log has to say now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    named: Vec<Twin>,
    /// They were named, and one of the two is left.
    over: Vec<ReplicaId>,
    /// Who names more than the log says.
    cut: Vec<ReplicaId>,
}

impl TwinDesk {
    /// All that is known, sorted by id.
    pub(super) fn list(&self) -> Vec<Twin> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .twins
            .values()
            .map(|noted| noted.twin.clone())
            .collect()
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

    /// Takes what is known now; what the log has to say of it.
    fn update(
        &self,
        told: BTreeMap<ReplicaId, Told>,
        kept_instead: Option<SocketAddr>,
        now: Instant,
    ) -> Lines {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        known.kept_instead = kept_instead;
        let mut lines = Lines::default();
        known.twins.retain(|id, noted| {
            let goes_on = told.contains_key(id);
            if !goes_on && noted.said.is_some() {
                lines.over.push(id.clone());
            }
            goes_on
        });
        known
            .shares
            .retain(|_, share| now.duration_since(share.since) < SAY_EACH);
        for (id, (twin, tellers)) in told {
            let before = known.twins.get(&id).and_then(|noted| noted.said);
            let is_due = before.is_none_or(|said| now.duration_since(said) >= SAY_EACH);
            let is_said = is_due
                && tellers
                    .iter()
                    .any(|teller| spend(&mut known.shares, teller, now));
            if is_said {
                lines.named.push(twin.clone());
            } else if is_due {
                let over = tellers.iter().filter(|teller| {
                    let share = known.shares.get_mut(*teller);
                    share.is_some_and(|share| !std::mem::replace(&mut share.is_over, true))
                });
                lines.cut.extend(over.cloned());
            }
            let said = if is_said { Some(now) } else { before };
            known.twins.insert(id, Noted { twin, said });
        }
        lines
    }
}

/// Takes one line of the share of a teller; false if it has none left.
fn spend(shares: &mut BTreeMap<ReplicaId, Share>, teller: &ReplicaId, now: Instant) -> bool {
    if !shares.contains_key(teller) && shares.len() >= REPLICAS_MAX {
        return false;
    }
    let share = shares.entry(teller.clone()).or_insert(Share {
        since: now,
        lines: 0,
        is_over: false,
    });
    let may = share.lines < LINES_MAX;
    share.lines += usize::from(may);
    may
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
    let facts = others.iter().filter(|seen| seen.live).flat_map(|seen| {
        let fact = seen.facts.get(fact::TWINS).into_iter();
        fact.flat_map(|fact| told_by(fact))
            .map(move |twin| (twin, &seen.id))
    });
    let own = own.into_iter().chain(refused);
    // What this replica saw itself comes last and wins.
    let all = facts.chain(own.map(|twin| (twin, &core.replica)));
    let mut told = BTreeMap::<ReplicaId, Told>::new();
    for (twin, teller) in all {
        let (latest, tellers) = told
            .entry(twin.replica.clone())
            .or_insert_with(|| (twin.clone(), Vec::new()));
        *latest = twin;
        tellers.push(teller.clone());
    }
    core.metrics.twins.set(told.len() as i64);
    let lines = core.twins.update(told, kept_instead, Instant::now());
    for Twin {
        replica,
        kept,
        cut_off,
    } in lines.named
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
    for replica in lines.over {
        tracing::info!(%replica, "one process is left under this replica id");
    }
    for teller in lines.cut {
        tracing::warn!(replica = %teller, "it tells of more processes under one id than the log says; no more of them for a minute");
    }
}

/// A twin that stays is named again.
const SAY_EACH: Duration = Duration::from_secs(60);
/// Twins that the log names in [`SAY_EACH`] because one replica tells of them: one that tells of others each round fills
/// no disk. A liar's share is its own: what honest ones see is said by theirs.
const LINES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ROUND;

    fn id(name: &str) -> ReplicaId {
        name.parse().expect("valid")
    }

    fn told(name: &str, tellers: &[&str]) -> (ReplicaId, Told) {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let twin = Twin {
            replica: id(name),
            kept: address(1),
            cut_off: address(2),
        };
        let tellers = tellers.iter().map(|teller| id(teller)).collect();
        (id(name), (twin, tellers))
    }

    fn names(named: &[Twin]) -> Vec<&str> {
        named.iter().map(|twin| twin.replica.as_str()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_twin_that_stays_is_named_once_a_minute_and_its_end_once() {
        let desk = TwinDesk::default();
        let begun = Instant::now();
        let mut said = 0;
        for round in 0..450 {
            let told = BTreeMap::from([told("r1", &["r2", "r3"])]);
            let lines = desk.update(told, None, begun + round * ROUND);
            said += lines.named.len();
            assert_eq!((lines.over.len(), lines.cut.len()), (0, 0));
        }
        assert_eq!(said, 2, "in 90 s");
        let ended = desk.update(BTreeMap::new(), None, begun + 450 * ROUND);
        assert_eq!(ended.over, [id("r1")]);
        assert_eq!(desk.list(), []);
    }

    /// What one liar tells: other twins each round. The log names a few a minute and says that there are more; of those
    /// that it did not name it tells no end; and what an honest replica saw is named all the same.
    #[tokio::test(start_paused = true)]
    async fn one_replica_cannot_flood_the_log() {
        let desk = TwinDesk::default();
        let begun = Instant::now();
        let (mut named, mut over, mut cut) = (0, 0, 0);
        for round in 0..300 {
            let invented = (0..8).map(|n| told(&format!("x{round}-{n}"), &["liar"]));
            let lines = desk.update(invented.collect(), None, begun + round * ROUND);
            named += lines.named.len();
            over += lines.over.len();
            cut += lines.cut.len();
        }
        assert_eq!((named, over, cut), (LINES_MAX, LINES_MAX, 1), "in a minute");
        // The liar tells of it too, and of many more.
        let mut all: BTreeMap<_, _> = (0..8).map(|n| told(&format!("y{n}"), &["liar"])).collect();
        all.extend([told("r1", &["liar", "r2"])]);
        let lines = desk.update(all, None, begun + 299 * ROUND);
        assert_eq!(names(&lines.named), ["r1"]);
        assert_eq!(desk.list().len(), 9, "all of them are listed");
        let later = begun + SAY_EACH;
        let again = desk.update(BTreeMap::from([told("z", &["liar"])]), None, later);
        assert_eq!(names(&again.named), ["z"], "a minute later");
    }
}
