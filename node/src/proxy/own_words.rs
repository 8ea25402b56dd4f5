//! The router's own errors where a request cannot go on, whatever part of its way finds that out.

use std::time::Duration;

use grapevine_placement::NoWorker;

use crate::api::ApiError;
use crate::api::error::ErrorKind;

/// The limit for the whole request is reached.
pub(super) fn out_of_time() -> ApiError {
    ApiError::new(
        ErrorKind::UpstreamTimeout,
        "the time limit for the whole request was reached before an answer began",
    )
}

/// The same within an answer.
pub(super) fn out_of_time_midway() -> ApiError {
    ApiError::new(
        ErrorKind::UpstreamTimeout,
        "the time limit for the whole request is reached",
    )
}

/// Workers ended while they had this request. No 5xx: no proxy in between is to send it again.
pub(super) fn condemned() -> ApiError {
    ApiError::new(
        ErrorKind::QueryOfDeath,
        "each worker that was sent this request ended while it had it; it is sent to no other",
    )
}

/// The same happened before.
pub fn quarantined(left: Duration) -> ApiError {
    let seconds = left.as_secs() + 1;
    ApiError::new(
        ErrorKind::QueryOfDeath,
        format!(
            "workers ended while they had a request like this one; it is sent to none for {seconds} s"
        ),
    )
}

/// This replica ends before the request does.
pub(super) fn shutting_down() -> ApiError {
    ApiError::new(
        ErrorKind::ShuttingDown,
        "this replica is stopping; send the request again",
    )
}

/// No worker may take a request; `model`: the one whose workers it may have, empty for any.
pub(super) fn no_worker(why: NoWorker, model: &str) -> ApiError {
    let message = match model {
        "" => why.to_string(),
        model => format!(
            "no worker of the model `{}` can be used: {why}",
            shortened(model)
        ),
    };
    ApiError::new(ErrorKind::NoWorker, message)
}

/// The same of a request that one worker alone can take.
pub(super) fn no_holder(why: NoWorker) -> ApiError {
    let why = match why {
        NoWorker::Draining => "it is draining, and takes nothing new",
        NoWorker::Asleep => "it is asleep, until somebody wakes it",
        NoWorker::Full => {
            "it is at its limit of requests in flight, or asked to be left alone for a while"
        }
        NoWorker::Empty | NoWorker::Tried | NoWorker::Unhealthy => "it is gone, or does not answer",
    };
    let message =
        format!("the worker that holds the response of this request cannot be used: {why}");
    ApiError::new(ErrorKind::NoWorker, message)
}

/// The same for a model that is not there and for one that the client may not know of.
pub(super) fn no_such_model(asked: &str) -> ApiError {
    let asked = shortened(asked);
    let message = format!(
        "the model `{asked}` does not exist, or this client may not use it; GET /v1/models lists what is served"
    );
    ApiError {
        param: Some("model"),
        model: Some(asked.into()),
        ..ApiError::new(ErrorKind::ModelNotFound, message)
    }
}

/// A client's text in a message back to it, or in the log: bounded.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 100;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
