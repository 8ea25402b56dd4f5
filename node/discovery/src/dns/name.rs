//! The names that the DNS source looks up, and under which domains. Pure.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hickory_resolver::proto::rr::Name;

/// One name whose records are workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsName {
    /// `name:port`: each address of the name is a worker at this port.
    Addresses {
        /// The name; with a dot at its end the domains of the system's search list are not tried.
        name: String,
        /// 1 to 65,535.
        port: u16,
    },
    /// `_http._tcp.name`: each SRV record is a worker, at the record's port.
    Service {
        /// The name, as above.
        name: String,
    },
}

/// Why a text is no [`DnsName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsNameError {
    /// Neither form.
    #[error(
        "{0:?} is neither name:port nor _service._proto.name, such as _http._tcp.workers.example"
    )]
    Form(String),
    /// A fixed address needs no name server.
    #[error("{0:?} is an address; list the worker in the configuration or in a file")]
    Address(String),
    /// The service's records bring their ports.
    #[error("{0:?}: SRV records bring their own ports; leave the port out")]
    Port(String),
}

impl DnsName {
    /// The name alone.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Addresses { name, .. } | Self::Service { name } => name,
        }
    }
}

impl FromStr for DnsName {
    type Err = DnsNameError;

    fn from_str(text: &str) -> Result<Self, DnsNameError> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<IpAddr>().is_ok() || text.parse::<IpAddr>().is_ok() {
            return Err(DnsNameError::Address(text.to_owned()));
        }
        let is_name = !name.is_empty() && name != "." && absolute(name).is_some();
        // Anything that is no host's name, a scheme or a path for example, is a mistake of the form.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !is_name || !name.chars().all(is_plain) {
            return Err(DnsNameError::Form(text.to_owned()));
        }
        let name = name.to_owned();
        match port {
            None if name.starts_with('_') => Ok(Self::Service { name }),
            Some(_) if name.starts_with('_') => Err(DnsNameError::Port(text.to_owned())),
            port => match port.map(str::parse) {
                Some(Ok(port)) if port > 0 => Ok(Self::Addresses { name, port }),
                _ => Err(DnsNameError::Form(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses { name, port } => write!(f, "{name}:{port}"),
            Self::Service { name } => f.write_str(name),
        }
    }
}

/// The full names to try for `name`, in their order, by the system's rule: one with at least `ndots` dots is tried as it
/// stands before the domains of the `search` list, another one after them.
pub(super) fn candidates(name: &str, search: &[Name], ndots: usize) -> Vec<Name> {
    let Some(full) = absolute(name) else {
        return Vec::new();
    };
    if name.ends_with('.') {
        return vec![full];
    }
    let mut relative = full.clone();
    relative.set_fqdn(false);
    let within = |domain: &Name| relative.clone().append_domain(domain).ok();
    let mut names: Vec<Name> = search.iter().filter_map(within).collect();
    if name.matches('.').count() >= ndots {
        names.insert(0, full);
    } else {
        names.push(full);
    }
    names
}

/// The name as it stands, below no other domain.
pub(super) fn absolute(name: &str) -> Option<Name> {
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_forms_of_names_are_read() {
        let parsed = |text: &str| text.parse::<DnsName>();
        let addresses = |name: &str, port| DnsName::Addresses {
            name: name.to_owned(),
            port,
        };
        assert_eq!(parsed("w.example:8000"), Ok(addresses("w.example", 8000)));
        assert_eq!(parsed("w:1"), Ok(addresses("w", 1)));
        assert_eq!(parsed("w.example.:1"), Ok(addresses("w.example.", 1)));
        let name = "_http._tcp.w.example".to_owned();
        assert_eq!(
            parsed("_http._tcp.w.example"),
            Ok(DnsName::Service { name })
        );
        for bad in [
            "",
            "w",
            "w:",
            "w:0",
            "w:65536",
            ":80",
            ".:80",
            "http://w:80",
            "w/x:80",
            "a..b:1",
            "a b:1",
        ] {
            assert!(matches!(parsed(bad), Err(DnsNameError::Form(_))), "{bad:?}");
        }
        for bad in ["10.0.0.1:80", "10.0.0.1", "[::1]:80", "::1"] {
            assert!(
                matches!(parsed(bad), Err(DnsNameError::Address(_))),
                "{bad:?}"
            );
        }
        assert!(matches!(
            parsed("_http._tcp.w:80"),
            Err(DnsNameError::Port(_))
        ));
        assert!(
            parsed(&format!("{}:1", "a".repeat(64))).is_err(),
            "a label has 63 bytes"
        );
    }

    #[test]
    fn names_are_searched_as_the_system_does() {
        let search = [
            Name::from_ascii("ns.svc.").expect("a name"),
            Name::from_ascii("svc.").expect("a name"),
        ];
        let tried = |name: &str, ndots| -> Vec<String> {
            let names = candidates(name, &search, ndots);
            names.iter().map(Name::to_ascii).collect()
        };
        assert_eq!(tried("w.", 1), ["w."]);
        assert_eq!(tried("w", 1), ["w.ns.svc.", "w.svc.", "w."]);
        assert_eq!(tried("w.ns", 1), ["w.ns.", "w.ns.ns.svc.", "w.ns.svc."]);
        assert_eq!(tried("w.ns", 5), ["w.ns.ns.svc.", "w.ns.svc.", "w.ns."]);
    }
}
