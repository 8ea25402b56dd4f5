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
    /// Errors: what is wrong with the text, and what belongs there.
    pub(super) fn set_text(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "id" => self.set_id(text),
            "models" => {
                let models = text.split(',').map(str::trim).filter(|m| !m.is_empty());
                let models: Vec<String> = models.map(str::to_owned).collect();
                if models.is_empty() && !text.trim().is_empty() {
                    return Err(format!("models {text:?} names none"));
                }
                self.with(|raw, _| raw.models = models)
            }
            "weight" => match text.trim().parse() {
                Ok(weight) => self.set_weight(weight),
                Err(_) => Err(format!("weight {text:?} is not a number such as \"1.5\"")),
            },
            "max_in_flight" => match text.trim().parse() {
                Ok(limit) => self.with(|raw, _| raw.max_in_flight = Some(limit)),
                Err(_) => Err(format!(
                    "max_in_flight {text:?} is not a whole number of at least 1"
                )),
            },
            "zone" => self.with(|raw, _| raw.zone = Some(text.to_owned())),
            "role" => self.set_role(text),
            "dp_size" => match text.trim().parse() {
                Ok(size) => self.with(|raw, _| raw.dp_size = Some(size)),
                Err(_) => Err(format!(
                    "dp_size {text:?} is not a whole number from 1 to {DP_SIZE_MAX}"
                )),
            },
            "kv_connector" => {
                self.with(|_, declared| declared.kv_connector = Some(text.to_owned()))
            }
            "bootstrap_port" => match text.trim().parse() {
                Ok(port) => self.with(|_, declared| declared.bootstrap_port = Some(port)),
                Err(_) => Err(format!("bootstrap_port {text:?} is not a port")),
            },
            "kv_address" => self.with(|_, declared| declared.kv_address = Some(text.to_owned())),
            "labels" => {
                let texts = text.split(',').map(str::trim).filter(|one| !one.is_empty());
                let labels = Labels::from_texts(texts).map_err(text_of)?;
                self.with(|_, declared| declared.labels = labels)
            }
            _ => Err(format!("{key} is not one of {}", KEYS.join(", "))),
        }
    }

    pub(super) fn set_url(&mut self, url: &str) -> Result<(), String> {
        self.with(|raw, _| url.clone_into(&mut raw.url))
    }

    pub(super) fn set_id(&mut self, id: &str) -> Result<(), String> {
        self.id = Some(id.parse().map_err(text_of)?);
        Ok(())
    }

    pub(super) fn set_weight(&mut self, weight: f64) -> Result<(), String> {
        let weight_milli = weight_milli(weight).map_err(text_of)?;
        self.with(|raw, _| raw.weight_milli = weight_milli)
    }

    pub(super) fn set_role(&mut self, role: &str) -> Result<(), String> {
        self.raw.role = role.parse().map_err(text_of)?;
        Ok(())
    }

    /// The worker that this describes, under its id or else its address.
    /// Errors: the first of the registry's rules that it breaks.
    pub(super) fn worker(&self) -> Result<(WorkerId, Found), String> {
        let spec = WorkerSpec::new(self.raw.clone()).map_err(text_of)?;
        let id = self.id.clone().unwrap_or_else(|| spec.default_id());
        let labels = self.declared.clone().into_labels().map_err(text_of)?;
        let found = Found::new(&spec, true).map_err(text_of)?;
        Ok((id, found.labelled(labels)))
    }

    /// Changes what is said, and checks it by the registry's own rules, which stand in one place.
    pub(super) fn with(
        &mut self,
        change: impl FnOnce(&mut RawWorker, &mut Declared),
    ) -> Result<(), String> {
        change(&mut self.raw, &mut self.declared);
        let labels = self.declared.clone().into_labels();
        labels.map(drop).map_err(text_of)?;
        WorkerSpec::new(self.raw.clone()).map(drop).map_err(text_of)
    }
}

fn text_of(error: impl std::error::Error) -> String {
    error.to_string()
}
