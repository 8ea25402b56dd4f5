//! One worker as a file describes it: the keys that all forms of files share. Pure.

use grapevine_gossip::worker::{RawWorker, Role, WorkerId, WorkerSpec};

use crate::picture::Found;

/// The keys of a worker beside its address.
pub(super) const KEYS: [&str; 6] = ["id", "models", "weight", "max_in_flight", "zone", "role"];

/// What is said of a worker, key by key. Each value is checked when it is set, so that a reader of a file knows the
/// place of one that is wrong.
#[derive(Clone, Debug)]
pub(super) struct Description {
    pub(super) id: Option<WorkerId>,
    raw: RawWorker,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            id: None,
            // Until the address is known; the checks want one.
            raw: RawWorker::at("http://worker:80"),
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
                self.set_models(models.map(str::to_owned).collect())
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
        if !(0.001..=100.0).contains(&weight) {
            return Err(format!("weight {weight} is not from 0.001 to 100"));
        }
        self.raw.weight_milli = (weight * 1000.0).round() as u32;
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
        self.raw.role = match role {
            "any" => Role::Any,
            "prefill" => Role::Prefill,
            "decode" => Role::Decode,
            _ => return Err(format!("role {role:?} is not any, prefill or decode")),
        };
        Ok(())
    }

    /// The worker that this describes, under its id or else its address.
    ///
    /// # Errors
    /// The first of the registry's rules that it breaks.
    pub(super) fn worker(&self) -> Result<(WorkerId, Found), String> {
        let spec = WorkerSpec::new(self.raw.clone()).map_err(text_of)?;
        let id = self.id.clone().unwrap_or_else(|| spec.default_id());
        Ok((id, Found::new(&spec, true).map_err(text_of)?))
    }

    /// By the registry's own rules, which stand in one place.
    fn check(&self) -> Result<(), String> {
        WorkerSpec::new(self.raw.clone()).map(drop).map_err(text_of)
    }
}

fn text_of(error: impl std::error::Error) -> String {
    error.to_string()
}
