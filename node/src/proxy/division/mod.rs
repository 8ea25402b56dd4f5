//! May a request be divided between two workers, and what becomes of it if not.
//!
//! | the request | the workers of its model | goes to |
//! |---|---|---|
//! | can be divided | prefill and decode | a pair of them |
//! | generates nothing (embeddings, tokens of a text), or asks for a stored response | any | one worker of the pool that takes whole requests |
//! | cannot be divided (`n` above 1, several prompts, ...) | some take whole requests | one of these |
//! | the same | none does | a decode worker, which computes the prompt itself; 400 where `transfer.decode_alone` is `never` |
//! | can be divided | decode alone | the same where `transfer.decode_alone` is `always`; else 503 |
//!
//! | beside it | file |
//! |---|---|
//! | could be divided, and one worker takes it all the same | `whole.rs` |
//! | a transfer failed: whose fault is it | `blame.rs` |
//! | blocks that nobody fetched | `left.rs` |
//!
//! Sending a divided request is the business of [`split`](super::split).

pub(super) mod blame;
mod left;
mod metrics;
mod whole;

use grapevine_gossip::worker::Role;
use grapevine_placement::Key;
use grapevine_transfer::body::{self, Form, Indivisible, Steers};
use grapevine_transfer::names_peers;
use http::HeaderValue;
use memchr::memchr;

use crate::api::error::ErrorKind;
use crate::api::{ApiError, Endpoint};
use crate::cluster::Pool;
use crate::config::{DecodeAlone, TransferConfig};

pub(super) use self::left::LeftBlocks;
pub use self::metrics::SplitMetrics;
pub use self::whole::stays_whole;

/// What of a request's form decides whether it can be divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::proxy) enum Division {
    /// It can.
    Halves(Form),
    /// It generates, and cannot be divided: a metric label, and the reason for its client.
    Indivisible(&'static str, String),
    /// It generates nothing, or one certain worker has what it is about.
    NotGenerated,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To one worker of the pool that it found.
    One(&'static str),
    /// To a pair.
    Pair(Form),
}

/// The form of an endpoint's requests, where these generate text from one prompt.
pub(in crate::proxy) fn form_of(endpoint: Endpoint) -> Option<Form> {
    match endpoint {
        Endpoint::Chat | Endpoint::Completions => Some(Form::Completions),
        Endpoint::Responses => Some(Form::Responses),
        Endpoint::Generate => Some(Form::Generate),
        Endpoint::Messages => Some(Form::Messages),
        _ => None,
    }
}

/// Why an endpoint's requests, which generate text, are never divided: a metric label, and the words for the client.
fn reason_of(endpoint: Endpoint) -> Option<(&'static str, &'static str)> {
    match endpoint {
        Endpoint::ChatBatch => Some(("several_prompts", "it has more than one prompt")),
        Endpoint::Invocations => Some((
            "invocations",
            "it may have the form of any endpoint; send it to that one",
        )),
        _ => None,
    }
}

impl Division {
    /// Of a request for a model some of whose workers, those of `pool`, take one half of a request. `is_held`: one certain
    /// worker has what it is about.
    /// Errors: 400 for a client that says itself where a prompt's KV is: it could read what other clients' prompts left
    /// there.
    pub(in crate::proxy) fn of(
        endpoint: Endpoint,
        is_held: bool,
        body: &[u8],
        pool: &Pool,
    ) -> Result<Self, ApiError> {
        let Some(form) = form_of(endpoint).filter(|_| !is_held) else {
            if body::carries_transfer(body) {
                return Err(says_where());
            }
            return Ok(match reason_of(endpoint) {
                Some((label, reason)) => Self::Indivisible(label, reason.to_owned()),
                None => Self::NotGenerated,
            });
        };
        let look = body::look(form, body).map_err(|error| {
            let message = format!("the body is not a JSON object that can be divided: {error}");
            ApiError::new(ErrorKind::InvalidRequest, message)
        })?;
        match look.indivisible {
            _ if look.carries_transfer => Err(says_where()),
            // Its engines take no fields of a transfer there.
            None if form == Form::Messages && pool.divides_as_sglang() => {
                let reason = "Anthropic's messages are not divided with SGLang";
                Ok(Self::Indivisible("messages", reason.to_owned()))
            }
            None => Ok(Self::Halves(form)),
            Some(Indivisible::ForcedTool) if pool.divides_as_sglang() => Ok(Self::Halves(form)),
            Some(why) => Ok(Self::Indivisible(why.as_str(), why.to_string())),
        }
    }

    /// Where the request goes, given the pool that it found; `is_short`: its prompt is not worth a transfer.
    /// Errors: 400 for one that cannot be divided, 503 without a prefill worker, where settings leave no other way.
    pub(in crate::proxy) fn way(
        &self,
        pool: &Pool,
        alone: DecodeAlone,
        is_short: bool,
    ) -> Result<Way, ApiError> {
        let whole_workers = pool.role() == Role::Any;
        match self {
            _ if pool.members().is_empty() => Err(no_decode_worker()),
            Self::NotGenerated => Ok(Way::One("not_generated")),
            Self::Halves(form) if pool.halves().is_some() => Ok(Way::Pair(*form)),
            Self::Halves(_) | Self::Indivisible(..) if whole_workers => Ok(Way::One("whole")),
            // It would not have been divided with prefill workers either.
            Self::Halves(_) if is_short => Ok(Way::One("alone_short")),
            Self::Halves(_) if alone == DecodeAlone::Always => Ok(Way::One("alone_no_prefill")),
            Self::Halves(_) => Err(no_prefill_worker()),
            Self::Indivisible(why, _) if alone != DecodeAlone::Never => Ok(Way::One(why)),
            Self::Indivisible(_, reason) => Err(ApiError::new(
                ErrorKind::InvalidRequest,
                format!(
                    "this request cannot be divided between a prefill and a decode worker ({reason}), no worker of \
                     this model takes whole requests, and transfer.decode_alone is `never`"
                ),
            )),
        }
    }
}

/// The model has workers that compute prompts, and none that answers.
fn no_decode_worker() -> ApiError {
    let message = "this model has prefill workers only; add a decode worker";
    ApiError::new(ErrorKind::NoWorker, message)
}

/// Refuses a client's request id in which engines would read the addresses of others (P2P NCCL, MoRI-IO).
/// Errors: 400.
pub(in crate::proxy) fn check_id(id: &HeaderValue) -> Result<(), ApiError> {
    if id.to_str().is_ok_and(names_peers) {
        let message =
            "engines of this model read addresses in such an id; leave out what names them";
        return Err(ApiError::invalid("x-request-id", message));
    }
    Ok(())
}

/// Refuses a client that says itself where blocks of KV are or go, also by its request's id, unless `transfer.from_clients`
/// allows that: an engine with a connector connects to whatever host and port it names. Hints for a store name none.
///
/// Where workers have roles, [`Division::of`] refuses more, whatever is allowed.
///
/// # Errors
/// 400.
pub fn check_steering(
    steers: Steers,
    id: Option<&HeaderValue>,
    is_allowed: impl FnOnce() -> bool,
) -> Result<(), ApiError> {
    let names_peers_in = |id: &HeaderValue| {
        // Few ids have such a letter.
        memchr(b'_', id.as_bytes()).is_some() && id.to_str().is_ok_and(names_peers)
    };
    let (by_id, by_body) = (id.is_some_and(names_peers_in), steers == Steers::Places);
    if !(by_id || by_body) || is_allowed() {
        return Ok(());
    }
    let param = match by_body {
        true => "kv_transfer_params",
        false => "x-request-id",
    };
    Err(ApiError::invalid(
        param,
        "clients may not say where the KV of a prompt is or goes (kv_transfer_params, ec_transfer_params, bootstrap_host, \
         bootstrap_port, bootstrap_room, addresses in a request id); leave these out, or set transfer.from_clients of the \
         router",
    ))
}

/// A request of which only the way is asked.
#[derive(Debug)]
pub struct Undivided<'a> {
    /// Where it would go.
    pub endpoint: Endpoint,
    /// One certain worker has what it is about.
    pub is_held: bool,
    /// Its body.
    pub body: &'a [u8],
}

impl Undivided<'_> {
    /// The way of a request with this prompt; none where workers take whole requests only.
    /// Errors: see [`Division::of`] and [`Division::way`].
    pub fn way(
        &self,
        pool: &Pool,
        key: &Key,
        transfer: &TransferConfig,
    ) -> Result<Option<Way>, ApiError> {
        if pool.is_of_whole_workers() {
            return Ok(None);
        }
        let division = Division::of(self.endpoint, self.is_held, self.body, pool)?;
        let is_short = transfer.divide().is_short(key.prompt_tokens());
        division
            .way(pool, transfer.decode_alone, is_short)
            .map(Some)
    }
}

/// A client says itself where the KV of its prompt is.
fn says_where() -> ApiError {
    ApiError::invalid(
        "kv_transfer_params",
        "the router says where the KV of a prompt is (kv_transfer_params, bootstrap_host, bootstrap_port, \
         bootstrap_room); leave these out",
    )
}

/// The model's decode workers could answer alone, and are not to.
fn no_prefill_worker() -> ApiError {
    ApiError::new(
        ErrorKind::NoWorker,
        "no prefill worker of this model can be used, and transfer.decode_alone is not `always`",
    )
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::Labels;

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::config::KvEventsConfig;

    const MODEL: &str = "m";

    /// A replica that knows one worker of each half.
    fn halves() -> Alone {
        let workers = [("d0", Role::Decode), ("p0", Role::Prefill)];
        let workers = workers.map(|(id, role)| worker_with(id, MODEL, |raw| raw.role = role));
        Alone::new("r1", workers, &KvEventsConfig::default(), 2)
    }

    /// vLLM reads the field in Anthropic's messages, too (0.32.0), and in what an operator's opened path takes.
    #[test]
    fn no_client_says_where_blocks_are_whatever_the_endpoint() {
        let pool = halves().cluster.fleet().pool(MODEL).expect("it is served");
        let steering = br#"{"kv_transfer_params": {"do_remote_prefill": true}}"#;
        for endpoint in [
            Endpoint::Chat,
            Endpoint::Completions,
            Endpoint::Responses,
            Endpoint::Generate,
            Endpoint::Messages,
            Endpoint::Opened,
        ] {
            for is_held in [false, true] {
                let refused = Division::of(endpoint, is_held, steering, &pool);
                assert!(refused.is_err(), "{endpoint:?} {is_held}");
                let plain = Division::of(endpoint, is_held, b"{}", &pool);
                assert!(plain.is_ok(), "{endpoint:?} {is_held}");
            }
        }
    }

    /// vLLM's prefill worker refuses the one token of its leg as no call; SGLang's gets the client's own request.
    #[tokio::test]
    async fn a_call_of_a_tool_is_divided_in_the_way_of_sglang_alone() {
        let house = halves();
        let division = || {
            let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
            let body = br#"{"messages": [], "tools": [{}], "tool_choice": "required"}"#;
            Division::of(Endpoint::Chat, false, body, &pool).expect("it says nothing of blocks")
        };
        let whole = division();
        assert!(
            matches!(whole, Division::Indivisible("forced_tool", _)),
            "{whole:?}"
        );
        for worker in ["d0", "p0"] {
            let labels = Labels::new([("kv.connector", "sglang")]).expect("valid");
            let id = worker.parse().expect("an id");
            let labelled = house.agent.label_worker(&id, labels).await;
            labelled.expect("there is room");
        }
        house.cluster.update(&house.agent.view());
        assert_eq!(division(), Division::Halves(Form::Completions));
    }
}
