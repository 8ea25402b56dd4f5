//! `grapevine register`: a worker's own way into the cluster and out of it, as a sidecar or as a wrapper of its command.
//!
//! - `worker.rs`: whether the worker answers.
//! - `lease.rs`: its lease, at whichever replica answers.
//! - `command.rs`: the wrapped command, if there is one.

mod command;
mod lease;
#[cfg(test)]
mod tests;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use grapevine_gossip::worker::WorkerId;
use procfs::process::Process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use self::command::Wrapped;
use self::lease::{Lease, Renewed};
use self::worker::Worker;
use super::client::admin_url;
use super::description::Description;
use super::failure::Failure;
use super::show::{print_line, say};
use crate::config::{Secret, short_lease_secret};
use crate::discovery::Credentials;
use crate::shown::words::count;
use crate::tls::read_secret;

/// Registers one worker at the cluster for as long as it runs.
///
/// Waits until the worker answers its health path and /v1/models (401 there is an answer, too: an engine with a key of
/// its own, which the replicas have), registers it, and renews its lease at any replica. At SIGTERM,
/// or when its terminal is closed (but under nohup), the worker gets nothing new, what it has in hand ends, it is taken out, and then the command is ended. If this
/// program is killed, the lease expires: the worker gets no new prompts, and minutes later it leaves the ring.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  Beside a worker (a sidecar):
    grapevine register --worker http://10.0.0.7:8000 \\
      --to http://10.0.0.1:30001 http://10.0.0.2:30001
  Around its command:
    grapevine register --worker http://10.0.0.7:8000 --to http://10.0.0.1:30001 \\
      -- vllm serve my-model --port 8000
  The credential of one worker, made where the cluster's secret is:
    grapevine register --worker http://10.0.0.7:8000 --show-credential \\
      --secret-file /etc/grapevine/lease-secret

Every user of a machine can read the arguments of its processes (`ps`): give secrets by files or variables.")]
pub struct RegisterArgs {
    /// Address at which the replicas reach the worker, as http://host:port.
    #[arg(long, value_name = "URL")]
    worker: String,
    /// Admin addresses of replicas, parted by blanks or commas; several, so that one may be down. Any of them will do.
    #[arg(
        long,
        value_name = "URL",
        num_args = 1..,
        value_delimiter = ',',
        value_parser = admin_url,
        required_unless_present = "show_credential",
        env = "GRAPEVINE_REGISTER_TO"
    )]
    to: Vec<Url>,
    #[command(flatten)]
    description: Description,
    /// The worker's credential (see --show-credential), or the admin token. Others can read it in `ps`: prefer the file, or
    /// the variable.
    #[arg(long, env = "GRAPEVINE_REGISTER_CREDENTIAL", hide_env_values = true)]
    credential: Option<String>,
    /// File with the credential; read again at each renewal.
    #[arg(long, value_name = "FILE", conflicts_with = "credential")]
    credential_file: Option<PathBuf>,
    /// Path that the worker answers with 2xx when it can serve, as in `health.path` of the replicas.
    #[arg(long, value_name = "PATH", default_value = "/health")]
    health_path: String,
    /// Print the worker's credential and end.
    #[arg(long)]
    show_credential: bool,
    /// The cluster's secret (`leases.secret`), for --show-credential alone. Others can read it in `ps`: prefer the file, or
    /// the variable.
    #[arg(long, env = "GRAPEVINE_LEASES__SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// File with that secret; it counts more than the variable.
    #[arg(long, value_name = "FILE", requires = "show_credential")]
    secret_file: Option<PathBuf>,
    /// Seconds that requests in hand may take at the end, before the worker is taken out, and its command ended, all the same.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=604_800))]
    drain: u64,
    /// The worker's command and its arguments; its end ends this program, with the same exit code.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Pause after no replica took a renewal, and between looks at a worker that does not answer yet.
const RETRY: Duration = Duration::from_secs(1);
/// Pause after a refusal, which a person has to mend.
const REFUSED_RETRY: Duration = Duration::from_secs(5);
/// A worker beside which this runs, and that refuses connections for so long, is registered anew when it answers.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Carries it out.
/// Errors: a wrong argument, a refusal by the cluster, or a command that cannot be started.
pub async fn register(args: RegisterArgs) -> Result<ExitCode, Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let id = match &args.description.id {
        Some(id) => id.parse(),
        None => WorkerId::from_url(&args.worker),
    };
    let id = id.map_err(|error| usage(&error))?;
    if args.show_credential {
        let secret = secret(&args)?;
        print_line(&Credentials::new(&secret).of(&id))?;
        return Ok(ExitCode::SUCCESS);
    }
    args.description.check()?;
    let mut stop = Stop::new().map_err(|error| Failure::Refused(error.to_string()))?;
    let mut registration = Registration {
        worker: Worker::new(&args.worker, &args.health_path)?,
        lease: Lease::new(&id, &args)?,
        drain: Duration::from_secs(args.drain),
    };
    let mut wrapped = Wrapped::start(&args.command)?;
    registration.run(&mut stop, &mut wrapped).await;
    Ok(wrapped.end().await)
}

/// The cluster's secret, from its file, its variable, or the command line.
fn secret(args: &RegisterArgs) -> Result<Secret, Failure> {
    let usage = Failure::Usage;
    if let Some(file) = &args.secret_file {
        let secret = read_secret(file).map_err(|error| usage(error.to_string()))?;
        return long_enough(secret, &format!("the secret in {}", file.display()));
    }
    let given = args.secret.as_deref().ok_or_else(|| {
        let how = "--show-credential needs the cluster's secret: --secret-file FILE, or the variable GRAPEVINE_LEASES__SECRET";
        usage(how.to_owned())
    })?;
    let wrong = || usage("the secret is 1 to 512 visible ASCII characters".to_owned());
    long_enough(Secret::new(given).ok_or_else(wrong)?, "the secret")
}

/// As the replicas want it: they would refuse to start with a shorter one, so its credentials are good for nothing.
fn long_enough(secret: Secret, what: &str) -> Result<Secret, Failure> {
    if secret.is_short() {
        return Err(Failure::Usage(format!("{what} {}", short_lease_secret())));
    }
    Ok(secret)
}

/// What is registered, and how.
struct Registration {
    worker: Worker,
    lease: Lease,
    drain: Duration,
}

impl Registration {
    /// Keeps the worker registered until it is to end, or its command has ended, and takes it out.
    async fn run(&mut self, stop: &mut Stop, wrapped: &mut Wrapped) {
        loop {
            tokio::select! {
                () = stop.asked() => return self.leave(wrapped).await,
                () = wrapped.ended() => return self.release().await,
                () = self.keep() => {}
            }
        }
    }

    /// Waits for the worker, registers it, and renews its lease until it is gone.
    async fn keep(&mut self) {
        let Self { worker, lease, .. } = self;
        worker.wait_until_ready(RETRY).await;
        let renew = async || match lease.renew("active").await {
            Renewed::Until(ttl) => ttl / 6,
            Renewed::Unreachable => RETRY,
            // A secret may be changed under a running worker, and a file be half written: that ends no worker.
            Renewed::Refused(failure) => {
                lease.report(format!("{failure}; tried again"));
                REFUSED_RETRY
            }
        };
        renew_while_there(renew, async || worker.is_there().await).await;
        report("the worker refuses connections; it is registered anew when it answers");
    }

    /// Takes the worker out of use, waits for what it has in hand, and takes it out of the cluster.
    async fn leave(&mut self, wrapped: &mut Wrapped) {
        if !self.lease.is_held() && !self.lease.is_removed() {
            return;
        }
        let until = Instant::now() + self.drain;
        let mut empty = 0;
        while Instant::now() < until && !self.is_empty(empty) && !wrapped.has_ended() {
            match self.lease.renew("draining").await {
                Renewed::Until(_) if self.lease.in_flight() == Some(0) => empty += 1,
                Renewed::Until(_) | Renewed::Unreachable => empty = 0,
                // Its lease expires then, and what it has in hand has its time all the same.
                Renewed::Refused(failure) => {
                    self.lease.report(format!("{failure}; tried again"));
                    empty = 0;
                }
            }
            if self.lease.is_removed() {
                self.lease.turn();
            }
            sleep(RETRY).await;
        }
        if let Some(open) = self.lease.in_flight().filter(|open| *open > 0) {
            let what = count(open as usize, "request");
            report(&format!(
                "still open there: {what}; the lease ends all the same"
            ));
        }
        self.release().await;
    }

    /// Whether so many answers in a row without a request in hand are enough: two, or one of each replica.
    fn is_empty(&self, answers: usize) -> bool {
        let needed = match self.lease.is_removed() {
            true => self.lease.replicas().max(2),
            false => 2,
        };
        answers >= needed
    }

    async fn release(&mut self) {
        // What another process registered under this id is not ours to take out.
        if !self.lease.is_held() {
            return;
        }
        match self.lease.release().await {
            Ok(left) => report(&left),
            Err(failure) => report(&format!("{failure}; its lease expires by itself")),
        }
    }
}

/// Renews a lease, each time after the pause that the last renewal asks for, until the worker was not there for
/// [`GONE_AFTER`]. No renewal waits for a look at the worker: one that takes its time goes on over several of them.
async fn renew_while_there(
    mut renew: impl AsyncFnMut() -> Duration,
    is_there: impl AsyncFn() -> bool,
) {
    let mut seen = Instant::now();
    let mut look = pin!(is_there());
    loop {
        let pause = renew().await;
        let (found, ()) = tokio::join!(timeout(pause, look.as_mut()), sleep(pause));
        match found {
            Ok(true) => seen = Instant::now(),
            Ok(false) if seen.elapsed() > GONE_AFTER => return,
            Ok(false) => {}
            Err(_) => continue,
        }
        look.set(is_there());
    }
}

/// Signals that ask this program to end.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed; none under `nohup`, where that is to end nothing.
    hangup: Option<Signal>,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = hung_up(self.hangup.as_mut()) => {}
        }
    }
}

async fn hung_up(hangup: Option<&mut Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether this process was started so that SIGHUP does nothing.
fn ignores_hangup() -> bool {
    let status = Process::myself().and_then(|process| process.status());
    // Bit by bit, from signal 1 on, which it is.
    status.is_ok_and(|status| status.sigign & 1 != 0)
}

/// A line about progress; standard output is the wrapped command's.
fn report(line: &str) {
    say(&format!("grapevine register: {line}"));
}
