//! From the command line to what is to be run: files, keys, TLS, the model.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::BenchError;
use super::args::{BenchArgs, Shape};
use crate::client::{Client, MESSAGE_CHARS_MAX, Target, Unreached, tls};
use crate::load::{Arrivals, Form, Plan, Prompts, Recorded, Source};
use crate::run::{Setup, Side};

/// Limit of the question for models.
const MODELS_LIMIT: Duration = Duration::from_secs(10);
/// Names of models in a message.
const MODELS_SHOWN: usize = 10;
const RATE_MAX: f64 = 1e6;
const ANSWER_TOKENS: u32 = 16;
const TURNS: u64 = 5;
const SHARED_BYTES: usize = 2_000;

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

fn usage(error: impl std::fmt::Display) -> BenchError {
    BenchError::Usage(error.to_string())
}

impl BenchArgs {
    pub(super) async fn setup(self) -> Result<Setup, BenchError> {
        let arrivals = self.arrivals()?;
        let key = self.key()?;
        let sides = self.sides(key.as_deref())?;
        let source = self.source(&sides).await?;
        let rounds = if sides.len() > 1 { self.rounds } else { 1 };
        let part = u32::try_from(rounds).expect("at most 1,000");
        let plan = Plan {
            arrivals,
            requests: self.requests.div_ceil(rounds),
            duration: self.duration / part,
            timeout: self.timeout,
            source,
            first_session: 0,
            explain: self.explain,
            seed: self.seed,
        };
        Ok(Setup {
            sides,
            plan,
            rounds,
            warm_up: self.warm_up,
        })
    }

    fn arrivals(&self) -> Result<Arrivals, BenchError> {
        Ok(match self.rate {
            None => Arrivals::Closed {
                clients: self.concurrency,
            },
            Some(rate) if rate > 0.0 && rate <= RATE_MAX => Arrivals::Open {
                rate,
                pacing: self.pacing,
                in_flight_max: self.in_flight_max,
            },
            Some(_) => return Err(usage("--rate is above 0 and at most 1,000,000 a second")),
        })
    }

    /// The API key; messages name its place and never what is there.
    fn key(&self) -> Result<Option<String>, BenchError> {
        let (place, found) = if let Some(name) = &self.api_key_env {
            (format!("the variable {name}"), std::env::var(name).ok())
        } else if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path);
            let text =
                text.map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
            (path.display().to_string(), Some(text))
        } else {
            return Ok(None);
        };
        let key = found.as_deref().and_then(|text| text.lines().next());
        let key = key.map(str::trim).filter(|key| !key.is_empty());
        match key {
            Some(key) => Ok(Some(key.to_owned())),
            None => Err(usage(format!("no key is in {place}"))),
        }
    }

    /// The endpoints, named by their first URL.
    fn sides(&self, key: Option<&str>) -> Result<Vec<Side>, BenchError> {
        let all = [&self.urls, &self.against];
        let targets = || all.into_iter().flatten();
        let tls = targets()
            .any(Target::is_tls)
            .then(|| tls(self.ca.as_deref()));
        let tls = tls.transpose().map_err(usage)?;
        let side = |targets: &Vec<Target>| {
            let mut client = Client::new(targets.clone(), self.spread).map_err(usage)?;
            if let Some(tls) = &tls {
                client = client.with_tls(tls);
            }
            if let Some(key) = key {
                client = client.with_token(key).map_err(usage)?;
            }
            Ok(Side {
                name: targets[0].authority().to_owned(),
                urls: targets.iter().map(ToString::to_string).collect(),
                client: Arc::new(client),
            })
        };
        let all = all.into_iter().filter(|targets| !targets.is_empty());
        let mut sides = all.map(side).collect::<Result<Vec<Side>, BenchError>>()?;
        if let [first, second] = sides.as_mut_slice()
            && first.name == second.name
        {
            first.name = "first".to_owned();
            second.name = "second".to_owned();
        }
        Ok(sides)
    }

    async fn source(&self, sides: &[Side]) -> Result<Source, BenchError> {
        if let Some(path) = &self.bodies {
            let form = Form {
                stream: !self.plain,
                model: self.model.clone(),
                max_tokens: self.max_tokens,
            };
            return Ok(Source::Recorded(Arc::new(recorded(path, &form)?)));
        }
        let model = match &self.model {
            Some(model) => model.clone(),
            None => only_model(&sides[0].client).await?,
        };
        let shared_bytes = match self.shape {
            Shape::Unique => 0,
            Shape::Shared | Shape::Conversations => SHARED_BYTES,
        };
        let turns = if self.shape == Shape::Conversations {
            TURNS
        } else {
            1
        };
        let prompts = Prompts {
            seed: self.seed,
            groups: self.groups,
            shared_bytes: self.shared_bytes.unwrap_or(shared_bytes),
            own_bytes: self.own_bytes,
            turns: self.turns.unwrap_or(turns),
            max_tokens: self.max_tokens.unwrap_or(ANSWER_TOKENS),
            stream: !self.plain,
            endpoint: self.endpoint,
            model: Some(model),
        };
        Ok(prompts.into())
    }
}

fn recorded(path: &Path, form: &Form) -> Result<Recorded, BenchError> {
    Recorded::read(path, form).map_err(usage)
}

/// The model, where there is only one.
async fn only_model(client: &Client) -> Result<String, BenchError> {
    let listed = client.json("/v1/models", MODELS_LIMIT).await;
    let listed: Models = listed.map_err(|error| {
        let why = format!("cannot ask for the models: {error:#}; name one by --model, and a key by --api-key-file where one is asked for");
        match error.downcast_ref::<Unreached>() {
            Some(_) => BenchError::Unreachable(why),
            None => BenchError::Refused(why),
        }
    })?;
    let names: Vec<String> = listed.data.into_iter().map(|model| model.id).collect();
    match names.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(usage("the endpoint lists no model; name one by --model")),
        many => Err(usage(format!(
            "the endpoint has {} models; name one by --model: {}",
            many.len(),
            many.iter()
                .take(MODELS_SHOWN)
                .map(|name| client.shown(name, MESSAGE_CHARS_MAX))
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}
