//! `grapevine chaos`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;

use super::chaos_runs::{in_turn, make_dir};
use super::{StopSignals, print_json};
use crate::chaos::compose::{ComposeFleet, Testbed, WORKERS_CONFIGURED};
use crate::chaos::fleet::Fleet;
use crate::chaos::local::{LocalFleet, LocalPlan, REPLICAS_MAX, WORKERS_MAX};
use crate::chaos::record::{Place, Record};
use crate::chaos::report;
use crate::chaos::run::{RunPlan, run};
use crate::chaos::scenario::{ALWAYS, Scenario, Shape};
use crate::chaos::scenarios::{all, named};

/// Arguments of `chaos`.
#[derive(Debug, Args)]
pub struct ChaosArgs {
    #[command(subcommand)]
    command: ChaosCommand,
}

#[derive(Debug, Subcommand)]
enum ChaosCommand {
    /// List all scenarios and what must hold
    List,
    /// Run scenarios by name, each on a fresh cluster
    #[command(after_help = EXAMPLES)]
    Run {
        /// Names as `chaos list` shows them; `all` is every one but `random` and `soak`
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        options: Box<Options>,
    },
    /// Run mixed faults for --duration and watch memory: `chaos run soak` with its own defaults
    Soak {
        #[command(flatten)]
        options: Box<Options>,
    },
}

const EXAMPLES: &str = "\
Exit status: 0 when every promise held, 1 when one did not or a scenario could not be run, 2 when the arguments
are wrong.
Ctrl-C repairs everything and judges what was seen; a second one ends at once.

Examples:
  List all scenarios:
    grapevine chaos list
  Cut the cluster in two and heal it, with a report to look at:
    grapevine chaos run partition --report /tmp/chaos
  Random faults for five minutes, the same ones each time:
    grapevine chaos run random --seed 7 --duration 5m
  The same with containers (testbed/docker/build.sh && docker-compose up -d):
    grapevine chaos run partition rolling-restart --compose
  An hour, to see whether memory grows:
    grapevine chaos soak --duration 60m --report /tmp/soak";

#[derive(Debug, Args)]
struct Options {
    /// Router replicas, 1 to 8
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Fake workers, 2 to 63
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Phases are a quarter as long
    #[arg(long)]
    quick: bool,
    /// Seed of prompts, arrivals and random faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Length of `random` and `soak` [default: 2m, of `chaos soak` 60m]
    #[arg(long, value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Requests per second, by Poisson arrivals
    #[arg(long, default_value_t = 20.0)]
    rate: f64,
    /// Write a JSON record and an HTML page of each run here, and an index
    #[arg(long)]
    report: Option<PathBuf>,
    /// Print one JSON line a run instead of text
    #[arg(long)]
    json: bool,
    /// Keep certificates and logs of processes here, of each run in a folder of its own: NAME, NAME-2, ... [default:
    /// a temporary directory, kept when a promise broke]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Inject faults into the running containers of docker-compose.yml, and repair them at the end. Needs
    /// root
    #[arg(long)]
    compose: bool,
    /// With --compose: the compose file [default: docker-compose.yml here]
    #[arg(long, requires = "compose")]
    file: Option<PathBuf>,
    /// With --compose: name of the project [default: that of the file's folder]
    #[arg(long, requires = "compose")]
    project: Option<String>,
    /// With --compose: file of variables; the same one that `up` was given
    #[arg(long, requires = "compose")]
    env_file: Option<PathBuf>,
}

impl ChaosArgs {
    /// Runs the command; succeeds when every promise held.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let (scenarios, options, duration) = match self.command {
            ChaosCommand::List => {
                print!("{}", list());
                return Ok(ExitCode::SUCCESS);
            }
            ChaosCommand::Run { names, options } => match chosen(&names) {
                Ok(scenarios) => (scenarios, options, Duration::from_secs(120)),
                Err(error) => return Ok(usage(&error)),
            },
            ChaosCommand::Soak { options } => {
                let soak = named("soak").context("there is a soak")?;
                (vec![soak], options, Duration::from_secs(3_600))
            }
        };
        if let Err(error) = options.check(&scenarios) {
            return Ok(usage(&error));
        }
        let stop = CancellationToken::new();
        let mut signals = StopSignals::new()?;
        let runs = options.run_all(&scenarios, options.duration.unwrap_or(duration), &stop);
        let mut runs = std::pin::pin!(runs);
        let held = tokio::select! {
            held = &mut runs => held,
            _ = signals.next() => {
                eprintln!("stopping: all faults are repaired first; press Ctrl-C again to end at once");
                stop.cancel();
                tokio::select! {
                    held = &mut runs => held,
                    _ = signals.next() => return Ok(ExitCode::from(130)),
                }
            }
        };
        Ok(match held {
            // What was seen of it held.
            true if stop.is_cancelled() => ExitCode::from(130),
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// Milliseconds since the epoch.
fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}

fn usage(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(2)
}

fn list() -> String {
    let mut text = format!("Always: {ALWAYS}.\n");
    for Scenario {
        name, title, holds, ..
    } in all()
    {
        text += &format!("\n{name:<16} {title}\n{:<16} -> {holds}\n", "");
    }
    text
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Scenario>> {
    let mut scenarios = Vec::new();
    for name in names {
        if name == "all" {
            scenarios.extend(all().filter(|one| !["random", "soak"].contains(&one.name)));
        } else {
            let one = named(name);
            scenarios.push(one.with_context(|| {
                format!("no scenario is called `{name}`; `grapevine chaos list` shows all")
            })?);
        }
    }
    Ok(scenarios)
}

impl Options {
    fn check(&self, scenarios: &[&Scenario]) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.rate.is_finite() && self.rate > 0.0,
            "--rate must be above 0"
        );
        anyhow::ensure!(
            self.duration != Some(Duration::ZERO),
            "--duration must be above 0: a run without a fault shows nothing"
        );
        // A scenario may start one more of each.
        anyhow::ensure!(
            (1..REPLICAS_MAX).contains(&self.replicas),
            "--replicas is 1 to {}",
            REPLICAS_MAX - 1
        );
        anyhow::ensure!(
            (2..WORKERS_MAX).contains(&self.workers),
            "--workers is 2 to {}",
            WORKERS_MAX - 1
        );
        anyhow::ensure!(
            !self.compose || self.workers == WORKERS_CONFIGURED,
            "with --compose there are {WORKERS_CONFIGURED} workers; leave --workers out"
        );
        for scenario in scenarios {
            anyhow::ensure!(
                self.replicas >= scenario.replicas_min,
                "{} needs --replicas {} or more",
                scenario.name,
                scenario.replicas_min
            );
        }
        Ok(())
    }

    /// Runs one scenario after the other; true when all ran and all promises held.
    async fn run_all(
        &self,
        scenarios: &[&'static Scenario],
        duration: Duration,
        stop: &CancellationToken,
    ) -> bool {
        let mut records = Vec::new();
        let mut pages = Vec::new();
        let not_run = in_turn(scenarios, stop, async |scenario| {
            let record = self.run_one(scenario, duration, stop).await?;
            if self.json {
                print_json(&serde_json::to_value(&record)?)?;
            } else {
                print!("{}", report::text(&record));
            }
            records.push(record);
            // Written after each scenario, so that an interrupted run leaves the earlier ones.
            if let Some(dir) = &self.report {
                pages = report::write(dir, &records)?;
            }
            Ok(())
        });
        let not_run = not_run.await;
        for page in pages.iter().take(1) {
            eprintln!("report: {}", page.display());
        }
        if !not_run.is_empty() {
            eprintln!("not run, or not to the end: {}", not_run.join(", "));
        }
        not_run.is_empty() && !records.is_empty() && records.iter().all(Record::held)
    }

    async fn run_one(
        &self,
        scenario: &Scenario,
        duration: Duration,
        stop: &CancellationToken,
    ) -> anyhow::Result<Record> {
        let shape = Shape {
            replicas: self.replicas,
            workers: self.workers,
            quick: self.quick,
            seed: self.seed,
            duration,
        };
        let goes_on = ["random", "soak"].contains(&scenario.name);
        let is_soak = scenario.name == "soak";
        let plan = RunPlan {
            shape,
            place: if self.compose {
                Place::Compose
            } else {
                Place::Processes
            },
            rate: self.rate,
            // In a soak, caches of every kind must overflow.
            groups: if is_soak { 100_000 } else { 40 },
            // Containers keep their caches from one run to the next, which would hold the same prompts.
            prompts_seed: if self.compose {
                self.seed.wrapping_add(now_ms())
            } else {
                self.seed
            },
            look_every: Duration::from_millis(if is_soak { 2_000 } else { 500 }),
            progress_every: Duration::from_secs(if is_soak { 60 } else { 10 }),
            longest: goes_on.then_some(duration),
        };
        if self.compose {
            return self.on_containers(scenario, &plan, stop).await;
        }
        let temporary = tempfile::Builder::new()
            .prefix("grapevine-chaos-")
            .tempdir();
        let temporary = temporary.context("cannot make a temporary directory")?;
        let dir = match &self.dir {
            Some(dir) => make_dir(dir, scenario.name)?,
            None => temporary.path().to_owned(),
        };
        let done = self.on_processes(scenario, &plan, &dir, stop).await;
        if self.dir.is_none() && !done.as_ref().is_ok_and(Record::held) {
            eprintln!(
                "logs of all processes are in {}",
                temporary.keep().display()
            );
        }
        done
    }

    async fn on_processes(
        &self,
        scenario: &Scenario,
        plan: &RunPlan,
        dir: &Path,
        stop: &CancellationToken,
    ) -> anyhow::Result<Record> {
        let local = LocalPlan {
            replicas: plan.shape.replicas,
            workers: plan.shape.workers,
            // Small enough for `overload` to exceed it.
            worker_flags: ["--max-num-queued-reqs", "32"].map(Into::into).into(),
            impatient: scenario.stalls_workers(&plan.shape),
            // A soak would write an access log for hours.
            access_log: scenario.name != "soak" && scenario.fills_disks(&plan.shape),
            clocks: scenario.moves_clocks(&plan.shape),
            dir: dir.to_owned(),
        };
        let fleet = LocalFleet::start(local).await?;
        let mut fleet = Fleet::Local(Box::new(fleet));
        let record = run(scenario, plan, &mut fleet, stop).await;
        let stopped = fleet.stop().await;
        let record = record?;
        stopped?;
        Ok(record)
    }

    async fn on_containers(
        &self,
        scenario: &Scenario,
        plan: &RunPlan,
        stop: &CancellationToken,
    ) -> anyhow::Result<Record> {
        let testbed = Testbed {
            file: self.file.clone(),
            project: self.project.clone(),
            env_file: self.env_file.clone(),
        };
        let mut fleet = Fleet::Compose(Box::new(ComposeFleet::attach(&testbed).await?));
        let record = match fleet.scale(plan.shape.replicas).await {
            Ok(()) => run(scenario, plan, &mut fleet, stop).await,
            Err(error) => Err(error),
        };
        let stopped = fleet.stop().await;
        let record = record?;
        stopped.context("the testbed is not in order: docker-compose down, then up -d")?;
        Ok(record)
    }
}
