//! What is counted of operators: the configuration, and requests to the ports that are theirs.

use super::{Counter, Family, Gauge, ReasonLabels, ResultLabels, metrics};

metrics! {
    /// Operators.
    pub OperatorMetrics {
        config_reloads: Family<ResultLabels, Counter>, "config_reloads", "Readings of the configuration, at SIGHUP or by an operator",
            ResultLabels { result } in ["loaded", "failed"];
        config_refused: Gauge, "config_refused", "Whether the latest reading of the configuration was refused, so that the former one stays";
        admin_refusals: Family<ReasonLabels, Counter>,
            "admin_refusals", "Requests that the admin and Prometheus ports refused",
            ReasonLabels { reason } in ["cross_site", "origin", "host", "content_type", "token"];
    }
}
