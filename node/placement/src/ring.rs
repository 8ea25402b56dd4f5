//! Consistent-hash ring: key → home, the first worker of the key's order.
//!
//! Pure. Same settings and members in, same ring out, on every replica and release (`golden/`).
//! Knows no health, load or restarts of a worker: they decide which workers to skip while walking the order
//! ([`crate::order`]), so they can never change where prefixes live.
//!
//! Invariants, each a test of that name: `input_order_is_irrelevant`, `removal_moves_only_its_keys`,
//! `addition_moves_only_to_the_new`, `share_follows_weight`, `digest_tells_rings_apart`,
//! `a_rebuilt_ring_is_the_built_one`.
//!
//! Karger et al. 1997.

use std::{fmt, num::NonZeroU16};

use crate::{
    canonical::{Canonical, Digest},
    hash::HashAlgorithm,
    serial::Serial,
    weight::Weight,
};

/// How workers become a ring. Cluster-wide: must agree on all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSettings {
    /// Points of a worker of weight 1.0. Default 256.
    ///
    /// More: shares closer to the weights, more memory (12 to 20 bytes a point) and slower building.
    pub virtual_nodes: NonZeroU16,
    /// Hash of points and scores. Default xxh3.
    pub hash: HashAlgorithm,
    /// Seed of both. Default 0.
    pub seed: u64,
}

impl Default for RingSettings {
    fn default() -> Self {
        Self {
            virtual_nodes: const { NonZeroU16::new(256).expect("not zero") },
            hash: HashAlgorithm::default(),
            seed: 0,
        }
    }
}

impl RingSettings {
    pub(crate) fn canonical_bytes(&self) -> Vec<u8> {
        let Self {
            virtual_nodes,
            hash,
            seed,
        } = self;
        Canonical::new("grapevine ring 1")
            .number(virtual_nodes.get().into())
            .bytes(hash.as_str().as_bytes())
            .number(*seed)
            .into_bytes()
    }

    /// Points of a worker of this weight: in proportion, at least one.
    fn points(&self, weight: Weight) -> u64 {
        let thousandths = u64::from(self.virtual_nodes.get()) * u64::from(weight.thousandths());
        ((thousandths + 500) / 1_000).max(1)
    }
}

/// A worker as the ring sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Worker id, unique in its pool.
    pub id: String,
    /// Its share.
    pub weight: Weight,
}

/// Most points of one ring: 5,000 workers of weight 3, or 160 of weight 100. About 80 MB at the limit.
pub const POINTS_MAX: u64 = 4 << 20;

/// The ring of one pool: the workers that serve one model.
#[derive(Debug)]
pub struct Ring {
    pub(crate) settings: RingSettings,
    members: Vec<Member>,
    /// The weight of all members, where it is one.
    even: Option<Weight>,
    /// Hash of each member's id, for scores.
    pub(crate) marks: Vec<u64>,
    /// Positions of the virtual nodes, ascending, and the member that owns each.
    pub(crate) points: Vec<u64>,
    pub(crate) owners: Vec<u32>,
    /// For each value of a position's top bits, the first point at or above it: about one step to a successor.
    buckets: Vec<u32>,
    shift: u32,
    digest: Digest,
    pub(crate) serial: Serial,
}

impl Ring {
    /// Builds the ring of `members`, given in any order. An empty ring is valid and places nothing.
    /// Errors: two members with one id, or more than [`POINTS_MAX`] points in all.
    pub fn build(
        settings: &RingSettings,
        members: impl IntoIterator<Item = Member>,
    ) -> Result<Self, RingError> {
        Self::build_from(settings, members, None)
    }

    /// The ring of other members under the same settings: equal to a built one, but the points of members that stay
    /// are taken over, and only those of new ones are computed and sorted.
    /// Errors: as [`Ring::build`].
    pub fn rebuild(&self, members: impl IntoIterator<Item = Member>) -> Result<Self, RingError> {
        Self::build_from(&self.settings, members, Some(self))
    }

    fn build_from(
        settings: &RingSettings,
        members: impl IntoIterator<Item = Member>,
        former: Option<&Self>,
    ) -> Result<Self, RingError> {
        let mut members: Vec<_> = members.into_iter().collect();
        members.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        if let Some(pair) = members.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(RingError::DuplicateId(pair[0].id.clone()));
        }
        let total: u64 = members
            .iter()
            .map(|member| settings.points(member.weight))
            .sum();
        if total > POINTS_MAX {
            return Err(RingError::TooManyPoints { points: total });
        }

        let total = usize::try_from(total).expect("checked against POINTS_MAX");
        let (staying, moved) = former.map_or_else(Default::default, |ring| ring.staying(&members));
        let mut placed = Vec::new();
        let mut marks = Vec::with_capacity(members.len());
        for (index, member) in (0_u32..).zip(&members) {
            if let Some((former, Some(at))) = former.zip(staying.get(index as usize).copied()) {
                marks.push(former.marks[at]);
                continue;
            }
            let mark = settings.hash.hash(
                settings.seed,
                &Canonical::new("mark")
                    .bytes(member.id.as_bytes())
                    .into_bytes(),
            );
            marks.push(mark);
            placed.extend(
                (0..settings.points(member.weight))
                    .map(|point| (pair(settings, mark, point), index)),
            );
        }
        // Points on the same position: the first id has it, whatever the order of input.
        placed.sort_unstable();
        let kept = former.into_iter().flat_map(|ring| ring.kept(&moved));
        let (points, owners) = merged(kept, placed, total);
        let (buckets, shift) = buckets(&points);
        let digest = digest(settings, &members);
        let first = members.first().map(|member| member.weight);
        let even = first.filter(|weight| members.iter().all(|member| member.weight == *weight));
        Ok(Self {
            settings: *settings,
            members,
            even,
            marks,
            points,
            owners,
            buckets,
            shift,
            digest,
            serial: Serial::next(),
        })
    }

    /// For each of the sorted members, where it is among ours, if it is the same; and for each of ours, where it is
    /// among them.
    fn staying(&self, members: &[Member]) -> (Vec<Option<usize>>, Vec<Option<u32>>) {
        let mut staying = vec![None; members.len()];
        let mut moved = vec![None; self.members.len()];
        let mut ours = (0..).zip(&self.members).peekable();
        for (index, member) in (0_u32..).zip(members) {
            while ours.next_if(|(_, our)| our.id < member.id).is_some() {}
            if let Some((at, _)) = ours.next_if(|(_, our)| *our == member) {
                staying[index as usize] = Some(at);
                moved[at] = Some(index);
            }
        }
        (staying, moved)
    }

    /// The points of members that stay, in order, with the members' new places.
    fn kept<'a>(&'a self, moved: &'a [Option<u32>]) -> impl Iterator<Item = (u64, u32)> {
        let points = self.points.iter().zip(&self.owners);
        points.filter_map(|(&point, &owner)| Some((point, moved[owner as usize]?)))
    }

    /// The members, sorted by id. Everything indexed "like the ring's members" follows this order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Weight of a member.
    ///
    /// # Panics
    /// If there are not so many members; not where [`Ring::even_weight`] answers for any.
    pub fn weight(&self, index: usize) -> Weight {
        self.even.unwrap_or_else(|| self.members[index].weight)
    }

    /// The weight of all members, where it is one; mostly it is.
    pub fn even_weight(&self) -> Option<Weight> {
        self.even
    }

    /// How it was built.
    pub fn settings(&self) -> &RingSettings {
        &self.settings
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Index of the member with this id.
    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.members
            .binary_search_by(|member| member.id.as_str().cmp(id))
            .ok()
    }

    /// Index of the member that owns the first point at or after `hash`; none in an empty ring.
    #[inline]
    pub fn successor(&self, hash: u64) -> Option<usize> {
        (!self.is_empty()).then(|| self.owners[self.successor_point(hash)] as usize)
    }

    /// The part of all prefixes that each member is the home of: 0 to 1, in the order of the members, 1 in all.
    pub fn shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.members.len()];
        let Some(last) = self.points.last() else {
            return shares;
        };
        let mut before = *last;
        for (&point, &owner) in self.points.iter().zip(&self.owners) {
            // The first arc goes around the end. A single point owns everything.
            let arc = match point.wrapping_sub(before) {
                0 if self.points.len() == 1 => 1.0,
                arc => arc as f64 / (u64::MAX as f64 + 1.0),
            };
            shares[owner as usize] += arc;
            before = point;
        }
        shares
    }

    /// CRC-32 of settings and (id, weight) of the sorted members: equal digests, equal rings.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Index of the first point at or after `hash`, around the end. Needs a point.
    #[inline]
    pub(crate) fn successor_point(&self, hash: u64) -> usize {
        let mut index = self.buckets
            [usize::try_from(hash >> self.shift).expect("as many buckets as top bits")]
            as usize;
        while index < self.points.len() && self.points[index] < hash {
            index += 1;
        }
        if index == self.points.len() { 0 } else { index }
    }
}

/// Two rows of points, each in order, as one.
fn merged(
    kept: impl Iterator<Item = (u64, u32)>,
    placed: Vec<(u64, u32)>,
    total: usize,
) -> (Vec<u64>, Vec<u32>) {
    let (mut points, mut owners) = (Vec::with_capacity(total), Vec::with_capacity(total));
    let mut push = |(point, owner)| {
        points.push(point);
        owners.push(owner);
    };
    let mut placed = placed.into_iter().peekable();
    for old in kept {
        while let Some(new) = placed.next_if(|new| *new < old) {
            push(new);
        }
        push(old);
    }
    placed.for_each(push);
    (points, owners)
}

/// Hash of two numbers: a member's mark with a point's number or with a key.
#[inline]
pub(crate) fn pair(settings: &RingSettings, mark: u64, other: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mark.to_le_bytes());
    bytes[8..].copy_from_slice(&other.to_le_bytes());
    settings.hash.hash(settings.seed, &bytes)
}

/// One bucket per point or up to twice as many: the walk inside a bucket is one step on average.
fn buckets(points: &[u64]) -> (Vec<u32>, u32) {
    let count = points.len().next_power_of_two().max(2);
    let shift = u64::BITS - count.ilog2();
    let mut buckets = Vec::with_capacity(count);
    let mut index = 0_u32;
    for bucket in 0..count as u64 {
        while points
            .get(index as usize)
            .is_some_and(|point| point >> shift < bucket)
        {
            index += 1;
        }
        buckets.push(index);
    }
    (buckets, shift)
}

fn digest(settings: &RingSettings, members: &[Member]) -> Digest {
    members
        .iter()
        .fold(
            Canonical::default()
                .bytes(&settings.canonical_bytes())
                .number(members.len() as u64),
            |bytes, member| {
                bytes
                    .bytes(member.id.as_bytes())
                    .number(member.weight.thousandths().into())
            },
        )
        .digest()
}

/// Digest of all that placement depends on: the digests of all pools by model name, the workers' URLs and the
/// `[cluster]` settings ([`crate::ClusterSettings::canonical_bytes`]). Pools and URLs may come in any order.
pub fn total_digest(pools: &[(&str, Digest)], urls: &[&str], cluster: &[u8]) -> Digest {
    let mut pools = pools.to_vec();
    let mut urls = urls.to_vec();
    pools.sort_unstable();
    urls.sort_unstable();
    let bytes = Canonical::new("grapevine total 1")
        .bytes(cluster)
        .number(pools.len() as u64);
    let bytes = pools.iter().fold(bytes, |bytes, (pool, digest)| {
        bytes.bytes(pool.as_bytes()).number(digest.0.into())
    });
    urls.iter()
        .fold(bytes.number(urls.len() as u64), |bytes, url| {
            bytes.bytes(url.as_bytes())
        })
        .digest()
}

/// Why no ring could be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingError {
    /// Two members have this id.
    DuplicateId(String),
    /// The weights ask for more than [`POINTS_MAX`] points.
    TooManyPoints {
        /// Points asked for.
        points: u64,
    },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateId(id) => write!(f, "two workers have the id `{id}`"),
            Self::TooManyPoints { points } => {
                write!(
                    f,
                    "weights and virtual_nodes ask for {points} points on the ring, more than {POINTS_MAX}"
                )
            }
        }
    }
}

impl std::error::Error for RingError {}
