//! Which prefill worker can hand a prompt over to which decode worker, worked out once for each change of the workers.
//!
//! Workers with equal facts are one class, so that thousands of them are a few comparisons.

use std::collections::BTreeMap;
use std::sync::Arc;

use grapevine_transfer::{Dialect, Half, Ids, Mismatch, PairRules, begin, pair};

/// Which workers may be a pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pairing {
    /// What the two halves may differ in.
    pub rules: PairRules,
    /// They may stand in different zones.
    pub across_zones: bool,
}

/// What of a worker decides with whom it can be a pair.
#[derive(Debug, Clone, Default)]
pub struct Mate {
    /// How its KV travels; none for one that takes whole requests, or whose labels cannot be read.
    pub half: Option<Arc<Half>>,
    /// Failure domain.
    pub zone: Option<Arc<str>>,
}

/// Which prefill worker may hand over to which decode worker. Pure.
#[derive(Debug)]
pub struct Pairs {
    /// For each prefill worker, by index.
    partners: Vec<Arc<Partners>>,
    /// One prefill worker of each class, by index.
    classes: Vec<usize>,
    across_zones: bool,
    /// Prefill workers, by index, that may hand over to no decode worker.
    silent: Vec<usize>,
    /// Why no prefill worker may hand over to any decode worker, if so.
    mismatch: Option<String>,
}

/// Decode workers that are not for a prefill worker, by index.
#[derive(Debug)]
struct Partners {
    /// They do not understand it.
    strangers: Vec<usize>,
    /// Or they are in another zone.
    strangers_and_far: Vec<usize>,
    why_not: Option<String>,
}

/// What makes workers equal as partners.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    /// None for one whose labels cannot be read.
    dialect: Option<Dialect>,
    zone: Option<Arc<str>>,
    /// What is not known of it and has to be, before it can hand over.
    missing: Option<String>,
}

impl Class {
    fn of(mate: &Mate) -> Self {
        let half = mate.half.as_ref();
        Self {
            dialect: half.map(|half| half.dialect()),
            zone: mate.zone.clone(),
            missing: half.and_then(|half| missing(half)),
        }
    }
}

/// The label that a prefill worker of this kind needs, if it is not known yet.
fn missing(half: &Half) -> Option<String> {
    let ids = Ids {
        request_id: "",
        random: 0,
    };
    let begun = begin(half, half, &ids);
    begun.err().map(|missing| missing.to_string())
}

impl Pairs {
    pub(super) fn new(prefill: &[Mate], decode: &[Mate], pairing: &Pairing) -> Self {
        let mut known: BTreeMap<Class, Arc<Partners>> = BTreeMap::new();
        let partners: Vec<_> = prefill
            .iter()
            .map(|mate| {
                let partners = known.entry(Class::of(mate));
                let made = || partners_of(mate, decode, &pairing.rules).into();
                Arc::clone(partners.or_insert_with(made))
            })
            .collect();
        let mut classes: Vec<usize> = Vec::with_capacity(known.len());
        for (index, of) in partners.iter().enumerate() {
            // There are few classes, and thousands of workers.
            if !classes.iter().any(|&at| Arc::ptr_eq(&partners[at], of)) {
                classes.push(index);
            }
        }
        let count = decode.len();
        let across_zones = pairing.across_zones;
        let is_silent = |(_, of): &(usize, &Arc<Partners>)| {
            let passed_over = match across_zones {
                true => &of.strangers,
                false => &of.strangers_and_far,
            };
            passed_over.len() == count
        };
        let silent: Vec<usize> = partners
            .iter()
            .enumerate()
            .filter(is_silent)
            .map(|(index, _)| index)
            .collect();
        let mismatch = (silent.len() == partners.len()).then(|| {
            let first = partners.first().and_then(|of| of.why_not.clone());
            let of_zones = partners.iter().any(|of| of.strangers.len() < count);
            let otherwise = match of_zones {
                true => "they stand in different zones, and transfer.across_zones is off",
                false => "the labels of one of them cannot be read",
            };
            first.unwrap_or_else(|| otherwise.to_owned())
        });
        Self {
            partners,
            classes,
            across_zones,
            silent,
            mismatch,
        }
    }

    /// Prefill workers, by index, that may hand over to no decode worker.
    pub fn silent(&self) -> &[usize] {
        &self.silent
    }

    /// One prefill worker, by index, of each kind for which the same decode workers are passed over.
    pub fn classes(&self) -> &[usize] {
        &self.classes
    }

    /// Decode workers, by index, that are not for a prefill worker: first all but those of its own zone that
    /// understand it, then, if it may hand over to other zones, all that do not understand it.
    pub fn passed_over(&self, prefill: usize) -> impl Iterator<Item = &[usize]> {
        let of = &self.partners[prefill];
        let has_far = self.across_zones && of.strangers_and_far.len() > of.strangers.len();
        let far = has_far.then_some(of.strangers.as_slice());
        std::iter::once(of.strangers_and_far.as_slice()).chain(far)
    }

    /// Prefill workers, by index, for which the same decode workers are passed over as for this one, itself included.
    pub fn alike(&self, prefill: usize) -> impl Iterator<Item = usize> {
        let of = &self.partners[prefill];
        let all = self.partners.iter().enumerate();
        all.filter(move |(_, other)| Arc::ptr_eq(of, other))
            .map(|(index, _)| index)
    }

    /// Why no two of them may be a pair; `None` while some may.
    pub fn mismatch(&self) -> Option<&str> {
        self.mismatch.as_deref()
    }
}

fn partners_of(prefill: &Mate, decode: &[Mate], rules: &PairRules) -> Partners {
    let mut verdicts: BTreeMap<Class, Option<Mismatch>> = BTreeMap::new();
    let mut partners = Partners {
        strangers: Vec::new(),
        strangers_and_far: Vec::new(),
        why_not: prefill.half.as_ref().and_then(|half| missing(half)),
    };
    let is_complete = partners.why_not.is_none();
    for (index, mate) in decode.iter().enumerate() {
        let can = talks(
            prefill.half.as_ref(),
            mate.half.as_ref(),
            rules,
            || Class::of(mate),
            &mut verdicts,
        );
        if let Err(why) = &can {
            let why = why.as_ref().map(ToString::to_string);
            partners.why_not = partners.why_not.take().or(why);
        }
        let can = can.is_ok() && is_complete;
        if !can {
            partners.strangers.push(index);
        }
        let is_far = prefill.zone.is_some() && mate.zone.is_some() && prefill.zone != mate.zone;
        if !can || is_far {
            partners.strangers_and_far.push(index);
        }
    }
    partners
}

fn talks(
    prefill: Option<&Arc<Half>>,
    decode: Option<&Arc<Half>>,
    rules: &PairRules,
    class: impl FnOnce() -> Class,
    verdicts: &mut BTreeMap<Class, Option<Mismatch>>,
) -> Result<(), Option<Mismatch>> {
    let (Some(prefill), Some(decode)) = (prefill, decode) else {
        return Err(None);
    };
    let verdict = verdicts
        .entry(class())
        .or_insert_with(|| pair(prefill, decode, rules).err());
    verdict.clone().map_or(Ok(()), |why| Err(Some(why)))
}
