//! Models that clients may ask for, and for which no worker is there.

use serde_json::Value;

use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Finding;
use crate::shown::models::{
    is_drained, is_prefill_drained, passed_over, paused, unserved, without_prefill,
};
use crate::shown::seconds;
use crate::shown::trouble::{PAUSED, is_usable, worker_trouble};
use crate::shown::words::{count, named};

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let models = unserved(&facts.cluster, &facts.workers, is_usable);
    let is_well = |worker: &Value| worker_trouble(worker).is_none();
    let is_drained = |name: &String| is_drained(name, &facts.cluster, &facts.workers, is_well);
    let (drained, models): (Vec<String>, Vec<String>) = models.into_iter().partition(is_drained);
    if !drained.is_empty() {
        let what = format!(
            "no usable worker for {}, since those that serve such a model are drained, and requests for it get 404 or 503: {}",
            count(drained.len(), "model"),
            named(&drained)
        );
        let todo = "grapevine workers activate URL of one of them serves it again; or start another worker for it";
        found.push(Finding::problem("models", what).of(drained).todo(todo));
    }
    if !models.is_empty() {
        let what = format!(
            "no usable worker for {}: {}; requests for such a model get 404 or 503, or go to a worker in trouble",
            count(models.len(), "model"),
            named(&models)
        );
        let todo = "start a worker that serves it, or mend the one that does; a name that nobody serves any more goes from \
                    [[model]] in the file";
        found.push(Finding::problem("models", what).of(models).todo(todo));
    }
    halves(facts, found);
    let waiting = paused(&facts.cluster, &facts.workers, is_usable);
    if !waiting.is_empty() {
        let told: Vec<String> = waiting
            .iter()
            .map(|(name, left)| format!("{name} ({} left)", seconds(*left)))
            .collect();
        let what = format!(
            "every usable worker of {} {PAUSED} (Retry-After), and requests get 503: {}",
            count(told.len(), "model"),
            named(&told)
        );
        let todo = "it ends by itself; if it comes back, add workers, or look why the engines answer 429 or 503; \
                    retry.worker_pause_max bounds the time";
        let names = waiting.into_iter().map(|(name, _)| name);
        found.push(Finding::problem("models", what).of(names).todo(todo));
    }
    let aliases = passed_over(&facts.cluster, &facts.workers);
    if !aliases.is_empty() {
        let what = format!(
            "targets of aliases without a worker, which requests pass over: {}",
            named(&aliases)
        );
        let todo =
            "start a worker that serves it, or look at the spelling of the target in [[model]]";
        found.push(Finding::advice("models", what).of(aliases).todo(todo));
    }
}

/// Models whose decode workers have nobody that computes their prompts.
fn halves(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let names = without_prefill(&facts.cluster, &facts.workers, is_usable);
    let is_well = |worker: &Value| worker_trouble(worker).is_none();
    let is_drained =
        |name: &String| is_prefill_drained(name, &facts.cluster, &facts.workers, is_well);
    let (drained, others): (Vec<String>, Vec<String>) = names.into_iter().partition(is_drained);
    for (names, why, todo) in [
        (
            drained,
            ", since those that there are were drained",
            "grapevine workers activate URL of one of them computes prompts again; or start another prefill worker",
        ),
        (
            others,
            "",
            "start a prefill worker, or mend the one that there is; transfer.decode_alone = \"always\" lets decode workers \
             compute any prompt then",
        ),
    ] {
        if names.is_empty() {
            continue;
        }
        let what = format!(
            "no usable prefill worker for {}{why}, and prompts of more than transfer.short_prompt_tokens get 503, or go to one in trouble: {}",
            count(names.len(), "model"),
            named(&names)
        );
        found.push(Finding::problem("models", what).of(names).todo(todo));
    }
}
