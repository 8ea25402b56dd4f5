//! Keys that workers want. Local to each replica: never gossiped, shown or logged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use grapevine_gossip::worker::WorkerUrl;
use http::HeaderValue;

use crate::config::{Secret, WorkerConfig, WorkersConfig};
use crate::tls::{FileError, read_secret};

/// What to send as `Authorization`, by worker.
///
/// A worker is known by its address, not by its id: a client that points a known id at another host gets no key with
/// it.
#[derive(Default)]
pub struct Keys {
    default: Option<HeaderValue>,
    own: BTreeMap<WorkerUrl, HeaderValue>,
}

impl Keys {
    /// Takes the keys of the configuration and reads those that are in files.
    /// Errors: a file cannot be read, or does not hold a key.
    pub fn load(all: &WorkersConfig, each: &[WorkerConfig]) -> Result<Self, FileError> {
        let mut keys = Self {
            default: header(all.api_key.as_ref(), all.api_key_file.as_deref())?,
            own: BTreeMap::new(),
        };
        for worker in each {
            let key = header(worker.api_key.as_ref(), worker.api_key_file.as_deref())?;
            if let Some(key) = key {
                keys.own.insert(worker.url.clone(), key);
            }
        }
        Ok(keys)
    }

    /// The files among them.
    pub fn files(all: &WorkersConfig, each: &[WorkerConfig]) -> Vec<PathBuf> {
        let own = each.iter().filter_map(|worker| worker.api_key_file.clone());
        all.api_key_file.clone().into_iter().chain(own).collect()
    }

    /// Value of `Authorization` for a worker: its own key, else that of all; none if there is none.
    pub fn of(&self, url: &WorkerUrl) -> Option<HeaderValue> {
        self.own.get(url).or(self.default.as_ref()).cloned()
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Keys").finish_non_exhaustive()
    }
}

fn header(key: Option<&Secret>, file: Option<&Path>) -> Result<Option<HeaderValue>, FileError> {
    let key = match (key, file) {
        (Some(key), _) => key.clone(),
        (None, Some(file)) => read_secret(file)?,
        (None, None) => return Ok(None),
    };
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()))
        .expect("a secret is visible ASCII");
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(url: &str, key: Option<&str>, file: Option<PathBuf>) -> WorkerConfig {
        WorkerConfig {
            url: url.parse().expect("a URL"),
            api_key: key.and_then(Secret::new),
            api_key_file: file,
            ..WorkerConfig::default()
        }
    }

    #[test]
    fn a_worker_gets_its_own_key_or_that_of_all() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "filed\n").expect("written");
        let each = [
            worker("http://a:1", Some("own"), None),
            worker("http://b:1", None, Some(file.path().to_owned())),
            worker("http://c:1", None, None),
        ];
        let all = WorkersConfig {
            api_key: Secret::new("all"),
            ..WorkersConfig::default()
        };
        let keys = Keys::load(&all, &each).expect("keys");
        let check = |keys: &Keys, url: &str, expected: Option<&str>| {
            let found = keys.of(&url.parse().expect("a URL"));
            let found = found.as_ref().map(|key| key.to_str().expect("ASCII"));
            assert_eq!(found, expected, "{url}");
        };
        check(&keys, "http://A:1/", Some("Bearer own"));
        check(&keys, "http://b:1", Some("Bearer filed"));
        check(&keys, "http://c:1", Some("Bearer all"));
        check(&keys, "http://gossiped:1", Some("Bearer all"));
        // Another address is another worker, whatever its id says.
        check(&keys, "https://a:1", Some("Bearer all"));
        let without = Keys::load(&WorkersConfig::default(), &each).expect("keys");
        check(&without, "http://c:1", None);
        let shown = format!("{keys:?} {:?}", keys.own);
        assert!(
            !shown.contains("own\"") && !shown.contains("Bearer"),
            "{shown}"
        );
        assert_eq!(Keys::files(&all, &each), [file.path()]);
    }
}
