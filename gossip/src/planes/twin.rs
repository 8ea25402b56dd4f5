//! Two processes under one id: what this replica and its peers saw, written to the log and sent to the peers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::facts::fact;
use crate::metrics::Metrics;
use crate::peers::REPLICAS_MAX;
use crate::plane::{Context, Origin, Plane, Seen, Surroundings};
use crate::replica::ReplicaId;
use crate::twin::{Twin, fact_of, reported_by};
use crate::wire::Message;

/// What is known now, by id.
#[derive(Debug)]
pub(crate) struct TwinPlane {
    replica: ReplicaId,
    metrics: Metrics,
    twins: BTreeMap<ReplicaId, Noted>,
    kept_instead: Option<SocketAddr>,
    /// What was last sent to the peers.
    reported: String,
    /// What was lately logged on the report of each replica.
    shares: BTreeMap<ReplicaId, Share>,
}

#[derive(Debug)]
struct Noted {
    twin: Twin,
    /// When it was last logged; never, if the replicas that report it report too many.
    logged: Option<Instant>,
}

/// Lines of the log for the sake of one reporter, since a moment at most [`LOG_EACH`] ago.
#[derive(Debug)]
struct Share {
    since: Instant,
    lines: usize,
    /// The end of it was logged.
    is_over: bool,
}

/// What is reported of one id: one of the twins that were named, and all replicas that name any.
type Reported = (Twin, Vec<ReplicaId>);

/// What is to be logged now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    named: Vec<Twin>,
    /// They were named, and one of the two is left.
    over: Vec<ReplicaId>,
    /// Replicas that name more than is logged.
    cut: Vec<ReplicaId>,
}

impl TwinPlane {
    pub(crate) fn new(replica: ReplicaId, metrics: Metrics) -> Self {
        Self {
            replica,
            metrics,
            twins: BTreeMap::new(),
            kept_instead: None,
            reported: String::new(),
            shares: BTreeMap::new(),
        }
    }

    /// All that is known, sorted by id.
    pub(crate) fn list(&self) -> Vec<Twin> {
        self.twins
            .values()
            .map(|noted| noted.twin.clone())
            .collect()
    }

    /// The process that the cluster keeps instead of this one.
    pub(crate) fn kept_instead(&self) -> Option<SocketAddr> {
        self.kept_instead
    }

    /// Takes what is known now; returns what is to be logged of it.
    fn update(
        &mut self,
        reported: BTreeMap<ReplicaId, Reported>,
        kept_instead: Option<SocketAddr>,
        now: Instant,
    ) -> Lines {
        self.kept_instead = kept_instead;
        let mut lines = Lines::default();
        self.twins.retain(|id, noted| {
            let goes_on = reported.contains_key(id);
            if !goes_on && noted.logged.is_some() {
                lines.over.push(id.clone());
            }
            goes_on
        });
        self.shares
            .retain(|_, share| now.duration_since(share.since) < LOG_EACH);
        for (id, (twin, reporters)) in reported {
            let before = self.twins.get(&id).and_then(|noted| noted.logged);
            let is_due = before.is_none_or(|logged| now.duration_since(logged) >= LOG_EACH);
            let is_logged = is_due
                && reporters
                    .iter()
                    .any(|reporter| spend(&mut self.shares, reporter, now));
            if is_logged {
                lines.named.push(twin.clone());
            } else if is_due {
                let over = reporters.iter().filter(|reporter| {
                    let share = self.shares.get_mut(*reporter);
                    share.is_some_and(|share| !std::mem::replace(&mut share.is_over, true))
                });
                lines.cut.extend(over.cloned());
            }
            let logged = if is_logged { Some(now) } else { before };
            self.twins.insert(id, Noted { twin, logged });
        }
        lines
    }

    /// What this replica and the others see now, by id.
    fn reported(&self, seen: &Seen) -> BTreeMap<ReplicaId, Reported> {
        // A replica that all others refuse learns nothing else of it.
        let refused = seen.kept_instead.zip(seen.address);
        let refused = refused.map(|(kept, cut_off)| Twin {
            replica: self.replica.clone(),
            kept,
            cut_off,
        });
        let live = seen.others.iter().filter(|seen| seen.live);
        let facts = live.flat_map(|seen| {
            let reported = reported_by(seen.fact(fact::TWINS));
            reported.map(move |twin| (twin, &seen.id))
        });
        let own = seen.twins.iter().cloned().chain(refused);
        // What this replica saw itself comes last and wins.
        let all = facts.chain(own.map(|twin| (twin, &self.replica)));
        let mut reported = BTreeMap::<ReplicaId, Reported>::new();
        for (twin, reporter) in all {
            let (latest, reporters) = reported
                .entry(twin.replica.clone())
                .or_insert_with(|| (twin.clone(), Vec::new()));
            *latest = twin;
            reporters.push(reporter.clone());
        }
        reported
    }

    fn log(&self, lines: Lines) {
        for Twin {
            replica,
            kept,
            cut_off,
        } in lines.named
        {
            let what = match self.kept_instead.filter(|_| replica == self.replica) {
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
        for reporter in lines.cut {
            tracing::warn!(replica = %reporter, "it reports more processes under one id than are logged; no more of its reports are logged for a minute");
        }
    }
}

impl Plane for TwinPlane {
    /// It has no messages: replicas report twins to each other by a fact.
    fn names(&self) -> &'static [&'static str] {
        &[]
    }

    fn on_message(&mut self, _: Origin<'_>, _: Message, _: &mut Context) {}

    /// Each round: reports to the peers what this replica saw, and to the operator what any replica saw.
    fn on_tick(&mut self, around: &Surroundings, cx: &mut Context) -> Option<Instant> {
        let seen = &around.seen;
        let fact = fact_of(&seen.twins);
        if self.reported != fact {
            self.reported.clone_from(&fact);
            cx.fact(fact::TWINS, fact);
        }
        let reported = self.reported(seen);
        self.metrics.twins.set(reported.len() as i64);
        let lines = self.update(reported, seen.kept_instead, cx.now);
        self.log(lines);
        None
    }
}

#[cfg(test)]
impl super::tests::Remembers for TwinPlane {
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str> {
        let Self {
            replica: _,
            metrics: _,
            twins,
            kept_instead: _,
            reported: _,
            shares,
        } = self;
        let reports = |noted: &Noted| noted.twin.replica == *peer;
        super::tests::named([
            ("twins", twins.values().any(reports)),
            ("shares", shares.contains_key(peer)),
        ])
    }
}

/// Takes one line of the share of a reporter; false if it has none left.
fn spend(shares: &mut BTreeMap<ReplicaId, Share>, reporter: &ReplicaId, now: Instant) -> bool {
    if !shares.contains_key(reporter) && shares.len() >= REPLICAS_MAX {
        return false;
    }
    let share = shares.entry(reporter.clone()).or_insert(Share {
        since: now,
        lines: 0,
        is_over: false,
    });
    let may = share.lines < LINES_MAX;
    share.lines += usize::from(may);
    may
}

/// A twin that stays is named again.
const LOG_EACH: Duration = Duration::from_secs(60);
/// Twins that are logged in [`LOG_EACH`] on the report of one replica: one that reports others each round fills
/// no disk. A liar uses up its own share: what honest ones see is logged from theirs.
const LINES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ROUND;
    use crate::made::replica as id;

    fn reported(name: &str, reporters: &[&str]) -> (ReplicaId, Reported) {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let twin = Twin {
            replica: id(name),
            kept: address(1),
            cut_off: address(2),
        };
        let reporters = reporters.iter().map(|reporter| id(reporter)).collect();
        (id(name), (twin, reporters))
    }

    fn names(named: &[Twin]) -> Vec<&str> {
        named.iter().map(|twin| twin.replica.as_str()).collect()
    }

    #[test]
    fn a_twin_that_stays_is_named_once_a_minute_and_its_end_once() {
        let mut plane = TwinPlane::new(id("me"), Metrics::default());
        let begun = tokio::time::Instant::now().into_std();
        let mut logged = 0;
        for round in 0..450 {
            let reported = BTreeMap::from([reported("r1", &["r2", "r3"])]);
            let lines = plane.update(reported, None, begun + round * ROUND);
            logged += lines.named.len();
            assert_eq!((lines.over.len(), lines.cut.len()), (0, 0));
        }
        assert_eq!(logged, 2, "in 90 s");
        let ended = plane.update(BTreeMap::new(), None, begun + 450 * ROUND);
        assert_eq!(ended.over, [id("r1")]);
        assert_eq!(plane.list(), []);
    }

    /// One liar reports other twins each round. The log names a few a minute and adds that there are more; of those
    /// that it did not name it reports no end; and what an honest replica saw is named all the same.
    #[test]
    fn one_replica_cannot_flood_the_log() {
        let mut plane = TwinPlane::new(id("me"), Metrics::default());
        let begun = tokio::time::Instant::now().into_std();
        let (mut named, mut over, mut cut) = (0, 0, 0);
        for round in 0..300 {
            let invented = (0..8).map(|n| reported(&format!("x{round}-{n}"), &["liar"]));
            let lines = plane.update(invented.collect(), None, begun + round * ROUND);
            named += lines.named.len();
            over += lines.over.len();
            cut += lines.cut.len();
        }
        assert_eq!((named, over, cut), (LINES_MAX, LINES_MAX, 1), "in a minute");
        // The liar reports it too, and many more.
        let mut all: BTreeMap<_, _> = (0..8)
            .map(|n| reported(&format!("y{n}"), &["liar"]))
            .collect();
        all.extend([reported("r1", &["liar", "r2"])]);
        let lines = plane.update(all, None, begun + 299 * ROUND);
        assert_eq!(names(&lines.named), ["r1"]);
        assert_eq!(plane.list().len(), 9, "all of them are listed");
        let later = begun + LOG_EACH;
        let again = plane.update(BTreeMap::from([reported("z", &["liar"])]), None, later);
        assert_eq!(names(&again.named), ["z"], "a minute later");
    }
}
