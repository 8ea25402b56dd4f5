//! Results of a run.

use serde::Serialize;

use super::gaps::Gaps;

/// Results of one run, over the requests after the warm-up.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// Requests that count.
    pub requests: usize,
    /// Cached prompt tokens over prompt tokens.
    pub hit_rate: f64,
    /// Prompt tokens that another worker held at the placement and the chosen one did not, of all.
    pub elsewhere: f64,
    /// Prompt tokens that were computed before and that no worker held any more, of all.
    pub gone: f64,
    /// Time to the first token in ms.
    pub ttft_mean_ms: f64,
    /// Median.
    pub ttft_p50_ms: f64,
    /// 90th percentile.
    pub ttft_p90_ms: f64,
    /// 99th percentile.
    pub ttft_p99_ms: f64,
    /// Part of the requests whose first token came within the limit.
    pub good_share: f64,
    /// Good requests a second.
    pub goodput: f64,
    /// Mean over samples of 500 ms of the most requests on a worker over the mean.
    pub imbalance: f64,
    /// Samples in which a worker had more than max(1.5 x mean, mean + 4) requests, of all samples.
    pub over_bound: f64,
    /// Largest excess over that bound in a sample, in requests.
    pub worst_excess: f64,
    /// Part of sampled requests that another replica would have placed on the same worker; NaN with one
    /// replica and for the references.
    pub agreement: f64,
    /// The same, over requests for which both knew a worker that holds more than the hot prefix.
    pub agreement_known: f64,
    /// Part of all sampled requests for which one replica knew such a worker and the other did not.
    pub half_known: f64,
    /// Evidence sent, in bytes of marks per request.
    pub evidence_bytes: f64,
    /// Load frames of all replicas to all others, in bytes per request.
    pub load_bytes: f64,
    /// Entries of the fullest prefix index.
    pub prefix_index_entries: usize,
    /// Answers that corrected a prefix index, per request.
    pub corrections: f64,
    /// Mean time between the tokens of an answer in ms: median over the answers.
    pub between_p50_ms: f64,
    /// 99th percentile.
    pub between_p99_ms: f64,
    /// Single times between two tokens in ms: 99th percentile over all of them.
    pub gap_p99_ms: f64,
    /// Longest of them but one in a thousand.
    pub gap_p999_ms: f64,
    /// Part of the requests whose first token came in time, and the others on average, too.
    pub smooth_share: f64,
    /// Part of the requests that were divided between two workers.
    pub divided: f64,
    /// Tokens of keys and values that were transferred, per request.
    pub transferred: f64,
}

/// Count of agreements, and of all cases.
#[derive(Debug, Default)]
struct Agreed {
    yes: usize,
    of: usize,
}

impl Agreed {
    fn add(&mut self, agreed: bool) {
        self.yes += usize::from(agreed);
        self.of += 1;
    }

    /// NaN without cases.
    fn share(&self) -> f64 {
        self.yes as f64 / self.of as f64
    }
}

/// Collects samples of a run.
#[derive(Debug)]
pub(super) struct Meter {
    ttft_us: Vec<u64>,
    prompt_tokens: u64,
    elsewhere: u64,
    gone: u64,
    cached_tokens: u64,
    good: usize,
    pub(super) bad: usize,
    asked: Agreed,
    known: Agreed,
    half_known: usize,
    samples: usize,
    imbalance: f64,
    over: usize,
    worst: f64,
    pub(super) marks_told: u64,
    pub(super) placed: u64,
    pub(super) gaps: Gaps,
    gap_limit_us: u64,
    ended: usize,
    smooth: usize,
    warm: usize,
    divided: usize,
    transferred: u64,
}

impl Meter {
    /// Requests before `warm` do not count; `gap_limit_us` is the limit of the mean time between tokens.
    pub(super) fn new(warm: usize, gap_limit_us: u64) -> Self {
        Self {
            ttft_us: Vec::new(),
            prompt_tokens: 0,
            elsewhere: 0,
            gone: 0,
            cached_tokens: 0,
            good: 0,
            bad: 0,
            asked: Agreed::default(),
            known: Agreed::default(),
            half_known: 0,
            samples: 0,
            imbalance: 0.0,
            over: 0,
            worst: 0.0,
            marks_told: 0,
            placed: 0,
            gaps: Gaps::new(warm),
            gap_limit_us,
            ended: 0,
            smooth: 0,
            warm,
            divided: 0,
            transferred: 0,
        }
    }

    /// An answer ended so long after its first token.
    pub(super) fn ended(&mut self, request: usize, us: u64, tokens: u32, in_time: bool) {
        self.gaps.ended(request, us, tokens);
        self.ended += 1;
        let is_smooth = us <= self.gap_limit_us * u64::from(tokens.max(1) - 1);
        self.smooth += usize::from(in_time && is_smooth);
    }

    /// So many tokens of a request's keys and values go from one worker to another.
    pub(super) fn transferred(&mut self, request: usize, tokens: u32) {
        if request >= self.warm {
            self.divided += 1;
            self.transferred += u64::from(tokens);
        }
    }

    pub(super) fn first_token(&mut self, us: u64, in_tokens: u32, cached: u32, limit_us: u64) {
        self.ttft_us.push(us);
        self.prompt_tokens += u64::from(in_tokens);
        self.cached_tokens += u64::from(cached);
        if us <= limit_us {
            self.good += 1;
        } else {
            self.bad += 1;
        }
    }

    /// Counts prompt tokens that another worker holds and the chosen one does not, and those that were
    /// evicted everywhere.
    pub(super) fn lost(&mut self, elsewhere: u32, gone: u32) {
        self.elsewhere += u64::from(elsewhere);
        self.gone += u64::from(gone);
    }

    /// Counts the decisions of two replicas about one request, and who of them knew a worker that holds more of it than
    /// what is hot.
    pub(super) fn asked(&mut self, agreed: bool, one_knows: bool, other_knows: bool) {
        self.asked.add(agreed);
        if one_knows && other_knows {
            self.known.add(agreed);
        }
        self.half_known += usize::from(one_knows != other_knows);
    }

    pub(super) fn sample(&mut self, requests: impl Iterator<Item = usize> + Clone) {
        let count = requests.clone().count() as f64;
        let most = requests.clone().max().unwrap_or(0) as f64;
        let mean = requests.sum::<usize>() as f64 / count;
        if mean <= 0.0 {
            return;
        }
        self.samples += 1;
        self.imbalance += most / mean;
        let excess = most - (1.5 * mean).max(mean + 4.0);
        self.over += usize::from(excess > 0.0);
        self.worst = self.worst.max(excess);
    }

    pub(super) fn outcome(mut self, seconds: f64) -> Outcome {
        self.ttft_us.sort_unstable();
        let count = self.ttft_us.len();
        let at = |share: f64| {
            let index = (share * count as f64) as usize;
            self.ttft_us
                .get(index.min(count.saturating_sub(1)))
                .map_or(0.0, |&us| us as f64 / 1e3)
        };
        let of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let sum: u64 = self.ttft_us.iter().sum();
        Outcome {
            requests: count,
            hit_rate: of(self.cached_tokens as f64, self.prompt_tokens as f64),
            elsewhere: of(self.elsewhere as f64, self.prompt_tokens as f64),
            gone: of(self.gone as f64, self.prompt_tokens as f64),
            ttft_mean_ms: of(sum as f64 / 1e3, count as f64),
            ttft_p50_ms: at(0.5),
            ttft_p90_ms: at(0.9),
            ttft_p99_ms: at(0.99),
            good_share: of(self.good as f64, count as f64),
            goodput: of(self.good as f64, seconds),
            imbalance: of(self.imbalance, self.samples as f64),
            over_bound: of(self.over as f64, self.samples as f64),
            worst_excess: self.worst,
            // NaN when no replica was asked.
            agreement: self.asked.share(),
            agreement_known: self.known.share(),
            half_known: self.half_known as f64 / self.asked.of as f64,
            evidence_bytes: of(8.0 * self.marks_told as f64, self.placed as f64),
            load_bytes: 0.0,
            prefix_index_entries: 0,
            corrections: 0.0,
            between_p50_ms: self.gaps.mean_ms(0.5),
            between_p99_ms: self.gaps.mean_ms(0.99),
            gap_p99_ms: self.gaps.single_ms(0.99),
            gap_p999_ms: self.gaps.single_ms(0.999),
            smooth_share: of(self.smooth as f64, self.ended as f64),
            divided: of(self.divided as f64, count as f64),
            transferred: of(self.transferred as f64, count as f64),
        }
    }
}
