//! One worker as a file describes it: the keys that all forms of files share. Pure.

use grapevine_gossip::worker::{
    DP_SIZE_MAX, Labels, RawWorker, WorkerId, WorkerSpec, weight_milli,
};

use crate::label::Declared;
use crate::picture::Found;

/// The keys of a worker beside its address.
pub(super) const KEYS: [&str; 11] = [
    "id",
    "models",
    "weight",
    "max_in_flight",
    "zone",
    "role",
    "dp_size",
    "kv_connector",
    "bootstrap_port",
    "kv_address",
    "labels",
];

/// What is said of a worker, key by key. Each value is checked when it is set, so that a reader of a file knows the
/// place of one that is wrong.
#[derive(Clone, Debug)]
pub(super) struct Description {
    pub(super) id: Option<WorkerId>,
    raw: RawWorker,
    declared: Declared,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            id: None,
            // Until the address is known; the checks want one.
            raw: RawWorker::at("http://worker:80"),
            declared: Declared::default(),
        }
    }
}

impl Description {
    /// Sets a key of [`KEYS`] by its text, as labels have it: models by commas, numbers in digits.
    ///
    /// # Errors
    /// What is wrong with the text, and what belongs there.
    pub(super) fn set_text(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "id" => self.set_id(text),
            "models" => {
                let models = text.split(',').map(str::trim).filter(|m| !m.is_empty());
                let models: Vec<String> = models.map(str::to_owned).collect();
                if models.is_empty() && !text.trim().is_empty() {
                    return Err(format!("models {text:?} names none"));
                }
                self.set_models(models)
            }
            "weight" => match text.trim().parse() {
                Ok(weight) => self.set_weight(weight),
                Err(_) => Err(format!("weight {text:?} is not a number such as \"1.5\"")),
            },
            "max_in_flight" => match text.trim().parse() {
                Ok(limit) => self.set_max_in_flight(limit),
                Err(_) => Err(format!(
                    "max_in_flight {text:?} is not a whole number of at least 1"
                )),
            },
            "zone" => self.set_zone(text.to_owned()),
            "role" => self.set_role(text),
            "dp_size" => match text.trim().parse() {
                Ok(size) => self.set_dp_size(size),
                Err(_) => Err(format!(
                    "dp_size {text:?} is not a whole number from 1 to {DP_SIZE_MAX}"
                )),
            },
            "kv_connector" => self.set_kv_connector(text),
            "bootstrap_port" => match text.trim().parse() {
                Ok(port) => self.set_bootstrap_port(port),
                Err(_) => Err(format!("bootstrap_port {text:?} is not a port")),
            },
            "kv_address" => self.set_kv_address(text),
            "labels" => {
                let texts = text.split(',').map(str::trim).filter(|one| !one.is_empty());
                self.set_labels(Labels::from_texts(texts).map_err(text_of)?)
            }
            _ => Err(format!("{key} is not one of {}", KEYS.join(", "))),
        }
    }

    pub(super) fn set_url(&mut self, url: &str) -> Result<(), String> {
        url.clone_into(&mut self.raw.url);
        self.check()
    }

    pub(super) fn set_id(&mut self, id: &str) -> Result<(), String> {
        self.id = Some(id.parse().map_err(text_of)?);
        Ok(())
    }

    pub(super) fn set_models(&mut self, models: Vec<String>) -> Result<(), String> {
        self.raw.models = models;
        self.check()
    }

    pub(super) fn set_weight(&mut self, weight: f64) -> Result<(), String> {
        self.raw.weight_milli = weight_milli(weight).map_err(text_of)?;
        self.check()
    }

    pub(super) fn set_max_in_flight(&mut self, limit: u32) -> Result<(), String> {
        self.raw.max_in_flight = Some(limit);
        self.check()
    }

    pub(super) fn set_zone(&mut self, zone: String) -> Result<(), String> {
        self.raw.zone = Some(zone);
        self.check()
    }

    pub(super) fn set_role(&mut self, role: &str) -> Result<(), String> {
        self.raw.role = role.parse().map_err(text_of)?;
        Ok(())
    }

    pub(super) fn set_dp_size(&mut self, size: u32) -> Result<(), String> {
        self.raw.dp_size = Some(size);
        self.check()
    }

    pub(super) fn set_kv_connector(&mut self, connector: &str) -> Result<(), String> {
        self.declared.kv_connector = Some(connector.to_owned());
        self.check()
    }

    pub(super) fn set_bootstrap_port(&mut self, port: u16) -> Result<(), String> {
        self.declared.bootstrap_port = Some(port);
        self.check()
    }

    pub(super) fn set_kv_address(&mut self, address: &str) -> Result<(), String> {
        self.declared.kv_address = Some(address.to_owned());
        self.check()
    }

    pub(super) fn set_labels(&mut self, labels: Labels) -> Result<(), String> {
        self.declared.labels = labels;
        self.check()
    }

    /// The worker that this describes, under its id or else its address.
    ///
    /// # Errors
    /// The first of the registry's rules that it breaks.
    pub(super) fn worker(&self) -> Result<(WorkerId, Found), String> {
        let spec = WorkerSpec::new(self.raw.clone()).map_err(text_of)?;
        let id = self.id.clone().unwrap_or_else(|| spec.default_id());
        let labels = self.declared.clone().into_labels().map_err(text_of)?;
        let found = Found::new(&spec, true).map_err(text_of)?;
        Ok((id, found.labelled(labels)))
    }

    /// By the registry's own rules, which stand in one place.
    fn check(&self) -> Result<(), String> {
        let labels = self.declared.clone().into_labels();
        labels.map(drop).map_err(text_of)?;
        WorkerSpec::new(self.raw.clone()).map(drop).map_err(text_of)
    }
}

fn text_of(error: impl std::error::Error) -> String {
    error.to_string()
}
