//! What the nulls of a change of a worker take away, as in a JSON merge patch (RFC 7396). Pure.

use std::collections::BTreeMap;

use grapevine_gossip::worker::RawWorker;
use serde::de::IgnoredAny;

use super::body;
use crate::api::ApiError;
use crate::api::error::ErrorKind;

/// Takes one member away from a description.
pub(super) type TakeAway = fn(&mut RawWorker);

/// What a worker may be without.
const OPTIONAL: [(&str, TakeAway); 3] = [
    ("dp_size", |raw| raw.dp_size = None),
    ("max_in_flight", |raw| raw.max_in_flight = None),
    ("zone", |raw| raw.zone = None),
];

/// What the body of a change takes away.
/// Errors: 400 for the null of a member that every worker has, or that is changed and not taken back.
pub(super) fn taken_away(body: &[u8]) -> Result<Vec<TakeAway>, ApiError> {
    let members: BTreeMap<String, Option<IgnoredAny>> = body::parse(body)?;
    let nulls = members.into_iter().filter(|(_, value)| value.is_none());
    let of_name = |(name, _): (String, _)| {
        let known = OPTIONAL.iter().find(|(optional, _)| *optional == name);
        let wrong = || {
            let names = OPTIONAL.map(|(name, _)| name).join(", ");
            let what = format!(
                "{name} is wrong: null takes away {names}; what is left out stays as it is"
            );
            ApiError::new(ErrorKind::InvalidRequest, what)
        };
        known.map(|(_, take_away)| *take_away).ok_or_else(wrong)
    };
    nulls.map(of_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_takes_away_what_a_worker_may_be_without() {
        let mut raw = RawWorker::at("http://w:1".to_owned());
        (raw.max_in_flight, raw.dp_size) = (Some(4), Some(2));
        raw.zone = Some("a".into());
        let change = br#"{"max_in_flight": null, "weight": 2, "dp_size": null}"#;
        for take_away in taken_away(change).expect("a change") {
            take_away(&mut raw);
        }
        assert_eq!((raw.max_in_flight, raw.dp_size), (None, None));
        assert!(raw.zone.is_some(), "it was left out");
        for always in ["weight", "url", "models", "labels", "state", "role"] {
            let change = format!("{{\"{always}\": null}}");
            let error = taken_away(change.as_bytes()).expect_err(always);
            assert_eq!(error.kind, ErrorKind::InvalidRequest);
            assert!(error.message.starts_with(always), "{}", error.message);
        }
    }
}
