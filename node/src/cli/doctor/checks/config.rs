//! A configuration on this machine, before or beside a run.

use super::certificates::graded;
use super::machine::{CONNECTIONS_FEW, mib};
use super::paths::{BUFFER_MIN, QUIC_MIN};
use crate::cli::doctor::facts::{ConfigFacts, PortState, SeedFact};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::{count, named, verb};

/// Bytes of headers around a UDP payload.
const IPV4_UDP: u32 = 28;
const IPV6_UDP: u32 = 48;

pub(super) fn check(facts: &ConfigFacts, found: &mut Vec<Finding>) {
    for mistake in &facts.mistakes {
        let todo = format!(
            "mend it: grapevine serve --config {} --check says when the file is whole; what could not be read is not judged before",
            facts.path
        );
        found.push(
            Finding::problem("config", mistake)
                .of([&facts.path])
                .todo(todo),
        );
    }
    // What could not be read has its default: it may be there all the same.
    let is_read = facts.mistakes.is_empty();
    for note in facts.notes.iter().filter(|_| is_read) {
        found.push(Finding::info("config", note).of([&facts.path]));
    }
    for certificate in &facts.certificates {
        let whose = format!(
            "the certificate {} ({})",
            certificate.file, certificate.setting
        );
        let finding = graded(certificate.days, &whose);
        found.extend(
            finding.map(|finding| finding.of([&certificate.file]).todo(&certificate.renewal)),
        );
    }
    ports(facts, found);
    seeds(facts, found);
    workers(facts, found);
    machine(facts, found);
    exposure(facts, found);
}

fn ports(facts: &ConfigFacts, found: &mut Vec<Finding>) {
    for port in &facts.ports {
        let (setting, address) = (port.setting, &port.address);
        let finding = match &port.state {
            PortState::Free | PortState::Own => continue,
            PortState::Taken => Finding::problem(
                "port",
                format!("{address} ({setting}) is taken by another process"),
            )
            .todo(format!("end it (ss -lnp shows it), or choose another {setting}")),
            PortState::Refused(why) => Finding::problem(
                "port",
                format!("{address} ({setting}) cannot be opened: {why}"),
            )
            .todo("the address must be one of this machine; ports below 1024 need the right to open them"),
        };
        found.push(finding.of([address]));
    }
    let own = facts.ports.iter().any(|port| port.state == PortState::Own);
    if own {
        let what = format!("{} runs here already with these ports", facts.replica);
        found.push(Finding::info("port", what).of([&facts.replica]));
    }
}

fn seeds(facts: &ConfigFacts, found: &mut Vec<Finding>) {
    for seed in &facts.seeds {
        one_seed(seed, found);
    }
    let others = facts.seeds.iter().filter(|seed| !seed.is_own).count();
    if facts.gossip_unread {
        return;
    }
    if facts.gossips && others == 0 {
        let what = "no seed but itself: this replica finds others only if they name it";
        let todo = "gossip.seeds = [\"HOST:30002\", ...] with two or three replicas; on all of them the same list will do";
        found.push(Finding::info("seeds", what).todo(todo));
    }
    if !facts.gossips {
        let what = "no certificates for gossip: this replica stays alone, and when it ends, nothing answers";
        let todo = "grapevine ca init && grapevine ca issue NAME, then gossip.ca, gossip.cert, gossip.key and gossip.seeds";
        found.push(
            Finding::advice("alone", what)
                .of([&facts.replica])
                .todo(todo),
        );
    }
}

fn one_seed(seed: &SeedFact, found: &mut Vec<Finding>) {
    let name = &seed.seed;
    if let Err(why) = &seed.addresses {
        let what = format!("the seed {name} has no address here: {why}");
        let todo = "it is looked up again and again while the replica runs; look at DNS, or at the spelling";
        found.push(Finding::problem("seeds", what).of([name]).todo(todo));
    }
    if let Some((mtu, is_v6)) = seed.route_mtu {
        let headers = if is_v6 { IPV6_UDP } else { IPV4_UDP };
        if u64::from(mtu) < QUIC_MIN + u64::from(headers) {
            let what = format!(
                "the route to the seed {name} carries packets of {mtu} bytes; gossip needs {}",
                QUIC_MIN + u64::from(headers)
            );
            let todo = "raise the MTU of the interface or tunnel on the way";
            found.push(Finding::problem("mtu", what).of([name]).todo(todo));
        }
    }
}

fn workers(facts: &ConfigFacts, found: &mut Vec<Finding>) {
    let failed: Vec<_> = facts
        .workers
        .iter()
        .filter_map(|worker| Some((worker, worker.failed.as_ref()?)))
        .collect();
    let Some((_, why)) = failed.first() else {
        return;
    };
    let urls: Vec<&String> = failed.iter().map(|(worker, _)| &worker.url).collect();
    let what = format!(
        "{} of {} {} not reached from this machine: {} ({why})",
        urls.len(),
        count(facts.workers.len(), "worker"),
        verb(urls.len(), "is", "are"),
        named(&urls)
    );
    let todo =
        "start it, or look at its address and at firewalls; it is used as soon as it answers";
    found.push(Finding::advice("worker", what).of(urls).todo(todo));
}

fn machine(facts: &ConfigFacts, found: &mut Vec<Finding>) {
    let (wanted, fit) = facts.connections;
    if let Some(most) = facts.files_max.filter(|_| fit < wanted) {
        let what = format!(
            "this shell may open {most} files, which hold {fit} connections of limits.connections = {wanted}"
        );
        let todo = "a service has a limit of its own: LimitNOFILE=, ulimits of the container; here ulimit -n";
        let finding = match u64::from(fit) {
            ..CONNECTIONS_FEW => Finding::advice("files", what),
            _ => Finding::info("files", what),
        };
        found.push(finding.todo(todo));
    }
    if let (bodies, Some(limit)) = facts.memory
        && bodies > limit
    {
        let (bodies, limit) = (mib(bodies as f64), mib(limit as f64));
        let what = format!(
            "bodies may take {bodies} (limits.body_bytes_total), and there are {limit} of memory in all"
        );
        let todo = "lower limits.body_bytes_total to half of the memory";
        found.push(Finding::advice("memory", what).todo(todo));
    }
    if let (Some(threads), usable) = facts.threads
        && threads as usize > usable
    {
        let what = format!("listen.threads = {threads}, and {usable} processors may be used here");
        let todo = "leave it out: there is then one thread for each processor that may be used";
        found.push(Finding::advice("cpu", what).todo(todo));
    }
    if let Some(bytes) = facts
        .udp_buffer_bytes
        .filter(|bytes| (*bytes as u64) < BUFFER_MIN)
    {
        let what = format!("the kernel gives a UDP socket a buffer of {bytes} bytes here");
        let todo = format!("sysctl net.core.rmem_default={}", 1 << 20);
        found.push(Finding::advice("udp_buffer", what).todo(todo));
    }
}

fn exposure(facts: &ConfigFacts, found: &mut Vec<Finding>) {
    if facts.admin_beyond_loopback {
        let what =
            "the admin port will be open beyond this machine: its token travels in plain HTTP";
        let todo =
            "keep it within a network that you trust, or go by a tunnel or a proxy that ends TLS";
        found.push(Finding::info("admin_port", what).todo(todo));
    }
    if facts.data_without_keys {
        let what = "the data port will be open beyond this machine without keys: whoever reaches it uses the workers";
        let todo = "keys.file lists clients' keys (grapevine keys new); nothing to do behind a gateway that checks them";
        found.push(Finding::info("data_port", what).todo(todo));
    }
}
