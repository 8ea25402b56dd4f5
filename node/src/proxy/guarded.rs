//! A panic in one request costs no other one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api::ApiError;
use crate::api::error::ErrorKind;

/// Runs a step of a request. A panic in it is a defect of ours that must cost no other request: it becomes an error,
/// and the step's future may only be dropped afterwards. Where it was is in the log by then.
pub(super) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, ApiError> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| {
        ApiError::new(
            ErrorKind::Internal,
            "a defect of the router; its log shows where, and the request may be sent again",
        )
    })
}
