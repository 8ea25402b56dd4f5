//! The binary: arguments, configuration, runtime, run, exit code. The only reader of the process's
//! arguments and environment.

use std::process::ExitCode;

use grapevine::cli::{self, Cli, Command, Failure, ServeArgs, Task};
use grapevine::config::{Config, Layers, LogConfig, documented_defaults};
use grapevine::descriptors::raised;
use grapevine::logging::{self, LogGuard};
use grapevine::memory::allocator;
use grapevine::service_manager::ServiceManager;
use listenfd::ListenFd;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let command = Cli::read().command;
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing was installed before");
    run(command).unwrap_or_else(|failure| {
        if !matches!(failure, Failure::NotWell) {
            cli::say(&format!("error: {failure}"));
        }
        failure.exit_code()
    })
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    let done = match command {
        Command::Serve(args) => return serve(*args),
        #[cfg(feature = "testbed")]
        Command::Testbed(command) => {
            let _log = log(&LogConfig::default())?;
            raised();
            return block_on(None, grapevine_testbed::cli::run(command))?.map_err(refused);
        }
        Command::Bench(args) => {
            raised();
            return Ok(block_on(None, grapevine_bench::cli::bench(*args))??);
        }
        Command::Register(args) => return small_runtime()?.block_on(cli::register(*args)),
        Command::Ca(args) => cli::ca(args),
        Command::Keys(args) => cli::keys(args),
        Command::Doctor(args) => small_runtime()?.block_on(cli::doctor(args, environment())),
        Command::Events(args) => small_runtime()?.block_on(cli::events(args)),
        Command::Status(args) => small_runtime()?.block_on(cli::status(args)),
        Command::Top(args) => small_runtime()?.block_on(cli::top(args)),
        Command::Workers(args) => small_runtime()?.block_on(cli::workers(args)),
        Command::Quarantine(args) => small_runtime()?.block_on(cli::quarantine(args)),
        Command::Cache(args) => small_runtime()?.block_on(cli::cache(args)),
        Command::Config(args) => small_runtime()?.block_on(cli::config(args)),
        Command::Explain(args) => small_runtime()?.block_on(cli::explain(args)),
        Command::Probe(args) => small_runtime()?.block_on(cli::probe(args)),
        Command::Man(args) => cli::man(&args),
        Command::Completions(args) => cli::completions(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn serve(args: ServeArgs) -> Result<ExitCode, Failure> {
    #[cfg(debug_assertions)]
    if std::env::var_os("GRAPEVINE_PROVOKE").is_some_and(|value| value == "1") {
        grapevine::fault_injection::enable();
    }
    match args.task(environment())? {
        Task::PrintConfig => cli::print_line(documented_defaults().trim_end())?,
        Task::Check(origin) => cli::check(&origin)?,
        Task::Run(config, origin) => return replica(*config, *origin),
    }
    Ok(ExitCode::SUCCESS)
}

/// The variables of this process; names that are no text are none of ours.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    })
}

fn replica(config: Config, origin: Layers) -> Result<ExitCode, Failure> {
    // Before any thread: it changes the environment.
    let sockets = ListenFd::from_env();
    let _log = log(&config.log)?;
    let is_json = config.log.json;
    match run_replica(config, origin, sockets) {
        // Whoever reads this log reads JSON.
        Err(failure) if is_json => {
            tracing::error!("{failure}");
            Ok(failure.exit_code())
        }
        ended => ended,
    }
}

fn run_replica(config: Config, origin: Layers, sockets: ListenFd) -> Result<ExitCode, Failure> {
    allocator::start();
    for note in config.notes() {
        tracing::info!("{note}");
    }
    let variable = |name: &str| std::env::var_os(name);
    let manager = ServiceManager::of(variable, std::process::id(), sockets)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    block_on(Some(THREADS), grapevine::app::run(config, origin, manager))?.map_err(refused)
}

fn log(config: &LogConfig) -> Result<LogGuard, Failure> {
    logging::start(config).map_err(|error| Failure::Refused(error.to_string()))
}

/// Threads of a replica beside those that serve clients: gossip answers while the other one is held up.
const THREADS: usize = 2;

/// Runs on `threads`, or on all processors, until the future ends; what it left behind is not waited for.
fn block_on<T>(threads: Option<usize>, future: impl Future<Output = T>) -> Result<T, Failure> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = started(builder.enable_all().build())?;
    let ended = runtime.block_on(future);
    // A name look-up that hangs would otherwise hold the process.
    runtime.shutdown_background();
    Ok(ended)
}

fn refused(error: anyhow::Error) -> Failure {
    Failure::Refused(format!("{error:#}"))
}

/// For a command that asks one question.
fn small_runtime() -> Result<Runtime, Failure> {
    started(Builder::new_current_thread().enable_all().build())
}

fn started(runtime: std::io::Result<Runtime>) -> Result<Runtime, Failure> {
    runtime.map_err(|error| Failure::Refused(format!("cannot start threads: {error}")))
}
