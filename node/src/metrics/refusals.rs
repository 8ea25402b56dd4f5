//! What is counted by whichever part meets it: errors of the router's own, and limits.

use super::{Counter, ErrorLabels, Family, LimitLabels, metrics};
use crate::api::error::ErrorKind;

metrics! {
    /// Errors and limits.
    pub RefusalMetrics {
        errors: Family<ErrorLabels, Counter>, "errors", "Errors that the router itself answered with";
        limits_reached: Family<LimitLabels, Counter>, "limits_reached", "Times a limit was reached";
    }
    then RefusalMetrics::begin
}

impl RefusalMetrics {
    /// From the start what there is an alarm on, since `increase()` does not see a series that begins with 1.
    fn begin(&self) {
        let code = ErrorKind::Internal.code();
        drop(self.errors.get_or_create(&ErrorLabels { code }));
    }

    /// Counts an error that the router itself answers with.
    pub fn own_error(&self, kind: ErrorKind) {
        let code = kind.code();
        self.errors.get_or_create(&ErrorLabels { code }).inc();
    }

    /// Counts that a limit was reached.
    pub fn limit_reached(&self, limit: &'static str) {
        self.limits_reached
            .get_or_create(&LimitLabels { limit })
            .inc();
    }
}
