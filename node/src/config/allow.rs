//! Where workers may be. Pure: names and addresses in, a verdict out.
//!
//! A client that may add a worker chooses what this replica connects to (server-side request forgery, CWE-918), and
//! workers come by gossip, too. So the rule is asked when a worker is added, and again at every connection
//! about each address that its name was resolved to: a name may change its mind in between.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::types::AllowedHost;

/// Networks with nothing but link-local services.
const LINK_LOCAL: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)), // RFC 3927; clouds' metadata
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), // RFC 4291, section 2.5.6
        10,
    )),
];

/// Metadata services of clouds that are not link-local.
const METADATA: [IpAddr; 5] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)), // AWS
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),  // Google
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),                    // Azure
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),                  // Alibaba
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),                      // Oracle
];

/// Names under which clouds' metadata services are reached from inside, without the dot of the root.
/// They are refused before they are resolved: a resolver that answers differently, as in a proxy, must not be led
/// there.
const METADATA_NAMES: [&str; 10] = [
    "metadata",                 // Google, by the search domain
    "metadata.google.internal", // Google
    "metadata.goog",            // Google
    "metadata.azure.com",       // Azure
    "metadata.azure.internal",  // Azure
    "instance-data",            // AWS, by the search domain
    "rancher-metadata",         // Rancher
    "metadata.tencentyun.com",  // Tencent
    "metadata.packet.net",      // Equinix
    "metadata.platformequinix.com",
];
/// Domains in which clouds name them `instance-data`, as in `instance-data.ec2.internal`.
const INSTANCE_DATA: (&str, &str) = ("instance-data.", ".internal");

/// The rule of `workers.allow`.
#[derive(Debug, Clone, Default)]
pub struct Allow {
    nets: Vec<IpNet>,
    names: Vec<AllowedHost>,
}

/// Why nothing is sent to a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostRefused {
    /// The address serves the machine itself, or the cloud around it.
    #[error(
        "{0} is a link-local address or a cloud's metadata service; if a worker is there, put its network \
         into workers.allow"
    )]
    Special(IpAddr),
    /// The name is that of a metadata service.
    #[error(
        "{0} is a cloud's metadata service; if a worker is there, put this very name into workers.allow"
    )]
    Metadata(String),
    /// The name is longer than a name may be, so it has no address.
    #[error("{0} is no name of a host: each part has at most 63 characters, and all of it 253")]
    TooLong(String),
    /// There is a list, and this is not in it.
    #[error("{0} is not in workers.allow")]
    NotListed(String),
}

impl Allow {
    /// The rule of these entries; without any, everything but link-local and metadata addresses.
    pub fn new(entries: Vec<AllowedHost>) -> Self {
        let mut allow = Self::default();
        for entry in entries {
            match entry {
                AllowedHost::Net(net) => allow.nets.push(net),
                name => allow.names.push(name),
            }
        }
        allow
    }

    /// Whether a worker may have this host in its URL (an IPv6 address without brackets).
    /// Errors: no address that it may be resolved to would be permitted.
    pub fn host(&self, host: &str) -> Result<(), HostRefused> {
        match host.parse() {
            Ok(address) => self.address(host, address),
            Err(_) if is_metadata(host) && !self.names_exactly(host) => {
                Err(HostRefused::Metadata(host.to_owned()))
            }
            Err(_) if is_too_long(host) => Err(HostRefused::TooLong(host.to_owned())),
            // With networks in the list, the name's addresses decide.
            Err(_) if self.is_empty() || self.names(host) || !self.nets.is_empty() => Ok(()),
            Err(_) => Err(HostRefused::NotListed(host.to_owned())),
        }
    }

    /// Whether this replica may connect to an address of a host.
    /// Errors: it may not.
    pub fn address(&self, host: &str, address: IpAddr) -> Result<(), HostRefused> {
        let address = address.to_canonical();
        if self.nets.iter().any(|net| net.contains(&address)) {
            return Ok(());
        }
        if !self.is_empty() && !self.names(host) {
            return Err(HostRefused::NotListed(if host.parse::<IpAddr>().is_ok() {
                address.to_string()
            } else {
                format!("{address}, which {host} was resolved to,")
            }));
        }
        if is_special(address) || embedded(address).is_some_and(|inner| is_special(inner.into())) {
            return Err(HostRefused::Special(address));
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.nets.is_empty() && self.names.is_empty()
    }

    fn names_exactly(&self, host: &str) -> bool {
        let named = AllowedHost::Host(plain(host));
        self.names.contains(&named)
    }

    fn names(&self, host: &str) -> bool {
        // A name may be written with the dot of the root.
        let host = plain(host);
        self.names.iter().any(|entry| match entry {
            AllowedHost::Host(name) => *name == host,
            AllowedHost::Below(domain) => host.ends_with(domain.as_str()),
            AllowedHost::Net(_) => false,
        })
    }
}

/// A name in lower case, without the dot of the root.
fn plain(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.to_ascii_lowercase()
}

/// RFC 1035, section 2.3.4.
fn is_too_long(host: &str) -> bool {
    let host = plain(host);
    host.len() > 253 || host.split('.').any(|label| label.len() > 63)
}

fn is_metadata(host: &str) -> bool {
    let host = plain(host);
    let (first, domain) = INSTANCE_DATA;
    METADATA_NAMES.contains(&host.as_str()) || (host.starts_with(first) && host.ends_with(domain))
}

fn is_special(address: IpAddr) -> bool {
    LINK_LOCAL.iter().any(|net| net.contains(&address)) || METADATA.contains(&address)
}

/// The IPv4 address that a gateway may translate an IPv6 address to: IPv4-compatible (RFC 4291), NAT64
/// (RFC 6052), 6to4 (RFC 3056). IPv4-mapped ones are canonical by now.
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let quad = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(quad(high, low))
        }
        [0x2002, high, low, ..] => Some(quad(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::WorkerUrl;
    use proptest::prelude::*;

    use super::*;

    fn rule<T: AsRef<str>>(entries: &[T]) -> Allow {
        let entry = |text: &T| AllowedHost::new(text.as_ref()).expect("an entry");
        Allow::new(entries.iter().map(entry).collect())
    }

    #[test]
    fn a_name_is_as_long_as_dns_allows() {
        let (label, any) = ("a".repeat(63), rule::<&str>(&[]));
        let longest = [&*label, &*label, &*label, &"b".repeat(61)].join(".");
        for good in [label.as_str(), &longest, &format!("{longest}.")] {
            assert_eq!(any.host(good), Ok(()), "{good}");
        }
        for bad in [
            format!("{label}a"),
            format!("{longest}b"),
            format!("w.{label}a.lab"),
        ] {
            assert_eq!(any.host(&bad), Err(HostRefused::TooLong(bad.clone())));
        }
    }

    /// As the admin API sees it: the URL is parsed first, which undoes odd spellings of addresses.
    fn verdict(allow: &Allow, url: &str) -> bool {
        let url: WorkerUrl = url.parse().expect(url);
        allow.host(url.host()).is_ok()
    }

    #[test]
    fn without_a_list_only_link_local_and_metadata_addresses_are_refused() {
        let allow = rule::<&str>(&[]);
        for good in [
            "http://10.0.0.5:8000",
            "http://127.0.0.1:8000",
            "http://[::1]:8000",
            "http://worker-1:8000",
            "https://203.0.113.7",
            "http://[fd00::5]:8000",
            "http://169.253.255.255:80",
            "http://[64:ff9b::a00:5]:80",
        ] {
            assert!(verdict(&allow, good), "{good}");
        }
        for bad in [
            "http://169.254.169.254",
            "https://169.254.0.1:8000",
            "http://2852039166:80",          // the same as one number
            "http://0xa9.0xfe.0xa9.0xfe:80", // the same in hexadecimal
            "http://0251.0376.0251.0376:80", // the same in octal
            "http://[::ffff:169.254.169.254]:80",
            "http://[::ffff:a9fe:a9fe]:80",
            "http://[::169.254.169.254]:80",
            "http://[64:ff9b::a9fe:a9fe]:80",
            "http://[2002:a9fe:a9fe::1]:80",
            "http://[fe80::1]:8000",
            "http://[febf::1]:8000",
            "http://[fd00:ec2::254]:80",
            "http://[fd20:ce::254]:80",
            "http://168.63.129.16",
            "http://100.100.100.200",
            "http://192.0.0.192",
        ] {
            assert!(!verdict(&allow, bad), "{bad}");
        }
    }

    #[test]
    fn metadata_services_are_refused_by_name() {
        let names = [
            "metadata.google.internal",
            "metadata.google.internal.",
            "METADATA.Google.Internal",
            "metadata",
            "metadata.goog",
            "instance-data",
            "instance-data.ec2.internal",
            "Instance-Data.eu-west-1.compute.internal.",
            "metadata.azure.com",
            "metadata.azure.internal",
            "metadata.tencentyun.com",
        ];
        let nets_and_domains = rule(&["10.0.0.0/8", "*.internal", "*.com"]);
        for name in names {
            for allow in [&rule::<&str>(&[]), &nets_and_domains] {
                assert!(allow.host(name).is_err(), "{name}");
                assert!(!verdict(allow, &format!("http://{name}:80")), "{name}");
            }
        }
        for name in [
            "metadata.lab",
            "my-metadata",
            "ip-10-0-0-5.ec2.internal",
            "instance-data.lab",
        ] {
            assert!(rule::<&str>(&[]).host(name).is_ok(), "{name}");
        }
        // A worker that really has such a name is named; what it resolves to is asked all the same.
        let named = rule(&["metadata.goog"]);
        assert!(named.host("metadata.goog.").is_ok());
        let secret = "169.254.169.254".parse().expect("an address");
        assert!(named.address("metadata.goog", secret).is_err());
    }

    #[test]
    fn a_list_alone_says_what_is_allowed() {
        let allow = rule(&["10.0.0.0/8", "fd00::/8", "gpu-1.lab", "*.workers.example"]);
        for (url, expected) in [
            ("http://10.1.2.3:8000", true),
            ("http://[::ffff:10.1.2.3]:8000", true),
            ("http://[fd00:ec2::254]:80", true), // its network was named
            ("http://GPU-1.lab:8000", true),
            ("http://a.b.workers.example:8000", true),
            ("http://anything:8000", true), // its addresses will decide
            ("http://11.0.0.1:8000", false),
            ("http://127.0.0.1:8000", false),
            ("http://0.0.0.0:8000", false),
            ("http://[::1]:8000", false),
            ("http://169.254.169.254", false),
        ] {
            assert_eq!(verdict(&allow, url), expected, "{url}");
        }
        let names = rule(&["gpu-1.lab"]);
        assert!(verdict(&names, "http://gpu-1.lab.:8000"));
        assert!(!verdict(&names, "http://gpu-2.lab:8000"));
        assert!(!verdict(&names, "http://10.0.0.1:8000"));
        assert!(!verdict(&rule(&["*.lab"]), "http://evil-lab:8000"));
        assert!(verdict(&rule(&["169.254.7.7"]), "http://169.254.7.7"));
    }

    #[test]
    fn what_a_name_resolves_to_is_asked_again() {
        let address = |text: &str| text.parse::<IpAddr>().expect(text);
        let metadata = address("169.254.169.254");
        let open = rule::<&str>(&[]);
        assert!(open.address("rebound.example", address("10.0.0.1")).is_ok());
        assert_eq!(
            open.address("rebound.example", metadata),
            Err(HostRefused::Special(metadata))
        );
        let named = rule(&["gpu-1.lab", "10.0.0.0/8"]);
        assert!(named.address("gpu-1.lab", address("192.168.0.1")).is_ok());
        assert!(named.address("gpu-1.lab", metadata).is_err());
        assert!(named.address("gpu-2.lab", address("10.0.0.1")).is_ok());
        let refused = named.address("gpu-2.lab", address("192.168.0.1"));
        let message = refused.expect_err("refused").to_string();
        assert!(
            message.contains("gpu-2.lab") && message.contains("192.168.0.1"),
            "{message}"
        );
    }

    proptest! {
        /// The spelling of an address changes nothing, nor does another name for it.
        #[test]
        fn an_address_has_one_verdict(
            bits: u32,
            net: u32,
            prefix in 0_u8..=32,
            special: bool,
            listed: bool,
        ) {
            let bits = if special { 0xa9fe_0000 | (bits & 0xffff) } else { bits };
            let address = Ipv4Addr::from(bits);
            let net = format!("{}/{prefix}", Ipv4Addr::from(net));
            let allow = rule(if listed { std::slice::from_ref(&net) } else { &[] });
            let plain = verdict(&allow, &format!("http://{address}:1"));
            prop_assert_eq!(verdict(&allow, &format!("http://{bits}:1")), plain);
            prop_assert_eq!(verdict(&allow, &format!("http://[::ffff:{address}]:1")), plain);
            prop_assert_eq!(allow.address("w", address.into()).is_ok(), plain);
            prop_assert_eq!(allow.address("w", address.to_ipv6_mapped().into()).is_ok(), plain);
            let inside = net.parse::<IpNet>().expect("a network").contains(&IpAddr::from(address));
            let expected = if listed { plain == inside } else { !special || !plain };
            prop_assert!(expected, "{address} by {net}: {plain}");
        }
    }

    #[test]
    fn entries_are_networks_addresses_hosts_or_domains() {
        for good in [
            "10.0.0.0/8",
            "10.0.0.1",
            "fd00::/8",
            "::1",
            "[::1]",
            "w1",
            "w_1.lab",
            "*.lab",
            "1a",
        ] {
            assert!(AllowedHost::new(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "*",
            "*.",
            "10.0.0.0/33",
            "10.0.0.256",
            "10.0.0",
            "http://w1",
            "w1:8000",
            "a..b",
            "a b",
        ] {
            assert!(AllowedHost::new(bad).is_none(), "{bad}");
        }
    }
}
