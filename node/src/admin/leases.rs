//! Workers that register themselves, and what sources of workers show.

use grapevine_gossip::worker::{State, WorkerId};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::time::Instant;

use super::Admin;
use super::answer::{Answer, json};
use super::query::Query;
use super::wanted::{New, Wanted};
use super::workers::wrong_change;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::discovery::{LEASE_SOURCE, LeaseError, PROCESS_BYTES_MAX, Renewer, SourceView};
use crate::tenants::bearer;

/// A lease that was renewed.
#[derive(Debug, Serialize)]
struct Lease {
    id: String,
    /// Seconds until it expires; renew it several times in that time, at any replica.
    ttl_s: f64,
    /// `active`, `draining`, or `warming`.
    state: &'static str,
    /// Requests that it has from the whole cluster: a worker that drains ends at 0.
    in_flight: u32,
    /// Another process renews it, too.
    is_renewed_twice: bool,
    /// Who else says that the worker is there, so that it stays when the lease ends: `admin`, `config`, or other sources.
    also_by: Vec<String>,
    /// No other replica lives for this one, so none of them hears of it: it has to be renewed at another one, too.
    is_alone: bool,
}

/// A lease that its worker ended.
#[derive(Debug, Serialize)]
struct Released {
    released: String,
    /// Who still says that the worker is there.
    also_by: Vec<String>,
    /// No other replica lives for this one: it has to be ended at another one, too.
    is_alone: bool,
}

#[derive(Debug, Serialize)]
struct DiscoveryView {
    sources: Vec<SourceView>,
}

/// The answer to a worker with another one's credential.
pub(super) fn wrong_credential() -> ApiError {
    ApiError::new(
        ErrorKind::Unauthorized,
        "the credential is not that of this worker: it is good for one id, and for the secret (leases.secret) that it was \
         made with; a replica without a secret knows none",
    )
}

/// Name and number of whoever renews, where it says them. One that was left out in silence would have two callers pass
/// for one.
fn renewer(query: &Query<'_>) -> Result<(Option<String>, Option<u64>), ApiError> {
    let process = query.value("process");
    if let Some(name) = &process
        && name.len() > PROCESS_BYTES_MAX
    {
        let bytes = name.len();
        let message = format!("process has {bytes} bytes; it has {PROCESS_BYTES_MAX} at most");
        return Err(ApiError::invalid("process", message));
    }
    let number = query.value("number").map(|number| number.parse());
    let number = number.transpose().map_err(|_| {
        let message = "number is a whole number that counts the caller's requests, as number=1";
        ApiError::invalid("number", message)
    })?;
    Ok((process, number))
}

impl Admin {
    /// Whether the caller is the worker with this id, by its own credential.
    pub(super) fn is_worker(&self, id: &str, headers: &HeaderMap) -> bool {
        let credentials = self.credentials.now();
        let (Some(credentials), Ok(id)) = (&*credentials, id.parse()) else {
            return false;
        };
        bearer(headers).is_some_and(|sent| credentials.is_of(&id, sent))
    }

    /// Whether a caller that is not that worker sent a credential, where no token is asked for, so that nothing else would
    /// judge it: a mistake would show on the day on which a token is set. Where there is no secret either, none is right.
    pub(super) fn is_wrong_credential(&self, headers: &HeaderMap) -> bool {
        self.token.look().is_none() && bearer(headers).is_some()
    }

    pub(super) fn describe_discovery(&self) -> Answer {
        let sources = self.board.describe(Instant::now());
        json(StatusCode::OK, &DiscoveryView { sources })
    }

    /// The worker with this id is there, for as long as a lease lasts.
    pub(super) async fn renew(
        &self,
        id: &str,
        query: &Query<'_>,
        body: &[u8],
    ) -> Result<Answer, ApiError> {
        let New {
            id: named,
            raw,
            labels,
        } = super::body::parse::<Wanted>(body)?.into_new()?;
        if named.is_some_and(|named| named != id) {
            let differs = "the id in the body is not that of the path; leave it out";
            return Err(ApiError::invalid("id", differs));
        }
        let (id, spec) = self.prepared(Some(id.to_owned()), raw)?;
        self.may_have(&id, &labels)?;
        let (process, number) = renewer(query)?;
        let by = process.as_deref().map(|name| Renewer { name, number });
        let renewed = self.leases.renew(&id, spec, labels, by);
        renewed
            .await
            .map_err(|LeaseError::Change(error)| wrong_change(&error))?;
        Ok(json(StatusCode::OK, &self.lease(&id)))
    }

    /// The worker with this id ends.
    pub(super) async fn release(&self, id: &str) -> Result<Answer, ApiError> {
        let id: WorkerId = id
            .parse()
            .map_err(|error| ApiError::invalid("id", format!("{error}")))?;
        let released = self.leases.release(&id).await;
        released.map_err(|LeaseError::Change(error)| wrong_change(&error))?;
        let released = Released {
            released: id.to_string(),
            also_by: self.also_by(&id),
            is_alone: self.agent.is_cut_off(),
        };
        Ok(json(StatusCode::OK, &released))
    }

    fn lease(&self, id: &WorkerId) -> Lease {
        let view = self.agent.view();
        let state = view.worker(id).map(|worker| worker.spec.state());
        let in_flight = self.agent.in_flight_at(id);
        Lease {
            id: id.to_string(),
            ttl_s: self.leases.ttl().as_secs_f64(),
            state: state.map_or("removed", State::as_str),
            in_flight: in_flight.values().flatten().sum(),
            is_renewed_twice: self.leases.are_two(id),
            also_by: self.also_by(id),
            is_alone: self.agent.is_cut_off(),
        }
    }

    /// Sources beside the lease that say that the worker is there.
    fn also_by(&self, id: &WorkerId) -> Vec<String> {
        let sources = self.agent.sources_of(id).into_iter();
        let names = sources.map(|source| source.to_string());
        names.filter(|name| name != LEASE_SOURCE).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_cannot_be_told_apart_is_told_so() {
        let read = |text: &str| renewer(&Query(text)).map_err(|error| error.message.into_owned());
        assert_eq!(read(""), Ok((None, None)));
        let longest = "p".repeat(PROCESS_BYTES_MAX);
        let both = Ok((Some(longest.clone()), Some(7)));
        assert_eq!(read(&format!("process={longest}&number=7")), both);
        let too_long = read(&format!("process={longest}p")).expect_err("too long");
        assert_eq!(too_long, "process has 65 bytes; it has 64 at most");
        for wrong in ["abc", "", "-1", "1.5", "18446744073709551616"] {
            let error = read(&format!("process=p&number={wrong}")).expect_err(wrong);
            assert!(error.starts_with("number is "), "{error}");
        }
    }
}
