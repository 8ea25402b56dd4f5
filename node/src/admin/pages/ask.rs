//! Where a prompt would go, by every replica: this one explains its decision, the others are asked by gossip for theirs.
//! They get hashes of the prompt, never its text, and no token travels.

use std::sync::Arc;

use bytes::Bytes;
use grapevine_gossip::ReplicaId;
use grapevine_gossip::dry_run::{AskError, DryRun, DryRunAnswer};
use http::request::Parts as Head;
use http::{HeaderMap, Method};
use maud::Markup;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use url::form_urlencoded;

use super::forms::field;
use crate::admin::query::Query;
use crate::admin::{Admin, Answer};
use crate::api::Endpoint;
use crate::api::error::ApiError;
use crate::page::html::explain::{self, Choice, Chosen, Leg, Verdict};
use crate::proxy::caller::Caller;
use crate::proxy::routing_query::{RoutingInput, RoutingQuery};

/// Where the form's prompt would be sent.
const PATH: &str = "/v1/chat/completions";
/// Replicas that are asked.
const ASKED_MAX: usize = 64;

impl Admin {
    /// What every replica would do with the form's prompt.
    pub(super) async fn asked(self: &Arc<Self>, head: &Head, form: &Bytes) -> Answer {
        let model = field(form, "model").filter(|model| !model.is_empty());
        let tenant = field(form, "tenant").filter(|tenant| !tenant.is_empty());
        let prompt = field(form, "prompt").unwrap_or_default();
        let chosen = Chosen {
            model: model.as_deref(),
            tenant: tenant.as_deref(),
        };
        let answer: Markup = match self.decisions(chosen, &prompt).await {
            Ok(legs) => explain::answer(&legs),
            Err(error) => explain::failed(&error.message),
        };
        self.ask_page(head, chosen, &answer)
    }

    async fn decisions(&self, chosen: Chosen<'_>, prompt: &str) -> Result<Vec<Leg>, ApiError> {
        let Chosen { model, tenant } = chosen;
        let mut body = json!({ "messages": [{ "role": "user", "content": prompt }] });
        if let Some(model) = model {
            body["model"] = model.into();
        }
        let body = Bytes::from(body.to_string());
        let query = tenant.map_or(String::new(), |tenant| {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("tenant", tenant).finish()
        });
        let mut own = self.explained(&Query(&query), &HeaderMap::new(), &body)?;
        let questions = self.questions(tenant, &body)?;
        let mut legs = Vec::new();
        let mut prefill = own["prefill"].take();
        if let (Some(halves), true) = (questions.halves, prefill.is_object()) {
            for name in [
                "model",
                "tenant",
                "tenant_is",
                "prompt_tokens",
                "key",
                "digest",
            ] {
                prefill[name] = own[name].clone();
            }
            let (first, second) = halves;
            legs.push(
                self.leg("The prompt would be computed by", prefill, first)
                    .await,
            );
            legs.push(self.leg("The answer would come from", own, second).await);
        } else {
            legs.push(
                self.leg("The request would go to", own, questions.whole)
                    .await,
            );
        }
        Ok(legs)
    }

    /// What is asked of the others about the request in a body.
    fn questions(&self, tenant: Option<&str>, body: &Bytes) -> Result<Questions, ApiError> {
        let endpoint = Endpoint::of(&Method::POST, PATH, &[])?;
        let routing = RoutingQuery::of(
            &self.cluster,
            &RoutingInput {
                endpoint,
                path: PATH,
                headers: &HeaderMap::new(),
                body,
                upload: None,
                caller: tenant.map_or(Caller::Anybody, Caller::Tenant),
            },
        )?;
        let question = |pool| self.cluster.question(pool, &routing.key);
        let halves = routing.pool.halves();
        Ok(Questions {
            whole: question(&routing.pool),
            halves: halves.map(|of| (question(&of.prefill), question(&of.decode))),
        })
    }

    async fn leg(&self, of: &'static str, own: Value, question: DryRun) -> Leg {
        let ring = self.cluster.fleet().pool_named(&question.pool);
        let ring = ring.map(|pool| pool.digest().0);
        let mut verdicts = vec![Verdict {
            replica: self.replica.clone(),
            answer: Ok(own_choice(&own)),
        }];
        verdicts.extend(self.ask_all(question, ring).await);
        Leg { of, own, verdicts }
    }

    /// Every other replica of the view, those that cannot be asked too.
    async fn ask_all(&self, question: DryRun, ring: Option<u32>) -> Vec<Verdict> {
        let view = self.agent.view();
        let others = view.replicas().iter();
        let others = others.filter(|replica| replica.id != *self.agent.replica());
        let mut asking = JoinSet::new();
        for replica in others.take(ASKED_MAX) {
            let (agent, question) = (Arc::clone(&self.agent), question.clone());
            let (id, is_live): (ReplicaId, bool) = (replica.id.clone(), replica.live);
            asking.spawn(async move {
                let answer = match is_live {
                    true => agent.ask(&id, question).await.map_err(in_words),
                    false => Err("it is dead".to_owned()),
                };
                Verdict {
                    replica: id.to_string(),
                    answer: answer.map(|answer| choice(answer, ring)),
                }
            });
        }
        let mut verdicts = asking.join_all().await;
        verdicts.sort_by(|a, b| a.replica.cmp(&b.replica));
        verdicts
    }
}

/// One question, or one for each half of a request that is divided.
struct Questions {
    whole: DryRun,
    halves: Option<(DryRun, DryRun)>,
}

fn in_words(error: AskError) -> String {
    match error {
        AskError::Refused(_) => {
            format!("{error} (policies that draw, as random, are not asked about)")
        }
        error => error.to_string(),
    }
}

fn own_choice(own: &Value) -> Choice {
    let text = |name: &str| own[name].as_str().map(str::to_owned);
    Choice {
        worker: text("worker"),
        reason: text("reason").unwrap_or_default(),
        home: text("home"),
        expected_tokens: own["expected_tokens"]
            .as_u64()
            .and_then(|tokens| tokens.try_into().ok())
            .unwrap_or(0),
        is_other_ring: false,
    }
}

fn choice(answer: DryRunAnswer, ring: Option<u32>) -> Choice {
    Choice {
        is_other_ring: ring != Some(answer.ring),
        worker: answer.worker.map(|id| id.to_string()),
        reason: answer.reason,
        home: answer.home.map(|id| id.to_string()),
        expected_tokens: answer.expected_tokens,
    }
}
