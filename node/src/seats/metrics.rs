//! What is counted of connections, and of the requests on them.

use crate::metrics::refusals::RefusalMetrics;
use crate::metrics::{Counter, Family, Gauge, LimitLabels, PortLabels, ResultLabels, metrics};

metrics! {
    /// What is under way at the data port.
    pub TrafficMetrics {
        requests_active: Gauge, "requests_active", "Requests in progress on this replica";
        proxy_headers: Family<ResultLabels, Counter>, "proxy_headers", "PROXY headers of connections by what they were",
            ResultLabels { result } in ["proxied", "own", "malformed", "too_long", "late", "unasked"];
        connections: Gauge, "connections", "Open connections of clients";
        connections_shed: Family<PortLabels, Counter>,
            "connections_shed", "Idle connections that were closed for others, longest idle first";
    }
}

impl TrafficMetrics {
    /// Counts what a connection's PROXY header was.
    pub fn proxy_header(&self, result: &'static str) {
        self.proxy_headers
            .get_or_create(&ResultLabels { result })
            .inc();
    }
}

/// What the places of a port count.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections that came when all places were taken.
    pub full: Counter,
    /// Connections that were asked to leave.
    pub shed: Counter,
}

impl Counts {
    /// Of a port; `limit`: the name under which it is counted that its places are all taken.
    pub fn of(
        refusals: &RefusalMetrics,
        traffic: &TrafficMetrics,
        port: &'static str,
        limit: &'static str,
    ) -> Self {
        let limits = &refusals.limits_reached;
        let shed = &traffic.connections_shed;
        Self {
            full: limits.get_or_create_owned(&LimitLabels { limit }),
            shed: shed.get_or_create_owned(&PortLabels { port }),
        }
    }
}
