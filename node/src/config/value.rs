//! Types of settings: how each is read from TOML, from a word of the environment or command line,
//! and written back.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use toml::de::DeValue;

// What the tables of settings are written with.
pub(super) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A value before its type is known.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    /// From the environment or the command line, where everything is text.
    Word(String),
    /// A kind of TOML value that no setting has; its name.
    Other(&'static str),
}

impl Value {
    pub(crate) fn from_toml(value: &DeValue<'_>) -> Self {
        let number = |text: &str| text.replace('_', "");
        match value {
            DeValue::Boolean(value) => Self::Bool(*value),
            DeValue::String(text) => Self::Text(text.to_string()),
            DeValue::Integer(digits) => {
                i64::from_str_radix(&number(digits.as_str()), digits.radix())
                    .map_or(Self::Other("an integer beyond 64 bits"), Self::Integer)
            }
            DeValue::Float(digits) => number(digits.as_str())
                .parse()
                .map_or(Self::Other("a float"), Self::Float),
            DeValue::Array(items) => Self::List(
                items
                    .iter()
                    .map(|item| Self::from_toml(item.get_ref()))
                    .collect(),
            ),
            other => Self::Other(other.type_str()),
        }
    }

    /// The characters of a text or word.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Word(text) => Some(text),
            _ => None,
        }
    }
}

/// As it was written, for messages.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(out, "{value}"),
            Self::Integer(value) => write!(out, "{value}"),
            Self::Float(value) => write!(out, "{value}"),
            Self::Text(text) | Self::Word(text) => write!(out, "{text:?}"),
            Self::List(_) => write!(out, "a list"),
            Self::Other(kind) => write!(out, "{kind}"),
        }
    }
}

/// A type that a setting may have.
pub(crate) trait Setting: Sized {
    /// Reads a value, or says what was expected and found.
    fn parse(value: &Value) -> Result<Self, String>;

    /// The value as TOML; none when it is unset.
    fn show(&self) -> Option<String>;
}

fn mismatch(expected: &str, found: &Value) -> String {
    format!("expected {expected}, found {found}")
}

/// Types whose TOML form is a string.
macro_rules! texts {
    ($($T:ty, $expected:expr, $parse:expr, $show:expr;)*) => {$(
        impl Setting for $T {
            fn parse(value: &Value) -> Result<Self, String> {
                let parse: fn(&str) -> Option<$T> = $parse;
                value.text().and_then(parse).ok_or_else(|| mismatch($expected, value))
            }

            fn show(&self) -> Option<String> {
                let show: fn(&$T) -> String = $show;
                Some(format!("{:?}", show(self)))
            }
        }
    )*};
}

texts! {
    IpAddr, "an IP address such as \"127.0.0.1\" or \"0.0.0.0\"",
        |text| text.parse().ok(), IpAddr::to_string;
    Duration, "a duration with its unit, such as \"250ms\", \"10s\" or \"5min\"",
        parse_duration, |value| humantime::format_duration(*value).to_string();
    Name, "a name of 1 to 63 lower-case letters, digits or hyphens, no hyphen at the ends",
        Name::new, |name| name.0.clone();
    HostPort, "an address with its port, such as \"10.0.0.5:30002\" or \"router-2:30002\"",
        HostPort::new, HostPort::to_string;
    WorkerUrl, "an address such as \"http://10.0.0.5:8000\"",
        WorkerUrl::new, |url| url.0.clone();
    HeaderName, "the name of a header",
        |text| text.parse().ok(), HeaderName::to_string;
    PathBuf, "a path",
        |text| (!text.is_empty()).then(|| text.into()), |path| path.display().to_string();
    String, "a text", |text| Some(text.to_owned()), String::clone;
}

fn parse_duration(text: &str) -> Option<Duration> {
    match text.trim() {
        "0" => Some(Duration::ZERO),
        text => humantime::parse_duration(text).ok(),
    }
}

/// Types whose TOML form is a number.
macro_rules! integers {
    ($($T:ty, $expected:literal;)*) => {$(
        impl Setting for $T {
            fn parse(value: &Value) -> Result<Self, String> {
                match value {
                    Value::Integer(number) => {
                        u64::try_from(*number).ok().and_then(|number| Self::try_from(number).ok())
                    }
                    Value::Word(word) => word.parse().ok(),
                    _ => None,
                }
                .ok_or_else(|| mismatch($expected, value))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}

integers! {
    u16, "a whole number from 0 to 65535";
    u32, "a whole number";
    u64, "a whole number";
    usize, "a whole number";
}

impl Setting for NonZeroU32 {
    fn parse(value: &Value) -> Result<Self, String> {
        let number = u32::parse(value).ok().and_then(Self::new);
        number.ok_or_else(|| mismatch("a whole number from 1", value))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for f64 {
    fn parse(value: &Value) -> Result<Self, String> {
        match value {
            Value::Integer(number) => i32::try_from(*number).ok().map(Self::from),
            Value::Float(number) => Some(*number),
            Value::Word(word) => word.parse().ok(),
            _ => None,
        }
        .filter(|number| number.is_finite())
        .ok_or_else(|| mismatch("a number", value))
    }

    fn show(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }
}

impl Setting for bool {
    fn parse(value: &Value) -> Result<Self, String> {
        match value {
            Value::Bool(value) => Some(*value),
            Value::Word(word) => word.parse().ok(),
            _ => None,
        }
        .ok_or_else(|| mismatch("true or false", value))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Zero means off; there is no other word for it.
impl Setting for Option<Duration> {
    fn parse(value: &Value) -> Result<Self, String> {
        Duration::parse(value).map(|duration| (!duration.is_zero()).then_some(duration))
    }

    fn show(&self) -> Option<String> {
        self.unwrap_or_default().show()
    }
}

/// Settings that are unset by default.
macro_rules! optional {
    ($($T:ty),*) => {$(
        impl Setting for Option<$T> {
            fn parse(value: &Value) -> Result<Self, String> {
                <$T>::parse(value).map(Some)
            }

            fn show(&self) -> Option<String> {
                self.as_ref().and_then(Setting::show)
            }
        }
    )*};
}
optional!(Name, HostPort, Secret, PathBuf, String, u32, u64);

/// In a word (environment), commas part the items.
impl<T: Setting> Setting for Vec<T> {
    fn parse(value: &Value) -> Result<Self, String> {
        let words = |text: &String| {
            let words = text
                .split(',')
                .map(str::trim)
                .filter(|word| !word.is_empty());
            words.map(|word| Value::Word(word.to_owned())).collect()
        };
        let items = match value {
            Value::List(items) => items.clone(),
            Value::Word(text) => words(text),
            _ => return Err(mismatch("a list such as [\"...\", \"...\"]", value)),
        };
        let split = items.iter().flat_map(|item| match item {
            Value::Word(text) => words(text),
            other => vec![other.clone()],
        });
        split.map(|item| T::parse(&item)).collect()
    }

    fn show(&self) -> Option<String> {
        let items: Vec<String> = self.iter().filter_map(Setting::show).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}

/// A name that may stand in a certificate: one DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// None unless the text is 1 to 63 of `a-z`, `0-9`, `-`, with no hyphen at the ends.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = (1..=63).contains(&text.len())
            && text.bytes().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-');
        good.then(|| Self(text.to_owned()))
    }

    /// The name's characters.
    #[must_use]
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
    #[must_use]
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

/// Address of a worker: `http://host[:port]`, with `@rank` for one rank of a data-parallel engine.
///
/// As it was written; the registry makes the canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerUrl(String);

impl WorkerUrl {
    /// None unless the text is plain `http`, with a host and without path, query or user.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (base, rank) = match text.rsplit_once('@') {
            Some((base, rank)) => (base, Some(rank)),
            None => (text, None),
        };
        let url = url::Url::parse(base).ok()?;
        let good = url.scheme() == "http"
            && url.host_str().is_some_and(|host| !host.is_empty())
            && url.username().is_empty()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && rank.is_none_or(|rank| rank.parse::<u16>().is_ok());
        good.then(|| Self(text.to_owned()))
    }

    /// The address as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A token or key. Never printed: not in logs, not in messages.
#[derive(Clone, PartialEq, Eq, PartialOrd)]
pub struct Secret(String);

impl Secret {
    /// The secret itself, for the one place that compares or sends it.
    #[must_use]
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
    fn parse(value: &Value) -> Result<Self, String> {
        // Visible ASCII, because it travels in a header. The message must not repeat it.
        let text = value.text().filter(|text| {
            (1..=512).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        });
        text.map(|text| Self(text.to_owned()))
            .ok_or_else(|| "expected a text of 1 to 512 visible ASCII characters".to_owned())
    }

    fn show(&self) -> Option<String> {
        Some("\"(secret)\"".to_owned())
    }
}

/// A number of bytes, written as a number or with a binary unit: `"64KiB"`, `"16MiB"`, `"1GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub usize);

impl ByteSize {
    /// So many KiB.
    #[must_use]
    pub const fn kib(count: usize) -> Self {
        Self(count << 10)
    }

    /// So many MiB.
    #[must_use]
    pub const fn mib(count: usize) -> Self {
        Self(count << 20)
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
        let bytes = number.parse::<usize>().ok()?.checked_mul(1 << shift)?;
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
    fn parse(value: &Value) -> Result<Self, String> {
        match value {
            Value::Integer(number) => usize::try_from(*number).ok().map(Self),
            other => other.text().and_then(Self::from_text),
        }
        .ok_or_else(|| mismatch("a size such as 4096, \"64KiB\" or \"16MiB\"", value))
    }

    fn show(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// An enum whose values have one word each in the configuration, some with a second one that
/// vllm-router uses; `renamed` tells those who write vllm-router's word for another one of ours.
macro_rules! choices {
    ($(#[$meta:meta])* $T:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal $(or $alias:literal)?,)*
    } $(renamed { $($peer:literal => $ours:literal,)* })?) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
        pub enum $T {
            $($(#[$doc])* $variant,)*
        }

        impl $T {
            /// The words of the configuration.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// This value's word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word $(| $alias)? => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl $crate::config::value::Setting for $T {
            fn parse(value: &$crate::config::value::Value) -> Result<Self, String> {
                let renamed: &[(&str, &str)] = &[$($(($peer, $ours),)*)?];
                value.choice(Self::from_word, Self::WORDS, renamed)
            }

            fn show(&self) -> Option<String> {
                Some(format!("{:?}", self.as_str()))
            }
        }
    };
}
pub(crate) use choices;

impl Value {
    pub(crate) fn choice<T>(
        &self,
        choose: impl Fn(&str) -> Option<T>,
        words: &[&str],
        renamed: &[(&str, &str)],
    ) -> Result<T, String> {
        if let Some(chosen) = self.text().and_then(choose) {
            return Ok(chosen);
        }
        match renamed.iter().find(|(peer, _)| self.text() == Some(peer)) {
            Some((_, ours)) => Err(format!("{self} is called {ours} here")),
            None => Err(mismatch(&format!("one of {}", words.join(", ")), self)),
        }
    }
}
