//! What is counted of operators: the configuration, and requests to the ports that are theirs.

use super::{Counter, Family, Gauge, ReasonLabels, ResultLabels, metrics};

metrics! {
    /// Operators.
    pub OperatorMetrics {
        config_reloads: Family<ResultLabels, Counter>, "config_reloads", "Readings of the configuration, at SIGHUP or by an operator";
        config_refused: Gauge, "config_refused", "Whether the latest reading of the configuration was refused, so that the former one stays";
        admin_refusals: Family<ReasonLabels, Counter>,
            "admin_refusals", "Requests that the admin and Prometheus ports refused";
    }
    then OperatorMetrics::begin
}

impl OperatorMetrics {
    /// From the start, since `increase()` does not see a series that begins with 1.
    fn begin(&self) {
        for result in ["loaded", "failed"] {
            drop(self.config_reloads.get_or_create(&ResultLabels { result }));
        }
        for reason in ["cross_site", "origin", "host", "content_type", "token"] {
            drop(self.admin_refusals.get_or_create(&ReasonLabels { reason }));
        }
    }
}
