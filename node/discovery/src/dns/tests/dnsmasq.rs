//! The source against a real name server: dnsmasq, which `dnsmasq.sh` provides.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dns/tests");

/// The program in the target directory of this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let target = test
        .ancestors()
        .nth(3)
        .expect("cargo puts tests three deep");
    let folder = target.join("dnsmasq");
    let setup = Path::new(FOLDER).join("dnsmasq.sh");
    let status = Command::new(setup).arg(&folder).status().expect("it runs");
    assert!(status.success(), "dnsmasq.sh reports what is missing");
    folder.join("dnsmasq")
}

/// A running name server for `example.test`; ends when it is dropped.
struct Dnsmasq {
    process: Child,
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

impl Dnsmasq {
    fn start(at: SocketAddr, hosts: &TempDir, more: &[&str]) -> Self {
        let mut command = Command::new(program());
        command
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--pid-file=",
            ])
            .args([
                "--bind-interfaces",
                "--no-resolv",
                "--no-hosts",
                "--user=",
                "--group=",
            ])
            .args(["--local=/example.test/", "--local-ttl=1"])
            .arg(format!("--listen-address={}", at.ip()))
            .arg(format!("--port={}", at.port()))
            .arg(format!("--hostsdir={}", hosts.path().display()))
            .args(more)
            .stdout(Stdio::null());
        let process = command.spawn().expect("dnsmasq starts");
        Self { process }
    }
}

/// A port that was free a moment ago, for both protocols.
async fn free() -> SocketAddr {
    let server = Server::start().await;
    server.address()
}

fn hosts(lines: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(&folder, lines);
    folder
}

fn write(folder: &TempDir, lines: &[&str]) {
    let text = lines.join("\n") + "\n";
    fs::write(folder.path().join("hosts"), text).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_added_and_removed_in_dnsmasq_are_followed() {
    let at = free().await;
    let hosts = hosts(&["10.0.0.1 w.example.test"]);
    let _dnsmasq = Dnsmasq::start(at, &hosts, &[]);
    let mut watched = watch(quick(&["w.example.test:8000"], at));
    watched.until_ids(&["http://10.0.0.1:8000"]).await;
    write(
        &hosts,
        &["10.0.0.1 w.example.test", "10.0.0.2 w.example.test"],
    );
    let both = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"];
    watched.until_ids(&both).await;
    write(&hosts, &["10.0.0.2 w.example.test"]);
    watched.until_ids(&["http://10.0.0.2:8000"]).await;
    // Without any record the name is unknown: that is no empty list.
    write(&hosts, &["10.0.0.3 other.example.test"]);
    watched
        .until_failure("NXDOMAIN", &["http://10.0.0.2:8000"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_in_dnsmasq_are_followed_over_its_restart() {
    let at = free().await;
    let hosts = hosts(&["10.0.0.1 w-0.example.test", "10.0.0.2 w-1.example.test"]);
    let service = |target: &str, weight: u16| {
        format!("--srv-host=_http._tcp.w.example.test,{target}.example.test,8000,0,{weight}")
    };
    let (first, second) = (service("w-0", 100), service("w-1", 50));
    let dnsmasq = Dnsmasq::start(at, &hosts, &[&first, &second]);
    let settings = DnsSettings {
        timeout: Duration::from_secs(1),
        ..quick(&["_http._tcp.w.example.test"], at)
    };
    let mut watched = watch(settings);
    let both = ["w-0.example.test:8000", "w-1.example.test:8000"];
    let sight = watched.until_ids(&both).await;
    let picture = sight.picture.expect("there is one");
    let weights: Vec<u32> = picture
        .iter()
        .map(|(_, found)| found.spec().weight_milli())
        .collect();
    assert_eq!(weights, [1000, 500]);
    drop(dnsmasq);
    watched.until_failure("check", &both).await;
    let _dnsmasq = Dnsmasq::start(at, &hosts, &[&second]);
    watched.until_ids(&["w-1.example.test:8000"]).await;
}
