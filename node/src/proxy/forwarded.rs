//! Who a request says it is from: `X-Forwarded-For` and its kin.
//!
//! Anybody can write them, so they are believed only from `listen.trusted_proxies`. From everybody else
//! they are dropped, and the worker is told the address that the connection came from.

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

/// The chain of addresses that a request passed, the client's first.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// `X-Forwarded-Host`, `-Proto`, `-Port`, `-Prefix`, ...
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// The other end of a connection of the data port. One per connection.
#[derive(Debug)]
pub struct Peer {
    address: HeaderValue,
    is_trusted: bool,
}

impl Peer {
    /// The peer at this address; `trusted`: networks of proxies whose word counts.
    pub fn new(address: IpAddr, trusted: &[IpNet]) -> Self {
        // On a socket of both families an IPv4 client comes as ::ffff:192.0.2.1.
        let address = address.to_canonical();
        Self {
            is_trusted: trusted.iter().any(|network| network.contains(&address)),
            address: super::headers::value_of(&address.to_string()),
        }
    }

    /// Makes the headers say what is known: from a trusted proxy what it says and its own address behind it,
    /// from anybody else the address alone.
    pub fn rewrite(&self, headers: &mut HeaderMap) {
        if self.is_trusted {
            let chain = self.behind(headers);
            headers.insert(FORWARDED_FOR, chain);
            return;
        }
        let is_claim = |name: &HeaderName| {
            *name == header::FORWARDED
                || *name == REAL_IP
                || name.as_str().starts_with(FORWARDED_PREFIX)
        };
        let claims: Vec<HeaderName> = headers.keys().filter(|n| is_claim(n)).cloned().collect();
        for name in claims {
            headers.remove(name);
        }
        headers.insert(FORWARDED_FOR, self.address.clone());
    }

    /// The chain so far, in one line, and this peer's address.
    fn behind(&self, headers: &HeaderMap) -> HeaderValue {
        let mut chain = Vec::new();
        for value in headers.get_all(FORWARDED_FOR) {
            chain.extend_from_slice(value.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(self.address.as_bytes());
        HeaderValue::from_bytes(&chain).expect("valid values joined by a comma are valid")
    }
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
}
