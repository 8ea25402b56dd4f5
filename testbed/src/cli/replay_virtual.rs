//! `grapevine replay --virtual`: the trace through the placement code in virtual time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use parking_lot::Mutex;

use super::print_json;
use super::replay_split::SplitArgs;
use crate::replay::Trace;
use crate::virtual_replay::{
    CacheSize, Contender, Form, Generated, Line, Scenario, Setting, WORKERS_MAX, Workload, compare,
    csv, run, svg, table,
};
use grapevine_bench::progress::Progress;

/// Named sets of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Grid {
    /// Every policy at 3 replicas and without gossip, the default policy at 1 to 16 replicas and 20 to 500 ms, its
    /// capacity at 3 and 8, and without one part at a time
    Core,
    /// Core, and more generated loads, 4 to 64 workers, three seeds, and every policy's capacity
    Full,
    /// The default policy with one part changed or left out at a time
    Ablations,
}

/// Arguments of `replay --virtual`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Virtual replay")]
pub(super) struct VirtualArgs {
    /// Replay in virtual time through the placement code, without sockets
    #[arg(long = "virtual")]
    pub(super) enabled: bool,
    /// Compare a named set of runs instead of one cluster
    #[arg(long, value_enum, requires = "enabled")]
    grid: Option<Grid>,
    /// Generated loads beside the traces
    #[arg(long, value_enum, num_args = 1.., value_delimiter = ',', requires = "enabled")]
    generated: Vec<Generated>,
    /// Policies by name; `prefix+events@5ms`: with KV events of all workers, 5 ms old; `prefix+learned@5ms`: of prompts
    /// only what the replica's earlier requests have shown; `prefix+shared@5ms`: those of any replica [default: all]
    #[arg(long, num_args = 1.., value_delimiter = ',', requires = "enabled")]
    policies: Vec<String>,
    /// Router replicas
    #[arg(long, default_value = "3", num_args = 1.., value_delimiter = ',', requires = "enabled")]
    replicas: Vec<usize>,
    /// Workers
    #[arg(long, default_value_t = 8, requires = "enabled")]
    workers: usize,
    /// Time between load frames of a replica
    #[arg(long, value_parser = humantime::parse_duration, default_value = "100ms", num_args = 1.., value_delimiter = ',', requires = "enabled")]
    load_age: Vec<Duration>,
    /// Part of all gossip that is lost; 1: replicas receive nothing from each other
    #[arg(long, default_value_t = 0.0, requires = "enabled")]
    gossip_loss: f64,
    /// Workers of whose KV events the first replica hears nothing
    #[arg(long, default_value_t = 0, requires = "enabled")]
    kv_unheard: usize,
    /// Evidence of this age is not believed against what KV events say [default: the router's own]
    #[arg(long, value_parser = humantime::parse_duration, requires = "enabled")]
    told_after: Option<Duration>,
    /// Extra network delay between the first replica and all others
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0ms", requires = "enabled")]
    slow_replica: Duration,
    /// Tokens that a worker's accelerator caches
    #[arg(long, default_value_t = 400_000, requires = "enabled")]
    device_tokens: u32,
    /// Tokens that a worker's host tier caches beyond that
    #[arg(long, default_value_t = 0, requires = "enabled")]
    host_tokens: u32,
    /// Limit of the first token, to which `--limit-token` is added for each token of the prompt
    #[arg(long, value_parser = humantime::parse_duration, default_value = "500ms", requires = "enabled")]
    limit: Duration,
    /// See `--limit`
    #[arg(long, value_parser = humantime::parse_duration, default_value = "100us", requires = "enabled")]
    limit_token: Duration,
    /// Also search the capacity of each policy
    #[arg(long, requires = "enabled")]
    capacity: bool,
    /// Send prompts as one text without messages
    #[arg(long, requires = "enabled")]
    plain: bool,
    /// Number of the ring: another number gives the same workers other names
    #[arg(long, default_value_t = 0, requires = "enabled")]
    ring: u8,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 1, requires = "enabled")]
    seed: u64,
    #[command(flatten)]
    split: SplitArgs,
    /// Write all numbers to this file
    #[arg(long, requires = "enabled")]
    csv: Option<PathBuf>,
    /// Draw the comparison into this file
    #[arg(long, requires = "enabled")]
    svg: Option<PathBuf>,
}

impl VirtualArgs {
    /// Runs to the end and prints the table.
    pub(super) fn run(
        &self,
        traces: &[PathBuf],
        requests: Option<usize>,
        copies: u64,
        rate: Option<f64>,
    ) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            (0.0..=1.0).contains(&self.gossip_loss),
            "--gossip-loss is from 0 to 1"
        );
        anyhow::ensure!(
            self.workers > 0 && !self.replicas.contains(&0),
            "at least one of each"
        );
        anyhow::ensure!(
            self.workers <= WORKERS_MAX,
            "--workers is at most {WORKERS_MAX}"
        );
        anyhow::ensure!(
            self.device_tokens >= 16_384,
            "--device-tokens must hold one prompt"
        );
        let writes = self.csv.is_some() || self.svg.is_some();
        anyhow::ensure!(
            !writes || rate.is_none(),
            "--csv and --svg are of runs that search the rate: leave --rate out"
        );
        anyhow::ensure!(
            !self.split.is_wanted() || rate.is_none() && !writes,
            "halves are run at --loads and written by --split-json: leave --rate, --csv and --svg out"
        );
        let workloads = self.workloads(traces, requests, copies)?;
        if self.split.is_wanted() {
            let replicas = self.replicas.first().copied().unwrap_or(1);
            let base = self.scenario(replicas, 100);
            shown(|progress| self.split.run(&workloads, &base, progress))?;
            return Ok(ExitCode::SUCCESS);
        }
        let settings = self.settings()?;
        if let Some(rate) = rate {
            anyhow::ensure!(rate.is_finite() && rate > 0.0, "--rate must be above 0");
            return at_rate(&workloads, &settings, rate);
        }
        let lines = shown(|progress| compare(&workloads, &settings, progress));
        print!("{}", table(&lines));
        self.write(&lines)?;
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, lines: &[Line]) -> anyhow::Result<()> {
        for (path, text) in [(&self.csv, csv(lines)), (&self.svg, svg(lines))] {
            if let Some(path) = path {
                fs::write(path, text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn workloads(
        &self,
        traces: &[PathBuf],
        requests: Option<usize>,
        copies: u64,
    ) -> anyhow::Result<Vec<Workload>> {
        let form = if self.plain { Form::Plain } else { Form::Chat };
        let mut workloads = Vec::new();
        if traces.is_empty() && (self.grid.is_some() || self.generated.is_empty()) {
            workloads.push(self.traced(
                "mooncake_conv (slice)",
                Trace::embedded()?,
                requests,
                copies,
                form,
            ));
        }
        for path in traces {
            let name = path
                .file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy();
            let name = name.trim_end_matches(".jsonl.gz");
            workloads.push(self.traced(
                name,
                Trace::load(Path::new(path))?,
                requests,
                copies,
                form,
            ));
        }
        let mut all = Generated::CORE.to_vec();
        if self.grid == Some(Grid::Full) {
            all.extend(Generated::MORE);
        }
        let generated = match (self.grid, self.generated.as_slice()) {
            (Some(_), []) => all.as_slice(),
            (_, some) => some,
        };
        workloads.extend(generated.iter().map(|kind| kind.workload(form, self.seed)));
        Ok(workloads)
    }

    fn traced(
        &self,
        name: &str,
        mut trace: Trace,
        requests: Option<usize>,
        count: u64,
        form: Form,
    ) -> Workload {
        trace.truncate(requests.unwrap_or(usize::MAX));
        if trace.rows.iter().any(|row| row.gap_ms.is_some()) {
            return Workload::of_sessions(name, trace, count, form);
        }
        Workload::of_trace(name, &trace, form)
    }

    fn scenario(&self, replicas: usize, load_age_ms: u64) -> Scenario {
        Scenario {
            replicas,
            workers: self.workers,
            split: None,
            step_tokens: self.split.first_step_tokens(),
            cache: CacheSize {
                device_tokens: self.device_tokens,
                host_tokens: self.host_tokens,
            },
            load_age_us: load_age_ms * 1_000,
            slow_us: micros(self.slow_replica),
            loss: self.gossip_loss,
            unheard_workers: self.kv_unheard,
            speed: 1.0,
            limit_us: micros(self.limit),
            limit_token_us: micros(self.limit_token),
            gap_limit_us: self.split.gap_limit_us(),
            ring: self.ring,
            seed: self.seed,
        }
    }

    fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        let policies = self.contenders()?;
        let of = Setting::of;
        let (oracle, prefix) = ([Contender::oracle()], [Contender::prefix()]);
        let full = self.grid == Some(Grid::Full);
        let mut settings = vec![of(self.scenario(1, 100), false, &oracle)];
        match self.grid {
            Some(Grid::Core | Grid::Full) => {
                settings.push(of(self.scenario(3, 100), full, &policies));
                for replicas in [3, 8] {
                    settings.push(of(self.scenario(replicas, 100), true, &prefix));
                }
                // 4 replicas: at this number the share of one prefix on each worker is measured.
                for replicas in [1, 4, 16] {
                    settings.push(of(self.scenario(replicas, 100), false, &prefix));
                }
                for age_ms in [20, 50, 200, 500] {
                    settings.push(of(self.scenario(3, age_ms), false, &prefix));
                }
                let mut cut = self.scenario(3, 100);
                cut.loss = 1.0;
                settings.push(of(cut, false, &policies));
                settings.push(of(
                    self.scenario(3, 100),
                    false,
                    &Contender::ablations()[1..],
                ));
            }
            Some(Grid::Ablations) => {
                for replicas in [3, 8] {
                    settings.push(of(
                        self.scenario(replicas, 100),
                        false,
                        &Contender::ablations(),
                    ));
                }
            }
            None => {
                for &replicas in &self.replicas {
                    for age in &self.load_age {
                        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX / 1_000);
                        settings.push(of(
                            self.scenario(replicas, age_ms),
                            self.capacity,
                            &policies,
                        ));
                    }
                }
            }
        }
        if full {
            settings.extend(self.beyond_core(&prefix));
        }
        Ok(settings)
    }

    /// What the full grid has besides the core.
    fn beyond_core(&self, prefix: &[Contender]) -> Vec<Setting> {
        let mut settings = Vec::new();
        for workers in [4, 16, 64] {
            for age_ms in [20, 100, 500] {
                let scenario = Scenario {
                    workers,
                    ..self.scenario(8, age_ms)
                };
                settings.push(Setting::of(scenario, true, prefix));
            }
        }
        for seed in [self.seed + 1, self.seed + 2] {
            let scenario = Scenario {
                seed,
                ..self.scenario(3, 100)
            };
            settings.push(Setting::of(scenario, false, prefix));
        }
        settings
    }

    /// The policies that are named, or all.
    fn contenders(&self) -> anyhow::Result<Vec<Contender>> {
        if self.policies.is_empty() {
            return Ok(Contender::policies());
        }
        let named = |name: &String| {
            let mut contender =
                Contender::named(name).with_context(|| format!("no policy is called `{name}`"))?;
            let own = contender.prefix_index.told_after;
            contender.prefix_index.told_after = self.told_after.unwrap_or(own);
            Ok(contender)
        };
        self.policies.iter().map(named).collect()
    }
}

/// Does the work with a bar of its progress.
fn shown<T>(work: impl FnOnce(&(dyn Fn(usize, usize, &str) + Sync)) -> T) -> T {
    let bar: Mutex<Option<Progress>> = Mutex::new(None);
    let result = work(&|done, total, name| {
        let mut bar = bar.lock();
        if total > 0 {
            let bar = bar.get_or_insert_with(|| Progress::new("virtual", total as u64));
            bar.set(done as u64, || name.to_owned());
        }
    });
    if let Some(bar) = bar.into_inner() {
        bar.finish();
    }
    result
}

/// Prints one JSON line for each run at one rate, to compare with a real cluster at that rate.
fn at_rate(workloads: &[Workload], settings: &[Setting], rate: f64) -> anyhow::Result<ExitCode> {
    for workload in workloads {
        for setting in settings {
            let scenario = Scenario {
                speed: rate,
                ..setting.scenario.clone()
            };
            for contender in &setting.contenders {
                let outcome = run(workload, contender, &scenario, false)
                    .context("a run that may be slow runs to its end")?;
                let mut line = serde_json::to_value(outcome)?;
                line["load"] = workload.name.as_str().into();
                line["policy"] = contender.name.as_str().into();
                line["replicas"] = scenario.replicas.into();
                line["rate"] = (workload.rate() * rate).into();
                print_json(&line)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: VirtualArgs,
    }

    #[test]
    fn a_file_that_would_not_be_written_is_refused() {
        let run = |words: &str, rate| {
            let line = format!("replay --virtual {words}");
            let line = Line::try_parse_from(line.split_whitespace()).expect("a command line");
            let refused = line.args.run(&[], Some(1), 1, rate).expect_err(words);
            refused.to_string()
        };
        assert!(run("--csv x.csv", Some(2.0)).contains("leave --rate out"));
        assert!(run("--svg x.svg", Some(2.0)).contains("leave --rate out"));
        let halves = "--prefill-workers 2 --decode-workers 2";
        assert!(run(halves, Some(2.0)).contains("--split-json"));
        assert!(run(&format!("{halves} --csv x.csv"), None).contains("--split-json"));
    }
}
