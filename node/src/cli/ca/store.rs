//! The directory of `grapevine ca`: its files, and what stands in them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grapevine_gossip::identity::{self, Certificate, IdentityError, Serial};

use super::files::{File, unwritable, write};
use crate::cli::failure::Failure;

/// The directory, and the cluster that was asked for.
pub(super) struct Store {
    pub(super) dir: PathBuf,
    cluster_id: Option<String>,
    /// Lists of what was issued beside the directory's own.
    former_lists: Vec<PathBuf>,
}

/// One line of `issued.txt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issued {
    pub(super) serial: Serial,
    pub(super) replica: String,
    pub(super) until: SystemTime,
}

impl Store {
    pub(super) fn new(dir: PathBuf, cluster_id: Option<String>) -> Self {
        Self {
            dir,
            cluster_id,
            former_lists: Vec::new(),
        }
    }

    /// With what these lists have, where they are there, besides that of the directory.
    pub(super) fn with_former_lists(self, former_lists: Vec<PathBuf>) -> Self {
        Self {
            former_lists,
            ..self
        }
    }

    pub(super) fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    pub(super) fn ca_key(&self) -> PathBuf {
        self.dir.join("ca.key")
    }

    pub(super) fn old_key(&self) -> PathBuf {
        self.dir.join("ca.old.key")
    }

    pub(super) fn revoked(&self) -> PathBuf {
        self.dir.join("crl.pem")
    }

    fn ledger(&self) -> PathBuf {
        self.dir.join("issued.txt")
    }

    pub(super) fn cert(&self, replica: &str) -> PathBuf {
        self.dir.join(format!("{replica}.pem"))
    }

    pub(super) fn key(&self, replica: &str) -> PathBuf {
        self.dir.join(format!("{replica}.key"))
    }

    /// Held while files are changed. Of two that write at once, each would write the list of what was issued without the
    /// other's lines, and what is not in it cannot be revoked. Where the system has no locks, nothing is waited for.
    pub(super) fn locked(&self) -> Result<fs::File, Failure> {
        let dir = fs::File::open(&self.dir).map_err(|error| unreadable(&self.dir, &error))?;
        let _ = dir.lock();
        Ok(dir)
    }

    /// The name for a new authority.
    pub(super) fn new_cluster(&self) -> &str {
        self.cluster_id.as_deref().unwrap_or("grapevine")
    }

    /// The cluster that the authority was made for, if it is the one that was asked for.
    pub(super) fn cluster(&self, ca: &str) -> Result<String, Failure> {
        let cluster = identity::cluster_of(ca).map_err(refused)?;
        match &self.cluster_id {
            Some(wanted) if *wanted != cluster => Err(Failure::Refused(format!(
                "the authority in {} is that of cluster {cluster}, not {wanted}",
                self.dir.display()
            ))),
            _ => Ok(cluster),
        }
    }

    /// Replicas with a certificate in the directory, sorted.
    pub(super) fn replicas(&self) -> Result<Vec<String>, Failure> {
        let files = fs::read_dir(&self.dir).map_err(|error| unreadable(&self.dir, &error))?;
        let name = |file: io::Result<fs::DirEntry>| {
            let path = file.ok()?.path();
            let name = path.file_stem()?.to_str()?.to_owned();
            (path.extension()? == "pem" && !is_reserved(&name)).then_some(name)
        };
        let mut names: Vec<_> = files.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// The certificate of a replica in the directory; none if there is no file.
    pub(super) fn leaf(&self, replica: &str) -> Result<Option<Certificate>, Failure> {
        let path = self.cert(replica);
        let Some(text) = read_if_there(&path)? else {
            return Ok(None);
        };
        let leaf = identity::leaf_of(&text);
        leaf.map(Some).map_err(|error| in_file(&path, &error))
    }

    /// What was issued here and has not expired yet, the newest of each replica last.
    pub(super) fn issued(&self) -> Result<Vec<Issued>, Failure> {
        let mut all: Vec<Issued> = Vec::new();
        for path in self.former_lists.iter().chain([&self.ledger()]) {
            for one in listed(path)? {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        let now = SystemTime::now();
        all.retain(|one| one.until > now);
        Ok(all)
    }

    /// Whether there is a list of what was issued; without it, only the files of the directory are known.
    pub(super) fn has_list(&self) -> bool {
        self.ledger().exists()
    }

    /// The list of what was issued, with these; expired ones go.
    pub(super) fn ledger_with(&self, issued: Vec<Issued>) -> Result<File, Failure> {
        let mut all = self.issued()?;
        all.extend(issued);
        let text: String = all.iter().map(Issued::line).collect();
        Ok(File::new(self.ledger(), text, 0o600))
    }

    /// What the list of revocations holds, which an authority of `ca.pem` has signed; nothing without a file.
    pub(super) fn revocations(&self) -> Result<BTreeMap<Serial, SystemTime>, Failure> {
        let path = self.revoked();
        let Some(text) = read_if_there(&path)? else {
            return Ok(BTreeMap::new());
        };
        // Never taken for empty: writing it anew would let all of them in again.
        let ca = read(&self.ca())?;
        identity::revoked_in(&ca, &text).map_err(|error| in_file(&path, &error))
    }

    /// Removes the key of the former authority, if it is there.
    pub(super) fn remove_old_key(&self) -> Result<(), Failure> {
        match fs::remove_file(self.old_key()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(unwritable(&self.old_key(), &error))
            }
            _ => Ok(()),
        }
    }

    /// Writes the list, signed by every authority whose key is here.
    pub(super) fn write_revocations(
        &self,
        revoked: &BTreeMap<Serial, SystemTime>,
    ) -> Result<(), Failure> {
        let ca = read(&self.ca())?;
        let keys = [Some(read(&self.ca_key())?), read_if_there(&self.old_key())?];
        let keys: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
        write(self.list_of(&ca, &keys, revoked)?)
    }

    /// The list, signed by the authorities of this bundle with these keys.
    pub(super) fn list_of(
        &self,
        ca: &str,
        keys: &[&str],
        revoked: &BTreeMap<Serial, SystemTime>,
    ) -> Result<File, Failure> {
        let number = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
        let lists = keys
            .iter()
            .map(|key| identity::revocations(ca, key, revoked, number));
        let lists: Result<String, _> = lists.collect();
        Ok(File::new(self.revoked(), lists.map_err(refused)?, 0o644))
    }
}

impl Issued {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split_ascii_whitespace();
        let issued = Self {
            serial: parts.next()?.parse().ok()?,
            replica: parts.next()?.to_owned(),
            until: UNIX_EPOCH.checked_add(Duration::from_secs(parts.next()?.parse().ok()?))?,
        };
        parts.next().is_none().then_some(issued)
    }

    fn line(&self) -> String {
        let until = self.until.duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{} {} {}\n", self.serial, self.replica, until.as_secs())
    }
}

/// What a list of what was issued has; nothing without a file.
fn listed(path: &Path) -> Result<Vec<Issued>, Failure> {
    let text = read_if_there(path)?.unwrap_or_default();
    let parse = |(number, line): (usize, &str)| {
        Issued::parse(line).ok_or_else(|| {
            Failure::Refused(format!(
                "{}:{}: expected `SERIAL REPLICA UNIX-SECONDS`",
                path.display(),
                number + 1
            ))
        })
    };
    text.lines().enumerate().map(parse).collect()
}

/// Names whose files would be others.
pub(super) fn is_reserved(replica: &str) -> bool {
    ["ca", "crl"].contains(&replica)
}

/// Refuses to go on if one of the files is there already.
pub(super) fn vacant(paths: &[&Path], force: bool) -> Result<(), Failure> {
    match paths.iter().find(|path| path.exists()) {
        Some(path) if !force => Err(Failure::Refused(format!(
            "{} is there already; --force replaces it",
            path.display()
        ))),
        _ => Ok(()),
    }
}

pub(super) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn read_if_there(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let what = format!(
        "cannot read {}: {error}; run `grapevine ca init` first, or name the directory with --dir",
        path.display()
    );
    Failure::Refused(what)
}

pub(super) fn refused(error: IdentityError) -> Failure {
    match error {
        IdentityError::Name { .. } => Failure::Usage(error.to_string()),
        error => Failure::Refused(error.to_string()),
    }
}

fn in_file(path: &Path, error: &IdentityError) -> Failure {
    Failure::Refused(format!("{}: {error}", path.display()))
}
