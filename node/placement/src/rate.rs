//! Rate: how long a worker needs for one more token to compute, learned from its answers.
//!
//! A queue of a thousand tokens is nothing on a worker that clears it in a millisecond, and much on one that needs
//! a hundred. So the price is in milliseconds: tokens times a rate. The rate is the slope of the time to the first
//! token over the tokens that had to be computed before it, found by least squares; a worker that answers equally
//! late at any load has a slope of 0, and no queue to flee.
//!
//! Each answer is compared with the few before it from the same worker to the same replica, never with all: answers get
//! later for other causes, too (longer answers to wait for, a busier host, other models), mostly at times when there is
//! also more to compute, and over minutes that looks like a slope. And what fits neither line nor noise counts for
//! little, as the first answers after such a change.
//!
//! A slope from few answers is chance, and equal workers must stay equal. So [`Observed::interval`] says where the
//! slope lies for sure, and a rate leaves what is taken for typical only as far as that interval demands.
//!
//! Sums can be added: replicas send each other theirs, and all learn the same.

/// Milliseconds for a token to compute; finite, from [`Rate::LEAST`] up.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(f64);

impl Rate {
    /// Of an 8-billion model on a current accelerator, from its data sheet: 24 µs. What is taken for true of workers
    /// that have not answered enough.
    pub const TYPICAL: Self = Self(0.024);
    /// So little that a million tokens are a millisecond. Not 0: what costs nothing could not be compared.
    pub const LEAST: Self = Self(1e-6);

    /// The rate of all workers of a pool together, from the sum of what was observed on each.
    pub fn of_pool(all: &Observed) -> Self {
        let (low, high) = all.interval(2.0);
        Self(Self::TYPICAL.0.clamp(low, high).max(Self::LEAST.0))
    }

    /// A worker's rate, where this is its pool's: the same, unless its own answers show that it is more than twice as
    /// fast or slow.
    ///
    /// Waits that follow each other are alike, so an interval shows less than it seems; and workers that seem unequal
    /// and are not cost more than unequal ones that are taken for nearly equal: prompts leave what they cached.
    #[must_use]
    pub fn of_worker(self, observed: &Observed) -> Self {
        const DOUBT: f64 = 2.0;
        let (low, high) = observed.interval(4.0);
        Self(self.0.clamp(low / DOUBT, high * DOUBT).max(Self::LEAST.0))
    }

    /// In milliseconds.
    pub const fn millis(self) -> f64 {
        self.0
    }

    /// Of as many milliseconds; what is no rate is [`Rate::TYPICAL`].
    pub fn from_millis(millis: f64) -> Self {
        if millis.is_finite() {
            Self(millis.max(Self::LEAST.0))
        } else {
            Self::TYPICAL
        }
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self::TYPICAL
    }
}

/// What the answers of a worker showed: sums for a line of milliseconds to the first token over tokens before it.
///
/// Old answers count less: each weighs 1/512 less for every later one, and all of them less as time goes by
/// ([`Observed::fade`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Answers, the older ones in part: 0 to [`Observed::COUNT_MAX`] for one replica.
    count: f64,
    /// Means.
    tokens: f64,
    millis: f64,
    /// Sums of squares and products of the distances from the moving means, [`Observed::UNMOVED`] of them: where nothing
    /// drifts, those of the distances from the means.
    tokens_squares: f64,
    products: f64,
    millis_squares: f64,
    /// Moving means of tokens and milliseconds; none where several observations were added.
    moving: Option<(f64, f64)>,
}

impl Observed {
    /// Answers that count.
    pub const COUNT_MAX: f64 = 512.0;
    /// Greatest number of tokens of one observation; more counts as that.
    pub const TOKENS_MAX: f64 = 1e8;
    /// Longest time of one observation in milliseconds, an hour; more counts as that.
    pub const MILLIS_MAX: f64 = 3.6e6;
    /// Fewer answers show nothing.
    const ANSWERS_MIN: f64 = 8.0;
    /// Answers of a moving mean.
    ///
    /// Lower: nothing that drifts is taken for a slope. Higher: queues that grow over some answers show, and the error
    /// of each count of tokens, which is what the sender knew, hides less of the slope.
    const MOVING: f64 = 8.0;
    /// Squared milliseconds of an answer that are noise anywhere.
    const NOISE: f64 = 1.0;
    /// What is left of a squared distance from a moving mean if that mean were exact.
    const UNMOVED: f64 = 1.0 - 0.5 / Self::MOVING;

    /// An answer began `millis` after it was asked for, with so many `tokens` to be computed before.
    ///
    /// Both are clamped to 0 and their greatest values; what is no number counts as 0.
    pub fn see(&mut self, tokens: f64, millis: f64) {
        const KEPT: f64 = 1.0 - 1.0 / Observed::COUNT_MAX;
        let number = |value: f64, max| {
            if value.is_nan() {
                0.0
            } else {
                value.clamp(0.0, max)
            }
        };
        let tokens = number(tokens, Self::TOKENS_MAX);
        let millis = number(millis, Self::MILLIS_MAX);
        let (mean_tokens, mean_millis) = self.moving.unwrap_or((tokens, millis));
        let (far_tokens, far_millis) = (tokens - mean_tokens, millis - mean_millis);
        let weight = Self::UNMOVED * self.fit(far_tokens, far_millis);
        self.scale(KEPT);
        self.tokens_squares += weight * far_tokens * far_tokens;
        self.products += weight * far_tokens * far_millis;
        self.millis_squares += weight * far_millis * far_millis;
        self.count += 1.0;
        self.tokens += (tokens - self.tokens) / self.count;
        self.millis += (millis - self.millis) / self.count;
        self.moving = Some((
            mean_tokens + far_tokens / Self::MOVING,
            mean_millis + far_millis / Self::MOVING,
        ));
    }

    /// Time has passed: what was seen counts for this part of what it did, 0 to 1, and for nothing once it is less than half
    /// an answer.
    ///
    /// A worker that was slow gets few prompts, so that further answers alone would never show that it is not any more.
    pub fn fade(&mut self, part: f64) {
        self.scale(part);
        if self.count < 0.5 {
            *self = Self::default();
        }
    }

    fn scale(&mut self, by: f64) {
        for sum in [
            &mut self.count,
            &mut self.tokens_squares,
            &mut self.products,
            &mut self.millis_squares,
        ] {
            *sum *= by;
        }
    }

    /// How far an answer so far from the moving means belongs to what was seen so far, 0 to 1.
    ///
    /// One that is many times as far from the line as usual comes from something else: it counts as much as one at that
    /// many times the usual distance. So if noise has grown, or the line has changed, it is learned within some hundred
    /// answers.
    fn fit(&self, tokens: f64, millis: f64) -> f64 {
        /// Times the usual distance.
        const FAR: f64 = 4.0;
        if self.count < Self::ANSWERS_MIN {
            return 1.0;
        }
        let (slope, left_over) = self.line();
        let usual = left_over / (Self::UNMOVED * self.count) + Self::NOISE;
        let distance = (millis - slope * tokens).powi(2);
        (FAR * FAR * usual / distance.max(f64::MIN_POSITIVE)).min(1.0)
    }

    /// Slope of the line, and what of the squares of milliseconds it does not explain.
    fn line(&self) -> (f64, f64) {
        let slope = if self.tokens_squares > 0.0 {
            self.products / self.tokens_squares
        } else {
            0.0
        };
        let left_over = self.millis_squares - slope * self.products;
        (slope, left_over.max(0.0))
    }

    /// Both together: of two workers, or of one by the answers to two replicas. What one of them answers later than the
    /// other says nothing about a slope.
    pub fn merged(&self, other: &Self) -> Self {
        let count = self.count + other.count;
        if count <= 0.0 {
            return Self::default();
        }
        let share = other.count / count;
        Self {
            count,
            tokens: self.tokens + (other.tokens - self.tokens) * share,
            millis: self.millis + (other.millis - self.millis) * share,
            tokens_squares: self.tokens_squares + other.tokens_squares,
            products: self.products + other.products,
            millis_squares: self.millis_squares + other.millis_squares,
            moving: None,
        }
    }

    /// Answers seen, the older ones in part.
    pub const fn count(&self) -> f64 {
        self.count
    }

    /// Least and greatest milliseconds a token that these answers allow; 0 and infinity for too few of them.
    ///
    /// So many standard errors around the slope; more of them for few answers, whose own scatter tells little of what it
    /// is (Student's distribution has such tails). No queue makes answers sooner: a slope below 0 is one of 0 and chance.
    /// And no token took longer than all of the time to the first one: where every prompt waits for as many tokens, that
    /// alone shows.
    pub fn interval(&self, errors: f64) -> (f64, f64) {
        if self.count < Self::ANSWERS_MIN {
            return (0.0, f64::INFINITY);
        }
        let mean_error = self.millis_squares.max(0.0).sqrt() / self.count;
        let whole = (self.millis + errors * mean_error) / self.tokens.max(1.0);
        if self.tokens_squares <= 0.0 {
            return (0.0, whole);
        }
        let (slope, left_over) = self.line();
        let freedom = self.count - 2.0;
        let scatter = left_over / freedom + Self::NOISE;
        let errors = errors * (1.0 + errors * errors / (2.0 * freedom));
        let range = errors * (scatter / self.tokens_squares).sqrt();
        let slope = slope.max(0.0);
        let high = (slope + range).min(whole);
        let low = (slope - range).clamp(0.0, high);
        (low, high)
    }

    /// As six numbers to send: count, mean tokens, mean milliseconds, and the three sums of squares and products of
    /// distances (tokens, both, milliseconds).
    pub const fn parts(&self) -> [f32; 6] {
        [
            self.count as f32,
            self.tokens as f32,
            self.millis as f32,
            self.tokens_squares as f32,
            self.products as f32,
            self.millis_squares as f32,
        ]
    }

    /// From [`Observed::parts`]; none for numbers that no answers could have given.
    pub fn from_parts(parts: [f32; 6]) -> Option<Self> {
        // Sent as f32: the largest sums are off by a millionth of themselves.
        const SLACK: f64 = 1.0 + 1e-5;
        let [
            count,
            tokens,
            millis,
            tokens_squares,
            products,
            millis_squares,
        ] = parts.map(f64::from);
        let is_in = |value: f64, max: f64| (0.0..=max * SLACK).contains(&value);
        let is_possible = is_in(count, Self::COUNT_MAX)
            && is_in(tokens, Self::TOKENS_MAX)
            && is_in(millis, Self::MILLIS_MAX)
            && is_in(tokens_squares, count * Self::TOKENS_MAX.powi(2))
            && is_in(millis_squares, count * Self::MILLIS_MAX.powi(2))
            && products * products <= tokens_squares * millis_squares * SLACK + 1e-3;
        is_possible.then_some(Self {
            count,
            tokens,
            millis,
            tokens_squares,
            products,
            millis_squares,
            moving: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn observed(answers: impl IntoIterator<Item = (f64, f64)>) -> Observed {
        let mut observed = Observed::default();
        for (tokens, millis) in answers {
            observed.see(tokens, millis);
        }
        observed
    }

    /// So many answers with tokens from 0 up to `most`, of a line with a noise that is not chance.
    fn line(count: u32, most: f64, base: f64, slope: f64, noise: f64) -> Observed {
        observed((0..count).map(|index| {
            let tokens = most * f64::from(index * 61 % count) / f64::from(count);
            let noise = noise * (f64::from(index * 13 % 29) / 14.0 - 1.0);
            (tokens, base + slope * tokens + noise)
        }))
    }

    #[test]
    fn a_rate_is_what_the_answers_demand() {
        // Name, answers, least and most that the rate may be.
        let typical = Rate::TYPICAL.millis();
        let table = [
            ("nothing seen", Observed::default(), typical, typical),
            ("too few", line(7, 1e4, 1.0, 0.0, 0.0), typical, typical),
            (
                "as typical",
                line(500, 1e4, 7.0, typical, 5.0),
                typical * 0.99,
                typical * 1.01,
            ),
            ("slow", line(500, 1e4, 7.0, 0.2, 5.0), 0.195, 0.2),
            ("no queue at all", line(500, 1e4, 40.0, 0.0, 0.5), 0.0, 1e-4),
            // All prompts alike: the line is unknown, but none took longer than it took.
            (
                "one load",
                observed((0..100).map(|_| (512.0, 0.5))),
                0.0009,
                0.001,
            ),
            (
                "sooner after a few, for another cause",
                observed((0..14_u32).map(|index| {
                    let is_later = f64::from(index / 7);
                    (227.0 + 10.0 * is_later, 45.0 - 9.0 * is_later)
                })),
                typical,
                typical,
            ),
            (
                "noise that hides the line",
                line(100, 1e3, 5_000.0, 0.0, 3e3),
                typical,
                typical,
            ),
        ];
        for (name, observed, least, most) in table {
            let rate = Rate::of_pool(&observed).millis();
            assert!((least..=most).contains(&rate), "{name}: {rate}");
        }
    }

    #[test]
    fn equal_workers_have_equal_rates_and_a_slow_one_its_own() {
        let workers = [
            line(300, 8e3, 7.0, 0.03, 4.0),
            line(200, 6e3, 7.0, 0.03, 6.0),
        ];
        let slow = line(300, 8e3, 7.0, 0.12, 4.0);
        let all = workers.iter().chain([&slow]);
        let all = all.fold(Observed::default(), |sum, one| sum.merged(one));
        let pool = Rate::of_pool(&all);
        let slow_rate = pool.of_worker(&slow);
        assert!(slow_rate.millis() > 0.055, "{slow_rate:?}");
        let of = |pool: Rate| workers.map(|worker| pool.of_worker(&worker));
        let [first, second] = of(pool);
        let apart = (first.millis() / second.millis() - 1.0).abs();
        assert!(apart < 0.05, "{first:?} {second:?}");
        let alone = workers[0].merged(&workers[1]);
        let [first, second] = of(Rate::of_pool(&alone));
        assert_eq!(first, second, "nothing tells them apart");
    }

    #[test]
    fn old_answers_are_forgotten() {
        let mut observed = line(2_000, 1e4, 7.0, 0.2, 1.0);
        for index in 0..5_000_u32 {
            observed.see(f64::from(index % 100) * 100.0, 7.0);
        }
        assert!(observed.count() <= Observed::COUNT_MAX);
        assert!(Rate::of_pool(&observed).millis() < 1e-3);
    }

    #[test]
    fn what_was_seen_is_forgotten_with_time() {
        let mut seen = Observed::default();
        (0..2_000)
            .for_each(|answer| seen.see(f64::from(answer % 60) * 100.0, f64::from(answer % 60)));
        let [(low, high), (less, more)] = [1.0, 0.05].map(|part| {
            seen.fade(part);
            seen.interval(4.0)
        });
        assert!(
            less <= low && high <= more,
            "it shows less: {less} to {more}"
        );
        assert!(seen.count() > 20.0);
        seen.fade(0.01);
        assert_eq!(seen, Observed::default());
        assert_eq!(seen.interval(4.0), (0.0, f64::INFINITY));
        // An answer a minute.
        for _ in 0..60 {
            seen.see(100.0, 1.0);
            seen.fade(0.5_f64.powf(0.1));
        }
        assert!(seen.count() > 8.0, "{}", seen.count());
    }

    /// Answers that come later at a time when there is also more to compute are no queue.
    #[test]
    fn what_changes_meanwhile_is_no_queue() {
        // Answers, their milliseconds, and the most tokens before one, of each time.
        let table = [
            ("suddenly", vec![(400, 40.0, 200.0), (80, 200.0, 3e3)]),
            (
                "and sooner",
                vec![(400, 200.0, 9e3), (80, 10.0, 500.0), (200, 10.0, 100.0)],
            ),
            (
                "slowly",
                (0..40_u32)
                    .map(|at| (10, 20.0 + 4.0 * f64::from(at), 250.0 * f64::from(at)))
                    .collect(),
            ),
        ];
        for (name, times) in table {
            let mut worker = Observed::default();
            for (count, millis, most) in times {
                for index in 0..count {
                    let noise = f64::from(index * 13 % 29) / 29.0;
                    let tokens = most * f64::from(index * 61 % count) / f64::from(count);
                    worker.see(tokens, millis + noise);
                }
            }
            let rate = Rate::of_pool(&worker).millis();
            assert!(rate < Rate::TYPICAL.millis() / 10.0, "{name}: {rate}");
        }
    }

    #[test]
    fn a_worker_that_slows_down_is_found_out() {
        let mut worker = line(2_000, 1e4, 7.0, 0.024, 1.0);
        for index in 0..600_u32 {
            let tokens = f64::from(index * 61 % 100) * 100.0;
            worker.see(tokens, 7.0 + 0.24 * tokens);
        }
        let rate = Rate::of_pool(&worker).millis();
        assert!(rate > 0.1, "{rate}");
    }

    #[test]
    fn numbers_that_no_answers_give_are_refused() {
        let good = line(50, 1e4, 7.0, 0.02, 3.0).parts();
        assert!(Observed::from_parts(good).is_some());
        for (place, value) in [
            (0, -1.0),
            (0, 1e6),
            (0, f32::NAN),
            (1, f32::INFINITY),
            (2, -0.5),
            (3, -1.0),
            (4, 1e30),
            (5, f32::NAN),
        ] {
            let mut bad = good;
            bad[place] = value;
            assert_eq!(Observed::from_parts(bad), None, "{bad:?}");
        }
        let mut wild = Observed::default();
        wild.see(f64::NAN, f64::INFINITY);
        wild.see(-1.0, -1.0);
        assert!(Observed::from_parts(wild.parts()).is_some());
    }

    proptest! {
        #[test]
        fn order_of_merging_is_irrelevant(
            parts in prop::collection::vec(
                prop::collection::vec((0.0..1e5_f64, 0.0..1e4_f64), 1..20), 1..6),
        ) {
            let parts: Vec<_> = parts.into_iter().map(observed).collect();
            let sum = |sum: Observed, one: &Observed| sum.merged(one);
            let forth = parts.iter().fold(Observed::default(), sum);
            let back = parts.iter().rev().fold(Observed::default(), sum);
            let close = |a: f32, b: f32| (a - b).abs() <= 1e-5 * (1.0 + a.abs());
            let numbers = forth.parts().into_iter().zip(back.parts());
            prop_assert!(numbers.into_iter().all(|(a, b)| close(a, b)), "{forth:?} {back:?}");
        }

        #[test]
        fn every_rate_can_be_compared(
            answers in prop::collection::vec((-1e9..1e9_f64, -1e9..1e9_f64), 0..40),
        ) {
            let seen = observed(answers);
            let (low, high) = seen.interval(4.0);
            prop_assert!(low <= high && low >= 0.0);
            let rate = Rate::of_pool(&seen).millis();
            prop_assert!(rate.is_finite() && rate > 0.0);
            let read = Observed::from_parts(seen.parts());
            prop_assert!(read.is_some(), "{seen:?}");
        }
    }
}
