//! `grapevine serve --check`: every mistake in the configuration and in what it names, at once.
//!
//! Opens no port and asks nobody. More is a mistake here than at a start: a replica serves on while a file of workers or
//! a kubeconfig is missing, or a certificate that it shows to clients or workers has ended, and says so in its log.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use grapevine_discovery::file;
#[cfg(feature = "kubernetes")]
use grapevine_discovery::kubernetes::mistakes_of_kubeconfig;
use grapevine_gossip::identity::{PemFiles, Term};
use grapevine_gossip::{Identity, IdentityError};

use crate::all_metrics::AllMetrics;
use crate::app;
use crate::config::allow::Allow;
use crate::config::{
    Config, ConfigError, KubernetesConfig, Layers, Origin, Problem, TlsConfig, WorkersConfig,
    in_order_of_place, read_keys,
};
use crate::listener::tls::ListenerTls;
use crate::metrics::export::Exporter;
use crate::tls::{FileError, read, read_certificates, read_private_key, read_roots, read_secret};
use crate::trace::Tracing;
use crate::upstream::Connector;

use super::failure::Failure;
use super::show::print_line;

/// Checks what can be checked without a port, and says what is missing and yet no mistake.
/// Errors: all mistakes, one a line, or standard output is closed.
pub fn check(origin: &Layers) -> Result<(), Failure> {
    let (_, problems, notes) = examine(origin);
    if !problems.is_empty() {
        return Err(ConfigError::Invalid(problems).into());
    }
    for note in notes {
        print_line(&note)?;
    }
    print_line("the configuration is good")
}

/// The settings as far as they could be read, every mistake in them and in the files that they name, and what is no
/// mistake and should be known.
pub(super) fn examine(origin: &Layers) -> (Config, Vec<Problem>, Vec<String>) {
    let (config, problems) = Config::examine(origin);
    let mut files = Files { origin, problems };
    files.listener(&config.tls);
    files.gossip(&config);
    files.workers(&config);
    files.keys(&config);
    files.kubernetes(&config.kubernetes);
    files.collectors(&config);
    let unmatched = files.found_workers(&config);
    let problems = in_order_of_place(files.problems);
    let notes = config.notes().into_iter().chain(unmatched);
    let notes = notes.chain(open_keys(&config)).collect();
    (config, problems, notes)
}

/// The files that a configuration names, and the mistakes so far.
struct Files<'a> {
    origin: &'a Layers,
    problems: Vec<Problem>,
}

impl Files<'_> {
    fn add(&mut self, origin: Origin, key: &str, what: &impl ToString) {
        self.problems.push(Problem {
            origin,
            key: key.to_owned(),
            what: what.to_string(),
        });
    }

    /// A mistake in what this setting names.
    fn wrong(&mut self, section: &str, key: &str, what: &impl ToString) {
        let origin = self.origin.origin_of(section, key);
        self.add(origin, &format!("{section}.{key}"), what);
    }

    /// Reads one file, if one is set. Returns whether nothing is wrong with it.
    fn is_good<T>(
        &mut self,
        section: &str,
        key: &str,
        path: Option<&Path>,
        read: impl FnOnce(&Path) -> Result<T, FileError>,
    ) -> bool {
        let Some(Err(error)) = path.map(read) else {
            return true;
        };
        self.wrong(section, key, &error);
        false
    }

    fn listener(&mut self, tls: &TlsConfig) {
        let cert = self.is_good("tls", "cert", tls.cert.as_deref(), read_certificates);
        let key = self.is_good("tls", "key", tls.key.as_deref(), read_private_key);
        let clients = self.is_good("tls", "client_ca", tls.client_ca.as_deref(), read_roots);
        if cert && key && clients {
            let term = ListenerTls::load(tls).map(|tls| tls.map(|tls| tls.term()));
            self.pair("tls", "cert", tls.cert.as_deref(), term);
        }
    }

    /// A certificate with its key, as far as they could be taken together: it must be good now.
    fn pair(
        &mut self,
        section: &str,
        key: &str,
        cert: Option<&Path>,
        term: Result<Option<Term>, FileError>,
    ) {
        let amiss = |term: Term| term.amiss(SystemTime::now());
        match (term.map(|term| term.and_then(amiss)), cert) {
            (Err(error), _) => self.wrong(section, key, &error),
            (Ok(Some(why)), Some(cert)) => {
                let what = format!("certificate {} is not good now: {why}", cert.display());
                self.wrong(section, key, &what);
            }
            (Ok(_), _) => {}
        }
    }

    fn gossip(&mut self, config: &Config) {
        let gossip = &config.gossip;
        let ca = self.is_good("gossip", "ca", gossip.ca.as_deref(), read_roots);
        let cert = self.is_good("gossip", "cert", gossip.cert.as_deref(), read_certificates);
        let key = self.is_good("gossip", "key", gossip.key.as_deref(), read_private_key);
        let revoked = self.is_good("gossip", "revoked", gossip.revoked.as_deref(), read);
        // Names that could not be read are reported already; a certificate says others than their defaults.
        let is_named =
            |problem: &Problem| matches!(&*problem.key, "cluster.id" | "replica.id" | "");
        if !(ca && cert && key && revoked) || self.problems.iter().any(is_named) {
            return;
        }
        let Some(pem) = gossip.identity() else { return };
        let Err(error) = identity(config, &pem) else {
            return;
        };
        let is_without_list = pem.revoked.is_some()
            && identity(
                config,
                &PemFiles {
                    revoked: None,
                    ..pem
                },
            )
            .is_ok();
        let key = match error {
            _ if is_without_list => "revoked",
            IdentityError::Foreign { .. } => "ca",
            _ => "cert",
        };
        self.wrong("gossip", key, &error);
    }

    /// Keys and certificates that workers want.
    fn workers(&mut self, config: &Config) {
        let WorkersConfig {
            ca,
            client_cert,
            client_key,
            api_key_file,
            ..
        } = &config.workers;
        let ca = self.is_good("workers", "ca", ca.as_deref(), read_roots);
        let cert = self.is_good(
            "workers",
            "client_cert",
            client_cert.as_deref(),
            read_certificates,
        );
        let key = self.is_good(
            "workers",
            "client_key",
            client_key.as_deref(),
            read_private_key,
        );
        let mut secrets = self.is_good(
            "workers",
            "api_key_file",
            api_key_file.as_deref(),
            read_secret,
        );
        for (index, worker) in config.worker.iter().enumerate() {
            if let Some(Err(error)) = worker.api_key_file.as_deref().map(read_secret) {
                let origin = self.origin.origin_of_worker(index, "api_key_file");
                self.add(origin, "worker.api_key_file", &error);
                secrets = false;
            }
        }
        let parts = app::reach_parts(config, config.timeouts.tls_handshake.into());
        if ca && cert && key && secrets {
            let term = Connector::load(parts).map(|connector| connector.term());
            self.pair("workers", "client_cert", client_cert.as_deref(), term);
        }
    }

    /// Keys of clients.
    fn keys(&mut self, config: &Config) {
        match config.keys.file.as_deref().map(read_keys) {
            None | Some(Ok(_)) => {}
            // Each has its place in that file.
            Some(Err(ConfigError::Invalid(problems))) => self.problems.extend(problems),
            Some(Err(ConfigError::Unreadable { path, cause })) => {
                let what = format!("cannot read {}: {cause}", path.display());
                self.wrong("keys", "file", &what);
            }
        }
    }

    /// Returns notes about patterns that match no file, and workers that are left out, which may be intended.
    fn found_workers(&mut self, config: &Config) -> Vec<String> {
        let examined = file::examine(&config.files.paths);
        for mistake in &examined.mistakes {
            self.wrong("files", "paths", mistake);
        }
        let note = |pattern| {
            format!("files.paths: {pattern} matches no file: it is a list without workers")
        };
        let unmatched = examined.without_files.iter().map(note);
        let allow = Allow::new(config.workers.allow.clone());
        let refused = examined.workers.iter().filter_map(|(id, found)| {
            let refused = allow.host(found.spec().url().host()).err()?;
            Some(format!(
                "files.paths: the worker {id} will be left out: {refused}"
            ))
        });
        unmatched.chain(refused).collect()
    }

    /// What is sent to collectors, and the headers for them, which are in the environment.
    fn collectors(&mut self, config: &Config) {
        let (metrics, trace) = (AllMetrics::new(), &config.trace);
        let replica = config.replica_id();
        if let Err(error) = Tracing::start(trace, &replica, &metrics.trace) {
            self.wrong("trace", "endpoint", &format!("{error:#}"));
        }
        let exporter = Exporter::new(
            &config.metrics_export,
            &trace.service_name,
            &replica,
            &metrics.export,
            |name| self.origin.variable(name),
        );
        if let Err(error) = exporter {
            self.wrong("metrics_export", "endpoint", &format!("{error:#}"));
        }
    }

    /// The kubeconfig is read when pods are watched, and again whenever the API server refuses.
    fn kubernetes(&mut self, kubernetes: &KubernetesConfig) {
        let path = kubernetes.kubeconfig.as_deref();
        let Some(path) = path.filter(|_| kubernetes.enabled) else {
            return;
        };
        for what in mistakes_of_kubeconfig(path) {
            let what = format!("{}: {what}", path.display());
            self.wrong("kubernetes", "kubeconfig", &what);
        }
    }
}

/// Private keys that every user of this machine may read. No mistake: in a container, where Kubernetes mounts secrets so,
/// there is no other user.
fn open_keys(config: &Config) -> Vec<String> {
    let keys = [
        ("gossip.key", &config.gossip.key),
        ("tls.key", &config.tls.key),
        ("workers.client_key", &config.workers.client_key),
    ];
    let note = |(setting, file): (&str, &Option<std::path::PathBuf>)| {
        let file = file.as_deref()?;
        let mode = std::fs::metadata(file).ok()?.permissions().mode();
        (mode & 0o004 != 0).then(|| {
            let file = file.display();
            format!(
                "{setting}: every user of this machine may read the private key {file} (mode {:04o}): chmod 600 {file}",
                mode & 0o7777
            )
        })
    };
    keys.into_iter().filter_map(note).collect()
}

fn identity(config: &Config, files: &PemFiles) -> Result<Identity, IdentityError> {
    Identity::load(config.cluster.id.as_str(), &config.replica_id(), files)
}

/// A build that cannot watch pods has refused `kubernetes.enabled`.
#[cfg(not(feature = "kubernetes"))]
fn mistakes_of_kubeconfig(_: &Path) -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
