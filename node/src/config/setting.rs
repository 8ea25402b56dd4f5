//! A setting: a value as a layer wrote it, before its type is known, and what a type needs to be one.
//!
//! `value.rs` has the types.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

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
    /// Keys and values of an inline table, in its order.
    Table(Vec<(String, Value)>),
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
            DeValue::Table(keys) => Self::Table(
                keys.iter()
                    .map(|(key, value)| {
                        (key.get_ref().to_string(), Self::from_toml(value.get_ref()))
                    })
                    .collect(),
            ),
            other => Self::Other(other.type_str()),
        }
    }

    /// The characters of a text or word.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Word(text) => Some(text),
            _ => None,
        }
    }
}

/// A URL without what may be a password in it: messages go to logs.
fn without_user_information(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.into();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://...{}", &rest[at..]).into(),
        None => text.into(),
    }
}

/// As it was written, for messages, but for passwords in URLs.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(out, "{value}"),
            Self::Integer(value) => write!(out, "{value}"),
            // With its point: 30000.0 is no whole number, and would look like one.
            Self::Float(value) => write!(out, "{value:?}"),
            Self::Text(text) | Self::Word(text) => {
                write!(out, "{:?}", without_user_information(text))
            }
            Self::List(_) => write!(out, "a list"),
            Self::Table(_) => write!(out, "a table"),
            Self::Other(kind) => write!(out, "{kind}"),
        }
    }
}

/// A type that a setting may have.
pub(crate) trait Setting: Sized {
    /// What stands for a value in the help of a flag.
    const VALUE_NAME: &'static str;

    /// Reads a value, or says what was expected and found.
    fn parse(value: &Value) -> Result<Self, String>;

    /// The value as TOML; none when it is unset.
    fn show(&self) -> Option<String>;
}

pub(super) fn mismatch(expected: &str, found: &Value) -> String {
    format!("expected {expected}, found {found}")
}
