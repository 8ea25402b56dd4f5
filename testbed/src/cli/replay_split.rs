//! Arguments of `grapevine replay --virtual --prefill-workers`: prefill and decode workers against whole ones.

use std::time::Duration;

use clap::Args;
use grapevine_placement::Divide;

use super::print_json;
use crate::virtual_replay::{
    Layout, Link, Scenario, Split, WORKERS_MAX, Workload, compare_layouts, split_table,
};

/// Prefill and decode workers.
#[derive(Debug, Args)]
#[group(requires = "enabled")]
pub(super) struct SplitArgs {
    /// Workers that compute prompts; several numbers are compared. The same number of workers that do both is the
    /// measure
    #[arg(long, num_args = 1.., value_delimiter = ',', requires = "decode_workers")]
    prefill_workers: Vec<usize>,
    /// Workers that generate answers, as many numbers as of `--prefill-workers`
    #[arg(long, num_args = 1.., value_delimiter = ',', requires = "prefill_workers")]
    decode_workers: Vec<usize>,
    /// Workers that do both, beside them
    #[arg(long, default_value_t = 0, requires = "prefill_workers")]
    whole_workers: usize,
    /// Prompts with at most so many tokens to compute are not divided; several numbers are compared
    #[arg(long, default_value = "0", num_args = 1.., value_delimiter = ',')]
    short_prompt_tokens: Vec<u32>,
    /// How much later than on a worker that does both the first token from a pair may be expected; several are compared
    #[arg(long, value_parser = humantime::parse_duration, default_value = "200ms", num_args = 1.., value_delimiter = ',')]
    wait_for_pair: Vec<Duration>,
    /// Parts of the capacity of the whole workers
    #[arg(long, default_value = "0.5,0.7,0.9", num_args = 1.., value_delimiter = ',')]
    loads: Vec<f64>,
    /// Tokens that one step of a worker may process; several numbers are compared for whole workers, the first is that
    /// of all others
    #[arg(long, default_value = "8192", num_args = 1.., value_delimiter = ',')]
    step_tokens: Vec<u32>,
    /// Bytes of keys and values of a token: 131,072 are Llama-3.1-8B's in bfloat16, 327,680 those of 70B
    #[arg(long, default_value_t = 131_072)]
    kv_token_bytes: u64,
    /// Gigabytes a second of each worker's port: 25 is 200 Gb/s, 50 is 400 Gb/s
    #[arg(long, default_value_t = 25.0)]
    link_gb_per_s: f64,
    /// Time of a transfer before its first byte
    #[arg(long, value_parser = humantime::parse_duration, default_value = "2ms")]
    link_setup: Duration,
    /// Limit of the mean time between the tokens of an answer
    #[arg(long, value_parser = humantime::parse_duration, default_value = "50ms")]
    gap_limit: Duration,
    /// Print each line as JSON, too
    #[arg(long)]
    split_json: bool,
}

impl SplitArgs {
    pub(super) fn is_wanted(&self) -> bool {
        !self.prefill_workers.is_empty()
    }

    pub(super) fn gap_limit_us(&self) -> u64 {
        u64::try_from(self.gap_limit.as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn first_step_tokens(&self) -> u32 {
        self.step_tokens.first().copied().unwrap_or(1).max(1)
    }

    /// Runs all layouts and prints the table.
    pub(super) fn run(
        &self,
        workloads: &[Workload],
        base: &Scenario,
        progress: impl Fn(usize, usize, &str) + Sync,
    ) -> anyhow::Result<()> {
        let lines = compare_layouts(workloads, base, &self.layouts()?, &self.loads, progress);
        if self.split_json {
            for line in &lines {
                print_json(&serde_json::to_value(line)?)?;
            }
        }
        print!("{}", split_table(&lines));
        Ok(())
    }

    fn divides(&self) -> impl Iterator<Item = Divide> {
        self.short_prompt_tokens
            .iter()
            .flat_map(|&short_prompt_tokens| {
                let waits = self.wait_for_pair.iter();
                waits.map(move |&wait_for_pair| Divide {
                    short_prompt_tokens,
                    wait_for_pair,
                })
            })
    }

    fn layouts(&self) -> anyhow::Result<Vec<Layout>> {
        anyhow::ensure!(
            self.prefill_workers.len() == self.decode_workers.len(),
            "as many numbers of --prefill-workers as of --decode-workers"
        );
        anyhow::ensure!(
            self.link_gb_per_s.is_finite() && self.link_gb_per_s > 0.0,
            "--link-gb-per-s must be above 0"
        );
        let is_share = |load: &f64| *load > 0.0 && *load <= 1.0;
        anyhow::ensure!(
            self.loads.iter().all(is_share),
            "--loads are above 0 and at most 1"
        );
        let pairs: Vec<_> = self
            .prefill_workers
            .iter()
            .zip(&self.decode_workers)
            .collect();
        let all = pairs.iter().all(|(p, d)| **p > 0 && **d > 0);
        anyhow::ensure!(all, "at least one worker of each kind");
        let sum = |(p, d): &(&usize, &usize)| p.saturating_add(**d);
        let totals = pairs.iter().map(sum);
        let totals: Vec<_> = totals
            .map(|total| total.saturating_add(self.whole_workers))
            .collect();
        anyhow::ensure!(
            totals.iter().all(|total| *total <= WORKERS_MAX),
            "at most {WORKERS_MAX} workers"
        );
        let total = totals.first().copied().unwrap_or(0);
        let steps = self.step_tokens.iter().map(|&step_tokens| Layout {
            whole: total,
            split: None,
            step_tokens: step_tokens.max(1),
        });
        let mut layouts: Vec<_> = steps.collect();
        for (&prefill_workers, &decode_workers) in pairs {
            for divide in self.divides() {
                layouts.push(Layout {
                    whole: self.whole_workers,
                    split: Some(Split {
                        prefill_workers,
                        decode_workers,
                        divide,
                        link: Link {
                            token_bytes: self.kv_token_bytes,
                            bytes_per_s: self.link_gb_per_s * 1e9,
                            setup_us: u64::try_from(self.link_setup.as_micros())?,
                        },
                    }),
                    step_tokens: self.first_step_tokens(),
                });
            }
        }
        Ok(layouts)
    }
}
