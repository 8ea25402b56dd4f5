//! Rates of workers as replicas learn and send them: each second, and sooner at first, as in the router.

use grapevine_placement::{Observed, Rate};

/// Observations of each replica, and the rates that it uses.
pub(super) struct Rates {
    seen: Vec<Vec<Observed>>,
    /// For each replica; the same for all, unless there is no gossip.
    rates: Vec<Vec<Rate>>,
}

impl Rates {
    pub(super) fn new(replicas: usize, workers: usize) -> Self {
        Self {
            seen: vec![vec![Observed::default(); workers]; replicas],
            rates: vec![vec![Rate::TYPICAL; workers]; replicas],
        }
    }

    pub(super) fn answered(&mut self, replica: usize, worker: usize, tokens_before: u64, us: u64) {
        self.seen[replica][worker].see(tokens_before as f64, us as f64 / 1e3);
    }

    /// Exchanges the observations of all replicas; if `alone`, each uses only its own.
    pub(super) fn tell(&mut self, alone: bool) {
        if alone {
            for (rates, seen) in self.rates.iter_mut().zip(&self.seen) {
                *rates = of(seen);
            }
            return;
        }
        let workers = 0..self.rates[0].len();
        let sum = |worker: usize| {
            let sent = self.seen.iter().map(|seen| seen[worker]);
            // As the wire carries them.
            let sent = sent.filter_map(|seen| Observed::from_parts(seen.parts()));
            sent.fold(Observed::default(), |sum, one| sum.merged(&one))
        };
        let rates = of(&workers.map(sum).collect::<Vec<_>>());
        self.rates.fill(rates);
    }

    pub(super) fn of(&self, replica: usize) -> &[Rate] {
        &self.rates[replica]
    }
}

fn of(seen: &[Observed]) -> Vec<Rate> {
    let all = seen
        .iter()
        .fold(Observed::default(), |sum, one| sum.merged(one));
    let pool = Rate::of_pool(&all);
    seen.iter().map(|seen| pool.of_worker(seen)).collect()
}
