//! Which streams go on elsewhere: opted in by `x-grapevine-failover`, by the model, or for all.

use std::collections::HashMap;

use http::HeaderMap;

use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::config::{FailoverConfig, ModelConfig};
use crate::http::headers;
use crate::live::Live;

/// Which streams go on elsewhere.
#[derive(Debug)]
pub struct Failovers {
    config: Live<FailoverConfig>,
    models: HashMap<String, bool>,
}

impl Failovers {
    /// As configured, for all and for single models.
    pub fn new(config: Live<FailoverConfig>, models: &[ModelConfig]) -> Self {
        let said = |model: &ModelConfig| Some((model.name.clone(), model.failover?));
        Self {
            config,
            models: models.iter().filter_map(said).collect(),
        }
    }

    /// How far a stream may move.
    pub(in crate::proxy) fn config(&self) -> &Live<FailoverConfig> {
        &self.config
    }

    /// The request's own word, else the model's, else that for all.
    /// Errors: 400 for a header that is neither `on` nor `off`.
    pub fn wanted(&self, head: &HeaderMap, model: &str) -> Result<bool, ApiError> {
        match head.get(headers::FAILOVER).map(|value| value.as_bytes()) {
            Some(b"on") => Ok(true),
            Some(b"off") => Ok(false),
            Some(_) => Err(ApiError::new(
                ErrorKind::InvalidRequest,
                "the header x-grapevine-failover is `on` or `off`",
            )),
            None => Ok(self
                .models
                .get(model)
                .copied()
                .unwrap_or_else(|| self.config.look().enabled)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_then_the_model_then_the_setting_for_all() {
        let rules = |enabled| {
            let config = FailoverConfig {
                enabled,
                ..FailoverConfig::default()
            };
            let model = |name: &str, failover| ModelConfig {
                name: name.to_owned(),
                failover,
                ..ModelConfig::default()
            };
            let models = [
                model("yes", Some(true)),
                model("no", Some(false)),
                model("other", None),
            ];
            Failovers::new(config.into(), &models)
        };
        let head = |value: Option<&str>| {
            let mut head = HeaderMap::new();
            if let Some(value) = value {
                head.insert(headers::FAILOVER, value.parse().expect("a value"));
            }
            head
        };
        for (enabled, header, model, expected) in [
            (false, None, "unknown", false),
            (true, None, "other", true),
            (false, None, "yes", true),
            (true, None, "no", false),
            (false, Some("on"), "no", true),
            (true, Some("off"), "yes", false),
        ] {
            let wanted = rules(enabled).wanted(&head(header), model);
            let what = format!("{enabled} {header:?} {model}");
            assert_eq!(wanted.expect("good"), expected, "{what}");
        }
        let error = rules(false).wanted(&head(Some("yes")), "m");
        assert_eq!(error.expect_err("neither").kind.status(), 400);
    }
}
