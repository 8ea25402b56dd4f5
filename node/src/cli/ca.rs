//! `grapevine ca`: the certificates by which replicas know each other.
//!
//! Three kinds of files in one directory: `ca.pem` goes to every replica, `<replica>.pem` and
//! `<replica>.key` to one, and `ca.key` stays where replicas are admitted.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use grapevine_gossip::identity::{self, Identity, IdentityError, PemFiles};

use super::Failure;
use super::show::print_line;

/// Makes the certificates by which replicas know each other.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine ca init                 # once: ca/ca.pem and ca/ca.key
  grapevine ca issue r1 r2 r3       # for each replica: ca/r1.pem and ca/r1.key, ...
  grapevine ca show r1              # for whom, and how long it is valid

Every replica gets ca.pem, its own certificate and its own key. Keep ca.key elsewhere: whoever has
it can admit replicas.")]
pub struct CaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Makes the cluster's authority.
    Init {
        #[command(flatten)]
        place: Place,
        /// Replace an authority that is there; every certificate it issued becomes worthless.
        #[arg(long)]
        force: bool,
    },
    /// Issues a certificate for each named replica, valid for 90 days.
    Issue {
        /// Names of the replicas, as in --replica-id.
        #[arg(required = true, value_name = "REPLICA")]
        replicas: Vec<String>,
        #[command(flatten)]
        place: Place,
        /// Replace certificates that are there; a running replica takes up the new one at its restart.
        #[arg(long)]
        force: bool,
    },
    /// Checks a replica's certificate as its peers would, and says how long it is valid.
    Show {
        /// Name of the replica.
        replica: String,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(clap::Args)]
struct Place {
    /// Directory of the files.
    #[arg(long, default_value = "ca", value_name = "DIR")]
    dir: PathBuf,
    /// Name of the cluster, as in `serve --cluster-id`. Default: `grapevine` for a new authority,
    /// later the name that the authority was made for.
    #[arg(long, value_name = "NAME")]
    cluster_id: Option<String>,
}

impl Place {
    /// The cluster that the authority was made for, if it is the one that was asked for.
    fn cluster(&self, ca: &str) -> Result<String, Failure> {
        let cluster = identity::cluster_of(ca).map_err(refused)?;
        match &self.cluster_id {
            Some(wanted) if *wanted != cluster => Err(Failure::Refused(format!(
                "the authority in {} is that of cluster {cluster}, not {wanted}",
                self.dir.display()
            ))),
            _ => Ok(cluster),
        }
    }

    fn file(&self, name: &str, extension: &str) -> PathBuf {
        self.dir.join(format!("{name}.{extension}"))
    }
}

/// Makes or shows certificates.
///
/// # Errors
/// A file is there already, cannot be read or written, or a name is not fit for a certificate.
pub fn ca(args: CaArgs) -> Result<(), Failure> {
    match args.action {
        Action::Init { place, force } => init(&place, force),
        Action::Issue {
            replicas,
            place,
            force,
        } => replicas
            .iter()
            .try_for_each(|replica| issue(&place, replica, force)),
        Action::Show { replica, place } => show(&place, &replica),
    }
}

fn init(place: &Place, force: bool) -> Result<(), Failure> {
    let cluster = place.cluster_id.as_deref().unwrap_or("grapevine");
    let made = identity::create(cluster).map_err(refused)?;
    let (cert, key) = (place.file("ca", "pem"), place.file("ca", "key"));
    fs::create_dir_all(&place.dir).map_err(|error| unwritable(&place.dir, &error))?;
    write_pair((&cert, &made.cert_pem), (&key, &made.key_pem), force)?;
    print_line(&format!("wrote {} and {}", cert.display(), key.display()))
}

fn issue(place: &Place, replica: &str, force: bool) -> Result<(), Failure> {
    if replica == "ca" {
        let what = "a replica cannot be called ca: its files would be the authority's";
        return Err(Failure::Usage(what.to_owned()));
    }
    let ca = read(&place.file("ca", "pem"))?;
    let ca_key = read(&place.file("ca", "key"))?;
    let cluster = place.cluster(&ca)?;
    let leaf = identity::issue(&ca, &ca_key, &cluster, replica).map_err(refused)?;
    let (cert, key) = (place.file(replica, "pem"), place.file(replica, "key"));
    write_pair((&cert, &leaf.cert_pem), (&key, &leaf.key_pem), force)?;
    print_line(&format!("wrote {} and {}", cert.display(), key.display()))
}

fn show(place: &Place, replica: &str) -> Result<(), Failure> {
    let files = PemFiles {
        ca: place.file("ca", "pem"),
        cert: place.file(replica, "pem"),
        key: place.file(replica, "key"),
    };
    let cluster = place.cluster(&read(&files.ca)?)?;
    let identity = Identity::load(&cluster, replica, &files).map_err(refused)?;
    let left = identity
        .expires()
        .duration_since(SystemTime::now())
        .unwrap_or(Duration::ZERO);
    print_line(&format!(
        "{}: replica {} of cluster {}, valid for {} more days",
        files.cert.display(),
        identity.replica(),
        identity.cluster(),
        left.as_secs() / SECONDS_A_DAY,
    ))
}

const SECONDS_A_DAY: u64 = 86_400;

/// Writes certificate and key, or neither where one of them is there already.
fn write_pair(cert: (&Path, &str), key: (&Path, &str), force: bool) -> Result<(), Failure> {
    let there = [cert.0, key.0].into_iter().find(|path| path.exists());
    if let Some(path) = there.filter(|_| !force) {
        let what = format!("{} is there already; --force replaces it", path.display());
        return Err(Failure::Refused(what));
    }
    write(key.0, key.1, 0o600)?;
    write(cert.0, cert.1, 0o644)
}

/// Writes a file beside its place and renames it: a reader sees the old or the new one, whole, and
/// a key never has wider rights than it should, not even for a moment.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let beside = path.with_extension("tmp");
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

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        let what = format!(
            "cannot read {}: {error}; run `grapevine ca init` first",
            path.display()
        );
        Failure::Refused(what)
    })
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Refused(format!("cannot write {}: {error}", path.display()))
}

fn refused(error: IdentityError) -> Failure {
    Failure::Refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn place(dir: &Path) -> Place {
        Place {
            dir: dir.join("ca"),
            cluster_id: Some("demo".to_owned()),
        }
    }

    #[test]
    fn an_issued_certificate_is_shown_as_valid() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        init(&place, false).expect("an authority");
        issue(&place, "r1", false).expect("a certificate");
        show(&place, "r1").expect("valid");
        let unnamed = Place {
            cluster_id: None,
            dir: place.dir.clone(),
        };
        show(&unnamed, "r1").expect("the authority knows its cluster");
        let other = Place {
            cluster_id: Some("other".to_owned()),
            dir: place.dir.clone(),
        };
        assert!(issue(&other, "r9", false).is_err());
        for key in ["ca", "r1"] {
            let mode = fs::metadata(place.file(key, "key"))
                .expect("a key")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        assert!(show(&place, "r2").is_err());
        assert_eq!(fs::read_dir(&place.dir).expect("a directory").count(), 4);
    }

    #[test]
    fn nothing_is_overwritten_without_force() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        init(&place, false).expect("an authority");
        let before = read(&place.file("ca", "key")).expect("a key");
        fs::remove_file(place.file("ca", "pem")).expect("removed");
        let error = init(&place, false)
            .expect_err("the key is still there")
            .to_string();
        assert!(
            error.ends_with("ca.key is there already; --force replaces it"),
            "{error}"
        );
        assert_eq!(read(&place.file("ca", "key")).expect("a key"), before);
        init(&place, true).expect("replaced");
        assert_ne!(read(&place.file("ca", "key")).expect("a key"), before);
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        let error = issue(&place, "r1", false)
            .expect_err("no authority")
            .to_string();
        assert!(error.contains("run `grapevine ca init` first"), "{error}");
        init(&place, false).expect("an authority");
        assert!(issue(&place, "R 1", false).is_err());
        assert!(issue(&place, "../r1", false).is_err());
        assert!(issue(&place, "ca", false).is_err());
    }
}
