//! Refusals in the words of the real API server: HTTP status, reason, message, and the `Status` body.
//!
//! Clients decide by `reason` and `code`, and people read the message, so both are those of Kubernetes 1.37.

use serde_json::{Value, json};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    /// HTTP status.
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Seconds, for the header `Retry-After`.
    pub(super) retry_after_s: Option<u64>,
    details: Option<Value>,
    /// A token with which the list may go on, inconsistently.
    next: Option<String>,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            retry_after_s: None,
            details: None,
            next: None,
        }
    }

    /// The request itself makes no sense.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(super) fn not_found(resource: &str, name: &str) -> Self {
        let message = format!("{resource} \"{name}\" not found");
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// No such path.
    pub(super) fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message)
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(super) fn already_exists(resource: &str, name: &str) -> Self {
        let message = format!("{resource} \"{name}\" already exists");
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    pub(super) fn conflict(name: &str, because: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods \"{name}\": {because}");
        Self::new(409, "Conflict", message).about("pods", name)
    }

    /// A field of a pod breaks a rule; `field` is its path.
    pub(super) fn invalid(name: &str, field: &str, problem: &str) -> Self {
        let message = format!("Pod \"{name}\" is invalid: {field}: {problem}");
        let mut refusal = Self::new(422, "Invalid", message);
        refusal.details = Some(json!({
            "name": name, "kind": "Pod",
            "causes": [{ "reason": "FieldValueInvalid", "message": problem, "field": field }],
        }));
        refusal
    }

    /// A continue token is older than the history; `next` goes on without consistency.
    pub(super) fn expired_list(next: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list \
             result. You can start a new list without the continue parameter, or use the continue \
             token in this response to retrieve the remainder of the results. Continuing with the \
             provided token results in an inconsistent list - objects that were created, modified, \
             or deleted between the time the first chunk was returned and now may show up in the \
             list.";
        let mut refusal = Self::new(410, "Expired", message);
        refusal.next = Some(next);
        refusal
    }

    /// The history before `oldest` is gone.
    pub(super) fn too_old(revision: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {revision} ({oldest})");
        Self::new(410, "Expired", message)
    }

    /// The client knows a later state than this server.
    pub(super) fn too_large(revision: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {revision}, current: {current}");
        let mut refusal = Self::new(504, "Timeout", format!("Timeout: {message}"));
        refusal.retry_after_s = Some(1);
        refusal.details = Some(json!({
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
            "retryAfterSeconds": 1,
        }));
        refusal
    }

    pub(super) fn too_large_body(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// Priority and fairness has no seat left.
    pub(super) fn too_many_requests(retry_after_s: u64) -> Self {
        let message = "Too many requests, please try again later.";
        let mut refusal = Self::new(429, "TooManyRequests", message);
        refusal.details = Some(json!({ "retryAfterSeconds": retry_after_s }));
        refusal.retry_after_s = Some(retry_after_s);
        refusal
    }

    /// The `Status` object that is the body, and the object of an ERROR event.
    pub(super) fn status(&self) -> Value {
        let mut metadata = json!({});
        if let Some(next) = &self.next {
            metadata["continue"] = json!(next);
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }

    pub(super) fn about(mut self, kind: &str, name: &str) -> Self {
        let mut details = json!({ "kind": kind });
        if !name.is_empty() {
            details["name"] = json!(name);
        }
        self.details = Some(details);
        self
    }
}
