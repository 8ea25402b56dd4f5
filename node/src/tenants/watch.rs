//! Follows the file of keys: a changed one is read and, if it is good, takes the old one's place.
//!
//! A file that is being written may end anywhere: behind a key's hash and before its models and limits it would be good,
//! and let its client do anything. So it is read once it has stayed the same for a moment, and counts if it is still the
//! same afterwards. One that cannot be used is read at each look from then on: a system without free descriptors shows no
//! file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::Keys;
use crate::config::{ConfigError, KeyConfig, read_keys};
use crate::metrics::ResultLabels;
use crate::shutdown::Phase;
use crate::tls::Files;

/// For so long a changed file has to stay the same before it is read.
const STILL: Duration = Duration::from_millis(200);

/// Is told why a changed file was refused, or that the file is good.
pub type Told = Box<dyn Fn(Option<&ConfigError>) + Send>;

/// A file of keys and the list that follows it.
pub struct Watch {
    keys: Arc<Keys>,
    path: PathBuf,
    seen: Files,
    /// It is to be read as soon as it stays the same.
    is_due: bool,
    /// It could not be used as it is.
    is_refused: bool,
    told: Told,
}

impl Watch {
    /// Reads the file and serves its keys from now on.
    /// Errors: the file cannot be used.
    pub fn open(keys: Arc<Keys>, path: PathBuf, told: Told) -> Result<Self, ConfigError> {
        let seen = Files::seen("keys", vec![path.clone()]);
        keys.set(read_keys(&path)?, Instant::now());
        Ok(Self {
            keys,
            path,
            seen,
            is_due: false,
            is_refused: false,
            told,
        })
    }

    /// Follows the file until the replica ends: it is looked at every `pause`, and read at each SIGHUP.
    pub async fn run(mut self, pause: Duration, mut hangups: Signal, phase: Phase) {
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                () = phase.closed() => return,
                () = sleep(STILL), if self.is_due => false,
                _ = ticks.tick(), if !self.is_due => false,
                Some(()) = hangups.recv() => true,
            };
            // A network file system may take its time.
            let looked = spawn_blocking(move || {
                self.look(is_asked, read_keys);
                self
            });
            match looked.await {
                Ok(back) => self = back,
                Err(error) => {
                    tracing::error!(%error, "the file of keys is no longer read again");
                    return;
                }
            }
        }
    }

    fn look(
        &mut self,
        is_asked: bool,
        read: impl FnOnce(&Path) -> Result<Vec<KeyConfig>, ConfigError>,
    ) {
        let has_changed = self.seen.changed();
        self.is_due |= has_changed || is_asked;
        if has_changed || !(self.is_due || self.is_refused) {
            return;
        }
        let is_news = self.is_due;
        let read = read(&self.path);
        // What changed meanwhile is read again.
        self.is_due = self.seen.changed();
        if !self.is_due && (is_news || read.is_ok()) {
            self.adopt(read);
        }
    }

    fn adopt(&mut self, read: Result<Vec<KeyConfig>, ConfigError>) {
        self.is_refused = read.is_err();
        (self.told)(read.as_ref().err());
        let result = match read {
            Ok(configs) => {
                tracing::info!(keys = configs.len(), "the file of keys was read again");
                self.keys.set(configs, Instant::now());
                "good"
            }
            Err(error) => {
                tracing::warn!(%error, "the file of keys cannot be used; the former keys stay");
                "bad"
            }
        };
        let (labels, metrics) = (ResultLabels { result }, &self.keys.metrics);
        metrics.loads.get_or_create(&labels).inc();
        metrics.refused.set(self.is_refused.into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{HeaderMap, HeaderValue};
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::tenants::metrics::TenantMetrics;
    use crate::tenants::secret;

    /// What the key may ask for, if it is known.
    fn may(keys: &Keys, model: &str) -> Option<bool> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer k"));
        let key = keys.caller(&headers).ok()??;
        Some(key.may_ask_for(Some(model)))
    }

    #[tokio::test]
    async fn a_file_counts_only_once_it_stays_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.toml");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        let other = secret::hash_of(b"other");
        let former = format!("[[key]]\nname = \"former\"\nhash = \"{other}\"\n");
        write(&former);
        let keys = Arc::new(Keys::open(
            TenantMetrics::register(&mut Registry::default()),
        ));
        let why = Arc::new(Mutex::new(None));
        let told: Told = {
            let why = Arc::clone(&why);
            Box::new(move |error| *why.lock().expect("whole") = error.map(ToString::to_string))
        };
        let mut watch = Watch::open(Arc::clone(&keys), path.clone(), told).expect("good");

        let hash = secret::hash_of(b"k");
        let cut = format!("{former}[[key]]\nname = \"new\"\nhash = \"{hash}\"\n");
        let whole = format!("{cut}models = [\"small\"]\n");
        write(&cut);
        watch.look(true, |_| panic!("it has just changed"));
        // The rest is written while it is read.
        watch.look(false, |path| {
            let read = read_keys(path);
            write(&whole);
            read
        });
        assert_eq!(may(&keys, "large"), None, "half of its entry counts");
        watch.look(false, read_keys);
        assert_eq!(may(&keys, "large"), Some(false));
        assert_eq!(may(&keys, "small"), Some(true));
        watch.look(false, |_| panic!("nothing is new"));
        // An operator who asks has it read, and a removed file changes nothing.
        std::fs::remove_file(&path).expect("removed");
        watch.look(false, |_| panic!("it has just changed"));
        watch.look(false, read_keys);
        assert_eq!(may(&keys, "small"), Some(true));
        assert_eq!(keys.metrics.refused.get(), 1);
        let mut is_read = false;
        watch.look(true, |path| {
            is_read = true;
            read_keys(path)
        });
        assert!(is_read);
        // It is there again, and no descriptor is left to read it by; a moment later one is.
        write(&whole);
        watch.look(false, |_| panic!("it has just changed"));
        let no_descriptor = |path: &Path| {
            Err(ConfigError::Unreadable {
                path: path.to_owned(),
                cause: std::io::Error::other("too many open files"),
            })
        };
        let bad = ResultLabels { result: "bad" };
        let loads = || keys.metrics.loads.get_or_create(&bad).get();
        watch.look(false, no_descriptor);
        let counted = loads();
        watch.look(false, no_descriptor);
        assert_eq!((loads(), keys.metrics.refused.get()), (counted, 1));
        let said = why
            .lock()
            .expect("whole")
            .take()
            .expect("why it is refused");
        assert!(said.contains("too many open files"), "{said}");
        watch.look(false, read_keys);
        assert_eq!(keys.metrics.refused.get(), 0);
        assert_eq!(*why.lock().expect("whole"), None);
        watch.look(false, |_| panic!("nothing is new"));
    }
}
