//! Which model may take a place among the requests in progress. Pure; no clock, no waiting.
//!
//! One number of places for all models, of which some are kept: the same number for each model that is served, and
//! some for requests whose body is being read, because it is not known yet which model they ask for. A model has the
//! kept places for itself and takes of the others as many as are free. So one that is busy may use what idle ones
//! leave, and never stands in the way of one that is within its own. Nothing is kept for a model that is served no
//! more: what is left of its requests holds places of those that are not kept.
//!
//! Where several wait for one place, first comes one that is within what is kept for it, then the model that has least.
//! With one model nothing is kept.
//!
//! (Complete sharing with minimum allocation: Kamoun, Kleinrock, "Analysis of Shared Finite Storage in a Computer
//! Network Node Environment", IEEE Transactions on Communications 28(7), 1980.)

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::ServedModels;

/// Of so many places one is kept for requests whose body is being read.
const READING_ONE_IN: u32 = 16;

/// What a place is held for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// A request whose model is not known yet.
    Reading,
    /// A request for this model; empty: for any worker.
    Model(Arc<str>),
}

/// The order in which waiting requests get places; the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    beyond_kept: bool,
    is_unread: bool,
    held: u32,
}

/// The places and their holders.
#[derive(Debug)]
pub(super) struct Places {
    all: u32,
    /// Share of the places that is kept for models, in thousandths.
    kept_milli: u32,
    in_use: u32,
    reading: u32,
    held: HashMap<Arc<str>, u32, foldhash::fast::RandomState>,
    /// Models that are served.
    models: Arc<ServedModels>,
    kept: Kept,
    /// Places in use of those that are kept for models.
    kept_in_use: u32,
}

/// How many places are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    /// For each model.
    model: u32,
    /// For requests whose body is being read.
    reading: u32,
}

impl Kept {
    fn of(all: u32, models: u32, kept_milli: u32) -> Self {
        let nothing = Self {
            model: 0,
            reading: 0,
        };
        if models < 2 || kept_milli == 0 || all < 2 {
            return nothing;
        }
        let reading = (all / READING_ONE_IN).max(1);
        let rest = all - reading;
        let share = u64::from(rest) * u64::from(kept_milli) / 1_000 / u64::from(models);
        // At least one each, where there are that many.
        let least = u32::from(rest >= models);
        Self {
            model: u32::try_from(share).unwrap_or(rest).max(least),
            reading,
        }
    }
}

impl Places {
    /// `kept_milli`: share of the places that is kept for models, in thousandths.
    pub(super) fn new(all: u32, kept_milli: u32) -> Self {
        Self {
            all,
            kept_milli: kept_milli.min(1_000),
            in_use: 0,
            reading: 0,
            held: HashMap::default(),
            models: Arc::default(),
            kept: Kept::of(all, 0, kept_milli),
            kept_in_use: 0,
        }
    }

    /// These models are served from now on.
    pub(super) fn serve(&mut self, models: &Arc<ServedModels>) {
        self.models = Arc::clone(models);
        self.share();
    }

    /// Shares the places out anew.
    fn share(&mut self) {
        self.kept = Kept::of(self.all, self.models.count(), self.kept_milli);
        self.held.retain(|_, held| *held > 0);
        let held = self.held.iter();
        self.kept_in_use = held
            .map(|(model, held)| *held.min(&self.kept_for(model)))
            .sum();
    }

    /// So many places from now on. Those beyond them that are in use are given back and not taken again.
    pub(super) fn resize(&mut self, all: u32) {
        self.all = all;
        self.share();
    }

    fn free(&self) -> u32 {
        self.all.saturating_sub(self.in_use)
    }

    /// When it is its turn, if it may have a place now.
    pub(super) fn turn(&self, holder: &Holder) -> Option<Turn> {
        let (held, kept) = match holder {
            Holder::Reading => (self.reading, self.kept.reading),
            Holder::Model(model) => (self.held_by(model), self.kept_for(model)),
        };
        let beyond_kept = held >= kept;
        // A model beyond its own has nothing left of what is kept.
        let needed = if beyond_kept { self.kept_unused() } else { 0 };
        (self.free() > needed).then_some(Turn {
            beyond_kept,
            is_unread: *holder == Holder::Reading,
            held,
        })
    }

    /// Takes a place that [`turn`](Self::turn) allows.
    pub(super) fn take(&mut self, holder: &Holder) {
        self.in_use += 1;
        match holder {
            Holder::Reading => self.reading += 1,
            Holder::Model(model) => {
                let kept = self.kept_for(model);
                let held = match self.held.get_mut(model) {
                    Some(held) => held,
                    None => self.held.entry(Arc::clone(model)).or_default(),
                };
                *held += 1;
                self.kept_in_use += u32::from(*held <= kept);
            }
        }
    }

    /// Gives a place back.
    pub(super) fn give_back(&mut self, holder: &Holder) {
        self.in_use -= 1;
        match holder {
            Holder::Reading => self.reading -= 1,
            Holder::Model(model) => {
                let kept = self.kept_for(model);
                let held = self.held.get_mut(model).expect("it has a place");
                self.kept_in_use -= u32::from(*held <= kept);
                *held -= 1;
            }
        }
    }

    /// Models that have places, and how many.
    pub(super) fn held(&self) -> Vec<(Arc<str>, u32)> {
        let held = self.held.iter().filter(|(_, held)| **held > 0);
        held.map(|(model, held)| (Arc::clone(model), *held))
            .collect()
    }

    fn held_by(&self, model: &str) -> u32 {
        self.held.get(model).copied().unwrap_or(0)
    }

    /// Nothing is kept for requests that name no model, and for a model that is served no more.
    fn kept_for(&self, model: &str) -> u32 {
        match self.kept.model {
            0 => 0,
            kept if self.models.has(model) => kept,
            _ => 0,
        }
    }

    /// Places that are kept for others than those that have them.
    fn kept_unused(&self) -> u32 {
        let models = (self.kept.model * self.models.count()).saturating_sub(self.kept_in_use);
        models + self.kept.reading.saturating_sub(self.reading)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(name: &str) -> Holder {
        Holder::Model(name.into())
    }

    fn served(names: &[&str]) -> Arc<ServedModels> {
        let names = names.iter().map(|name| Arc::from(*name));
        Arc::new(names.collect())
    }

    fn fill(places: &mut Places, holder: &Holder) -> u32 {
        let mut taken = 0;
        while places.turn(holder).is_some() {
            places.take(holder);
            taken += 1;
        }
        taken
    }

    #[test]
    fn what_is_kept() {
        for (all, models, milli, model, reading) in [
            (64, 0, 500, 0, 0),
            (64, 1, 500, 0, 0),
            (64, 2, 500, 15, 4),
            (64, 2, 1_000, 30, 4),
            (64, 2, 0, 0, 0),
            (64, 60, 500, 1, 4),
            (64, 61, 500, 0, 4),
            (5, 2, 500, 1, 1),
            (2, 2, 500, 0, 1),
            (1, 2, 500, 0, 0),
            (32_768, 2, 500, 7_680, 2_048),
            (1_000_000, 3, 1_000, 312_500, 62_500),
        ] {
            let kept = Kept::of(all, models, milli);
            assert_eq!(kept, Kept { model, reading }, "{all} {models} {milli}");
        }
    }

    #[test]
    fn one_model_alone_may_have_every_place() {
        let mut places = Places::new(64, 500);
        places.serve(&served(&["a"]));
        assert_eq!(fill(&mut places, &model("a")), 64);
        assert!(places.turn(&Holder::Reading).is_none());
    }

    #[test]
    fn a_busy_model_leaves_the_others_their_own() {
        let mut places = Places::new(64, 500);
        places.serve(&served(&["large", "small"]));
        // All but the 15 of the other and the 4 for reading.
        assert_eq!(fill(&mut places, &model("large")), 45);
        assert_eq!(fill(&mut places, &Holder::Reading), 4);
        assert_eq!(fill(&mut places, &model("")), 0, "nothing is kept for it");
        assert_eq!(fill(&mut places, &model("small")), 15);
        // What becomes free goes to the model that has less.
        places.give_back(&model("large"));
        let [large, small, reading] = [model("large"), model("small"), Holder::Reading];
        let turns = [&small, &large, &reading].map(|holder| places.turn(holder).expect("free"));
        assert!(turns.is_sorted(), "{turns:?}");
    }

    #[test]
    fn a_model_that_comes_gets_its_own_as_soon_as_places_become_free() {
        let mut places = Places::new(8, 500);
        places.serve(&served(&["first"]));
        assert_eq!(fill(&mut places, &model("first")), 8);
        places.serve(&served(&["first", "second"]));
        assert!(places.turn(&model("second")).is_none());
        places.give_back(&model("first"));
        assert!(places.turn(&model("first")).is_none(), "that one is kept");
        assert!(places.turn(&model("second")).is_some());
    }

    /// What is left of a model that nobody serves any more takes nothing of what is kept for the others.
    #[test]
    fn a_model_that_is_served_no_more_has_nothing_kept() {
        let mut places = Places::new(64, 500);
        places.serve(&served(&["former", "large", "small"]));
        assert_eq!(fill(&mut places, &model("former")), 40);
        places.serve(&served(&["large", "small"]));
        assert!(places.turn(&model("former")).is_none());
        assert_eq!(fill(&mut places, &model("large")), 15, "its own");
        for _ in 0..10 {
            places.give_back(&model("former"));
        }
        assert!(places.turn(&model("large")).is_none(), "the small one's");
        for _ in 0..30 {
            places.give_back(&model("former"));
        }
        assert_eq!(fill(&mut places, &model("large")), 30);
        assert_eq!(fill(&mut places, &model("small")), 15, "all of its own");
        assert_eq!(fill(&mut places, &Holder::Reading), 4);
    }

    #[test]
    fn places_that_are_taken_away_are_not_taken_again() {
        let mut places = Places::new(8, 500);
        places.serve(&served(&["a"]));
        assert_eq!(fill(&mut places, &model("a")), 8);
        places.resize(2);
        for _ in 0..6 {
            places.give_back(&model("a"));
            assert!(places.turn(&model("a")).is_none());
        }
        places.give_back(&model("a"));
        assert_eq!(fill(&mut places, &model("a")), 1);
        places.resize(5);
        assert_eq!(fill(&mut places, &model("a")), 3);
    }

    proptest! {
        /// Whatever others do: a model within what is kept for it finds a place, no more places are held than there
        /// are, and what was given back is all there again.
        #[test]
        fn what_is_kept_is_there(
            all in 1..80_u32,
            models in 1..6_usize,
            kept_milli in 0..=1_000_u32,
            steps in prop::collection::vec((0..7_usize, any::<bool>()), 0..400),
        ) {
            let holders: Vec<Holder> = ["a", "b", "c", "d", "e"][..models]
                .iter()
                .map(|name| model(name))
                .chain([model(""), Holder::Reading])
                .collect();
            let mut places = Places::new(all, kept_milli);
            places.serve(&served(&["a", "b", "c", "d", "e"][..models]));
            let kept = places.kept;
            let mut held = vec![0_u32; holders.len()];
            for (who, takes) in steps {
                let who = who % holders.len();
                let holder = &holders[who];
                if !takes {
                    if held[who] > 0 {
                        places.give_back(holder);
                        held[who] -= 1;
                    }
                } else if places.turn(holder).is_some() {
                    places.take(holder);
                    held[who] += 1;
                }
                prop_assert!(held.iter().sum::<u32>() <= all);
                for (holder, held) in holders.iter().zip(&held) {
                    let own = match holder {
                        Holder::Reading => kept.reading,
                        Holder::Model(name) => if name.is_empty() { 0 } else { kept.model },
                    };
                    if *held < own {
                        prop_assert!(places.turn(holder).is_some(), "{holder:?} has {held} of {own}");
                    }
                }
            }
            for (holder, held) in holders.iter().zip(held) {
                (0..held).for_each(|_| places.give_back(holder));
            }
            prop_assert_eq!((places.free(), places.kept_in_use, places.reading), (all, 0, 0));
        }
    }
}
