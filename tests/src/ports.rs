//! Ports of this machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// An address on loopback at which nobody listens: its port was free a moment ago. Panics if there is none.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("it is bound")
}
