//! Where an engine publishes, and the labels by which people declare it.
//!
//! An address is as vLLM has it: `tcp://*:5557` is bound at every address of the worker's host, `tcp://10.0.0.7:5557` at
//! that one. Others cannot be reached from another host: `ipc://` is a file, `inproc://` a process.

use std::str::FromStr;

/// Label with the address that a worker publishes at, such as `tcp://*:5557`; with `.<rank>` behind it, that of one rank.
pub const EVENTS: &str = "kv.events";
/// Label with the address that it answers at with what it published before; by rank as [`EVENTS`].
pub const REPLAY: &str = "kv.events_replay";
/// Label with the topic of its messages.
pub const TOPIC: &str = "kv.events_topic";

/// An address at which something is heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// None: that of the worker.
    pub host: Option<String>,
    /// 1 to 65,535.
    pub port: u16,
}

/// A text that is no such address; its first 100 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address that another host can reach, such as tcp://*:5557")]
pub struct BadEndpoint(String);

/// A label that names no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label `{name}`: {why}")]
pub struct BadLabel {
    name: String,
    why: BadEndpoint,
}

impl BadEndpoint {
    fn of(text: &str) -> Self {
        Self(text.chars().take(100).collect())
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint::of(text);
        let address = text.strip_prefix("tcp://").ok_or_else(bad)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|port| *port > 0);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = match host {
            "*" | "::" | "0.0.0.0" => None,
            "" => return Err(bad()),
            host => Some(host.to_owned()),
        };
        Ok(Self {
            host,
            port: port.ok_or_else(bad)?,
        })
    }
}

/// The address of this rank that labels name: the rank's own, or the one of all ranks with the rank added to its port.
///
/// `name` is [`EVENTS`] or [`REPLAY`], `label` the value of a label by its name.
/// Errors: the label is no address, or there is no such port.
pub fn of_rank<'l>(
    name: &str,
    rank: u32,
    label: impl Fn(&str) -> Option<&'l str>,
) -> Result<Option<Endpoint>, BadEndpoint> {
    if let Some(own) = label(&format!("{name}.{rank}")) {
        return own.parse().map(Some);
    }
    let Some(shared) = label(name) else {
        return Ok(None);
    };
    let first: Endpoint = shared.parse()?;
    let port = u32::from(first.port).checked_add(rank);
    let port = port.and_then(|port| u16::try_from(port).ok());
    let port = port.ok_or_else(|| BadEndpoint::of(shared))?;
    Ok(Some(Endpoint { port, ..first }))
}

/// Whether labels, by name and value, name addresses where they should.
/// Errors: the first one that does not.
pub fn check<'l>(labels: impl IntoIterator<Item = (&'l str, &'l str)>) -> Result<(), BadLabel> {
    for (name, value) in labels {
        if !names_endpoint(name) {
            continue;
        }
        value.parse::<Endpoint>().map_err(|why| BadLabel {
            name: name.to_owned(),
            why,
        })?;
    }
    Ok(())
}

/// Whether one of these names of labels names the address of events, of all ranks or of one.
pub fn are_named<'l>(names: impl IntoIterator<Item = &'l str>) -> bool {
    let mut names = names.into_iter();
    names.any(|name| name == EVENTS || rank_of(name).is_some())
}

/// The rank whose address of events a label of this name is; none for that of all ranks, and for other labels.
pub fn rank_of(name: &str) -> Option<u32> {
    let rank = name.strip_prefix(EVENTS)?.strip_prefix('.')?;
    names_endpoint(name).then(|| rank.parse().ok()).flatten()
}

/// Whether it is [`EVENTS`] or [`REPLAY`], of all ranks or of one.
fn names_endpoint(name: &str) -> bool {
    let is_rank = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    [EVENTS, REPLAY].into_iter().any(|label| {
        let rest = name.strip_prefix(label);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_rank))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: Option<&str>, port: u16) -> Endpoint {
        Endpoint {
            host: host.map(str::to_owned),
            port,
        }
    }

    #[test]
    fn addresses_are_read_as_vllm_has_them() {
        for (text, expected) in [
            ("tcp://*:5557", Some(at(None, 5557))),
            ("tcp://0.0.0.0:1", Some(at(None, 1))),
            ("tcp://[::]:5557", Some(at(None, 5557))),
            ("tcp://10.0.0.7:5557", Some(at(Some("10.0.0.7"), 5557))),
            ("tcp://[fd00::7]:5557", Some(at(Some("fd00::7"), 5557))),
            ("ipc:///tmp/events", None),
            ("inproc://events", None),
            ("tcp://*:0", None),
            ("tcp://*:65536", None),
            ("tcp://:5557", None),
            ("5557", None),
        ] {
            assert_eq!(text.parse::<Endpoint>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_rank_has_a_label_of_its_own_or_the_port_after_the_last() {
        let label = |name: &str| match name {
            "kv.events" => Some("tcp://*:65534"),
            "kv.events.2" => Some("tcp://h:1"),
            _ => None,
        };
        let of = |rank| of_rank(EVENTS, rank, label);
        assert_eq!(of(0), Ok(Some(at(None, 65534))));
        assert_eq!(of(1), Ok(Some(at(None, 65535))));
        assert_eq!(of(2), Ok(Some(at(Some("h"), 1))));
        assert!(of(3).is_err(), "there is no port 65537");
        assert!(of(u32::MAX).is_err());
        assert_eq!(of_rank(REPLAY, 0, label), Ok(None));
    }

    #[test]
    fn an_address_of_events_is_told_from_other_labels() {
        for (names, expected) in [
            (
                &["kv.events_replay", "kv.events_topic", "kv.dp_size"][..],
                false,
            ),
            (&["engine.version", "kv.events"], true),
            (&["kv.events.3"], true),
        ] {
            assert_eq!(are_named(names.iter().copied()), expected, "{names:?}");
        }
        assert_eq!(rank_of("kv.events.3"), Some(3));
        for other in [
            "kv.events",
            "kv.events.",
            "kv.events.x",
            "kv.events_replay.3",
            "a",
        ] {
            assert_eq!(rank_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_label_that_is_no_address_is_named() {
        for (name, value, is_good) in [
            ("kv.events", "tcp://*:5557", true),
            ("kv.events", "ipc:///x", false),
            ("kv.events.3", "5557", false),
            ("kv.events_replay", "inproc://x", false),
            ("kv.events_replay.0", "tcp://h:0", false),
            // Others are none of ours.
            ("kv.events_topic", "anything", true),
            ("kv.events.x", "anything", true),
            ("events", "5557", true),
        ] {
            let checked = check([("a", "b"), (name, value)]);
            assert_eq!(checked.is_ok(), is_good, "{name}={value}");
        }
        let refused = check([("kv.events", "ipc:///x")]).expect_err("a file");
        assert_eq!(
            refused.to_string(),
            "label `kv.events`: `ipc:///x` is no address that another host can reach, such as tcp://*:5557"
        );
    }
}
