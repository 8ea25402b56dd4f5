//! How a worker is described on a command line, and in the body that says so to a replica.

use serde_json::{Map, Value, json};

// Plain comments: clap would show doc comments in place of the command's.
#[derive(clap::Args)]
pub(super) struct Description {
    /// Id in the cluster, of a single worker [default: the address]. Keep it the same over restarts.
    #[arg(long)]
    pub(super) id: Option<String>,
    /// Model or adapter it serves; may be repeated [default: the worker is asked].
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Share of keys against other workers, 0.001 to 100 [default: 1].
    #[arg(long)]
    weight: Option<f64>,
    /// Requests in flight above which nothing more is sent to it [default: no limit].
    #[arg(long)]
    max_in_flight: Option<u32>,
    /// Where it stands, for display.
    #[arg(long)]
    zone: Option<String>,
}

impl Description {
    /// The members of `POST /workers` for a worker at this address, without its id; what was not given is left out.
    pub(super) fn of(&self, url: &str) -> Map<String, Value> {
        let models = (!self.models.is_empty()).then(|| json!(self.models));
        let given = [
            ("url", Some(Value::from(url))),
            ("models", models),
            ("weight", self.weight.map(Value::from)),
            ("max_in_flight", self.max_in_flight.map(Value::from)),
            ("zone", self.zone.clone().map(Value::from)),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect()
    }
}
