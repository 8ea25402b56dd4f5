//! The `metrics!` table: one row says a metric's field, type, name, unit and help. Each part has its own, beside its
//! code.
//!
//! Everything that must agree is made from that row: the handle that the part counts with, its
//! documentation, and what a scraper reads. `all_metrics` registers them all, in one place and one order. Labels come
//! from enums, registered workers and served models, never from requests, so the number of series is bounded by the
//! registry.

pub mod buckets;
pub mod cached_series;
mod exemplars;
pub mod export;
mod exposition;
mod gaps;
mod labels;
pub mod operator;
pub mod process;
mod protobuf;
pub mod refusals;
pub(crate) mod snapshot;

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::histogram::exponential_buckets;
use prometheus_client::registry::{Metric, Registry, Unit};

pub use exemplars::{SampledSpan, TracedHistogram, TracedHistograms};
pub use exposition::Form;
pub use gaps::{GapHistogram, Gaps};
pub use labels::{
    ActionLabels, AgreementLabels, AttemptLabels, ClaimLabels, ErrorLabels, EventLabels,
    LimitLabels, ModelEndpointLabels, ModelLabels, PortLabels, ReasonLabels, RequestLabels,
    ResultLabels, SourceLabels, SourceStateLabels, StateLabels, TokenLabels, WorkerLabels,
    WorkerModelLabels,
};
pub(crate) use labels::{encode_label, label_sets};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;

/// A gauge of fractions.
pub type FloatGauge = Gauge<f64, AtomicU64>;
/// A histogram for each of some labels.
pub type Histograms<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// Times from `start` seconds on, each bound twice the one before.
pub fn seconds(start: f64, bounds: u16) -> Histogram {
    Histogram::new(exponential_buckets(start, 2.0, bounds))
}

/// One metric, as tables of documents know it.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: Option<&'static str>,
    pub(crate) kind: &'static str,
}

/// Adds one metric to those that are shown.
pub fn register<M: Metric>(
    registry: &mut Registry,
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    metric: M,
) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric),
        None => registry.register(name, help, metric),
    }
}

/// Declares the metrics of a part: `pub Type { field: Kind = start value, "name" Unit, "help", Labels { label } in values; ... }
/// then first_steps`. The start value may be left out, the unit, the series that are there from the start (`increase()` does
/// not see one that begins with 1), and what is done with the handles once they are registered.
macro_rules! metrics {
    (
        $(#[doc = $about:literal])*
        $vis:vis $Type:ident {
            $(
                $(#[doc = $more:literal])*
                $field:ident: $T:ty $(= $start:expr)?, $name:literal $($unit:ident)?, $help:literal
                    $(, $Labels:ident { $label:ident } in $values:expr)?;
            )*
        }
        $(then $begin:path)?
    ) => {
        $(#[doc = $about])*
        ///
        /// A clone counts the same.
        #[derive(Debug, Clone)]
        $vis struct $Type {
            $(#[doc = concat!($help, ".")] $(#[doc = $more])* $vis $field: $T,)*
        }

        impl $Type {
            /// The rows, in the order in which they are shown.
            #[cfg(test)]
            pub(crate) const ROWS: &'static [$crate::metrics::Row] = &[$(
                $crate::metrics::Row {
                    name: $name,
                    unit: $crate::metrics::metrics!(@text $($unit)?),
                    kind: stringify!($T),
                },
            )*];

            /// Registers all of them.
            $vis fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
                let metrics = Self {
                    $($field: $crate::metrics::metrics!(@start $($start)?),)*
                };
                $({
                    let unit = $crate::metrics::metrics!(@unit $($unit)?);
                    let metric = metrics.$field.clone();
                    $crate::metrics::register(registry, $name, unit, $help, metric);
                })*
                $($(for $label in $values {
                    drop(metrics.$field.get_or_create(&$Labels { $label }));
                })?)*
                $($begin(&metrics);)?
                metrics
            }
        }
    };
    (@start) => { Default::default() };
    (@start $start:expr) => { $start };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(prometheus_client::registry::Unit::$unit) };
    (@text) => { None };
    (@text $unit:ident) => { Some(stringify!($unit)) };
}

pub(crate) use metrics;
