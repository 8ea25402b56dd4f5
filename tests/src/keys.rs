//! A file of clients' keys, made as operators do.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cluster::Plan;
use crate::process;

/// A file of keys, made by the command that operators use.
pub struct KeyFile {
    dir: TempDir,
    text: String,
}

impl Default for KeyFile {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyFile {
    /// An empty list.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file = Self {
            dir,
            text: "# Clients' keys.\n".to_owned(),
        };
        file.restore();
        file
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("keys.toml")
    }

    /// Adds a key with these lines in its entry, and returns it.
    pub async fn add(&mut self, name: &str, lines: &str) -> String {
        let made = process::run(&["keys", "new", name]).await;
        assert_eq!(made.code, Some(0), "{}", made.text);
        // The entry on standard output, then the key on standard error.
        let (entry, key) = made.text.trim_end().rsplit_once('\n').expect("two parts");
        writeln!(self.text, "{}\n{lines}", entry.trim_end()).expect("a string takes it");
        self.restore();
        key.to_owned()
    }

    /// Writes the added entries over the current content.
    pub fn restore(&self) {
        write(&self.path(), &self.text);
    }

    /// The added entries.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A plan whose replicas read the file, and check it often for changes.
    pub fn plan(&self) -> Plan {
        Plan::default()
            .set("keys.file", &format!("{:?}", self.path()))
            .set("keys.reload", "\"50ms\"")
    }
}

/// Replaces a file whole, as careful operators do: no replica reads half of it.
pub fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("a file can be written");
    std::fs::rename(beside, path).expect("a file can be renamed");
}
