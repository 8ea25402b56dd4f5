//! The directory of `grapevine ca`: its files, and how they are written.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grapevine_gossip::identity::{self, Certificate, IdentityError, Serial};

use crate::cli::failure::Failure;

/// The directory, and the cluster that was asked for.
pub(super) struct Store {
    pub(super) dir: PathBuf,
    cluster_id: Option<String>,
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
        Self { dir, cluster_id }
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

    /// What was issued here and has not expired yet.
    pub(super) fn issued(&self) -> Result<Vec<Issued>, Failure> {
        let path = self.ledger();
        let text = read_if_there(&path)?.unwrap_or_default();
        let parse = |(number, line): (usize, &str)| {
            Issued::parse(line).ok_or_else(|| {
                Failure::Refused(format!(
                    "{}:{}: expected `SERIAL REPLICA UNIX-SECONDS`",
                    path.display(),
                    number + 1
                ))
            })
        };
        let all: Result<Vec<_>, _> = text.lines().enumerate().map(parse).collect();
        let now = SystemTime::now();
        Ok(all?.into_iter().filter(|one| one.until > now).collect())
    }

    /// Adds a line to what was issued; expired ones go.
    pub(super) fn remember(&self, issued: Issued) -> Result<(), Failure> {
        let mut all = self.issued()?;
        all.push(issued);
        let text: String = all.iter().map(Issued::line).collect();
        write(&self.ledger(), &text, 0o600)
    }

    /// What the list of revocations holds; nothing without a file.
    pub(super) fn revocations(&self) -> Result<BTreeMap<Serial, SystemTime>, Failure> {
        let path = self.revoked();
        let Some(text) = read_if_there(&path)? else {
            return Ok(BTreeMap::new());
        };
        // Never taken for empty: writing it anew would let all of them in again.
        identity::revoked_in(&text).map_err(|error| in_file(&path, &error))
    }

    /// Writes the list, signed by every authority whose key is here.
    pub(super) fn write_revocations(
        &self,
        revoked: &BTreeMap<Serial, SystemTime>,
    ) -> Result<(), Failure> {
        let ca = read(&self.ca())?;
        let number = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
        let mut lists = String::new();
        let keys = [Some(read(&self.ca_key())?), read_if_there(&self.old_key())?];
        for key in keys.into_iter().flatten() {
            let list = identity::revocations(&ca, &key, revoked, number).map_err(refused)?;
            lists.push_str(&list);
        }
        write(&self.revoked(), &lists, 0o644)
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

/// Writes a file beside its place and renames it: a reader sees the old or the new one, whole, and
/// a key never has wider rights than it should, not even for a moment.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let written = (|| {
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.map_err(|error| unwritable(path, &error))
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

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Refused(format!("cannot write {}: {error}", path.display()))
}

pub(super) fn refused(error: IdentityError) -> Failure {
    Failure::Refused(error.to_string())
}

fn in_file(path: &Path, error: &IdentityError) -> Failure {
    Failure::Refused(format!("{}: {error}", path.display()))
}
