//! The labels that sources declare, and when a source writes its own.
//!
//! Pure. Gossip carries labels without knowing what they mean; the router reads them where it divides requests.

use grapevine_gossip::worker::{Labels, WorkerError};

use grapevine_kv_events::endpoint;
use grapevine_transfer::check;
pub use grapevine_transfer::label::{ADDRESS, BOOTSTRAP_PORT, CONNECTOR, ENGINE_ID};

/// Labels that have a key of their own in descriptions of workers, beside any others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// [`CONNECTOR`].
    pub kv_connector: Option<String>,
    /// [`BOOTSTRAP_PORT`]; not 0.
    pub bootstrap_port: Option<u16>,
    /// [`ADDRESS`].
    pub kv_address: Option<String>,
    /// Any others; those above are laid over them.
    pub labels: Labels,
}

impl Declared {
    /// All of them as labels.
    /// Errors: a label's value is not usable, says nothing that its reader understands, or there are too many.
    pub fn into_labels(self) -> Result<Labels, WorkerError> {
        if self.bootstrap_port == Some(0) {
            return Err(WorkerError::LabelValue(BOOTSTRAP_PORT.to_owned()));
        }
        let port = self.bootstrap_port.map(|port| port.to_string());
        let named = [
            (CONNECTOR, self.kv_connector),
            (BOOTSTRAP_PORT, port),
            (ADDRESS, self.kv_address),
        ];
        let named = named
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let labels = self.labels.overlaid_with(&Labels::new(named)?)?;
        check(|name| labels.get(name))
            .map_err(|error| WorkerError::LabelMeaning(error.to_string()))?;
        endpoint::check(labels.iter())
            .map_err(|error| WorkerError::LabelMeaning(error.to_string()))?;
        Ok(labels)
    }
}

/// What a source that declares `wanted` of a worker writes, where `known` labels are in the registry; `None` for
/// nothing.
///
/// What is missing is written whenever it is. Another value is replaced only where the declaration `is_news`: a worker
/// may have been asked since, or another source declares something else, and two that repeat themselves would replace
/// each other's values for ever.
pub fn to_write(known: &Labels, wanted: &Labels, is_news: bool) -> Option<Labels> {
    if is_news {
        return (!known.contain(wanted)).then(|| wanted.clone());
    }
    let missing = wanted.iter().filter(|(name, _)| known.get(name).is_none());
    let missing = Labels::new(missing).expect("a part of labels is within their limits");
    (!missing.is_empty()).then_some(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
        Labels::new(pairs).expect("valid")
    }

    #[test]
    fn keys_of_descriptions_are_labels() {
        let declared = Declared {
            kv_connector: Some("mooncake".into()),
            bootstrap_port: Some(8998),
            kv_address: None,
            labels: labels([("kv.connector", "nixl"), ("x", "1")]),
        };
        let expected = labels([
            ("kv.bootstrap_port", "8998"),
            ("kv.connector", "mooncake"),
            ("x", "1"),
        ]);
        assert_eq!(declared.into_labels(), Ok(expected));
        let none = Declared {
            bootstrap_port: Some(0),
            ..Declared::default()
        };
        let refused = Err(WorkerError::LabelValue("kv.bootstrap_port".into()));
        assert_eq!(none.into_labels(), refused);
    }

    #[test]
    fn labels_that_nobody_can_use_are_refused_with_the_reason() {
        for (name, value, why) in [
            ("kv.connector", "carrier_pigeon", "`kv.connector`"),
            (
                "kv.events",
                "ipc:///tmp/events",
                "no address that another host can reach",
            ),
            ("kv.events_replay.1", "5558", "`kv.events_replay.1`"),
        ] {
            let declared = Declared {
                labels: labels([(name, value)]),
                ..Declared::default()
            };
            let refused = declared.into_labels().expect_err(name).to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn what_is_missing_is_written_and_what_is_news_replaces() {
        let wanted = labels([("a", "1"), ("b", "2")]);
        let table = [
            (labels([]), false, Some(wanted.clone())),
            (labels([("a", "9")]), false, Some(labels([("b", "2")]))),
            (labels([("a", "9"), ("b", "2")]), false, None),
            (labels([("a", "9"), ("b", "2")]), true, Some(wanted.clone())),
            (labels([("a", "1"), ("b", "2"), ("c", "3")]), true, None),
        ];
        for (known, is_news, expected) in table {
            assert_eq!(to_write(&known, &wanted, is_news), expected, "{known:?}");
        }
    }
}
