//! Labels of metrics: enums, registered workers and served models, so that what clients send makes no series.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        #[allow(missing_docs, reason = "the fields are the labels")]
        pub struct $name { $(pub $field: $type),+ }
    };
}

labels! {
    /// A request's endpoint and model, how it ended, and which hundred its status is of.
    RequestLabels { endpoint: &'static str, model: Arc<str>, outcome: &'static str, status: &'static str }
}
labels! {
    /// A comparison's result, and whether a worker was known to hold more of the prompt than what is hot: `known` or
    /// `unknown`.
    AgreementLabels { result: &'static str, prompt: &'static str }
}
labels! {
    /// An endpoint and a model.
    ModelEndpointLabels { endpoint: &'static str, model: Arc<str> }
}
labels! {
    /// One model that the cluster serves.
    ModelLabels { model: Arc<str> }
}
labels! {
    /// One registered worker.
    WorkerLabels { worker: Arc<str> }
}
labels! {
    /// A worker and one of its models.
    WorkerModelLabels { worker: Arc<str>, model: Arc<str> }
}
labels! {
    /// The same, and by what tokens were counted: `usage` or `events`.
    TokenLabels { worker: Arc<str>, model: Arc<str>, source: &'static str }
}
labels! {
    /// A worker and how an attempt on it ended.
    AttemptLabels { worker: Arc<str>, result: &'static str }
}
labels! {
    /// Why a worker was chosen.
    ReasonLabels { reason: &'static str }
}
labels! {
    /// Something that happened.
    EventLabels { event: &'static str }
}
labels! {
    /// How something turned out.
    ResultLabels { result: &'static str }
}
labels! {
    /// What other replicas claim of workers, and whether they are believed.
    ClaimLabels { claim: &'static str, believed: &'static str }
}
labels! {
    /// One source of workers.
    SourceLabels { source: Arc<str> }
}
labels! {
    /// What is known of something.
    StateLabels { state: &'static str }
}
labels! {
    /// A source of workers, and what is known of these.
    SourceStateLabels { source: Arc<str>, state: &'static str }
}
labels! {
    /// A source of workers, and what was done with these.
    ActionLabels { source: Arc<str>, action: &'static str }
}
labels! {
    /// One of the ports.
    PortLabels { port: &'static str }
}
labels! {
    /// A limit that was reached.
    LimitLabels { limit: &'static str }
}
labels! {
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
