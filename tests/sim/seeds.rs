//! Many random schedules, each seed in a process of its own: tokio numbers its runtimes across threads, and
//! that number decides which branch is polled first. A seed draws the same plan each time; the views over
//! time, of which it prints a hash, may still differ.
//!
//! | variable | what it does | default |
//! |---|---|---|
//! | `SIM_SCHEDULES` | seeds to run | 20 |
//! | `SIM_FIRST` | the first of them | 1000 |
//! | `SIM_JOBS` | how many at once | one for each core |
//! | `SIM_MINUTES` | virtual minutes of each | 10 |
//! | `SIM_SEED` | runs this seed alone, in the test `one_schedule` | |
//! | `SIM_SKIP` | leaves out the steps of these numbers, `3,7-20` | |
//! | `SIM_SHRINK` | `1`: of a failed seed, looks for steps that the failure does not need | |

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::schedules;

const SCHEDULES: u64 = 20;
const FIRST: u64 = 1000;
const MINUTES: u64 = 10;
/// Greatest number of runs to look for needless steps.
const SHRINKING_MAX: usize = 80;
/// Begins the line in which a run reports its result.
const RESULT: &str = "schedule: ";

/// One seed, in this process.
#[test]
fn one_schedule() {
    let seed = number("SIM_SEED").unwrap_or(FIRST - 1);
    // Without a requested seed the schedule is short.
    let length = match number("SIM_SEED") {
        Some(_) => length(),
        None => Duration::from_secs(30),
    };
    let report = schedules::run(seed, length, &skipped());
    let is_looked_for = report.due > 0 || report.records == 0 || !skipped().is_empty();
    assert!(
        is_looked_for,
        "no replica had to have any of {} records",
        report.records
    );
    println!(
        "{RESULT}seed={seed} trace={:016x} virtual_s={} words={} unsure={} evidence={} agreed_ms={} whole_ms={} linked_ms={}",
        report.trace,
        report.virtual_s,
        report.words,
        report.unsure,
        report.records,
        list(&report.agreed_ms),
        list(&report.whole_ms),
        list(&report.linked_ms),
    );
}

/// G14: after any faults, quiet brings agreement; no removed worker is back, and none is lost that a live
/// replica held.
#[test]
fn random_schedules_end_in_agreement() {
    let first = number("SIM_FIRST").unwrap_or(FIRST);
    let last = first + number("SIM_SCHEDULES").unwrap_or(SCHEDULES);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = number("SIM_JOBS").unwrap_or(cores);
    let next = AtomicU64::new(first);
    let (results, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    #[allow(
        clippy::disallowed_methods,
        reason = "real time, for a person who waits"
    )]
    let start = Instant::now();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last {
                return;
            }
            match result(&child(seed, &[])) {
                Ok(line) => {
                    println!("{line}");
                    lock(&results).push(line);
                }
                Err(output) => {
                    println!("{output}\n{}", again(seed, &[]));
                    lock(&failed).push(seed);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let (results, failed) = (lock(&results), lock(&failed));
    println!(
        "{} schedules, {} failed, in {:?}",
        last - first,
        failed.len(),
        start.elapsed()
    );
    for what in ["agreed_ms", "whole_ms", "linked_ms"] {
        print_distribution(what, &results);
    }
    if number("SIM_SHRINK") == Some(1) {
        failed.iter().for_each(|&seed| shrink(seed));
    }
    assert!(failed.is_empty(), "failed seeds: {failed:?}");
}

fn child(seed: u64, skipped: &[usize]) -> Output {
    output(&mut command(seed, skipped))
}

fn command(seed: u64, skipped: &[usize]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "seeds::one_schedule", "--nocapture"])
        .env("SIM_SEED", seed.to_string())
        .env("SIM_SKIP", list(skipped))
        .stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("this binary runs")
}

/// The line of a run that passed, or all that a failed one wrote.
fn result(output: &Output) -> Result<String, String> {
    let written = String::from_utf8_lossy(&output.stdout);
    // The harness writes the test's name before it, in the same line.
    let line = written.lines().find_map(|line| line.split_once(RESULT));
    match line {
        Some((_, line)) if output.status.success() => Ok(line.to_owned()),
        _ => Err(format!(
            "{written}{}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The command that runs it again.
fn again(seed: u64, skipped: &[usize]) -> String {
    let skip = if skipped.is_empty() {
        String::new()
    } else {
        format!("SIM_SKIP={} ", list(skipped))
    };
    format!(
        "again: SIM_SEED={seed} {skip}cargo test -p grapevine-tests --test sim one_schedule -- --nocapture"
    )
}

/// Removes steps while the seed still fails, first many at once, then one by one.
fn shrink(seed: u64) {
    let count = schedules::steps(seed, length());
    let mut skipped: Vec<usize> = Vec::new();
    let mut runs = 0;
    let mut chunk = count / 2;
    while chunk > 0 {
        for start in (0..count).step_by(chunk) {
            let mut tried = skipped.clone();
            tried.extend((start..count.min(start + chunk)).filter(|step| !skipped.contains(step)));
            if tried.len() == skipped.len() || runs == SHRINKING_MAX {
                continue;
            }
            runs += 1;
            if result(&child(seed, &tried)).is_err() {
                skipped = tried;
            }
        }
        chunk /= 2;
    }
    skipped.sort_unstable();
    println!(
        "{} of {count} steps are enough\n{}",
        count - skipped.len(),
        again(seed, &skipped)
    );
}

fn print_distribution(what: &str, results: &[String]) {
    let values = |line: &String| {
        let mut words = line.split(' ');
        let listed = words.find_map(|word| word.strip_prefix(what)?.strip_prefix('='));
        let numbers = listed.unwrap_or_default().split(',');
        numbers
            .filter_map(|number| number.parse::<u64>().ok())
            .collect::<Vec<_>>()
    };
    let mut all: Vec<_> = results.iter().flat_map(values).collect();
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    if !all.is_empty() {
        println!(
            "{what}: {} quiet times, p50 {} p99 {} max {}",
            all.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

fn length() -> Duration {
    Duration::from_secs(60 * number("SIM_MINUTES").unwrap_or(MINUTES))
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

fn skipped() -> Vec<usize> {
    let text = std::env::var("SIM_SKIP").unwrap_or_default();
    let number = |text: &str| text.parse::<usize>().expect("SIM_SKIP holds numbers");
    let ranges = text.split(',').filter(|range| !range.is_empty());
    ranges
        .flat_map(|range| match range.split_once('-') {
            Some((from, to)) => number(from)..=number(to),
            None => number(range)..=number(range),
        })
        .collect()
}

fn list<T: ToString>(numbers: &[T]) -> String {
    let texts: Vec<_> = numbers.iter().map(T::to_string).collect();
    texts.join(",")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
