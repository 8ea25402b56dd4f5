//! Tests of the DNS source against name servers on this machine: one that does as it is told, and dnsmasq.

mod dnsmasq;
mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::rdata::{A, AAAA, SRV};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::time::{Instant, timeout};

use super::*;
use crate::feed::Sight;
use crate::watched::{WITHIN, Watched};
use server::{Reply, Server};

/// Looks again at once, whatever the TTL.
fn quick(names: &[&str], server: SocketAddr) -> DnsSettings {
    let names = names.iter().map(|name| name.parse().expect("a name"));
    DnsSettings {
        nameservers: vec![server],
        timeout: Duration::from_secs(4),
        ttl_min: Duration::from_millis(20),
        ttl_max: Duration::from_millis(20),
        retry: Duration::from_millis(20),
        ..DnsSettings::new(names.collect())
    }
}

fn watch(settings: DnsSettings) -> Watched {
    Watched::start(|feed| run(settings, feed))
}

fn a(last: u8) -> RData {
    RData::A(A(Ipv4Addr::new(10, 0, 0, last)))
}

fn srv(target: &str, weight: u16) -> RData {
    let target = Name::from_ascii(target).expect("a name");
    RData::SRV(SRV::new(0, weight, 8000, target))
}

#[tokio::test]
async fn addresses_and_services_are_workers() {
    let server = Server::start().await;
    server.set("w.example.", RecordType::A, Reply::records([a(1), a(2)]));
    server.set("six.example.", RecordType::A, Reply::records([]));
    let six = RData::AAAA(AAAA("2001:db8::1".parse().expect("an address")));
    server.set("six.example.", RecordType::AAAA, Reply::records([six]));
    let services = [srv("W-0.example.", 100), srv("w-1.example.", 200)];
    let name = "_http._tcp.w.example.";
    server.set(name, RecordType::SRV, Reply::records(services));
    let names = ["w.example:8000", "six.example:80", "_http._tcp.w.example"];
    let mut watched = watch(quick(&names, server.address()));
    let sight = watched
        .until_ids(&[
            "http://10.0.0.1:8000",
            "http://10.0.0.2:8000",
            "http://[2001:db8::1]:80",
            "w-0.example:8000",
            "w-1.example:8000",
        ])
        .await;
    let picture = sight.picture.expect("there is one");
    let weight = |id: &str| {
        let id = id.parse().expect("an id");
        picture.get(&id).expect("a worker").spec().weight_milli()
    };
    let weights = [weight("w-0.example:8000"), weight("w-1.example:8000")];
    assert_eq!(weights, [1000, 2000]);

    let services = [srv("w-0.example.", 33), srv(".", 33)];
    server.set(name, RecordType::SRV, Reply::records(services));
    server.set("w.example.", RecordType::A, Reply::records([a(2)]));
    watched
        .until_ids(&[
            "http://10.0.0.2:8000",
            "http://[2001:db8::1]:80",
            "w-0.example:8000",
        ])
        .await;
}

#[tokio::test]
async fn the_target_of_a_service_has_its_addresses_at_the_same_servers() {
    let server = Server::start().await;
    let name = "_http._tcp.w.example.";
    let services = [srv("W-0.example.", 0), srv("six.example.", 0)];
    server.set(name, RecordType::SRV, Reply::records(services));
    server.set("w-0.example.", RecordType::A, Reply::records([a(1), a(2)]));
    server.set("six.example.", RecordType::A, Reply::records([]));
    let six = RData::AAAA(AAAA("2001:db8::1".parse().expect("an address")));
    server.set("six.example.", RecordType::AAAA, Reply::records([six]));
    let settings = quick(&["_http._tcp.w.example"], server.address());
    let mut watched = watch(settings.clone());
    let sight = watched
        .until_ids(&["six.example:8000", "w-0.example:8000"])
        .await;
    let mut found = Vec::new();
    for (_, worker) in sight.picture.expect("there is one").iter() {
        let host = worker.spec().url().host();
        let addresses = addresses(&settings, host).await.expect(host);
        found.extend(addresses.iter().map(ToString::to_string));
    }
    found.sort();
    assert_eq!(found, ["10.0.0.1", "10.0.0.2", "2001:db8::1"]);

    let settings = DnsSettings {
        timeout: Duration::from_millis(400),
        ..settings
    };
    let (nobody, kind) = ("nobody.example.", RecordType::A);
    let no_address = Reply::records([]);
    server.set(nobody, RecordType::AAAA, no_address.clone());
    for (reply, word, is_final) in [
        (Reply::Code(ResponseCode::NXDomain), "NXDOMAIN", true),
        (Reply::Code(ResponseCode::ServFail), "SERVFAIL", false),
        (no_address, "no address", true),
        (Reply::Silence, "no answer", false),
    ] {
        server.set(nobody, kind, reply);
        let why = addresses(&settings, "nobody.example").await;
        let why = why.expect_err("nothing is known");
        assert!(why.why.contains(word), "{why:?}");
        assert_eq!(why.is_final, is_final, "{why:?}");
    }
}

#[tokio::test]
async fn a_name_without_an_answer_keeps_the_last_picture_of_all() {
    let server = Server::start().await;
    server.set("w.example.", RecordType::A, Reply::records([a(1)]));
    server.set("v.example.", RecordType::A, Reply::records([a(2)]));
    let both = ["http://10.0.0.1:80", "http://10.0.0.2:80"];
    let settings = DnsSettings {
        timeout: Duration::from_millis(400),
        ..quick(&["w.example:80", "v.example:80"], server.address())
    };
    let mut watched = watch(settings);
    watched.until_ids(&both).await;
    for (reply, word) in [
        (Reply::Code(ResponseCode::ServFail), "SERVFAIL"),
        (Reply::Code(ResponseCode::NXDomain), "NXDOMAIN"),
        (Reply::Code(ResponseCode::Refused), "REFUSED"),
        (Reply::Silence, "no answer"),
    ] {
        server.set("v.example.", RecordType::A, reply);
        server.set("w.example.", RecordType::A, Reply::records([a(3)]));
        watched.until_failure(word, &both).await;
        let sight = watched.watcher.sight();
        let why = sight.failure.expect("it failed");
        assert!(why.starts_with("v.example:80: "), "{why}");
        server.set("v.example.", RecordType::A, Reply::records([a(2)]));
        server.set("w.example.", RecordType::A, Reply::records([a(1)]));
        watched.until_ids(&both).await;
    }
}

#[tokio::test]
async fn a_name_is_empty_only_after_three_empty_answers() {
    let server = Server::start().await;
    server.set("w.example.", RecordType::A, Reply::records([a(1)]));
    server.set("w.example.", RecordType::AAAA, Reply::records([]));
    let mut watched = watch(quick(&["w.example:80"], server.address()));
    watched.until_ids(&["http://10.0.0.1:80"]).await;
    let before = server.asked("w.example.", RecordType::AAAA);
    server.set("w.example.", RecordType::A, Reply::records([]));
    let sight = watched.until_ids(&[]).await;
    assert!(sight.picture.is_some_and(|picture| picture.is_empty()));
    // Each empty look asks for IPv6, too.
    let empty_looks = server.asked("w.example.", RecordType::AAAA) - before;
    assert!(empty_looks >= 3, "{empty_looks}");
}

/// However long the IPv6 addresses stand: meanwhile workers are asked that may be gone.
#[tokio::test]
async fn addresses_that_are_in_doubt_are_asked_for_again_before_their_ttl() {
    let server = Server::start().await;
    server.set("w.example.", RecordType::A, Reply::records([a(1)]));
    let mut watched = watch(DnsSettings {
        ttl_max: Duration::from_secs(3600),
        ..quick(&["w.example:80"], server.address())
    });
    watched.until_ids(&["http://10.0.0.1:80"]).await;
    let six = RData::AAAA(AAAA("2001:db8::1".parse().expect("an address")));
    let reply = Reply::Records {
        records: vec![six],
        ttl: 3600,
    };
    server.set("w.example.", RecordType::AAAA, reply);
    server.set("w.example.", RecordType::A, Reply::records([]));
    watched.until_ids(&["http://[2001:db8::1]:80"]).await;
    let asked = server.asked("w.example.", RecordType::AAAA);
    assert!(asked >= 3, "{asked}");
}

#[tokio::test]
async fn an_answer_stands_for_its_ttl_within_bounds() {
    let looks = |ttl: u32, ttl_min: u64, ttl_max: u64| async move {
        let server = Server::start().await;
        let reply = Reply::Records {
            records: vec![a(1)],
            ttl,
        };
        server.set("w.example.", RecordType::A, reply);
        let _watched = watch(DnsSettings {
            ttl_min: Duration::from_millis(ttl_min),
            ttl_max: Duration::from_millis(ttl_max),
            ..quick(&["w.example:80"], server.address())
        });
        let start = Instant::now();
        let three = async {
            while server.asked("w.example.", RecordType::A) < 3 {
                server.next().await;
            }
        };
        timeout(WITHIN, three).await.expect("three looks");
        start.elapsed()
    };
    let lowest = looks(0, 300, 60_000).await;
    assert!(
        lowest >= Duration::from_millis(500),
        "two pauses of 0.3 s: {lowest:?}"
    );
    let own = looks(1, 20, 60_000).await;
    assert!(
        own >= Duration::from_millis(1900),
        "two TTLs of 1 s: {own:?}"
    );
    // The limit of the wait, 30 s, is far below the TTL.
    looks(86_400, 20, 100).await;
}

#[tokio::test]
async fn a_truncated_answer_is_asked_for_over_tcp() {
    let server = Server::start().await;
    let all = (0..2_000u32).map(|n| RData::A(A(Ipv4Addr::from(0x0a00_0000 + n))));
    let records = all.collect();
    let reply = Reply::OnlyOverTcp { records };
    server.set("w.example.", RecordType::A, reply);
    let mut watched = watch(quick(&["w.example:80"], server.address()));
    let all = |sight: &Sight| sight.picture.as_ref().is_some_and(|all| all.len() == 2_000);
    watched.until("all records", all).await;
}

#[tokio::test]
async fn more_records_than_a_source_has_are_a_failure() {
    let server = Server::start().await;
    let names = ["a.example:80", "b.example:80", "c.example:80"];
    for (n, name) in ["a.example.", "b.example.", "c.example."]
        .iter()
        .enumerate()
    {
        let base = 0x0a00_0000 + n as u32 * 0x1_0000;
        let all = (0..2_000u32).map(|n| RData::A(A(Ipv4Addr::from(base + n))));
        let records = all.collect();
        server.set(name, RecordType::A, Reply::OnlyOverTcp { records });
    }
    let mut watched = watch(quick(&names, server.address()));
    watched
        .until_failure("6000 workers are more than 5000", &[])
        .await;
}

#[tokio::test]
async fn two_records_that_differ_on_one_worker_are_a_failure() {
    let server = Server::start().await;
    let services = [srv("w.example.", 100), srv("w.example.", 50)];
    let name = "_http._tcp.w.example.";
    server.set(name, RecordType::SRV, Reply::records(services));
    let mut watched = watch(quick(&[name], server.address()));
    watched.until_failure("correct the records", &[]).await;
}

#[tokio::test]
async fn a_name_server_that_is_not_there_is_a_failure() {
    let server = Server::start().await;
    let address = server.address();
    drop(server);
    let mut watched = watch(quick(&["w.example:80"], address));
    watched.until_failure("check", &[]).await;
}

#[tokio::test]
async fn the_hosts_file_goes_first_and_is_read_at_each_look() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
    };
    // Nobody answers there, and the names would be looked for in the domain first.
    write("resolv.conf", "nameserver 127.0.0.1\nsearch example.test\n");
    write("hosts", "10.0.0.1 w\nfd00::1 six six.example\n");
    let settings = DnsSettings {
        nameservers: Vec::new(),
        system: folder.path().to_owned(),
        ..quick(
            &["w:80", "six:80"],
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        )
    };
    let mut watched = watch(settings);
    let six = "http://[fd00::1]:80";
    watched.until_ids(&["http://10.0.0.1:80", six]).await;
    write("hosts", "10.0.0.2 w\nfd00::1 six six.example\n");
    watched.until_ids(&["http://10.0.0.2:80", six]).await;
    write("resolv.conf", "");
    watched
        .until_failure("resolv.conf cannot be read", &["http://10.0.0.2:80", six])
        .await;
}

#[tokio::test]
async fn the_source_ends_with_its_readers() {
    let server = Server::start().await;
    server.set("w.example.", RecordType::A, Reply::Silence);
    let watched = watch(quick(&["w.example:80"], server.address()));
    watched.until_end().await;
}

/// 64 names whose server answers at the second try would take longer than a picture lasts.
#[tokio::test]
async fn eight_names_are_asked_at_once_and_the_first_without_an_answer_is_named() {
    let server = Server::start().await;
    let names: Vec<String> = (0..10).map(|n| format!("w{n}.example:80")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let of = |n: usize| format!("w{n}.example.");
    let asked = |n: usize| server.asked(&of(n), RecordType::A);
    for n in 0..10 {
        server.set(&of(n), RecordType::A, Reply::Silence);
    }
    let settings = DnsSettings {
        timeout: Duration::from_secs(60),
        ..quick(&names, server.address())
    };
    let silent = watch(settings);
    let all = async {
        while !(0..8).all(|n| asked(n) > 0) {
            server.next().await;
        }
    };
    timeout(WITHIN, all).await.expect("eight at once");
    assert_eq!([asked(8), asked(9)], [0, 0], "no more of them");
    drop(silent);

    // Whichever answer comes first.
    let server = Server::start().await;
    for n in 0..10 {
        server.set(&of(n), RecordType::A, Reply::records([a(n as u8)]));
    }
    let failed = |code| Reply::Code(code);
    server.set(&of(7), RecordType::A, failed(ResponseCode::Refused));
    server.set(&of(3), RecordType::A, failed(ResponseCode::ServFail));
    let mut watched = watch(quick(&names, server.address()));
    watched.until_failure("w3.example:80: ", &[]).await;
    for n in [3, 7] {
        server.set(&of(n), RecordType::A, Reply::records([a(n as u8)]));
    }
    let ids: Vec<String> = (0..10).map(|n| format!("http://10.0.0.{n}:80")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    watched.until_ids(&ids).await;
}
