//! `grapevine workers drain --wait`: follows a worker's open requests over the cluster until there are none.

use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::AdminClient;
use super::failure::Failure;
use super::show::{field, print_line};

/// Waits until no replica has a request open at any of the workers; prints each change unless `is_quiet`.
/// Errors: the limit passed while something was open, a worker takes requests again, it was removed, or no replica
/// answers.
pub(super) async fn wait(
    client: &AdminClient,
    workers: &[String],
    limit: Option<Duration>,
    is_quiet: bool,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut left: Vec<Watched> = workers.iter().map(|id| Watched::new(id)).collect();
    loop {
        for worker in &mut left {
            let is_changed = worker.look(client).await?;
            if is_changed && !is_quiet {
                let of = match workers {
                    [_] => String::new(),
                    _ => format!("{}: ", worker.id),
                };
                print_line(&format!("{of}{}", worker.open))?;
            }
        }
        for worker in left.extract_if(.., |worker| worker.is_drained()) {
            if !is_quiet {
                print_line(&format!(
                    "drained {}: nothing is open there; `grapevine workers remove` takes it out",
                    worker.id
                ))?;
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        // One that is empty now is given the second that it takes to be sure of it.
        let open = left.iter().filter(|worker| !worker.open.is_empty());
        let open: Vec<String> = open
            .map(|of| format!("{} is still draining: {}", of.id, of.open))
            .collect();
        if limit.is_some_and(|limit| begun.elapsed() >= limit) && !open.is_empty() {
            return Err(Failure::Refused(format!("{}; it goes on", open.join("; "))));
        }
        sleep(LOOK_EACH).await;
    }
}

/// A worker that is waited for.
struct Watched<'a> {
    id: &'a str,
    /// What it had at the latest look; before the first nobody has said anything.
    open: Open,
    empty_since: Option<Instant>,
}

impl<'a> Watched<'a> {
    fn new(id: &'a str) -> Self {
        Self {
            id,
            open: Open(Vec::new()),
            empty_since: None,
        }
    }

    /// Asks again; whether the answer is another one.
    async fn look(&mut self, client: &AdminClient) -> Result<bool, Failure> {
        let seen = client.get(&["workers", self.id]).await;
        let seen = seen.map_err(|failure| failure.about(self.id))?;
        if seen["state"] != "draining" {
            let (id, state) = (self.id, field(&seen, "state"));
            let what = format!("{id} is {state} again: its drain was ended");
            return Err(Failure::Refused(what));
        }
        let open = Open::of(&seen)?;
        match open.is_empty() {
            true => drop(self.empty_since.get_or_insert_with(Instant::now)),
            false => self.empty_since = None,
        }
        let is_changed = open != self.open;
        self.open = open;
        Ok(is_changed)
    }

    fn is_drained(&self) -> bool {
        self.empty_since
            .is_some_and(|since| since.elapsed() >= SURELY)
    }
}

/// Requests at one worker by replica; none of a live replica that sent nothing lately.
#[derive(Debug, PartialEq, Eq)]
struct Open(Vec<(String, Option<u64>)>);

impl Open {
    /// Errors: the replica does not report it: nothing open and nothing known are not the same.
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
    use crate::cli::fake_replica::{port, serve};

    /// What becomes of two drained workers, of which the first has a request open for so many looks.
    async fn waited(busy_looks: usize, limit: Duration) -> Result<(), Failure> {
        let (listener, at) = port().await;
        let mut looks = 0;
        let _replica = serve(listener, move |line| {
            looks += usize::from(line.contains("/workers/w1 "));
            let open = u64::from(line.contains("/workers/w1 ") && looks <= busy_looks);
            (
                200,
                json!({ "state": "draining", "in_flight_at": { "r1": open } }),
            )
        });
        let client = format!("http://{at}").parse().expect("a URL");
        let client = AdminClient::at(client, None).expect("a client");
        wait(
            &client,
            &["w1".to_owned(), "w2".to_owned()],
            Some(limit),
            true,
        )
        .await
    }

    /// Both have the same time, and one that is empty when it has passed is not called busy.
    #[tokio::test]
    async fn a_worker_that_is_empty_is_not_given_up_on() {
        let failure = waited(usize::MAX, Duration::ZERO)
            .await
            .expect_err("w1 is busy");
        let said = "w1 is still draining: 1 in flight (r1: 1); it goes on";
        assert_eq!(failure.to_string(), said);
        waited(0, Duration::ZERO).await.expect("both are empty");
        waited(2, Duration::from_secs(2))
            .await
            .expect("w1 becomes so");
    }

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
