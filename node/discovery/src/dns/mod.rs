//! Workers that stand in DNS: the addresses of names (A, AAAA), or services (SRV).
//!
//! Names are looked up again when the shortest of their TTLs is over. If one of them has no answer, the whole source
//! reports the failure and keeps its last picture: a picture without the workers of one name would have them removed.
//!
//! Does not decide what becomes of workers that are gone from DNS (`rule/`), and resolves no targets of SRV records by
//! itself: those are names in the workers' URLs, and whoever connects to one asks for its [`addresses`].

mod answer;
mod ask;
mod failure;
mod name;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use grapevine_gossip::worker::{Role, WorkerError};
use tokio::time::Instant;

use crate::feed::Feed;
use crate::picture::Picture;
use answer::{Answer, Belief, Listed};
use ask::Asker;
pub use name::{DnsName, DnsNameError};

/// Greatest number of names of one source.
pub const NAMES_MAX: usize = 64;

/// Names that are asked for at once. One after the other, names whose server answers late would be old before the last one
/// is known; all at once, they would be a flood to it.
const ASKED_AT_ONCE: usize = 8;

/// How workers are spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP.
    #[default]
    Http,
    /// TLS. The certificate must be for what the URL has: the address, or the target of an SRV record.
    Https,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// Which names, whom to ask, and how often.
#[derive(Clone, Debug)]
pub struct DnsSettings {
    /// Names of workers that take whole requests; at most [`NAMES_MAX`] with those of the other roles.
    pub names: Vec<DnsName>,
    /// Names of workers that prefill only.
    pub prefill_names: Vec<DnsName>,
    /// Names of workers that decode only.
    pub decode_names: Vec<DnsName>,
    /// The scheme of the workers' URLs.
    pub scheme: Scheme,
    /// Name servers to ask; empty: those of the system, with its search list and hosts file.
    pub nameservers: Vec<SocketAddr>,
    /// Where the system has `resolv.conf` and `hosts`. Default `/etc`.
    pub system: PathBuf,
    /// The longest time for one name. Default 5 s.
    pub timeout: Duration,
    /// The shortest time that an answer stands, whatever its TTL. Default 1 s. Lower: more questions.
    pub ttl_min: Duration,
    /// The longest time that an answer stands, whatever its TTL. Default 60 s. Higher: changes are noticed later.
    pub ttl_max: Duration,
    /// After a failure, or an answer that is not believed at once, the longest time until the names are looked up again.
    /// Default 5 s.
    pub retry: Duration,
}

impl DnsSettings {
    /// These names, with the system's name servers and the default times.
    pub fn new(names: Vec<DnsName>) -> Self {
        Self {
            names,
            prefill_names: Vec::new(),
            decode_names: Vec::new(),
            scheme: Scheme::default(),
            nameservers: Vec::new(),
            system: PathBuf::from("/etc"),
            timeout: Duration::from_secs(5),
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(60),
            retry: Duration::from_secs(5),
        }
    }

    /// All names, each with the role of its workers.
    fn all_names(&self) -> impl Iterator<Item = (&DnsName, Role)> {
        fn of(names: &[DnsName], role: Role) -> impl Iterator<Item = (&DnsName, Role)> {
            names.iter().map(move |name| (name, role))
        }
        let whole = of(&self.names, Role::Any);
        let prefill = of(&self.prefill_names, Role::Prefill);
        whole
            .chain(prefill)
            .chain(of(&self.decode_names, Role::Decode))
    }

    /// The time that answers stand of which the shortest TTL is `ttl`.
    fn stands(&self, ttl: Duration) -> Duration {
        ttl.min(self.ttl_max).max(self.ttl_min)
    }
}

/// Why no address of a host is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer {
    /// In words, with what to check.
    pub why: String,
    /// A server said so of the name; else none could tell.
    pub is_final: bool,
}

/// The addresses that `host` has now, by the name servers of `settings`.
/// Errors: why none is known, with what to check.
pub async fn addresses(settings: &DnsSettings, host: &str) -> Result<Vec<IpAddr>, NoAnswer> {
    let asker = Asker::new(settings).map_err(|why| NoAnswer {
        why,
        is_final: false,
    })?;
    asker.host(host, settings.timeout).await
}

/// Reports the workers of the names to `feed` until nobody reads it.
pub async fn run(settings: DnsSettings, feed: Feed) {
    let count = settings.all_names().count();
    if count > NAMES_MAX {
        feed.fail(format!(
            "{count} names are more than {NAMES_MAX}; put several workers under one name"
        ));
        return feed.closed().await;
    }
    let mut beliefs: Vec<Belief> = settings.all_names().map(|_| Belief::default()).collect();
    loop {
        let pause = tokio::select! {
            () = feed.closed() => return,
            pause = look(&settings, &mut beliefs) => pause,
        };
        let pause = match pause {
            Ok(pause) => {
                report(&beliefs, &feed);
                pause
            }
            Err(why) => {
                feed.fail(why);
                settings.retry
            }
        };
        tokio::select! {
            () = feed.closed() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Looks up all names, and returns how long the answers stand.
async fn look(settings: &DnsSettings, beliefs: &mut [Belief]) -> Result<Duration, String> {
    // Each look goes by the system's files as they are then: a name of the hosts file may have other addresses.
    let asker = Asker::new(settings)?;
    let mut stands = settings.ttl_max;
    let names = settings.all_names();
    let questions: Vec<_> = names.map(|(name, _)| asker.ask(name, settings)).collect();
    // In the order of the names, so that of several without an answer it is always the first that is reported.
    let mut answers = stream::iter(questions).buffered(ASKED_AT_ONCE);
    for ((_, role), belief) in settings.all_names().zip(beliefs) {
        let answer = answers.next().await.expect("one for each name");
        let answer = answer.inspect_err(|_| belief.failed())?;
        let ttl = answer.ttl;
        let answer = Answer {
            workers: in_role(answer.workers, role)?,
            ..answer
        };
        let is_believed = belief.answered(answer, Instant::now(), settings.retry);
        stands = stands.min(ttl.map_or(settings.retry, |ttl| settings.stands(ttl)));
        if !is_believed {
            // Addresses in doubt have a TTL, too, for which those that may be gone would stand.
            stands = stands.min(settings.retry);
        }
    }
    Ok(stands)
}

/// The workers of a name in the role that its list gives them.
fn in_role(workers: Listed, role: Role) -> Result<Listed, String> {
    let workers = workers.into_iter();
    let workers = workers.map(|(id, found)| Ok((id, found.in_role(role)?)));
    let workers: Result<_, WorkerError> = workers.collect();
    workers.map_err(|error| error.to_string())
}

/// Reports the union of what is believed, once something is believed of every name.
fn report(beliefs: &[Belief], feed: &Feed) {
    let Some(all) = beliefs
        .iter()
        .map(Belief::workers)
        .collect::<Option<Vec<_>>>()
    else {
        return;
    };
    match Picture::new(all.into_iter().flatten().cloned()) {
        Ok(picture) => feed.see(picture),
        Err(error) => feed.fail(format!(
            "{error}; correct the records, or name them in one list alone"
        )),
    }
}
