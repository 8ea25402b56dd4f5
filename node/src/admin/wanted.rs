//! What a caller wants a worker to be.

use std::collections::BTreeMap;

use grapevine_discovery::label::Declared;
use grapevine_gossip::worker::{Labels, RawWorker, State, WorkerError, weight_milli};
use serde::Deserialize;

use crate::api::ApiError;

/// Body of `POST /workers`, and of `PATCH`, where what is absent stays, and `null` takes away (`taken_away`).
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object that describes a worker")]
pub(super) struct Wanted {
    url: Option<String>,
    pub(super) id: Option<String>,
    models: Option<Vec<String>>,
    weight: Option<f64>,
    max_in_flight: Option<u32>,
    zone: Option<String>,
    role: Option<String>,
    dp_size: Option<u32>,
    kv_connector: Option<String>,
    bootstrap_port: Option<u16>,
    kv_address: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    pub(super) state: Option<WantedState>,
}

/// A worker to be written.
#[derive(Debug)]
pub(super) struct New {
    /// Its id, if one is wanted.
    pub(super) id: Option<String>,
    pub(super) raw: RawWorker,
    /// What is to be known of it beyond its description.
    pub(super) labels: Labels,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WantedState {
    Active,
    Draining,
}

impl Wanted {
    /// A new worker.
    pub(super) fn into_new(mut self) -> Result<New, ApiError> {
        let url = self.url.take();
        let url = url.ok_or_else(|| ApiError::invalid("url", "give the worker's url"))?;
        let id = self.id.take();
        let labels = self.take_labels()?;
        let mut raw = RawWorker::at(url);
        self.apply(&mut raw)?;
        Ok(New { id, raw, labels })
    }

    /// Whether it has anything of a worker's description, beside its state and its labels.
    pub(super) fn describes(&self) -> bool {
        self.url.is_some()
            || self.models.is_some()
            || self.weight.is_some()
            || self.max_in_flight.is_some()
            || self.zone.is_some()
            || self.role.is_some()
            || self.dp_size.is_some()
    }

    pub(super) fn take_labels(&mut self) -> Result<Labels, ApiError> {
        let labels = Labels::new(self.labels.take().unwrap_or_default());
        let declared = Declared {
            kv_connector: self.kv_connector.take(),
            bootstrap_port: self.bootstrap_port.take(),
            kv_address: self.kv_address.take(),
            labels: labels.map_err(|error| wrong_worker(&error))?,
        };
        let labels = declared.into_labels();
        labels.map_err(|error| wrong_worker(&error))
    }

    pub(super) fn apply(self, raw: &mut RawWorker) -> Result<(), ApiError> {
        if let Some(url) = self.url {
            raw.url = url;
        }
        if let Some(models) = self.models {
            raw.models = models;
        }
        if let Some(weight) = self.weight {
            let milli = weight_milli(weight);
            raw.weight_milli =
                milli.map_err(|error| ApiError::invalid("weight", error.to_string()))?;
        }
        if let Some(role) = self.role {
            raw.role = role.parse().map_err(|error| wrong_worker(&error))?;
        }
        raw.dp_size = self.dp_size.or(raw.dp_size);
        raw.max_in_flight = self.max_in_flight.or(raw.max_in_flight);
        raw.zone = self.zone.or(raw.zone.take());
        match self.state {
            Some(WantedState::Active) => raw.state = State::Active,
            Some(WantedState::Draining) => raw.state = State::Draining,
            None => {}
        }
        Ok(())
    }
}

pub(super) fn wrong_worker(error: &WorkerError) -> ApiError {
    ApiError::invalid("worker", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::body;
    use super::*;

    #[test]
    fn an_address_of_transfers_is_one() {
        let new = |kv_address: &str| {
            let text = format!(r#"{{"url":"http://a:1","kv_address":"{kv_address}"}}"#);
            let wanted: Wanted = body::parse(text.as_bytes()).expect("a worker");
            wanted.into_new()
        };
        for good in ["10.0.0.5:14579", "host:10.0.0.5,handshake:7301,notify:7302"] {
            let taken = new(good).expect("an address");
            assert_eq!(taken.labels.get("kv.address"), Some(good));
        }
        new("").expect_err("no value of a label");
        for wrong in ["foo", "10.0.0.5", "10.0.0.5:0"] {
            let refused = new(wrong).expect_err(wrong);
            assert!(refused.message.contains("host:port"), "{}", refused.message);
        }
    }
}
