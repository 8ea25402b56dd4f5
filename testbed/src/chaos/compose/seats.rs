//! Containers as seats of a fleet: their names and addresses.

use std::net::Ipv4Addr;

use super::docker::{Container, ContainerState};
use super::{ADMIN_PORT, DATA_PORT, TOKEN, WORKER_PORT};
use crate::chaos::fault::Node;
use crate::chaos::seat::{Seat, SeatState};
use grapevine_bench::client::Target;

pub(super) fn service(node: Node) -> String {
    match node {
        Node::Replica(number) => format!("router-{number}"),
        Node::Worker(number) => format!("worker-{number}"),
    }
}

pub(super) fn node(service: &str) -> Option<Node> {
    let (kind, number) = service.split_once('-')?;
    let number = number.parse().ok()?;
    match kind {
        "router" => Some(Node::Replica(number)),
        "worker" => Some(Node::Worker(number)),
        _ => None,
    }
}

pub(super) fn target(address: Ipv4Addr, port: u16) -> Target {
    let url = format!("http://{address}:{port}");
    url.parse().expect("an address and a port are a target")
}

pub(super) fn seat(node: Node, container: &Container) -> Seat {
    let at = |port| container.address.map(|address| target(address, port));
    let (admin, token, http) = match node {
        Node::Replica(_) => (at(ADMIN_PORT), Some(TOKEN.to_owned()), at(DATA_PORT)),
        Node::Worker(_) => (None, None, at(WORKER_PORT)),
    };
    Seat {
        node,
        name: service(node),
        state: match container.state {
            ContainerState::Running => SeatState::Running,
            ContainerState::Paused => SeatState::Paused,
            ContainerState::Stopped => SeatState::Stopped,
        },
        admin,
        token,
        metrics: None,
        http,
        pid: container.pid,
    }
}

/// Marks that the container has ended.
pub(super) fn end(seat: &mut Seat) {
    seat.state = SeatState::Stopped;
    (seat.admin, seat.http, seat.pid) = (None, None, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_nodes_and_back() {
        for one in [Node::Replica(1), Node::Replica(6), Node::Worker(12)] {
            assert_eq!(node(&service(one)), Some(one));
        }
        for other in ["balancer", "router", "router-x", "prometheus-1"] {
            assert_eq!(node(other), None, "{other}");
        }
    }

    #[test]
    fn the_token_is_that_of_the_replicas_and_of_the_document() {
        let replicas = include_str!("../../../docker/testbed.toml");
        let admin = replicas.split("[admin]").nth(1).expect("a section");
        let token = admin.lines().find_map(|line| line.strip_prefix("token = "));
        assert_eq!(token, Some(format!("\"{TOKEN}\"").as_str()));
        let document = include_str!("../../../../docs/testbed.md");
        let mut named = 0;
        for before in ["--token ", "(token `"] {
            for rest in document.split(before).skip(1) {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
                assert_eq!(&rest[..end], TOKEN, "behind {before}");
                named += 1;
            }
        }
        assert!(named >= 3, "{named} times in the document");
    }
}
