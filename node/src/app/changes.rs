//! Which settings parts follow while the replica runs.

use parking_lot::Mutex;

use crate::config::Config;
use crate::live::Live;
use crate::reload::Apply;

/// What is to be done with each configuration that is read again. Filled while parts are built.
#[derive(Default)]
pub(super) struct Changes(Mutex<Vec<Apply>>);

impl Changes {
    /// Something to be done.
    pub(super) fn on(&self, follow: impl Fn(&Config) + Send + Sync + 'static) {
        let mut all = self.0.lock();
        all.push(Box::new(follow));
    }

    /// A value made from the configuration, now and each time that it is read again.
    pub(super) fn live<T: Send + Sync + 'static>(
        &self,
        config: &Config,
        of: impl Fn(&Config) -> T + Send + Sync + 'static,
    ) -> Live<T> {
        let live = Live::new(of(config));
        let followed = live.clone();
        self.on(move |config| followed.set(of(config)));
        live
    }

    /// All of it, in order; for the one that reads configurations.
    pub(super) fn take(&self) -> Apply {
        let mut all = self.0.lock();
        let all = std::mem::take(&mut *all);
        Box::new(move |config| all.iter().for_each(|follow| follow(config)))
    }
}
