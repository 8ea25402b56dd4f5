//! Follows the file of keys: a changed one is read and, if it is good, takes the old one's place.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Keys;
use crate::config::{ConfigError, read_keys};
use crate::metrics::ResultLabels;
use crate::shutdown::Phase;
use crate::tls::Files;

/// A file of keys and the list that follows it.
pub struct Watch {
    keys: Arc<Keys>,
    path: PathBuf,
    seen: Files,
}

impl Watch {
    /// Reads the file and serves its keys from now on.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn open(keys: Arc<Keys>, path: PathBuf) -> Result<Self, ConfigError> {
        let seen = Files::seen("keys", vec![path.clone()]);
        keys.set(read_keys(&path)?, Instant::now());
        Ok(Self { keys, path, seen })
    }

    /// Follows the file until the replica ends: it is looked at every `pause`, and read at each SIGHUP.
    pub async fn run(mut self, pause: Duration, mut hangups: Signal, phase: Phase) {
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                () = phase.closed() => return,
                _ = ticks.tick() => false,
                Some(()) = hangups.recv() => true,
            };
            // A network file system may take its time.
            let looked = spawn_blocking(move || {
                if self.seen.changed() || is_asked {
                    self.read();
                }
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

    fn read(&self) {
        let result = match read_keys(&self.path) {
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
        let labels = ResultLabels { result };
        self.keys.metrics.loads.get_or_create(&labels).inc();
    }
}
