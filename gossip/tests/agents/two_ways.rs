//! A replica that reaches another one at two addresses, to each of which it sends from another address of its own: by a name
//! with an IPv4 and an IPv6 address, or in two networks.

#[path = "../hostile/gate.rs"]
mod gate;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use grapevine_gossip::{Network, SystemNetwork};
use quinn::AsyncUdpSocket;
use tokio::time::sleep;

use self::gate::Gate;
use crate::running::{Running, authority, issue, until};

/// Another way to a socket, for one who uses it. Nothing passes before it is open.
async fn way_to(target: SocketAddr) -> Gate {
    let gate = Gate::new().await;
    gate.close(true);
    gate.leads_to(target);
    gate
}

/// It was taken for its own twin: it started its gossip again above itself, and asked at that address for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_by_two_ways_is_one_process() {
    let authority = authority();
    let a = Running::of(&authority, "a", &[]).await;
    let second = way_to(a.address()).await;
    let seeds = [a.seed(), second.address.to_string()];
    let b = Running::of(&authority, "b", &seeds).await;
    for one in [&a, &b] {
        one.sees_live(2).await;
        one.is_linked_to(1).await;
    }
    let handshakes = || b.count("gossip_handshakes_total");
    let ends = |reason: &str| {
        let series = format!("gossip_handshakes_total{{reason=\"{reason}\"}}");
        b.count(&series)
    };
    let (dialled, outrun) = (ends("dialled"), ends("outrun"));
    second.close(false);
    until("it is answered by the second way", || {
        ends("dialled") > dialled || ends("outrun") > outrun
    })
    .await;
    assert_eq!((ends("outrun"), ends("outruns")), (0, 0));
    let after = handshakes();
    // Several rounds of a seed.
    for _ in 0..20 {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(handshakes(), after, "it is asked no more");
    }
    for one in [&a, &b] {
        assert_eq!(one.count("gossip_restarts_total"), 0);
        assert!(one.agent.twins().is_empty());
    }
}

/// As an address of a balancer does, it leads to this replica first, and then to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_that_led_to_oneself_is_asked_again() {
    let authority = authority();
    let b = Running::of(&authority, "b", &[]).await;
    let way = way_to(b.address()).await;
    let a = Running::of(&authority, "a", &[way.address.to_string()]).await;
    way.leads_to(a.address());
    way.close(false);
    until("it has met itself", || {
        a.count("gossip_handshakes_total{reason=\"self\"}") > 0
    })
    .await;
    assert_eq!(a.live(), 1);
    way.leads_to(b.address());
    for one in [&a, &b] {
        one.sees_live(2).await;
        one.is_linked_to(1).await;
    }
}

/// The operating system's, with a resolver that knows two addresses of every name, the first of them an IPv6 address.
#[derive(Debug)]
struct BothFamilies;

#[async_trait]
impl Network for BothFamilies {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        SystemNetwork.bind(address).await
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let found = SystemNetwork.resolve(name).await?;
        let port = found.first().map_or(0, SocketAddr::port);
        let first = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        Ok(std::iter::once(first).chain(found).collect())
    }
}

/// It was dialled in vain five times a second, with a warning a minute, although the seed answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ipv4_socket_dials_no_ipv6_address() {
    let authority = authority();
    let a = Running::of(&authority, "a", &[]).await;
    let network = Arc::new(BothFamilies);
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = issue(&authority, "demo", "b");
    let b = Running::start_on(network, bind, identity, &[a.seed()]).await;
    b.sees_live(2).await;
    b.is_linked_to(1).await;
    assert_eq!(b.count("gossip_handshakes_total{reason=\"local\"}"), 0);
}
