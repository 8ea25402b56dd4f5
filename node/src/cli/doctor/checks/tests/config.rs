//! A file, before anything runs.

use super::is_one;
use crate::cli::doctor::checks::all;
use crate::cli::doctor::facts::{
    CertificateFact, ConfigFacts, Facts, PortFact, PortState, SeedFact, WorkerFact,
};
use crate::cli::doctor::finding::Severity;
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use serde_json::json;

/// A file that is good, on a machine that has what it wants.
pub(super) fn good() -> ConfigFacts {
    ConfigFacts {
        path: "g.toml".to_owned(),
        replica: "r1".to_owned(),
        gossips: true,
        seeds: vec![seed("r2:30002")],
        ports: vec![port(PortState::Free)],
        workers: vec![tried("http://a:1", None), tried("http://b:1", None)],
        connections: (1_000, 1_000),
        files_max: Some(4_000),
        memory: (1 << 20, Some(1 << 30)),
        threads: (None, 4),
        udp_buffer_bytes: Some(212_992),
        settings: json!({ "cluster.policy": "\"prefix\"", "cluster.seed": "0" }),
        ..ConfigFacts::default()
    }
}

fn seed(name: &str) -> SeedFact {
    SeedFact {
        seed: name.to_owned(),
        addresses: Ok(vec!["10.0.0.2:30002".to_owned()]),
        is_own: false,
        route_mtu: Some((1_500, false)),
    }
}

fn port(state: PortState) -> PortFact {
    PortFact {
        setting: "admin.port",
        address: "127.0.0.1:30001".to_owned(),
        state,
    }
}

fn tried(url: &str, failed: Option<&str>) -> WorkerFact {
    WorkerFact {
        url: url.to_owned(),
        failed: failed.map(str::to_owned),
    }
}

fn check_file(
    plant: impl FnOnce(&mut ConfigFacts),
    severity: Severity,
    name: &str,
    parts: &[&str],
) {
    let mut config = good();
    plant(&mut config);
    let facts = Facts {
        config: Some(config),
        cluster: None,
    };
    is_one(&all(&facts), severity, name, parts);
}

#[test]
fn of_a_file_that_is_good_nothing_is_said_and_of_others_what_is_wrong() {
    let facts = |config| Facts {
        config: Some(config),
        cluster: None,
    };
    assert_eq!(all(&facts(good())), []);
    check_file(
        |file| file.mistakes = vec!["g.toml:3:1: wrong".to_owned()],
        Problem,
        "config",
        &["g.toml:3:1", "--check"],
    );
    // What could not be read is not said to be missing.
    check_file(
        |file| {
            file.mistakes = vec!["g.toml:3:1: wrong".to_owned()];
            file.notes = vec!["no workers".to_owned()];
            file.gossip_unread = true;
            file.gossips = false;
            file.seeds.clear();
        },
        Problem,
        "config",
        &["g.toml:3:1", "not judged"],
    );
    check_file(
        |file| file.notes = vec!["no workers".to_owned()],
        Info,
        "config",
        &["no workers"],
    );
    check_file(
        |file| file.ports = vec![port(PortState::Taken)],
        Problem,
        "port",
        &["127.0.0.1:30001 (admin.port) is taken"],
    );
    check_file(
        |file| file.ports = vec![port(PortState::Refused("no such address".to_owned()))],
        Problem,
        "port",
        &["no such address"],
    );
    check_file(
        |file| file.ports = vec![port(PortState::Own); 3],
        Info,
        "port",
        &["r1 runs here already"],
    );
    check_file(
        |file| file.seeds[0].addresses = Err("no such name".to_owned()),
        Problem,
        "seeds",
        &["r2:30002 has no address", "no such name"],
    );
    check_file(
        |file| file.seeds[0].route_mtu = Some((1_220, false)),
        Problem,
        "mtu",
        &["1220 bytes; gossip needs 1228"],
    );
    check_file(
        |file| file.seeds[0].route_mtu = Some((1_240, true)),
        Problem,
        "mtu",
        &["gossip needs 1248"],
    );
    check_file(
        |file| file.seeds[0].is_own = true,
        Info,
        "seeds",
        &["no seed but itself"],
    );
    check_file(
        |file| file.gossips = false,
        Advice,
        "alone",
        &["no certificates for gossip", "grapevine ca init"],
    );
    check_file(
        |file| file.workers[1] = tried("http://b:1", Some("refused")),
        Advice,
        "worker",
        &["1 of 2 workers is not reached", "http://b:1 (refused)"],
    );
    check_file(
        |file| file.connections = (65_536, 500),
        Advice,
        "files",
        &["may open 4000 files", "ulimit -n"],
    );
    check_file(
        |file| file.memory.1 = Some(1 << 10),
        Advice,
        "memory",
        &["limits.body_bytes_total"],
    );
    check_file(
        |file| file.threads.0 = Some(64),
        Advice,
        "cpu",
        &["listen.threads = 64, and 4"],
    );
    check_file(
        |file| file.udp_buffer_bytes = Some(9),
        Advice,
        "udp_buffer",
        &["9 bytes"],
    );
    check_file(
        |file| file.admin_beyond_loopback = true,
        Info,
        "admin_port",
        &["plain HTTP"],
    );
    check_file(
        |file| file.data_without_keys = true,
        Info,
        "data_port",
        &["without keys"],
    );
    let certificate = |days| CertificateFact {
        setting: "tls.cert",
        file: "c.pem".to_owned(),
        days,
        renewal: "replace it".to_owned(),
    };
    check_file(
        |file| file.certificates = vec![certificate(90), certificate(3)],
        Problem,
        "certificate",
        &["c.pem (tls.cert) ends in 3 days", "replace it"],
    );
}
