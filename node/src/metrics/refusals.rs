//! What is counted by whichever part meets it: errors of the router's own, and limits.

use http::StatusCode;

use super::{Counter, ErrorLabels, Family, LimitLabels, ResultLabels, metrics};
use crate::api::error::ErrorKind;

/// Limits whose times of being reached are counted. Labels of a metric: stable.
const LIMITS: [&str; 22] = [
    "accept",
    "admin_connections",
    "body_bytes",
    "body_bytes_total",
    "body_progress",
    "connections",
    CONNECTIONS_BUSY,
    "connections_per_address",
    "first_byte",
    "header",
    "header_bytes",
    "memory",
    "metrics_connections",
    "page_history",
    "page_viewers",
    "quarantine",
    "realtime_idle",
    "realtime_session_bytes",
    "realtime_sessions",
    "sockets",
    "upload_bytes",
    "write_stall",
];

/// Requests that were refused because all connections were busy: nothing else is known of them, and they count in no
/// series of requests.
pub const CONNECTIONS_BUSY: &str = "connections_busy";
/// A worker's own "not now".
pub const BUSY: &str = "busy";
/// Any other error of a worker that says that it failed.
pub const FAILED: &str = "failed";

metrics! {
    /// Errors and limits.
    pub RefusalMetrics {
        errors: Family<ErrorLabels, Counter>, "errors", "Errors that the router itself answered with",
            ErrorLabels { code } in ErrorKind::ALL.map(ErrorKind::code);
        worker_errors: Family<ResultLabels, Counter>, "worker_errors", "Errors of workers that clients got as they were",
            ResultLabels { result } in [BUSY, FAILED];
        limits_reached: Family<LimitLabels, Counter>, "limits_reached", "Times a limit was reached",
            LimitLabels { limit } in LIMITS;
    }
}

impl RefusalMetrics {
    /// Counts an error that the router itself answers with.
    pub fn own_error(&self, kind: ErrorKind) {
        let code = kind.code();
        self.errors.get_or_create(&ErrorLabels { code }).inc();
    }

    /// Counts an error of a worker that its client gets. What a client did wrong is none.
    pub fn worker_error(&self, status: StatusCode) {
        let result = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => BUSY,
            status if status.is_server_error() => FAILED,
            _ => return,
        };
        self.count_worker_error(result);
    }

    /// Counts an answer of a worker that says nothing of an error, and is none to the request.
    pub fn worker_failed(&self) {
        self.count_worker_error(FAILED);
    }

    fn count_worker_error(&self, result: &'static str) {
        self.worker_errors
            .get_or_create(&ResultLabels { result })
            .inc();
    }

    /// Counts that a limit was reached.
    pub fn limit_reached(&self, limit: &'static str) {
        debug_assert!(LIMITS.contains(&limit), "{limit} is not listed");
        self.limits_reached
            .get_or_create(&LimitLabels { limit })
            .inc();
    }
}
