//! Sets up what sends spans and metrics to collectors. First of all, since it may fail: no other replica knows of this
//! one yet, and no port has answered.

use std::sync::Arc;

use super::base::Base;
use crate::all_metrics::AllMetrics;
use crate::config::{Config, Layers};
use crate::metrics::export::Exporter;
use crate::trace::{SpanSender, Tracing};

/// What is sent to collectors, where that is wanted; nothing runs yet.
pub(super) struct Collectors {
    /// Makes spans, and sends them.
    traces: Option<(Arc<Tracing>, SpanSender)>,
    /// Sends metrics.
    pub(super) exporter: Option<Exporter>,
}

impl Collectors {
    /// As configured; `origin`: where the configuration came from, with the variables that hold headers.
    /// Errors: traces or metrics cannot be sent as configured.
    pub(super) fn of(
        config: &Config,
        origin: &Layers,
        replica: &str,
        metrics: &AllMetrics,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            traces: Tracing::start(&config.trace, replica, &metrics.trace)?,
            exporter: Exporter::new(
                &config.metrics_export,
                &config.trace.service_name,
                replica,
                &metrics.export,
                |name| origin.variable(name),
            )?,
        })
    }

    /// Sends spans from now on; returns what makes them.
    pub(super) fn start_traces(&mut self, base: Base<'_>) -> Option<Arc<Tracing>> {
        let (tracing, sender) = self.traces.take()?;
        base.run("traces", sender.run(base.phase()));
        Some(tracing)
    }
}
