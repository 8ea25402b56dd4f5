//! Common parts of clusters of processes on this machine: certificates, arguments, children.
//!
//! They use only the command line and the HTTP API, as any user would.

mod process;

use std::path::Path;

pub(crate) use process::{Process, finish, log_file, survives_full_disk};

/// Model that the fake workers serve.
pub(crate) const MODEL: &str = "fake-model";
const CLUSTER_ID: &str = "demo";

/// Makes the authority of a cluster, in `dir`.
pub(crate) async fn make_authority(dir: &Path) -> anyhow::Result<()> {
    authority("init", None, dir).await
}

/// Makes a replica's certificate and key, in `dir`.
pub(crate) async fn make_certificate(name: &str, dir: &Path) -> anyhow::Result<()> {
    authority("issue", Some(name), dir).await
}

async fn authority(action: &str, replica: Option<&str>, dir: &Path) -> anyhow::Result<()> {
    let place = dir.display().to_string();
    let arguments = ["ca", action, "--dir", &place, "--cluster-id", CLUSTER_ID];
    let arguments: Vec<String> = arguments
        .into_iter()
        .chain(replica)
        .map(Into::into)
        .collect();
    let name = format!("ca-{action}{}", replica.unwrap_or_default());
    finish(&name, &arguments, dir).await
}

/// `grapevine fake-worker` of [`MODEL`]; port and further flags come after.
pub(crate) fn worker_arguments(speed: f64, flags: &[String]) -> Vec<String> {
    let speed = speed.to_string();
    [
        "fake-worker",
        "--served-model-name",
        MODEL,
        "--speed",
        &speed,
    ]
    .into_iter()
    .chain(flags.iter().map(String::as_str))
    .map(Into::into)
    .collect()
}

/// `grapevine serve` with the certificates in `dir`; ports and further flags come after.
pub(crate) fn replica_arguments(
    name: &str,
    policy: &str,
    seeds: &[String],
    dir: &Path,
) -> Vec<String> {
    let file = |file: &str| dir.join(file).display().to_string();
    let mut arguments: Vec<String> = vec!["serve".into(), "--disable-prometheus".into()];
    for (flag, value) in [
        ("--replica-id", name.to_owned()),
        ("--cluster-id", CLUSTER_ID.to_owned()),
        ("--policy", policy.to_owned()),
        ("--gossip-ca", file("ca.pem")),
        ("--gossip-cert", file(&format!("{name}.pem"))),
        ("--gossip-key", file(&format!("{name}.key"))),
    ] {
        arguments.extend([flag.into(), value]);
    }
    for seed in seeds {
        arguments.extend(["--seed".into(), seed.clone()]);
    }
    arguments
}

/// Flags for the ports of a replica: `[data, admin, gossip]`, 0 takes a free one.
pub(crate) fn port_arguments(ports: [u16; 3]) -> Vec<String> {
    let flags = ["--port", "--admin-port", "--gossip-port"].into_iter();
    flags
        .zip(ports)
        .flat_map(|(flag, port)| [flag.to_owned(), port.to_string()])
        .collect()
}
