//! Paths between replicas: who does not hear whom, large packets, loss, packets that the kernel dropped; data ports that
//! cannot be reached.

use serde_json::Value;

use crate::cli::doctor::facts::{ClusterFacts, ReplicaFacts};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::{count, named};
use crate::shown::{field, rows};

/// A QUIC packet below this, in bytes of UDP payload, cannot pass at all.
pub(super) const QUIC_MIN: u64 = 1_200;
/// With less than this to spare nothing may be put around packets on the way.
const MTU_SPARE: u64 = 50;
/// So many packets say something about loss.
const SENT_MIN: u64 = 1_000;
/// Share of lost packets that is worth a word.
const LOST_SHARE: f64 = 0.02;
/// Packets that the kernel dropped which are worth a word.
const DROPPED_MIN: u64 = 100;
/// A receive buffer below this holds less than a burst of gossip.
pub(super) const BUFFER_MIN: u64 = 128 << 10;

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    unheard(facts, found);
    for replica in &facts.replicas {
        for path in rows(&replica.about, "paths") {
            quality(replica, path, found);
        }
        kernel(replica, found);
    }
    let members = rows(&facts.cluster, "replicas").iter();
    let leaving: Vec<_> = members
        .filter(|row| row["leaving"] == true)
        .map(|row| field(row, "id"))
        .collect();
    // One that is about to end has closed its port.
    let ports = facts.data_ports.iter();
    for port in ports.filter(|port| !leaving.contains(&port.replica)) {
        let Some(why) = &port.failed else { continue };
        let what = format!(
            "the data port of {} ({}) is not reached from here: {why}",
            port.replica, port.address
        );
        let todo = "clients get to it? A firewall, or listen.host on an address that this machine does not reach; \
                    gossip names it to the others";
        found.push(
            Finding::advice("data_port", what)
                .of([&port.replica])
                .todo(todo),
        );
    }
}

fn unheard(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let pairs = rows(&facts.cluster, "unheard").iter();
    let pairs: Vec<(String, String)> = pairs
        .map(|pair| (field(pair, "replica"), field(pair, "other")))
        .collect();
    if pairs.is_empty() {
        return;
    }
    let told: Vec<String> = pairs
        .iter()
        .map(|(of, other)| format!("{of} does not hear {other}"))
        .collect();
    let mut about: Vec<&String> = pairs.iter().flat_map(|(of, other)| [of, other]).collect();
    about.sort();
    about.dedup();
    let todo = "UDP between their gossip ports must pass both ways: look at firewalls and security groups; grapevine status \
                --links shows all of it";
    found.push(
        Finding::problem("unheard", named(&told))
            .of(about)
            .todo(todo),
    );
}

fn quality(replica: &ReplicaFacts, path: &Value, found: &mut Vec<Finding>) {
    let (from, to) = (&replica.id, field(path, "replica"));
    let number = |name: &str| path[name].as_u64().unwrap_or(0);
    let between = [from.clone(), to.clone()];
    if number("black_holes") > 0 {
        let times = count(number("black_holes") as usize, "time");
        let what = format!(
            "from {from} to {to} large packets ceased to pass, {times}; now up to {} bytes do",
            number("mtu")
        );
        let todo = "the path's MTU changed or is smaller than the interfaces say (VPN, overlay, tunnel): set the MTU of the \
                    interface to what passes";
        found.push(Finding::advice("mtu", what).of(between.clone()).todo(todo));
    } else if number("mtu") < QUIC_MIN + MTU_SPARE {
        let what = format!(
            "the path from {from} to {to} carries packets of {} bytes and no larger; {QUIC_MIN} is the least that gossip needs",
            number("mtu")
        );
        let todo = "one more tunnel on the way would break it";
        found.push(Finding::info("mtu", what).of(between.clone()).todo(todo));
    }
    let (sent, lost) = (number("packets_sent"), number("packets_lost"));
    let share = lost as f64 / sent.max(1) as f64;
    if sent >= SENT_MIN && share > LOST_SHARE {
        let what = format!(
            "from {from} to {to} {:.0} % of {sent} packets were lost since they are connected",
            share * 100.0
        );
        let todo = "gossip stands this, and is later by it; look at the network between them";
        found.push(Finding::advice("loss", what).of(between).todo(todo));
    }
}

/// What the kernel did with the socket of gossip.
fn kernel(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let udp = &replica.about["machine"]["udp"];
    let buffer = udp["buffer_bytes"].as_u64();
    let todo = format!(
        "sysctl net.core.rmem_default={} on its machine, and a restart; if that does not end it, it has too little processor",
        1 << 20
    );
    if udp["dropped"].as_u64() >= Some(DROPPED_MIN) {
        let what = format!(
            "the kernel of {} dropped {} packets of gossip that were not read in time (its buffer: {} bytes)",
            replica.id,
            field(udp, "dropped"),
            field(udp, "buffer_bytes"),
        );
        found.push(
            Finding::advice("udp_buffer", what)
                .of([&replica.id])
                .todo(todo),
        );
    } else if buffer.is_some_and(|bytes| bytes < BUFFER_MIN) {
        let what = format!(
            "the kernel of {} gives a UDP socket a buffer of {} bytes",
            replica.id,
            field(udp, "buffer_bytes"),
        );
        found.push(
            Finding::advice("udp_buffer", what)
                .of([&replica.id])
                .todo(todo),
        );
    }
}
