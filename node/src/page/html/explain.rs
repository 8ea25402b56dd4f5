//! Where a prompt would go: the form, and what each replica would decide. Pure.

use maud::{Markup, html};
use serde_json::Value;

use super::tables::scrolling;
use super::{replica_path, sign, worker_path};
use crate::page::model::workers::short;
use crate::page::model::{Listed, Standing};
use crate::shown::{field, rows, tenants};

/// Workers of a decision that are shown, in its order.
const ORDER_SHOWN: usize = 20;

/// What one replica would do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The replica.
    pub replica: String,
    /// Its decision, or why there is none.
    pub answer: Result<Choice, String>,
}

/// A decision of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The worker, if any may take it.
    pub worker: Option<String>,
    /// Why.
    pub reason: String,
    /// Where it would go without load and failures.
    pub home: Option<String>,
    /// Tokens of the prompt that the worker is expected to hold.
    pub expected_tokens: u32,
    /// It decides with another ring than this replica.
    pub is_other_ring: bool,
}

/// One half of a request, or the whole of it, as every replica would decide on it.
#[derive(Debug, Clone)]
pub struct Leg {
    /// `The request would go to`, and the like; the worker follows.
    pub of: &'static str,
    /// This replica's own decision with its work, as `POST /explain` shows it.
    pub own: Value,
    /// Every replica's decision, this one's first.
    pub verdicts: Vec<Verdict>,
}

/// What was chosen in the form before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chosen<'a> {
    /// The model.
    pub model: Option<&'a str>,
    /// The tenant.
    pub tenant: Option<&'a str>,
}

/// The form; `tenants`: those that have keys, where prompts are those of tenants.
pub fn form(
    models: &Listed<String>,
    tenants: Option<&Listed<String>>,
    chosen: Chosen<'_>,
) -> Markup {
    let Chosen { model, tenant } = chosen;
    html! {
        form.ask method="post" action="/page/explain" {
            label for="model" { "Model" }
            @if models.more > 0 || models.rows.is_empty() {
                input #model name="model" value=[model] maxlength="256" autocomplete="off";
            } @else {
                select #model name="model" {
                    @for name in &models.rows {
                        option value=(name) selected[Some(name.as_str()) == model] { (name) }
                    }
                }
            }
            @if let Some(tenants) = tenants {
                label for="tenant" { "Tenant" }
                @if tenants.more > 0 || tenants.rows.is_empty() {
                    input #tenant name="tenant" value=[tenant] maxlength="1024" autocomplete="off";
                } @else {
                    select #tenant name="tenant" {
                        option value="" selected[tenant.is_none()] { "none" }
                        @for name in &tenants.rows {
                            option value=(name) selected[Some(name.as_str()) == tenant] { (name) }
                        }
                    }
                }
            }
            label for="prompt" { "Prompt" }
            textarea #prompt name="prompt" rows="4" required maxlength="200000" autocomplete="off" spellcheck="false" {}
            button { "Show where it would go" }
            p.soft { "Nothing is sent to a worker. Other replicas are asked about hashes of the prompt, never its text." }
        }
    }
}

/// Why there is no answer.
pub fn failed(message: &str) -> Markup {
    html! { p role="alert" { (sign(Standing::Bad)) (message) } }
}

/// The answer.
pub fn answer(legs: &[Leg]) -> Markup {
    let whose = legs.first();
    let whose = whose.and_then(|leg| tenants::note(&leg.own, "choose one in the form"));
    html! {
        @if let Some(whose) = whose { p role="alert" { (sign(Standing::Doubtful)) (whose) } }
        @for leg in legs { (one(leg)) }
    }
}

fn one(leg: &Leg) -> Markup {
    let own = &leg.own;
    let decided: Vec<&Option<String>> = leg
        .verdicts
        .iter()
        .filter_map(|verdict| verdict.answer.as_ref().ok())
        .map(|choice| &choice.worker)
        .collect();
    let agree = decided.windows(2).all(|pair| pair[0] == pair[1]);
    let standing = match agree {
        true => Standing::Well,
        false => Standing::Doubtful,
    };
    html! {
        h2 { (leg.of) " " @match own["worker"].as_str() {
            Some(worker) => (worker),
            None => "no worker: none may take it",
        } }
        p { (sign(standing))
            @if decided.len() < 2 { "No other replica gave a decision." }
            @else if agree { (decided.len()) " replicas would choose alike." }
            @else { "The replicas would not choose alike." }
        }
        (verdicts(leg))
        h3 { "What this replica compared" }
        p.soft { "Model " (field(own, "model"))
            @if own["tenant"].is_string() { ", tenant " (field(own, "tenant")) } ", policy " (field(own, "policy")) ", "
            (field(own, "prompt_tokens")) " tokens of prompt by estimate, key " code { (field(own, "key")) } ", ring "
            code { (field(own, "digest")) } "." }
        @if own["panic"] == true {
            p { (sign(Standing::Bad)) "More than half of the workers are bad, and then their health is not believed." }
        }
        (order(own))
    }
}

fn verdicts(leg: &Leg) -> Markup {
    scrolling(
        "What each replica would decide",
        &html! { table {
            thead { tr {
                th scope="col" { "Replica" }
                th scope="col" { "Worker" }
                th scope="col" { "Why" }
                th scope="col" { "Home" }
                th scope="col" { "Expected in its cache" }
            } }
            tbody { @for verdict in &leg.verdicts { tr {
                th scope="row" { a href=(replica_path(&verdict.replica)) { (verdict.replica) } }
                @match &verdict.answer {
                    Ok(choice) => {
                        td { @match &choice.worker {
                            Some(worker) => a href=(worker_path(worker)) { (worker) },
                            None => "none",
                        } }
                        td { (choice.reason) @if choice.is_other_ring { " " (sign(Standing::Doubtful)) "another ring" } }
                        td { @match &choice.home { Some(home) => (home), None => "–" } }
                        td.number { (choice.expected_tokens) " tokens" }
                    }
                    Err(why) => td colspan="4" { (sign(Standing::Bad)) "not known: " (why) },
                }
            } } }
        } },
    )
}

fn order(own: &Value) -> Markup {
    let order = rows(own, "order");
    let number = |row: &Value, name: &str| match row[name].as_f64() {
        Some(value) => short(value),
        None => "–".to_owned(),
    };
    html! {
        (scrolling("Workers in the order of the decision", &html! { table {
            thead { tr {
                th scope="col" { "Worker" }
                th scope="col" { "What became of it" }
                th scope="col" { "Health" }
                th scope="col" { "Price, ms" }
                th scope="col" { "First token, ms" }
                th scope="col" { "In flight" }
                th scope="col" { "Limit" }
                th scope="col" { "Expected tokens" }
            } }
            tbody { @for row in order.iter().take(ORDER_SHOWN) { tr {
                th scope="row" { a href=(worker_path(&field(row, "worker"))) { (field(row, "worker")) } }
                td { (field(row, "verdict").replace('_', " ")) }
                td { (field(row, "health")) }
                @for name in ["cost", "first_token_ms", "in_flight", "limit", "expected_tokens"] {
                    td.number { (number(row, name)) }
                }
            } } }
        } }))
        (super::and_more(order.len().saturating_sub(ORDER_SHOWN), "workers"))
    }
}
