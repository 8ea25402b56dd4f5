//! Files that are read again without a restart: on SIGHUP, and when one of them changed.
//!
//! What cannot be used leaves the old in place and is an ERROR line and a counter. It is read at each look from then on:
//! a certificate may not have begun, and a system without free descriptors shows no file. Looking at the time of
//! change by the clock also finds what Kubernetes does to a mounted secret: a link that points elsewhere.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use std::os::unix::fs::MetadataExt;

use grapevine_gossip::identity::Term;
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::metrics::TlsMetrics;
use super::pem::FileError;
use crate::shutdown::Phase;

/// Reads everything anew and takes it into use, or changes nothing. Returns the certificate's term, if any.
type Load = Box<dyn Fn() -> Result<Option<Term>, FileError> + Send>;

/// What distinguishes one state of a file from the next: when it was changed, its size, and which file it is. The time of
/// the last change, and not that of the contents: a file may become readable by its rights alone.
type Stamp = Option<(i64, i64, u64, u64)>;

/// Files as they were at one moment. Taken before they are read, so that no change is missed.
pub struct Files {
    name: &'static str,
    paths: Vec<PathBuf>,
    stamps: Vec<Stamp>,
}

impl Files {
    /// Looks at the files; `name` is their metric label.
    pub fn seen(name: &'static str, paths: Vec<PathBuf>) -> Self {
        let mut files = Self {
            name,
            paths,
            stamps: Vec::new(),
        };
        files.stamps = files.stamps_now();
        files
    }

    fn stamps_now(&self) -> Vec<Stamp> {
        let stamp = |path: &PathBuf| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.ctime(), meta.ctime_nsec(), meta.size(), meta.ino()))
        };
        self.paths.iter().map(stamp).collect()
    }

    /// Whether a file is another one than at the last look.
    pub fn changed(&mut self) -> bool {
        let now = self.stamps_now();
        let changed = now != self.stamps;
        self.stamps = now;
        changed
    }
}

/// Files, and the part that uses them.
struct Watched {
    files: Files,
    load: Load,
    /// They could not be used as they are.
    is_refused: bool,
}

/// Reads files again for the parts that use them.
pub struct Reloader {
    watched: Vec<Watched>,
    metrics: TlsMetrics,
}

impl Reloader {
    /// Nothing to read yet.
    pub fn new(metrics: TlsMetrics) -> Self {
        Self {
            watched: Vec::new(),
            metrics,
        }
    }

    /// Adds files, if there are any, that were read for the first time by now; `term` is their
    /// certificate's.
    pub fn watch(
        &mut self,
        files: Files,
        term: Option<Term>,
        load: impl Fn() -> Result<Option<Term>, FileError> + Send + 'static,
    ) {
        if files.paths.is_empty() {
            return;
        }
        tell(&self.metrics, files.name, term);
        self.metrics.watched(files.name);
        self.watched.push(Watched {
            files,
            load: Box::new(load),
            is_refused: false,
        });
    }

    /// Runs until the replica is closed. SIGHUP reads everything, also what seems unchanged.
    pub async fn run(mut self, mut hangup: Signal, every: Duration, phase: Phase) {
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let all = tokio::select! {
                () = phase.closed() => return,
                Some(()) = hangup.recv() => true,
                _ = ticks.tick(), if !self.watched.is_empty() => false,
            };
            if all {
                tracing::info!("SIGHUP: reading certificates and keys again");
            }
            // A network file system may take its time.
            let looked = spawn_blocking(move || {
                self.look(all);
                self
            });
            match looked.await {
                Ok(back) => self = back,
                Err(error) => {
                    tracing::error!(%error, "certificates and keys are no longer read again");
                    return;
                }
            }
        }
    }

    fn look(&mut self, all: bool) {
        for watched in &mut self.watched {
            // In this order: a change is remembered also when everything is read.
            let is_news = watched.files.changed() || all;
            if !is_news && !watched.is_refused {
                continue;
            }
            let name = watched.files.name;
            match (watched.load)() {
                Ok(term) => {
                    watched.is_refused = false;
                    tracing::info!(files = name, "certificates and keys were read again");
                    tell(&self.metrics, name, term);
                    self.metrics.reloaded(name, "loaded");
                }
                // It was said.
                Err(_) if !is_news => {}
                Err(error) => {
                    watched.is_refused = true;
                    tracing::error!(
                        files = name,
                        %error,
                        "certificates or keys cannot be used; the old ones stay"
                    );
                    self.metrics.reloaded(name, "failed");
                }
            }
        }
    }
}

/// One that has ended, or has not begun, is in use all the same: who looks at no dates is served.
fn tell(metrics: &TlsMetrics, files: &'static str, term: Option<Term>) {
    let Some(term) = term else { return };
    metrics.has_term(files, term);
    if let Some(why) = term.amiss(SystemTime::now()) {
        tracing::warn!(
            files,
            why,
            "the certificate in use is good at another time, and most do not accept it now"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    /// The first two times what is read cannot be used.
    #[test]
    fn what_changed_is_read_again_until_it_can_be_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cert.pem");
        std::fs::write(&path, "one").expect("written");
        let mut registry = Registry::default();
        let mut reloader = Reloader::new(TlsMetrics::register(&mut registry));
        let loads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&loads);
        reloader.watch(
            Files::seen("listener", vec![path.clone()]),
            None,
            move || {
                if count.fetch_add(1, Ordering::Relaxed) > 1 {
                    return Ok(None);
                }
                Err(FileError::NoSystemRoots {
                    problem: String::new(),
                })
            },
        );
        let mut look = |all, expected: usize| {
            reloader.look(all);
            assert_eq!(loads.load(Ordering::Relaxed), expected);
        };
        let is_refused = || {
            let mut encoded = String::new();
            text::encode(&mut encoded, &registry).expect("a string takes all");
            let value = |line: &str| {
                line.strip_prefix("tls_files_refused{files=\"listener\"} ")
                    .map(|value| value == "1")
            };
            encoded.lines().find_map(value).expect("it is watched")
        };
        look(false, 0);
        assert!(!is_refused());
        std::fs::write(&path, "another").expect("written");
        look(false, 1);
        look(false, 2);
        assert!(is_refused());
        look(false, 3);
        assert!(!is_refused());
        look(false, 3);
        look(true, 4);
        // Its rights alone; twice within a tick of the kernel's clock cannot be told apart.
        let changed = |path| {
            let meta = std::fs::metadata(path).expect("it is there");
            (meta.ctime(), meta.ctime_nsec())
        };
        let before = changed(&path);
        while changed(&path) == before {
            let readable = std::fs::Permissions::from_mode(0o644);
            std::fs::set_permissions(&path, readable).expect("ours");
        }
        look(false, 5);
        std::fs::remove_file(&path).expect("removed");
        look(false, 6);
        // As Kubernetes does it: the same name, another file.
        let other = dir.path().join("other.pem");
        std::fs::write(&other, "another").expect("written");
        std::os::unix::fs::symlink(&other, &path).expect("linked");
        look(false, 7);
        let mut encoded = String::new();
        text::encode(&mut encoded, &registry).expect("a string takes all");
        assert!(
            encoded.contains(r#"tls_reloads_total{files="listener",result="failed"} 1"#)
                && encoded.contains(r#"tls_reloads_total{files="listener",result="loaded"} 5"#),
            "{encoded}"
        );
    }
}
