//! Two processes under one replica id, such as a copied certificate: what is known of them. Pure.
//!
//! Of several processes that call themselves the same the one of the highest generation is kept, because mostly
//! it is the same replica started again and the others are gone. Whether they are is asked by the transport
//! (`transport/twins.rs`); here it is remembered, and sent to the others as a membership fact.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::FACT_BYTES_MAX;
use crate::replica::ReplicaId;

/// Two live processes under one id, as somebody saw them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Twin {
    /// Their id.
    pub replica: ReplicaId,
    /// Where the one gossips that counts: the one that started later.
    pub kept: SocketAddr,
    /// Where the other one gossips, which is not ready until one of the two ends.
    pub cut_off: SocketAddr,
}

/// As in the membership fact: `r1/10.0.0.1:30002/10.0.0.2:30002`.
impl fmt::Display for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.replica, self.kept, self.cut_off)
    }
}

impl Twin {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let twin = Self {
            replica: parts.next()?.parse().ok()?,
            kept: parts.next()?.parse().ok()?,
            cut_off: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(twin)
    }
}

/// The fact that reports these. What does not fit is left out; other replicas that see it report it, too.
pub(crate) fn fact_of(twins: &[Twin]) -> String {
    let mut fact = String::new();
    for twin in twins {
        let text = twin.to_string();
        if fact.len() + 1 + text.len() <= FACT_BYTES_MAX {
            fact.push_str(if fact.is_empty() { "" } else { "," });
            fact.push_str(&text);
        }
    }
    fact
}

/// What a fact reports; what cannot be read is left out.
pub(crate) fn reported_by(fact: &str) -> impl Iterator<Item = Twin> {
    fact.split(',').filter_map(Twin::parse)
}

/// The process that a peer keeps instead of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwinKept {
    pub(crate) address: SocketAddr,
    pub(crate) generation: u64,
}

/// As the reason of a closed connection: `10.0.0.1:30002 1700000000000`.
impl fmt::Display for TwinKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.address, self.generation)
    }
}

impl TwinKept {
    /// What the reason of a closed connection names.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, generation) = text.split_once(' ')?;
        Some(Self {
            address: address.parse().ok()?,
            generation: generation.parse().ok()?,
        })
    }
}

/// What one replica found out itself. Everything fades unless it is seen again: the process that is cut off
/// knocks every second or two.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    /// Processes cut off here, by their id.
    seen: HashMap<ReplicaId, (Twin, Instant)>,
    /// The replicas that refuse this very process, each once: by the name in its certificate, not by the address, of which
    /// a liar can name many.
    refusals: HashMap<ReplicaId, (TwinKept, Instant)>,
    /// A later process of our own id that this one met: there is nothing to believe.
    met: Option<(TwinKept, Instant)>,
    /// Generation of the process that was kept instead of this one, until this one has outrun it, and when it was
    /// last kept.
    above: Option<(u64, Instant)>,
    /// When [`Sightings::may_outrun`] last allowed this process to go on above another one.
    outran: Option<Instant>,
}

impl Sightings {
    /// A process was cut off here, because another one of its id goes on.
    pub(crate) fn cut_off(&mut self, twin: Twin, now: Instant) {
        self.fade(now);
        if self.seen.len() < SEEN_MAX || self.seen.contains_key(&twin.replica) {
            self.seen.insert(twin.replica.clone(), (twin, now));
        }
    }

    /// A process was let in: if it was the one that was cut off, the other one has ended.
    pub(crate) fn let_in(&mut self, id: &ReplicaId, address: SocketAddr) {
        let is_it = |(twin, _): &(Twin, Instant)| twin.cut_off == address;
        if self.seen.get(id).is_some_and(is_it) {
            self.seen.remove(id);
        }
    }

    /// A peer, which proved its certificate, keeps another process instead of this one.
    pub(crate) fn refused(&mut self, by: &ReplicaId, kept: TwinKept, now: Instant) {
        self.fade(now);
        if self.refusals.len() < SEEN_MAX || self.refusals.contains_key(by) {
            self.refusals.insert(by.clone(), (kept, now));
        }
    }

    /// A peer let this process in.
    pub(crate) fn accepted(&mut self, by: &ReplicaId) {
        self.refusals.remove(by);
    }

    /// This process met a later one under its own id.
    pub(crate) fn met(&mut self, kept: TwinKept, now: Instant) {
        self.met = Some((kept, now));
    }

    /// The process that is kept instead of this one, if more peers report it than are connected to it: one liar
    /// must not make a replica that everybody else accepts not ready.
    pub(crate) fn kept_instead(&mut self, connected: usize, now: Instant) -> Option<SocketAddr> {
        self.fade(now);
        let reported = self.refusals.values().map(|(kept, _)| *kept);
        let reported = reported.filter(|_| self.refusals.len() > connected);
        let met = self.met.map(|(kept, _)| kept);
        let kept = reported.chain(met).max_by_key(|kept| kept.generation)?;
        let before = self.above.map_or(0, |(generation, _)| generation);
        self.above = Some((kept.generation.max(before), now));
        Some(kept.address)
    }

    /// Whether to go on above this generation because it is that of the process that was kept instead of this one, or
    /// earlier: more peers reported it than were connected. Once for each time that it was kept, and not all the time.
    ///
    /// `seen` and the reported generations are Unix milliseconds of a start.
    pub(crate) fn may_outrun(&mut self, seen: u64, now: Instant) -> bool {
        self.fade(now);
        let is_kept = self.above.is_some_and(|(above, _)| seen <= above);
        let is_due = |at: Instant| now.saturating_duration_since(at) >= OUTRUN_PAUSE;
        let may = is_kept && self.outran.is_none_or(is_due);
        if may {
            self.above = None;
            self.outran = Some(now);
        }
        may
    }

    /// After this process was let in again, once: the generation above which it has to go on, as far as
    /// [`Sightings::may_outrun`] allows it.
    ///
    /// Peers that followed the other process ignore what is below.
    pub(crate) fn take_outrun(&mut self, now: Instant) -> Option<u64> {
        self.fade(now);
        let is_over = self.refusals.is_empty() && self.met.is_none();
        let (above, _) = self.above.filter(|_| is_over)?;
        self.may_outrun(above, now).then_some(above)
    }

    /// All that was cut off here, sorted by id.
    pub(crate) fn twins(&mut self, now: Instant) -> Vec<Twin> {
        self.fade(now);
        let seen = self.seen.values().map(|(twin, _)| twin.clone());
        let sorted: BTreeMap<_, _> = seen.map(|twin| (twin.replica.clone(), twin)).collect();
        sorted.into_values().collect()
    }

    fn fade(&mut self, now: Instant) {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < FADES_AFTER;
        self.seen.retain(|_, (_, at)| is_fresh(*at));
        self.refusals.retain(|_, (_, at)| is_fresh(*at));
        self.met = self.met.filter(|(_, at)| is_fresh(*at));
        let is_followed = |at: Instant| now.saturating_duration_since(at) < FOLLOWED_FOR;
        self.above = self.above.filter(|(_, at)| is_followed(*at));
    }
}

/// Longer than the process that is cut off takes to knock again: 1.5 s and a handshake, or 7.5 s for a seed.
const FADES_AFTER: Duration = Duration::from_secs(10);
/// For so long the others remember of a process that ended in which generation it was, and ignore what is below.
const FOLLOWED_FOR: Duration = Duration::from_secs(60);
/// Least time between two reports, by more peers than are connected, that make this process go on above another one: it
/// costs all connections.
const OUTRUN_PAUSE: Duration = Duration::from_secs(10);
/// As many as a cluster has replicas.
const SEEN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{replica as id, start};

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn twin(name: &str, kept: u16, cut_off: u16) -> Twin {
        Twin {
            replica: id(name),
            kept: address(kept),
            cut_off: address(cut_off),
        }
    }

    fn kept(port: u16, generation: u64) -> TwinKept {
        TwinKept {
            address: address(port),
            generation,
        }
    }

    #[test]
    fn facts_carry_twins_and_nothing_else() {
        let mut v6 = twin("r2", 3, 4);
        v6.kept = "[fd00::1]:30002".parse().expect("address");
        let twins = [twin("r1", 1, 2), v6];
        let fact = fact_of(&twins);
        assert!(crate::config::is_fact(&fact), "{fact}");
        assert_eq!(reported_by(&fact).collect::<Vec<_>>(), twins);
        assert_eq!(fact_of(&[]), "");
        for bad in [
            "",
            ",",
            "r1",
            "r1/x/y",
            "R1/127.0.0.1:1/127.0.0.1:2",
            "r1/127.0.0.1:1/127.0.0.1:2/3",
        ] {
            assert_eq!(reported_by(bad).count(), 0, "{bad}");
        }
        let many: Vec<_> = (1..100).map(|n| twin(&format!("r{n}"), n, n)).collect();
        let fact = fact_of(&many);
        assert!(fact.len() <= FACT_BYTES_MAX && reported_by(&fact).count() > 3);
        let reported = kept(1, u64::MAX);
        assert_eq!(TwinKept::parse(&reported.to_string()), Some(reported));
        assert_eq!(TwinKept::parse(""), None);
    }

    #[test]
    fn what_is_not_seen_again_fades() {
        let (mut sightings, now) = (Sightings::default(), start());
        sightings.cut_off(twin("r1", 1, 2), now);
        assert_eq!(sightings.twins(now + FADES_AFTER / 2).len(), 1);
        sightings.cut_off(twin("r1", 1, 3), now + FADES_AFTER / 2);
        assert_eq!(sightings.twins(now + FADES_AFTER), [twin("r1", 1, 3)]);
        assert_eq!(sightings.twins(now + 2 * FADES_AFTER), []);
    }

    #[test]
    fn whoever_was_cut_off_and_is_let_in_is_no_twin_any_more() {
        let (mut sightings, now) = (Sightings::default(), start());
        sightings.cut_off(twin("r1", 1, 2), now);
        sightings.let_in(&id("r1"), address(1));
        sightings.let_in(&id("r2"), address(2));
        assert_eq!(
            sightings.twins(now).len(),
            1,
            "the one that was kept reconnects"
        );
        sightings.let_in(&id("r1"), address(2));
        assert_eq!(sightings.twins(now), []);
    }

    #[test]
    fn one_refusal_does_not_outweigh_those_who_let_it_in() {
        let (mut sightings, now) = (Sightings::default(), start());
        sightings.refused(&id("r8"), kept(1, 7), now);
        assert_eq!(sightings.kept_instead(1, now), None);
        assert_eq!(sightings.take_outrun(now), None);
        assert_eq!(sightings.kept_instead(0, now), Some(address(1)));
        sightings.refused(&id("r9"), kept(1, 9), now);
        assert_eq!(sightings.kept_instead(1, now), Some(address(1)));
        // Still refused by one: not over.
        sightings.accepted(&id("r8"));
        assert_eq!(sightings.take_outrun(now), None);
        assert_eq!(sightings.kept_instead(1, now), None);
        sightings.accepted(&id("r9"));
        assert_eq!(sightings.take_outrun(now), Some(9));
        assert_eq!(sightings.take_outrun(now), None, "once");
    }

    /// A liar has one certificate, and as many addresses as it likes.
    #[test]
    fn who_refuses_again_and_again_counts_once() {
        let (mut sightings, now) = (Sightings::default(), start());
        for port in 1..100 {
            sightings.refused(&id("liar"), kept(port, 7), now);
        }
        assert_eq!(sightings.kept_instead(1, now), None);
        sightings.accepted(&id("liar"));
        assert_eq!(sightings.kept_instead(0, now), None);
    }

    #[test]
    fn a_later_process_that_was_met_needs_no_majority() {
        let (mut sightings, now) = (Sightings::default(), start());
        sightings.met(kept(1, 7), now);
        assert_eq!(sightings.kept_instead(5, now), Some(address(1)));
        let later = now + FADES_AFTER;
        assert_eq!(sightings.kept_instead(5, later), None);
        assert_eq!(sightings.take_outrun(later), Some(7));
    }

    #[test]
    fn a_process_goes_on_above_the_one_that_was_kept_and_not_above_any() {
        let (mut sightings, now) = (Sightings::default(), start());
        assert!(!sightings.may_outrun(1, now), "nobody was kept");
        sightings.refused(&id("r8"), kept(1, 7), now);
        sightings.kept_instead(0, now);
        assert!(!sightings.may_outrun(8, now), "a later one than was kept");
        assert!(sightings.may_outrun(7, now));
        assert!(!sightings.may_outrun(7, now), "once");
    }

    /// A replica alone with a liar, which refuses it, admits it, and refuses it again under a later generation.
    #[test]
    fn who_is_kept_and_let_in_in_turns_is_not_started_again_each_time() {
        let (mut sightings, begun) = (Sightings::default(), start());
        let second = Duration::from_secs(1);
        let outruns = (0..60).filter(|turn| {
            let now = begun + *turn * second;
            let generation = 7 + u64::from(*turn);
            sightings.refused(&id("liar"), kept(1, generation), now);
            sightings.kept_instead(0, now);
            sightings.accepted(&id("liar"));
            sightings.take_outrun(now).is_some()
        });
        assert_eq!(outruns.count(), 6, "in a minute");
    }

    #[test]
    fn what_was_kept_long_ago_is_not_outrun() {
        let (mut sightings, now) = (Sightings::default(), start());
        sightings.refused(&id("r8"), kept(1, 7), now);
        sightings.kept_instead(0, now);
        let later = now + FOLLOWED_FOR;
        assert_eq!(sightings.take_outrun(later), None);
        assert!(!sightings.may_outrun(7, later));
    }
}
