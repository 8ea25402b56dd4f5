//! Home by heat and structure: which link of the chain names the home, and among which workers.
//!
//! In real traffic the first thousand tokens are often the same for all requests, so no fixed part of a prompt can name
//! its home. Walk down the marks instead: while a prefix is hot it belongs to a set of workers, chosen by rendezvous
//! inside its parent's set; the first cool mark names the home inside the last set. Marks lie at ends of messages,
//! so group and session part where their messages do. A session that the client names replaces the cool mark.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use super::{Policy, PolicySettings, View};
use crate::{
    key::{Key, Link},
    order::Order,
    ring::Ring,
    serial::Serial,
};

/// Where a prompt belongs.
pub(super) struct Home {
    /// Hash that names the home.
    pub(super) hash: u64,
    sharers: Rc<Sharers>,
}

/// The workers that share what is hot of a prompt.
#[derive(Debug, Default)]
struct Sharers {
    /// For each member, tokens of the prompt that it shares as one of a hot prefix's workers; empty if nothing is hot.
    shared: Vec<u32>,
    /// The innermost set; empty if that is all members.
    inner: Box<[u32]>,
    /// Tokens that the members of the innermost set share.
    inner_tokens: u32,
}

/// What sharers are looked up by: the ring, the share that is hot, the model, and the last hot mark.
type Cause = (Serial, u64, u64, u64);

/// Sharers that were found on this thread lately. To find them each member of the ring draws a lot, and the prompts of
/// a hot prefix have the same ones for as long as what is hot stays the same.
struct Known {
    hot: Serial,
    /// With the hot marks that they follow from: those that a peer asks about need not be a prompt's.
    sharers: BTreeMap<Cause, (Vec<Link>, Rc<Sharers>)>,
    /// Bytes of all of them, about.
    bytes: usize,
}

/// Most that one thread remembers at once, in number and bytes. More than that is found anew.
const KNOWN_MAX: usize = 512;
const KNOWN_BYTES_MAX: usize = 4 << 20;

thread_local! {
    static KNOWN: RefCell<Known> = const {
        RefCell::new(Known::nothing(Serial::NONE))
    };
}

impl Home {
    /// By the hash alone.
    fn plain(hash: u64) -> Self {
        Self {
            hash,
            sharers: Rc::default(),
        }
    }

    /// Where a key belongs for the policy of these settings.
    pub(super) fn of(settings: &PolicySettings, view: View<'_>, key: &Key) -> Self {
        match settings.policy {
            Policy::ConsistentHash => Self::plain(key.consistent()),
            _ => Self::by_heat(settings, view, key),
        }
    }

    /// Walks down the marks of a prompt.
    fn by_heat(settings: &PolicySettings, view: View<'_>, key: &Key) -> Self {
        let mut hash = key.session().unwrap_or(key.home());
        let share = settings.heat.share.get();
        let mut hot = 0;
        for mark in key.marks() {
            if key.session().is_none() {
                hash = mark.hash;
            }
            let width = view
                .hot
                .width(key.model(), mark.hash, view.ring.len(), share);
            if width.is_none() {
                break;
            }
            hot += 1;
        }
        let hot = &key.marks()[..hot];
        let sharers = hot.last().map(|last| {
            let cause = (view.ring.serial, share.to_bits(), key.model(), last.hash);
            Known::get(view.hot.serial, cause, hot, || {
                Sharers::of(view, key.model(), share, hot)
            })
        });
        Self {
            hash,
            sharers: sharers.unwrap_or_default(),
        }
    }

    /// Tokens of the prompt that the members of the innermost set share.
    pub(super) fn inner_tokens(&self) -> u32 {
        self.sharers.inner_tokens
    }

    /// Tokens of the prompt that a member holds because they are hot.
    pub(super) fn shared_tokens(&self, member: usize) -> u32 {
        self.sharers.shared.get(member).copied().unwrap_or(0)
    }

    /// Whether a member belongs to the innermost set.
    pub(super) fn contains(&self, member: usize) -> bool {
        self.sharers.contains(member)
    }

    /// First accepted member in order, those of the innermost set before all others.
    pub(super) fn first(
        &self,
        order: &Order<'_>,
        accepts: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let inner = &self.sharers.inner;
        let inner = (!inner.is_empty()).then(|| {
            let members = inner.iter().map(|&member| member as usize);
            order.first_of(members, |member| self.contains(member) && accepts(member))
        });
        inner.flatten().or_else(|| order.first(accepts))
    }
}

impl Sharers {
    /// Of a prompt that begins with these marks, all of them hot.
    fn of(view: View<'_>, model: u64, share: f64, hot: &[Link]) -> Self {
        let mut found = Self::default();
        let ring = view.ring;
        let everybody = ring.len();
        let mut set: Vec<usize> = Vec::new();
        let mut width = everybody;
        for mark in hot {
            let wanted = view.hot.width(model, mark.hash, everybody, share);
            let wanted = wanted.unwrap_or(width);
            if wanted < width {
                // Once for each set and not for each mark: a long prefix that all share has many.
                found.share(&set, everybody);
                if width == everybody {
                    set = (0..everybody).collect();
                }
                width = wanted;
                narrow(ring, mark.hash, &mut set, width);
            }
            found.inner_tokens = mark.tokens;
        }
        found.share(&set, everybody);
        if !set.is_empty() {
            let members = (0_u32..).zip(&found.shared);
            let inner = members.filter(|(_, shared)| **shared == found.inner_tokens);
            found.inner = inner.map(|(member, _)| member).collect();
        }
        found
    }

    /// All of a set share what is hot so far. An empty `set` stands for all members, before the first was narrowed.
    fn share(&mut self, set: &[usize], everybody: usize) {
        if self.inner_tokens == 0 {
            return;
        }
        if set.is_empty() {
            self.shared = vec![self.inner_tokens; everybody];
        }
        self.shared.resize(everybody, 0);
        for &member in set {
            self.shared[member] = self.inner_tokens;
        }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.shared) + size_of_val(&*self.inner)
    }

    fn contains(&self, member: usize) -> bool {
        self.shared.is_empty() || self.shared[member] == self.inner_tokens
    }
}

impl Known {
    const fn nothing(hot: Serial) -> Self {
        Self {
            hot,
            sharers: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// What is known, or what `find` finds.
    fn get(
        hot: Serial,
        cause: Cause,
        marks: &[Link],
        find: impl FnOnce() -> Sharers,
    ) -> Rc<Sharers> {
        KNOWN.with_borrow_mut(|known| {
            if known.hot != hot {
                *known = Known::nothing(hot);
            }
            if let Some((of, sharers)) = known.sharers.get(&cause)
                && of == marks
            {
                return Rc::clone(sharers);
            }
            let found = Rc::new(find());
            let bytes = known.bytes + found.bytes() + size_of_val(marks);
            if known.sharers.len() < KNOWN_MAX && bytes <= KNOWN_BYTES_MAX {
                let entry = (marks.to_vec(), Rc::clone(&found));
                known.sharers.insert(cause, entry);
                known.bytes = bytes;
            }
            found
        })
    }
}

/// Keeps the `width` members of the best scores for a link.
fn narrow(ring: &Ring, link: u64, set: &mut Vec<usize>, width: usize) {
    if let Some(order) = ring.order(link) {
        order.keep_best(set, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        heat::{HeatReport, HotSet},
        key::{KeyBuilder, KeySettings},
        ring::{Member, RingSettings},
        weight::Weight,
    };

    fn ring(members: usize) -> Ring {
        let member = |index: usize| Member {
            id: format!("w{index:03}"),
            weight: Weight::ONE,
        };
        Ring::build(&RingSettings::default(), (0..members).map(member)).expect("distinct ids")
    }

    fn key(question: &str) -> Key {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        for text in ["s".repeat(6_000), question.repeat(3_000)] {
            builder.begin_message("user");
            builder.text(&text);
        }
        builder.finish()
    }

    /// The first marks of a key are hot, the later ones less so.
    fn hot(key: &Key, marks: usize) -> HotSet {
        let links = key.marks().iter().take(marks).zip(1_u32..);
        let mut counts: Vec<_> = links
            .map(|(mark, depth)| (mark.hash, 20_000 / depth))
            .collect();
        counts.push((key.model(), 20_000));
        counts.sort_unstable();
        HotSet::sum([&HeatReport {
            version: 1,
            counts,
            total: 20_000,
        }])
    }

    #[test]
    fn what_is_known_is_what_would_be_found() {
        let settings = PolicySettings::default();
        let keys = ["a", "b"].map(key);
        let rings = [5, 64, 64].map(ring);
        let of = |view: View<'_>, key: &Key| {
            let home = Home::of(&settings, view, key);
            let Sharers {
                shared,
                inner,
                inner_tokens,
            } = &*home.sharers;
            (home.hash, shared.clone(), inner.clone(), *inner_tokens)
        };
        let mut sets = Vec::new();
        for marks in [3, 8, 0, 8, 1] {
            let hot = hot(&keys[0], marks);
            for _ in 0..2 {
                for (ring, key) in rings
                    .iter()
                    .flat_map(|ring| keys.iter().map(move |key| (ring, key)))
                {
                    let view = View { ring, hot: &hot };
                    // Nothing is known yet on a thread of its own.
                    let found = std::thread::scope(|scope| scope.spawn(|| of(view, key)).join());
                    let found = found.expect("it ends well");
                    assert_eq!(of(view, key), found, "{marks} hot, {} members", ring.len());
                    sets.push(found.2.len());
                }
            }
        }
        assert!(sets.iter().any(|set| (2..32).contains(set)), "{sets:?}");
    }

    /// A question of a peer may end in a hot mark and have other marks before it than any prompt.
    #[test]
    fn marks_that_only_end_alike_are_told_apart() {
        let link = |hash| Link { hash, tokens: 16 };
        let (prompt, other) = ([link(1), link(9)], [link(2), link(9)]);
        let cause = (Serial::next(), 0, 0, 9);
        let hot = Serial::next();
        let of = |marks: &[Link], tokens| {
            let find = || Sharers {
                inner_tokens: tokens,
                ..Sharers::default()
            };
            Known::get(hot, cause, marks, find).inner_tokens
        };
        assert_eq!([of(&prompt, 1), of(&prompt, 2)], [1, 1]);
        assert_eq!([of(&other, 3), of(&prompt, 4)], [3, 4]);
    }

    #[test]
    fn what_is_too_much_to_remember_is_found_each_time() {
        let marks = [Link {
            hash: 1,
            tokens: 16,
        }];
        let hot = Serial::next();
        let times_found = |members: usize| {
            let cause = (Serial::next(), 0, 0, 1);
            let mut found = 0;
            for _ in 0..2 {
                drop(Known::get(hot, cause, &marks, || {
                    found += 1;
                    Sharers {
                        shared: vec![1; members],
                        ..Sharers::default()
                    }
                }));
            }
            found
        };
        let half = KNOWN_BYTES_MAX / size_of::<u32>() / 2;
        let table = [(half, 1), (half, 2), (1, 1), (2 * half, 2)];
        for (members, times) in table {
            assert_eq!(times_found(members), times, "{members}");
        }
    }
}
