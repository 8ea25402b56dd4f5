//! Where a request claims to come from: `X-Forwarded-For` and its kin.
//!
//! Any client can write them, so they are believed only from `listen.trusted_proxies`. From all other addresses
//! they are dropped, and the worker gets the address that the connection came from.

use std::net::{IpAddr, SocketAddr};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use super::headers::{says_origin, value_of};

/// The chain of addresses that a request passed, the client's first.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The other end of a connection of the data port. One per connection.
#[derive(Debug)]
pub struct Peer {
    address: IpAddr,
    /// The same as it stands in a header.
    value: HeaderValue,
    is_trusted: bool,
}

impl Peer {
    /// The peer at this address; `trusted`: networks of proxies that are believed.
    pub fn new(address: IpAddr, trusted: &[IpNet]) -> Self {
        // On a socket of both families an IPv4 client comes as ::ffff:192.0.2.1.
        let address = address.to_canonical();
        Self {
            is_trusted: is_among(trusted, address),
            value: value_of(&address.to_string()),
            address,
        }
    }

    /// The client's address: the last one of the chain that is no trusted proxy's. Before [`Self::rewrite`].
    ///
    /// What stands before that one was written by a stranger.
    pub fn client(&self, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
        let mut client = self.address;
        if !self.is_trusted {
            return client;
        }
        let values = headers.get_all(FORWARDED_FOR).iter();
        let mut hops: Vec<&[u8]> = values
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .collect();
        while let Some(address) = hops.pop().and_then(address_of) {
            client = address;
            if !is_among(trusted, address) {
                break;
            }
        }
        client
    }

    /// Makes the headers say what is known: from a trusted proxy what it says and its own address behind it,
    /// from all others the address alone.
    pub fn rewrite(&self, headers: &mut HeaderMap) {
        if self.is_trusted {
            let chain = self.behind(headers);
            headers.insert(FORWARDED_FOR, chain);
            return;
        }
        let claims = headers.keys().filter(|name| says_origin(name));
        let claims: Vec<HeaderName> = claims.cloned().collect();
        for name in claims {
            headers.remove(name);
        }
        headers.insert(FORWARDED_FOR, self.value.clone());
    }

    /// The chain so far, in one line, and this peer's address.
    fn behind(&self, headers: &HeaderMap) -> HeaderValue {
        let mut chain = Vec::new();
        for value in headers.get_all(FORWARDED_FOR) {
            chain.extend_from_slice(value.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(self.value.as_bytes());
        HeaderValue::from_bytes(&chain).expect("valid values joined by a comma are valid")
    }
}

fn is_among(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// An address in a chain; some proxies write its port, too.
fn address_of(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let with_port = || text.parse().map(|address: SocketAddr| address.ip());
    let address: IpAddr = text.parse().or_else(|_| with_port()).ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a spoofed head, sorted.
    fn rewritten(from: &str, trusted: &[&str]) -> Vec<String> {
        let trusted: Vec<IpNet> = trusted
            .iter()
            .map(|net| net.parse().expect("net"))
            .collect();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=3.3.3.3"),
            ("x-real-ip", "4.4.4.4"),
            ("x-session-id", "s"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        Peer::new(from.parse().expect("address"), &trusted).rewrite(&mut headers);
        let text = |value: &HeaderValue| value.to_str().expect("ASCII").to_owned();
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", text(value)))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_stranger_is_only_what_its_connection_says() {
        for (from, address) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            let expected = [
                format!("x-forwarded-for: {address}"),
                "x-session-id: s".to_owned(),
            ];
            assert_eq!(rewritten(from, &["10.0.0.0/8"]), expected);
        }
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_named() {
        for from in ["10.1.2.3", "::ffff:10.1.2.3"] {
            let lines = rewritten(from, &["192.168.0.0/16", "10.0.0.0/8"]);
            assert!(lines.contains(&"x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.1.2.3".to_owned()));
            assert!(lines.contains(&"x-forwarded-proto: https".to_owned()));
            assert!(lines.contains(&"x-real-ip: 4.4.4.4".to_owned()));
        }
    }

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
        let trusted: [IpNet; 1] = ["10.0.0.0/8".parse().expect("a network")];
        for (from, chain, expected) in [
            ("192.0.2.7", "1.1.1.1", "192.0.2.7"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "1.1.1.1", "1.1.1.1"),
            ("10.0.0.1", "6.6.6.6, 1.1.1.1 ,10.0.0.2", "1.1.1.1"),
            ("10.0.0.1", "1.1.1.1:4000", "1.1.1.1"),
            ("10.0.0.1", "[2001:db8::1]:4000", "2001:db8::1"),
            ("10.0.0.1", "::ffff:1.1.1.1", "1.1.1.1"),
            ("10.0.0.1", "1.1.1.1, unknown", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", chain.parse().expect("a value"));
            let peer = Peer::new(from.parse().expect("an address"), &trusted);
            let client = peer.client(&headers, &trusted);
            assert_eq!(client.to_string(), expected, "{from}: {chain}");
        }
    }
}
