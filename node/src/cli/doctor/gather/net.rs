//! Short questions to the network: does anything listen there, what does the route carry, what has a port.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::time::timeout;

use crate::cli::doctor::facts::PortState;

/// For a connection within a network.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// For a look-up of a name.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(5);

/// Why no connection to `host:port` comes about; none if one does.
pub(super) async fn failure_to_connect(address: &str) -> Option<String> {
    match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {CONNECT_WITHIN:?}")),
    }
}

/// The addresses of `host:port`.
pub(super) async fn addresses(name: &str) -> Result<Vec<SocketAddr>, String> {
    match timeout(LOOK_UP_WITHIN, lookup_host(name)).await {
        Ok(Ok(found)) => {
            let found: Vec<SocketAddr> = found.collect();
            match found.is_empty() {
                true => Err("the name has no address".to_owned()),
                false => Ok(found),
            }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer of DNS within {LOOK_UP_WITHIN:?}")),
    }
}

/// Bytes of a packet that the route to an address carries, as the kernel knows; none where there is no route.
pub(super) fn route_mtu(to: SocketAddr) -> Option<u32> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    // Sends nothing: the kernel looks up the route.
    socket.connect(to).ok()?;
    match to {
        SocketAddr::V4(_) => sockopt::ip_mtu(&socket).ok(),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket).ok(),
    }
}

/// Whether a TCP port can be opened.
pub(super) async fn tcp_port(address: SocketAddr) -> PortState {
    state(TcpListener::bind(address).await.map(drop))
}

/// Whether a UDP port can be opened.
pub(super) fn udp_port(address: SocketAddr) -> PortState {
    state(UdpSocket::bind(address).map(drop))
}

fn state(bound: std::io::Result<()>) -> PortState {
    match bound {
        Ok(()) => PortState::Free,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => PortState::Taken,
        Err(error) => PortState::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ports_routes_and_names_are_seen_as_they_are() {
        let taken = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = taken.local_addr().expect("bound");
        assert_eq!(tcp_port(address).await, PortState::Taken);
        assert_eq!(failure_to_connect(&address.to_string()).await, None);
        drop(taken);
        assert_eq!(tcp_port(address).await, PortState::Free);
        let why = failure_to_connect(&address.to_string()).await;
        assert!(why.is_some_and(|why| why.contains("refused")));
        // An address of the documentation is none of this machine.
        let foreign = "192.0.2.1:9".parse().expect("an address");
        assert!(matches!(tcp_port(foreign).await, PortState::Refused(_)));
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = udp.local_addr().expect("bound");
        assert_eq!(udp_port(address), PortState::Taken);
        assert!(route_mtu(address) >= Some(1_280), "loopback is wide");
        assert!(addresses("127.0.0.1:9").await.is_ok());
        assert!(addresses("no-such-name.invalid:9").await.is_err());
    }
}
