//! Labels of metrics: enums, registered workers and served models, so that what clients send makes no series.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use prometheus_client::encoding::{
    EncodeLabel, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder,
};

/// Declares sets of labels: `Name { label: &'static str or Arc<str>, ... }`. Their values are escaped where they are written,
/// which the library does not do: a quote in the name of a model would end the scrape there.
macro_rules! label_sets {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the fields are the labels")]
        pub struct $name { $(pub $field: $type),+ }

        impl prometheus_client::encoding::EncodeLabelSet for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
            ) -> std::fmt::Result {
                $($crate::metrics::encode_label(encoder, stringify!($field), &self.$field)?;)+
                Ok(())
            }
        }
    )+};
}

pub(crate) use label_sets;

/// Writes one label, whatever its value is.
pub(crate) fn encode_label(
    encoder: &mut LabelSetEncoder<'_>,
    name: &str,
    value: &str,
) -> fmt::Result {
    (name, Escaped(value)).encode(encoder.encode_label())
}

struct Escaped<'a>(&'a str);

impl EncodeLabelValue for Escaped<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['\\', '"', '\n']) {
            encoder.write_str(&rest[..at])?;
            encoder.write_str(match rest.as_bytes()[at] {
                b'\\' => "\\\\",
                b'"' => "\\\"",
                _ => "\\n",
            })?;
            rest = &rest[at + 1..];
        }
        encoder.write_str(rest)
    }
}

label_sets! {
    /// A request's endpoint and model, how it ended, and which hundred its status is of.
    RequestLabels { endpoint: &'static str, model: Arc<str>, outcome: &'static str, status: &'static str }
    /// A comparison's result, and whether a worker was known to hold more of the prompt than what is hot: `known` or
    /// `unknown`.
    AgreementLabels { result: &'static str, prompt: &'static str }
    /// An endpoint and a model.
    ModelEndpointLabels { endpoint: &'static str, model: Arc<str> }
    /// One model that the cluster serves.
    ModelLabels { model: Arc<str> }
    /// One registered worker.
    WorkerLabels { worker: Arc<str> }
    /// A worker and one of its models.
    WorkerModelLabels { worker: Arc<str>, model: Arc<str> }
    /// The same, and by what tokens were counted: `usage` or `events`.
    TokenLabels { worker: Arc<str>, model: Arc<str>, source: &'static str }
    /// A worker and how an attempt on it ended.
    AttemptLabels { worker: Arc<str>, result: &'static str }
    /// Why a worker was chosen.
    ReasonLabels { reason: &'static str }
    /// Something that happened.
    EventLabels { event: &'static str }
    /// How something turned out.
    ResultLabels { result: &'static str }
    /// What other replicas claim of workers, and whether they are believed.
    ClaimLabels { claim: &'static str, believed: &'static str }
    /// One source of workers.
    SourceLabels { source: Arc<str> }
    /// What is known of something.
    StateLabels { state: &'static str }
    /// A source of workers, and what is known of these.
    SourceStateLabels { source: Arc<str>, state: &'static str }
    /// A source of workers, and what was done with these.
    ActionLabels { source: Arc<str>, action: &'static str }
    /// One of the ports.
    PortLabels { port: &'static str }
    /// A limit that was reached.
    LimitLabels { limit: &'static str }
    /// An error that the router itself answered with.
    ErrorLabels { code: &'static str }
}

impl WorkerLabels {
    /// Of this worker.
    pub fn of(worker: &Arc<str>) -> Self {
        Self {
            worker: Arc::clone(worker),
        }
    }
}

impl ModelLabels {
    /// Of this model.
    pub fn of(model: &Arc<str>) -> Self {
        Self {
            model: Arc::clone(model),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::metrics::snapshot::samples;
    use crate::metrics::{Counter, Family};

    #[test]
    fn no_name_ends_its_label() {
        let family = Family::<WorkerModelLabels, Counter>::default();
        let mut registry = Registry::default();
        registry.register("a", "A", family.clone());
        let models = [
            "plain",
            "\"} 7",
            "a\\",
            "two\nlines",
            ",b=\"c\"",
            "ü # {",
            "",
        ];
        for (number, model) in (1..).zip(models) {
            let labels = WorkerModelLabels {
                worker: "w".into(),
                model: model.into(),
            };
            family.get_or_create(&labels).inc_by(number);
        }
        let mut open = String::new();
        text::encode(&mut open, &registry).expect("a string can be written");
        let of = |sample: &crate::metrics::snapshot::Sample<'_>| {
            let model = sample.label("model").map(str::to_owned);
            (sample.value.parse().expect("a number"), model)
        };
        let mut read: Vec<(usize, Option<String>)> = samples(&open).map(|s| of(&s)).collect();
        read.sort();
        let expected = (1..).zip(models.map(|model| Some(model.to_owned())));
        assert_eq!(read, expected.collect::<Vec<_>>());
        assert_eq!(open.lines().count(), 3 + models.len(), "{open}");
    }
}
