//! A configuration file.

use std::path::PathBuf;

use grapevine::config::{Config, ConfigError, Layers, Origin};

const FILE: &str = "fuzzed.toml";

/// The text of a file; bytes that are not UTF-8 never get that far.
///
/// # Panics An error has no position or no text, or an accepted file cannot be used.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let lines = text.lines().count().max(1);
    let mut layers = Layers::default();
    layers.file = Some((PathBuf::from(FILE), text.to_owned()));
    match Config::from_layers(layers) {
        Ok(config) => {
            let used = (
                config.cluster_settings().fingerprint(),
                config.replica_id(),
                config.notes(),
            );
            drop(used);
            for worker in &config.worker {
                worker.registered().expect("checked when it was read");
            }
        }
        Err(ConfigError::Invalid(problems)) => {
            assert!(!problems.is_empty(), "refused, and no word why");
            for problem in problems {
                assert!(!problem.what.is_empty(), "{problem}");
                if let Origin::File { line, column, .. } = problem.origin {
                    // A missing end is reported after the last line.
                    assert!((1..=lines + 1).contains(&line), "line {line} of {lines}");
                    assert!(column >= 1);
                }
            }
        }
        Err(error @ ConfigError::Unreadable { .. }) => panic!("no file was read: {error}"),
    }
}
