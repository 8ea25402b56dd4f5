//! Types of single settings that have no home elsewhere: names, addresses, secrets, sizes.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr as _;

use grapevine_gossip::worker::{WorkerError, WorkerUrl};
use grapevine_placement::{Target, Weight, named};
use ipnet::IpNet;
use url::Url;

use super::setting::{Setting, Value, mismatch};

/// A name that may stand in a certificate: one DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// None unless the text is 1 to 63 of `a-z`, `0-9`, `-`, with no hyphen at the ends.
    pub fn new(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = (1..=63).contains(&text.len())
            && text.bytes().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-');
        good.then(|| Self(text.to_owned()))
    }

    /// The name's characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A host, by address or by a name that is resolved again before every use, and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// An IP address without brackets, or a DNS name.
    pub host: String,
    /// The port; never 0.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:port`, with an IPv6 address in brackets. None for anything else.
    pub fn new(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(address) => Ipv6Addr::from_str(address).ok()?.to_string(),
            None => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                (!host.is_empty() && host.bytes().all(plain)).then(|| host.to_owned())?
            }
        };
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some(Self { host, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

/// A worker that prefills, with its bootstrap port if it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefillUrl {
    /// Where it is.
    pub url: WorkerUrl,
    /// The port at its host by which it is asked for blocks.
    pub bootstrap_port: Option<u16>,
}

/// Workers that prefill, as other routers' flags name them: each address may be followed by a port, or `none`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefillUrls(pub Vec<PrefillUrl>);

impl Setting for PrefillUrls {
    const VALUE_NAME: &'static str = "URL";

    fn parse(value: &Value) -> Result<Self, String> {
        // Items of a file are whole; on a command line address and port are words of their own.
        let mut workers: Vec<PrefillUrl> = Vec::new();
        let mut may_follow = false;
        for item in Vec::<String>::parse(value)? {
            for word in item.split_whitespace() {
                let is_port = word == "none" || word.bytes().all(|b| b.is_ascii_digit());
                match workers.last_mut().filter(|_| is_port && may_follow) {
                    Some(worker) => worker.bootstrap_port = port(word)?,
                    None => workers.push(prefill_at(word)?),
                }
                may_follow = !is_port;
            }
        }
        Ok(Self(workers))
    }

    fn show(&self) -> Option<String> {
        let port = |worker: &PrefillUrl| worker.bootstrap_port.map(|port| format!(" {port}"));
        let text =
            |worker: &PrefillUrl| format!("{}{}", worker.url, port(worker).unwrap_or_default());
        let texts: Vec<String> = self.0.iter().map(text).collect();
        texts.show()
    }
}

fn prefill_at(word: &str) -> Result<PrefillUrl, String> {
    let url = word.parse().map_err(|error: WorkerError| {
        format!("expected an address such as \"http://10.0.0.5:8000\", and its port or \"none\" behind it: {error}")
    })?;
    let bootstrap_port = None;
    Ok(PrefillUrl {
        url,
        bootstrap_port,
    })
}

fn port(word: &str) -> Result<Option<u16>, String> {
    if word == "none" {
        return Ok(None);
    }
    let port = word.parse().ok().filter(|port| *port > 0);
    port.map(Some)
        .ok_or_else(|| format!("expected a port from 1 to 65535 or \"none\", found {word:?}"))
}

/// Where workers may be: one entry of `workers.allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHost {
    /// Addresses of a network; a single address is a network of one.
    Net(IpNet),
    /// A host by its name, in lower case.
    Host(String),
    /// Every host below a domain, in lower case and with its leading dot.
    Below(String),
}

impl AllowedHost {
    /// Reads a network, an address, a name, or `*.` and a domain. None for anything else.
    pub fn new(text: &str) -> Option<Self> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Some(Self::Net(net.trunc()));
        }
        let address = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = address.parse::<IpAddr>() {
            return Some(Self::Net(address.to_canonical().into()));
        }
        let (below, name) = match text.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, text),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let label = |label: &str| !label.is_empty() && label.bytes().all(plain);
        // A last label of digits is an address that was mistyped: no name ends so.
        let is_name = name.len() <= 253
            && name.split('.').all(label)
            && name
                .rsplit('.')
                .next()?
                .bytes()
                .any(|b| !b.is_ascii_digit());
        let name = is_name.then(|| name.to_ascii_lowercase())?;
        Some(if below {
            Self::Below(format!(".{name}"))
        } else {
            Self::Host(name)
        })
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => net.fmt(out),
            Self::Host(name) => out.write_str(name),
            Self::Below(domain) => write!(out, "*{domain}"),
        }
    }
}

/// A token or key. Never printed: not in logs, not in messages.
#[derive(Clone, PartialEq, Eq, PartialOrd)]
pub struct Secret(String);

/// Below it a secret can be found by trying: 16 random hexadecimal digits are 64 bits.
pub(super) const SECRET_BYTES_MIN: usize = 16;

impl Secret {
    /// None unless the text is 1 to 512 visible ASCII characters, because it travels in a header.
    pub fn new(text: &str) -> Option<Self> {
        let good = (1..=512).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        good.then(|| Self(text.to_owned()))
    }

    /// Whether it could be found by trying: shorter than 16 characters.
    pub fn is_short(&self) -> bool {
        self.0.len() < SECRET_BYTES_MIN
    }

    /// The secret itself, for the one place that compares or sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("(secret)")
    }
}

impl Setting for Secret {
    const VALUE_NAME: &'static str = "SECRET";

    fn parse(value: &Value) -> Result<Self, String> {
        // The message must not repeat it.
        value
            .text()
            .and_then(Self::new)
            .ok_or_else(|| "expected a text of 1 to 512 visible ASCII characters".to_owned())
    }

    fn show(&self) -> Option<String> {
        Some("\"(secret)\"".to_owned())
    }
}

/// A number of bytes, written as a number or with a binary unit: `"64KiB"`, `"16MiB"`, `"1GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// So many KiB.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// So many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// As a length in memory; on a platform whose memory is smaller, all of it.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn from_text(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim() {
            "" | "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return None,
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        Some(Self(bytes))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let whole = |shift: &u32| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        match units.iter().find(|(shift, _)| whole(shift)) {
            Some((shift, unit)) => write!(out, "{}{unit}", self.0 >> shift),
            None => write!(out, "{}B", self.0),
        }
    }
}

impl Setting for ByteSize {
    const VALUE_NAME: &'static str = "BYTES";

    fn parse(value: &Value) -> Result<Self, String> {
        match value {
            Value::Integer(number) => u64::try_from(*number).ok().map(Self),
            other => other.text().and_then(Self::from_text),
        }
        .ok_or_else(|| mismatch("a size such as 4096, \"64KiB\" or \"16MiB\"", value))
    }

    fn show(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// A target of an alias: the name of a model, then its weight behind a colon; 1 without one.
///
/// What follows the last colon is a weight if it is a number; a model called `name:7` is written `name:7:1`.
impl Setting for Target {
    const VALUE_NAME: &'static str = "TARGET";

    fn parse(value: &Value) -> Result<Self, String> {
        let expected = "a model and its weight, such as \"llama-70b\" or \"llama-70b:9\"";
        let text = value.text().ok_or_else(|| mismatch(expected, value))?;
        let is_number = |text: &str| {
            let digits = text.strip_prefix('-').unwrap_or(text);
            digits.starts_with(|first: char| first.is_ascii_digit())
                && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        };
        let (model, weight) = match text.rsplit_once(':') {
            Some((model, weight)) if is_number(weight) => {
                let weight = weight.parse::<f64>().ok();
                let weight = weight.and_then(|weight| Weight::try_from(weight).ok());
                let what = || format!("the weight in {value} is not from 0.001 to 100");
                (model, weight.ok_or_else(what)?)
            }
            _ => (text, Weight::ONE),
        };
        Ok(Self {
            model: model.to_owned(),
            weight,
        })
    }

    fn show(&self) -> Option<String> {
        Some(format!(
            "{:?}",
            format!("{}:{}", self.model, self.weight.as_f64())
        ))
    }
}

named! {
    /// How a request's body may be compressed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Coding {
        /// RFC 1952.
        Gzip = "gzip",
        /// RFC 8878.
        Zstd = "zstd",
    }
}

impl Coding {
    /// The coding of that name in a header.
    pub fn of(name: &[u8]) -> Option<Self> {
        // The old name of gzip means the same (RFC 9110, section 8.4.1.3).
        let name = if name.eq_ignore_ascii_case(b"x-gzip") {
            &b"gzip"[..]
        } else {
            name
        };
        let is_it = |coding: &Self| name.eq_ignore_ascii_case(coding.as_str().as_bytes());
        Self::ALL.into_iter().find(is_it)
    }
}

/// Where spans or metrics are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// `http` or `https`, without user and password: it is printed as it is.
    pub url: Url,
    /// It was written as gRPC's targets are: `host:port`.
    pub is_target: bool,
}

impl Collector {
    pub(super) fn new(text: &str) -> Option<Self> {
        let is_plain = |url: &Url| url.username().is_empty() && url.password().is_none();
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        let is_target = !text.contains("://");
        let url = match is_target {
            true => Url::parse(&format!("http://{}", HostPort::new(text)?)),
            false => Url::parse(text),
        };
        let url = url.ok().filter(|url| is_http(url) && is_plain(url))?;
        Some(Self { url, is_target })
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_target {
            // As the setting is read again, with a port that a URL would leave out.
            let host = self.url.host_str().unwrap_or_default();
            let port = self.url.port_or_known_default().unwrap_or_default();
            return write!(out, "{host}:{port}");
        }
        self.url.fmt(out)
    }
}

named! {
    /// How they are sent: the words of OpenTelemetry's variable OTEL_EXPORTER_OTLP_PROTOCOL.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum OtlpProtocol {
        /// A message is the body of a POST.
        HttpProtobuf = "http/protobuf",
        /// A message is a call over HTTP/2.
        Grpc = "grpc",
    }
}

named! {
    /// How candidates of the policy `prefix` are priced; see [`grapevine_placement::Price`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PriceRule {
        /// Prefill that waits and that must be done, plus context held.
        Additive = "additive",
        /// Prefill that waits and that must be done, times requests in flight.
        Multiplicative = "multiplicative",
    }
}
