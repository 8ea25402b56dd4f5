//! `grapevine ca`: the certificates by which replicas know each other.
//!
//! One directory holds all of it:
//!
//! | file | what | for whom |
//! |---|---|---|
//! | `ca.pem` | the authority; during a rotation the new one and the old one | every replica |
//! | `crl.pem` | certificates that are accepted no more | every replica |
//! | `<replica>.pem`, `<replica>.key` | its certificate and key | that replica |
//! | `ca.key` | key of the authority; its owner can admit replicas | stays here |
//! | `ca.old.key` | during a rotation: key of the former authority, to revoke what it issued | stays here |
//! | `issued.txt` | serial, replica and end of everything issued, so that it can be revoked | stays here |

mod files;
mod issue;
mod revoke;
mod rotate;
mod show;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Subcommand;
use grapevine_gossip::identity::{CA_DAYS, LEAF_DAYS, Serial};

use crate::cli::failure::Failure;
use store::Store;

/// Makes, renews, replaces and revokes the certificates by which replicas know each other.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine ca init                 # once: ca/ca.pem, ca/ca.key and ca/crl.pem
  grapevine ca issue r1 r2 r3       # for each replica: ca/r1.pem and ca/r1.key, ...
  grapevine ca show                 # all of them, and how long they are valid
  grapevine ca show r1              # the same checks that r1's peers make
  grapevine ca issue r1 --force     # renews r1's certificate

Every replica gets ca.pem, crl.pem, its own certificate and its own key. Keep the directory
elsewhere: whoever has ca.key can admit replicas. Running replicas take up replaced files by
themselves (tls.refresh, 10 s; or SIGHUP); copy beside and rename, so that no half file is read.

A certificate was stolen, or a replica must stay out:
  grapevine ca revoke r3            # everything issued to r3; copy ca/crl.pem to all replicas
  grapevine ca issue r3 --force     # if r3 shall come back, with a new key

A new authority, without a pause (its key was stolen, or it ends soon):
  1. grapevine ca rotate            # ca.pem holds both authorities: copy it to all replicas
  2. grapevine ca issue r1 --force  # by the new one; copy r1's files, then the next replica
  3. grapevine ca rotate --finish   # ca.pem holds the new one only: copy it and crl.pem to all")]
pub struct CaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Makes the cluster's authority.
    Init {
        #[command(flatten)]
        location: CaLocation,
        /// Days that the authority is valid.
        #[arg(long, default_value_t = CA_DAYS, value_parser = clap::value_parser!(u16).range(1..))]
        days: u16,
        /// Replace an authority that is there; every certificate it issued becomes worthless. To
        /// replace it without a pause: `grapevine ca rotate`.
        #[arg(long)]
        force: bool,
    },
    /// Issues or renews a certificate, with a new key, for each named replica; for none if one cannot be.
    Issue {
        /// Names of the replicas, as in --replica-id.
        #[arg(required = true, value_name = "REPLICA")]
        replicas: Vec<String>,
        #[command(flatten)]
        location: CaLocation,
        /// Days that the certificates are valid, at most as long as the authority.
        #[arg(long, default_value_t = LEAF_DAYS, value_parser = clap::value_parser!(u16).range(1..=CA_DAYS as i64))]
        days: u16,
        /// Replace certificates that are there. A running replica takes up the new one by itself.
        #[arg(long)]
        force: bool,
        /// A former issued.txt, if it is there: what it lists stays in the list, so that it can be revoked; may be
        /// repeated. For a directory that is made anew each time, as the Helm chart's hook does.
        #[arg(long, value_name = "FILE")]
        issued_before: Vec<PathBuf>,
    },
    /// Lists the certificates, how long they are valid, and which to renew.
    ///
    /// With names: checks each certificate as its peers would, and fails if they would refuse it.
    #[command(visible_alias = "list")]
    Show {
        /// Names of replicas. Default: all certificates of the directory.
        #[arg(value_name = "REPLICA")]
        replicas: Vec<String>,
        /// Writes JSON instead of text.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        location: CaLocation,
    },
    /// Replaces the authority in two steps, between which replicas trust both.
    ///
    /// First `rotate`: ca.pem holds both authorities, and new certificates are signed by the new one.
    /// Copy ca.pem to all replicas. Then issue a new certificate for each replica, and copy it there.
    /// At last `rotate --finish`: ca.pem holds the new one only. Copy it and crl.pem to all replicas.
    /// Replicas need no restart at any step, except where single files of a Secret are mounted (the Helm chart
    /// in the modes `existing` and `job`): these mounts are not refreshed, so restart the pods after each step.
    Rotate {
        #[command(flatten)]
        location: CaLocation,
        /// Days that the new authority is valid.
        #[arg(long, default_value_t = CA_DAYS, value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "finish")]
        days: u16,
        /// Drop the old authority, and its key.
        #[arg(long)]
        finish: bool,
        /// Finish though replicas still have certificates of the old authority: they will be shut out.
        #[arg(long, requires = "finish")]
        force: bool,
    },
    /// Writes crl.pem, the list of certificates that replicas accept no more.
    ///
    /// Revokes everything that was issued to the named replicas. Copy crl.pem to all replicas, and set
    /// `gossip.revoked` to it: once they have read it they cut off every certificate on it, and accept one that
    /// was issued later. Without a name it writes the list as it is.
    Revoke {
        /// Names of the replicas.
        #[arg(value_name = "REPLICA")]
        replicas: Vec<String>,
        #[command(flatten)]
        location: CaLocation,
        /// A certificate by its serial number, in hexadecimal; may be repeated.
        #[arg(long = "serial", value_name = "HEX")]
        serials: Vec<Serial>,
        /// Spare the newest certificate of each replica: only those that it replaced are revoked.
        #[arg(long)]
        former: bool,
    },
}

#[derive(clap::Args)]
struct CaLocation {
    /// Directory of the files.
    #[arg(long, default_value = "ca", value_name = "DIR")]
    dir: PathBuf,
    /// Name of the cluster, as in `serve --cluster-id`. Default: `grapevine` for a new authority,
    /// later the name that the authority was made for.
    #[arg(long, value_name = "NAME")]
    cluster_id: Option<String>,
}

/// Makes, renews, replaces, revokes or shows certificates.
/// Errors: a file is there already, cannot be read or written, or a name is not fit for a certificate.
pub fn ca(args: CaArgs) -> Result<(), Failure> {
    let store = |location: CaLocation| Store::new(location.dir, location.cluster_id);
    match args.action {
        Action::Init {
            location,
            days,
            force,
        } => issue::init(&store(location), days, force),
        Action::Issue {
            replicas,
            location,
            days,
            force,
            issued_before,
        } => {
            let store = store(location).with_former_lists(issued_before);
            issue::issue(&store, &replicas, days, force)
        }
        Action::Show {
            replicas,
            json,
            location,
        } => show::show(&store(location), &replicas, json),
        Action::Rotate {
            location,
            finish: true,
            force,
            ..
        } => rotate::finish(&store(location), force),
        Action::Rotate { location, days, .. } => rotate::begin(&store(location), days),
        Action::Revoke {
            replicas,
            location,
            serials,
            former,
        } => revoke::revoke(&store(location), &replicas, serials, former),
    }
}
