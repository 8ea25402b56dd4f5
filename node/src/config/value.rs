//! The types that settings have: how each is read from a value and written back.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use grapevine_discovery::dns::DnsName;
use grapevine_discovery::file::PathPattern;
use grapevine_gossip::worker::{Labels, Role, WorkerError, WorkerUrl};
use grapevine_placement::{HashAlgorithm, HashBound, Policy, Ratio, Target};
use grapevine_transfer::Connector;
use http::{HeaderName, Method};
use ipnet::IpNet;
use tracing::Level;

use super::cors::Origin;
use super::setting::{Setting, Value, mismatch};
use super::transfer::DecodeAlone;
use super::types::{
    AllowedHost, ByteSize, Coding, Collector, HostPort, Name, OtlpProtocol, PriceRule, Secret,
};
use super::upstream::WorkerHttp2;
use crate::api::{OpenPath, Priority};

/// Types whose TOML form is a string.
macro_rules! texts {
    ($($T:ty, $name:literal, $expected:expr, $parse:expr, $show:expr;)*) => {$(
        impl Setting for $T {
            const VALUE_NAME: &'static str = $name;

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
    DnsName, "NAME:PORT", "a name with a port, or of a service, such as \"workers.example:8000\" or \"_http._tcp.workers.example\"",
        |text| text.parse().ok(), DnsName::to_string;
    PathPattern, "FILE", "a path of a file, whose last part may have `*`",
        |text| text.parse().ok(), PathPattern::to_string;
    SocketAddr, "HOST:PORT", "an address with its port, such as \"10.0.0.5:53\"",
        |text| text.parse().ok(), SocketAddr::to_string;
    IpAddr, "HOST", "an IP address such as \"127.0.0.1\" or \"0.0.0.0\"",
        |text| text.parse().ok(), IpAddr::to_string;
    Duration, "DURATION", "a duration with its unit, such as \"250ms\", \"10s\" or \"5min\"",
        parse_duration, show_duration;
    Name, "NAME", "a name of 1 to 63 lower-case letters, digits or hyphens, no hyphen at the ends",
        Name::new, Name::to_string;
    HostPort, "HOST:PORT", "an address with its port, such as \"10.0.0.5:30002\" or \"router-2:30002\"",
        HostPort::new, HostPort::to_string;
    AllowedHost, "HOST", "a network such as \"10.0.0.0/8\", an address, a host, or \"*.domain\"",
        AllowedHost::new, AllowedHost::to_string;
    IpNet, "NETWORK", "an address or a network such as \"10.0.0.5\" or \"10.0.0.0/8\"",
        |text| text.parse().ok().or_else(|| Some(text.parse::<IpAddr>().ok()?.into())),
        IpNet::to_string;
    OpenPath, "PATH", "a method and a plain path, such as \"GET /version\" or \"POST /v1/custom/*\"",
        OpenPath::new, OpenPath::to_string;
    Origin, "ORIGIN", "an origin as browsers write it, such as \"https://chat.example.com\"",
        Origin::new, Origin::to_string;
    Method, "METHOD", "the name of a method",
        |text| text.to_ascii_uppercase().parse().ok(), Method::to_string;
    HeaderName, "HEADER", "the name of a header",
        |text| text.parse().ok(), HeaderName::to_string;
    Collector, "URL", "an address such as \"http://collector:4318\", without user and password, or \"collector:4317\"",
        Collector::new, Collector::to_string;
    PathBuf, "FILE", "a path",
        |text| (!text.is_empty()).then(|| text.into()), |path| path.display().to_string();
    HashBound, "BOUND", "\"off\", \"requests:FACTOR\" or \"prefill:FACTOR\" with a factor from 1 to 100, such as \"requests:1.25\"",
        parse_hash_bound, show_hash_bound;
    Level, "LEVEL", "one of trace, debug, info, warn, error", parse_level, show_level;
    String, "TEXT", "a text", |text| Some(text.to_owned()), String::clone;
}

impl Setting for WorkerUrl {
    const VALUE_NAME: &'static str = "URL";

    fn parse(value: &Value) -> Result<Self, String> {
        let expected = mismatch("an address such as \"http://10.0.0.5:8000\"", value);
        match value.text().map(str::parse) {
            Some(Ok(url)) => Ok(url),
            Some(Err(WorkerError::Url { why, .. })) => Err(format!("{expected}: {why}")),
            Some(Err(_)) | None => Err(expected),
        }
    }

    fn show(&self) -> Option<String> {
        Some(format!("{:?}", self.to_string()))
    }
}

fn parse_hash_bound(text: &str) -> Option<HashBound> {
    let (what, factor) = match text.split_once(':') {
        None => return (text == "off").then_some(HashBound::Off),
        Some((what, factor)) => (what, factor.trim().parse::<f64>().ok()?),
    };
    // Below 1 no worker could hold its own share.
    let factor = Some(factor).filter(|factor| (1.0..=100.0).contains(factor));
    let factor = Ratio::new(factor?).ok()?;
    match what.trim() {
        "requests" => Some(HashBound::Requests(factor)),
        "prefill" => Some(HashBound::PrefillTokens(factor)),
        _ => None,
    }
}

fn show_hash_bound(bound: &HashBound) -> String {
    match bound {
        HashBound::Off => "off".to_owned(),
        HashBound::Requests(factor) => format!("requests:{factor}"),
        HashBound::PrefillTokens(factor) => format!("prefill:{factor}"),
    }
}

/// Also vllm-router's names for the two highest.
fn parse_level(text: &str) -> Option<Level> {
    Some(match text.to_ascii_lowercase().as_str() {
        "trace" => Level::TRACE,
        "debug" => Level::DEBUG,
        "info" => Level::INFO,
        "warn" | "warning" => Level::WARN,
        "error" | "critical" => Level::ERROR,
        _ => return None,
    })
}

fn show_level(level: &Level) -> String {
    level.as_str().to_ascii_lowercase()
}

fn parse_duration(text: &str) -> Option<Duration> {
    match text.trim() {
        "0" => Some(Duration::ZERO),
        text => humantime::parse_duration(text).ok(),
    }
}

/// In the largest unit that keeps it whole: `75s`, not `1m 15s`.
fn show_duration(value: &Duration) -> String {
    match (value.as_secs(), value.subsec_nanos()) {
        (0, 0) => "0s".to_owned(),
        (_, nanos) if nanos % 1_000_000 != 0 => humantime::format_duration(*value).to_string(),
        (_, nanos) if nanos != 0 => format!("{}ms", value.as_millis()),
        (secs, _) if secs % 3600 == 0 => format!("{}h", secs / 3600),
        (secs, _) if secs % 60 == 0 => format!("{}min", secs / 60),
        (secs, _) => format!("{secs}s"),
    }
}

/// Types whose TOML form is a number.
macro_rules! integers {
    ($($T:ty, $name:literal, $expected:literal;)*) => {$(
        impl Setting for $T {
            const VALUE_NAME: &'static str = $name;

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
    u8, "COUNT", "a whole number from 0 to 255";
    u16, "PORT", "a whole number from 0 to 65535";
    u32, "COUNT", "a whole number from 0 to 4294967295";
    u64, "COUNT", "a whole number, 0 or more";
}

/// Counts of at least one.
macro_rules! counts {
    ($($T:ty: $integer:ty),*) => {$(
        impl Setting for $T {
            const VALUE_NAME: &'static str = "COUNT";

            fn parse(value: &Value) -> Result<Self, String> {
                let number = <$integer>::parse(value).ok().and_then(Self::new);
                number.ok_or_else(|| mismatch(&format!("a whole number from 1 to {}", Self::MAX), value))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
counts!(NonZeroU8: u8, NonZeroU16: u16, NonZeroU32: u32);

impl Setting for Ratio {
    const VALUE_NAME: &'static str = f64::VALUE_NAME;

    fn parse(value: &Value) -> Result<Self, String> {
        Self::new(f64::parse(value)?).map_err(|error| format!("{error}, found {value}"))
    }

    fn show(&self) -> Option<String> {
        self.get().show()
    }
}

impl Setting for f64 {
    const VALUE_NAME: &'static str = "NUMBER";

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
    const VALUE_NAME: &'static str = "BOOL";

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
    const VALUE_NAME: &'static str = Duration::VALUE_NAME;

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
            const VALUE_NAME: &'static str = <$T as Setting>::VALUE_NAME;

            fn parse(value: &Value) -> Result<Self, String> {
                <$T as Setting>::parse(value).map(Some)
            }

            fn show(&self) -> Option<String> {
                self.as_ref().and_then(Setting::show)
            }
        }
    )*};
}
optional!(
    bool,
    SocketAddr,
    Name,
    HostPort,
    Secret,
    PathBuf,
    Collector,
    Ratio,
    String,
    u32,
    u16,
    NonZeroU32,
    HeaderName,
    Policy,
    ByteSize,
    Vec<Target>
);

impl Setting for Labels {
    const VALUE_NAME: &'static str = "LABELS";

    fn parse(value: &Value) -> Result<Self, String> {
        let Value::Table(pairs) = value else {
            return Err(mismatch(
                "a table such as { \"kv.tp_size\" = \"8\" }",
                value,
            ));
        };
        let text = |value: &Value| match value {
            Value::Text(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            other => Err(mismatch(
                "a text or a whole number as a label's value",
                other,
            )),
        };
        let pairs = pairs
            .iter()
            .map(|(name, value)| Ok((name.clone(), text(value)?)));
        let pairs = pairs.collect::<Result<Vec<_>, String>>()?;
        Self::new(pairs).map_err(|error| error.to_string())
    }

    fn show(&self) -> Option<String> {
        let pairs: Vec<String> = self
            .iter()
            .map(|(name, value)| format!("{name:?} = {value:?}"))
            .collect();
        Some(match pairs.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{ {} }}", pairs.join(", ")),
        })
    }
}

/// In a word (environment, flags), commas part the items; vLLM's form, a JSON list, is read as well.
impl<T: Setting> Setting for Vec<T> {
    const VALUE_NAME: &'static str = T::VALUE_NAME;

    fn parse(value: &Value) -> Result<Self, String> {
        let words = |text: &String| -> Vec<Value> {
            if let Ok(words) = serde_json::from_str::<Vec<String>>(text) {
                return words.into_iter().map(Value::Word).collect();
            }
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
        let (mut good, mut wrong) = (Vec::new(), Vec::new());
        for item in split {
            match T::parse(&item) {
                Ok(item) => good.push(item),
                Err(what) => wrong.push(what),
            }
        }
        match wrong.is_empty() {
            true => Ok(good),
            false => Err(wrong.join("; ")),
        }
    }

    fn show(&self) -> Option<String> {
        let items: Vec<String> = self.iter().filter_map(Setting::show).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}

/// Enums with one word for each value; of some words of other routers it is said what to write instead.
macro_rules! words {
    ($($T:ty, $name:literal, $all:expr, $word:expr, $({$($same:literal => $choice:expr),*},)?
       [$($peer:literal => $instead:literal),*];)*) => {$(
        impl Setting for $T {
            const VALUE_NAME: &'static str = $name;

            fn parse(value: &Value) -> Result<Self, String> {
                let word: fn($T) -> &'static str = $word;
                let written = value.text();
                if let Some(found) = $all.into_iter().find(|choice| Some(word(*choice)) == written) {
                    return Ok(found);
                }
                $($(if written == Some($same) {
                    return Ok($choice);
                })*)?
                let foreign: &[(&str, &str)] = &[$(($peer, $instead)),*];
                match foreign.iter().find(|(peer, _)| Some(*peer) == written) {
                    Some((_, instead)) => Err(format!("{value} {instead}")),
                    None => Err(mismatch(&format!("one of {}", $all.map(word).join(", ")), value)),
                }
            }

            fn show(&self) -> Option<String> {
                let word: fn($T) -> &'static str = $word;
                Some(format!("{:?}", word(*self)))
            }
        }
    )*};
}

words! {
    // vllm-router's word for going by KV events: `prefix` does so wherever workers publish them.
    Policy, "POLICY", Policy::ALL, Policy::as_str, { "kv_aware" => Policy::Prefix }, [
        // vllm-router.
        "sticky_least_loaded" => "is called sticky here",
        "rendezvous_hash" => "is called consistent_hash here",
        // SMG.
        "consistent_hashing" => "is called consistent_hash here",
        "prefix_hash" => "is called prefix here",
        "manual" => "is called sticky here",
        "least_load" => "is called least_request here, which counts over the whole cluster",
        "bucket" => "sorts prompts by their length; use prefix, which prices what must be computed",
        "passthrough" => "chooses among nothing; with one worker every policy does that"
    ];
    HashAlgorithm, "HASH", HashAlgorithm::ALL, HashAlgorithm::as_str, [];
    PriceRule, "RULE", PriceRule::ALL, PriceRule::as_str, [];
    OtlpProtocol, "PROTOCOL", OtlpProtocol::ALL, OtlpProtocol::as_str, [
        "http/json" => "is not spoken here; every collector that takes it takes http/protobuf at the same port"
    ];
    Coding, "CODING", Coding::ALL, Coding::as_str, [];
    WorkerHttp2, "MODE", WorkerHttp2::ALL, WorkerHttp2::as_str, [];
    Priority, "CLASS", Priority::ALL, Priority::as_str, [];
    Role, "ROLE", Role::ALL, Role::as_str, [];
    Connector, "CONNECTOR", Connector::ALL, Connector::as_str, [];
    DecodeAlone, "MODE", DecodeAlone::ALL, DecodeAlone::as_str, [];
}
