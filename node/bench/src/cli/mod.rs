//! `grapevine bench`: arguments, and the run from them to the exit code.

mod args;
mod setup;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use tokio_util::task::AbortOnDropHandle;

pub use args::BenchArgs;

use crate::load::Stop;
use crate::progress::Progress;
use crate::report::{self, Text};
use crate::run::{self, RunResult};

/// Why nothing was measured, or no report was written.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line cannot be followed; nothing was sent.
    #[error("{0}")]
    Usage(String),
    /// The endpoint does not reply when it is asked for its models.
    #[error("{0}")]
    Unreachable(String),
    /// It replies, with no list of models.
    #[error("{0}")]
    Refused(String),
    /// A report cannot be written.
    #[error("cannot write {0}: {1}")]
    Write(String, io::Error),
}

/// Exit codes beside 0, "all requests were sent and answered", and those of [`BenchError`].
const SOME_FAILED: u8 = 1;
const NOBODY_THERE: u8 = 3;
/// As shells report a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Runs to the end, or until Ctrl-C, and shows the result.
/// Errors: see [`BenchError`]. Requests that fail are a result, and an exit code.
pub async fn bench(args: BenchArgs) -> Result<ExitCode, BenchError> {
    let html = args.html.clone();
    let json = args.json;
    let setup = args.setup().await?;
    if let Some(path) = &html {
        can_write(path)?;
    }
    let all = setup.plan.requests * setup.rounds * setup.sides.len() as u64;
    let stop = Stop::default();
    let _signals = stop_by_signals(stop.clone());
    let mut bar = Progress::new("bench", all);
    let result = run::run(&setup, &stop, |now| {
        bar.set(now.ended, || {
            let ttft = now.first_token_p50.as_secs_f64() * 1e3;
            format!("{} failed, ttft p50 {ttft:.1} ms", now.failed)
        });
    });
    let result = result.await;
    bar.finish();
    if json {
        warn_of_warm_up(&result);
        print(&report::json(&result))?;
    } else {
        print(&Text(&result).to_string())?;
    }
    if let Some(path) = &html {
        write(path, &report::page(&result))?;
    }
    Ok(exit_code(&result))
}

/// Who reads JSON does not look for it.
fn warn_of_warm_up(result: &RunResult) {
    for endpoint in &result.endpoints {
        if let Some(shortfall) = endpoint.warm_up.shortfall(result.load.warm_up) {
            let name = &endpoint.name;
            let _ = writeln!(io::stderr(), "warning: warm-up of {name}: {shortfall}");
        }
    }
}

fn exit_code(result: &RunResult) -> ExitCode {
    ExitCode::from(match result {
        result if result.interrupted => INTERRUPTED,
        result if result.is_unreachable() => NOBODY_THERE,
        result if !result.is_answered() => SOME_FAILED,
        _ => 0,
    })
}

/// The first signal ends sending; the second one drops what is in flight.
fn stop_by_signals(stop: Stop) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        for (token, said) in [
            (
                &stop.sending,
                "waiting for what is in flight; again: drop it",
            ),
            (&stop.waiting, "dropping what is in flight"),
        ] {
            if interrupted().await.is_err() {
                return;
            }
            let _ = writeln!(io::stderr(), "{said}");
            token.cancel();
        }
    }))
}

async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = term.recv() => Ok(()),
    }
}

/// A reader that left (`| head`) is no failure.
fn print(text: &str) -> Result<(), BenchError> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(BenchError::Write("standard output".to_owned(), error))
        }
        _ => Ok(()),
    }
}

/// Asked before an hour of load rather than after it. A report that is there stays until the next one is whole.
fn can_write(path: &Path) -> Result<(), BenchError> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(unwritten(path))
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(unwritten(path))
}

fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> BenchError {
    |error| BenchError::Write(path.display().to_string(), error)
}
