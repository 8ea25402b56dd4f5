//! `grapevine workers drain --wait`: follows a worker's open requests over the cluster until there are none.

use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::AdminClient;
use super::failure::Failure;
use super::show::{field, print_line};

/// Waits until no replica has a request open at the worker; prints each change unless `is_quiet`.
///
/// # Errors
/// The limit passed first, the worker takes requests again, it was removed, or no replica answers.
pub(super) async fn wait(
    client: &AdminClient,
    worker: &str,
    limit: Option<Duration>,
    is_quiet: bool,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut said = None;
    let mut empty_since = None;
    loop {
        let seen = client.get(&["workers", worker]).await?;
        if seen["state"] != "draining" {
            let state = field(&seen, "state");
            let what = format!("{worker} is {state} again: its drain was ended");
            return Err(Failure::Refused(what));
        }
        let open = Open::of(&seen)?;
        if !is_quiet && said.as_ref() != Some(&open) {
            print_line(&open.to_string())?;
        }
        let empty_for = open
            .is_empty()
            .then(|| empty_since.get_or_insert_with(Instant::now).elapsed());
        match empty_for {
            Some(empty) if empty >= SURELY => return Ok(()),
            Some(_) => {}
            None => empty_since = None,
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            let what = format!("{worker} is still draining: {open}; it goes on");
            return Err(Failure::Refused(what));
        }
        said = Some(open);
        sleep(LOOK_EACH).await;
    }
}

/// Requests at one worker by replica; none of a live replica that sent nothing lately.
#[derive(Debug, PartialEq, Eq)]
struct Open(Vec<(String, Option<u64>)>);

impl Open {
    /// # Errors
    /// The replica does not report it: nothing open and nothing known are not the same.
    fn of(worker: &Value) -> Result<Self, Failure> {
        let by_replica = worker["in_flight_at"].as_object().ok_or_else(|| {
            Failure::Refused(
                "this replica does not say who has requests open at the worker, as older releases do not; the drain goes \
                 on, ask another replica with --admin"
                    .to_owned(),
            )
        })?;
        let open = by_replica.iter();
        Ok(Self(
            open.map(|(replica, count)| (replica.clone(), count.as_u64()))
                .collect(),
        ))
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, count)| *count == Some(0))
    }
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.iter().filter_map(|(_, count)| *count);
        write!(f, "{} in flight", known.sum::<u64>())?;
        let mut separator = " (";
        for (replica, count) in self.0.iter().filter(|(_, count)| *count != Some(0)) {
            match count {
                Some(count) => write!(f, "{separator}{replica}: {count}")?,
                None => write!(f, "{separator}{replica}: not heard")?,
            }
            separator = ", ";
        }
        f.write_str(if separator == ", " { ")" } else { "" })
    }
}

const LOOK_EACH: Duration = Duration::from_millis(250);
/// No request for so long: a replica that had not received the drain yet has by now.
const SURELY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_open_is_said_by_replica() {
        let check = |at: Value, expected: &str, is_empty: bool| {
            let open = Open::of(&json!({ "in_flight_at": at })).expect("it is said");
            assert_eq!(
                (open.to_string().as_str(), open.is_empty()),
                (expected, is_empty)
            );
        };
        check(json!({"r1": 0, "r2": 0}), "0 in flight", true);
        check(
            json!({"r1": 2, "r2": 0, "r3": 1}),
            "3 in flight (r1: 2, r3: 1)",
            false,
        );
        check(
            json!({"r1": 0, "r2": null}),
            "0 in flight (r2: not heard)",
            false,
        );
    }

    #[test]
    fn what_is_not_said_is_not_nothing() {
        for silent in [
            json!({"state": "draining"}),
            json!({ "in_flight_at": null }),
            json!({ "in_flight_at": 0 }),
        ] {
            assert!(Open::of(&silent).is_err(), "{silent}");
        }
    }
}
