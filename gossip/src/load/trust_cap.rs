//! How much of the load that one replica reports is believed.
//!
//! Pure. A replica counts its own requests exactly, and must rely on the others' reports of theirs. One that
//! reports that every worker is full would drown the real differences between workers, fill every limit,
//! and switch balancing off in the whole cluster. So the total that one sender reports, over all
//! workers, is held against the greatest total of anybody else, this replica's own included: more
//! than [`TIMES`] that, and a free amount for each worker, is scaled down to it. The shape stays: what
//! is busiest by its report is still busiest.
//!
//! Nothing is cut in a cluster whose replicas carry comparable shares, nor where one carries all of a
//! load that is below the free amount. One that carries far more than that, and eight times as much as
//! any other, is underrated by the others, which place few requests.

use super::frame::Load;

/// Sums over all workers of what one replica has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Total {
    requests: f64,
    prefill_tokens: f64,
    context_tokens: f64,
}

/// Factors, 0 to 1, for the numbers of one sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TrustCap {
    pub(super) requests: f64,
    pub(super) prefill_tokens: f64,
    pub(super) context_tokens: f64,
}

impl Total {
    pub(super) fn of(loads: impl Iterator<Item = Load>) -> Self {
        loads.fold(Self::default(), |sum, load| Self {
            requests: sum.requests + f64::from(load.requests),
            prefill_tokens: sum.prefill_tokens + load.prefill_tokens as f64,
            context_tokens: sum.context_tokens + load.context_tokens as f64,
        })
    }
}

impl TrustCap {
    /// All of it is believed.
    pub(super) const WHOLE: Self = Self {
        requests: 1.0,
        prefill_tokens: 1.0,
        context_tokens: 1.0,
    };
}

/// What each sender is believed, in their order. `own`: this replica's total; `workers`: how many
/// there are.
pub(super) fn trust_caps(own: Total, reported: &[Total], workers: usize) -> Vec<TrustCap> {
    let workers = workers as f64;
    let of = |index: usize, number: fn(&Total) -> f64, free: f64| {
        let others = reported
            .iter()
            .enumerate()
            .filter_map(|(at, total)| (at != index).then_some(total));
        let yardstick = others.chain([&own]).map(number).fold(0.0, f64::max);
        let limit = TIMES * yardstick + free * workers;
        // Never 0 / 0: a limit above 0 is greater than a reported 0.
        (limit / number(&reported[index])).min(1.0)
    };
    (0..reported.len())
        .map(|index| TrustCap {
            requests: of(index, |total| total.requests, FREE_REQUESTS),
            prefill_tokens: of(index, |total| total.prefill_tokens, FREE_PREFILL_TOKENS),
            context_tokens: of(index, |total| total.context_tokens, FREE_CONTEXT_TOKENS),
        })
        .collect()
}

/// How many times as much as any other replica one may carry.
const TIMES: f64 = 8.0;
/// What is believed of anybody for each worker, on the average: below this there is nothing to gain.
const FREE_REQUESTS: f64 = 64.0;
/// The same in prompt tokens to be computed: sixteen prompts of 4,096 tokens.
const FREE_PREFILL_TOKENS: f64 = 65_536.0;
/// The same in tokens of context: as many requests of 8,192 tokens.
const FREE_CONTEXT_TOKENS: f64 = FREE_REQUESTS * 8192.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn total(requests: f64) -> Total {
        Total {
            requests,
            ..Total::default()
        }
    }

    fn believed(own: f64, reported: &[f64], workers: usize) -> Vec<f64> {
        let totals: Vec<_> = reported.iter().map(|&requests| total(requests)).collect();
        let trust_caps = trust_caps(total(own), &totals, workers);
        let of = |(cap, reported): (&TrustCap, &f64)| (cap.requests * reported).round();
        trust_caps.iter().zip(reported).map(of).collect()
    }

    #[test]
    fn comparable_replicas_are_believed() {
        assert_eq!(believed(100.0, &[100.0, 700.0], 1), [100.0, 700.0]);
        assert_eq!(believed(0.0, &[0.0, 0.0], 4), [0.0, 0.0]);
        assert_eq!(believed(0.0, &[256.0], 4), [256.0], "one carries all");
        assert_eq!(believed(0.0, &[5000.0, 5000.0], 4), [5000.0, 5000.0]);
    }

    #[test]
    fn one_liar_counts_for_eight_replicas_at_most() {
        let huge = f64::from(Load::REQUESTS_MAX) * 4.0;
        assert_eq!(believed(10.0, &[20.0, huge], 4), [20.0, 8.0 * 20.0 + 256.0]);
        assert_eq!(believed(0.0, &[huge], 4), [256.0]);
        // The part of its report that is believed counts in the others' caps, although they do not use it.
        assert_eq!(believed(1000.0, &[20.0, huge], 4)[0], 20.0);
    }

    #[test]
    fn without_workers_there_is_nothing_to_believe() {
        assert_eq!(trust_caps(total(0.0), &[total(0.0)], 0).len(), 1);
    }
}
