//! What a worker reports about itself: the models it serves, the size of its cache, when it started.
//!
//! A worker of which nobody declared the models is asked for them. The answer goes to the registry, and so does a later
//! one that differs: another engine may have started at its address. Pools follow the registry alone, so they do not
//! differ between replicas with what each happened to receive. Where models were declared, a difference is reported and
//! nothing changes. Answers that are late, too long or senseless change nothing: what was reported before
//! stays true, and the worker is no less healthy. Some answer late whenever they are busy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grapevine_gossip::worker::usable_models;
use reqwest::StatusCode;
use serde::Deserialize;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep};

use super::engine_metrics::{EngineMetrics, METRICS_BYTES_MAX};
use super::naps;
use super::probe_parts::{Fact, Learned, ProbeParts};
use super::question::read;
use super::transfer_facts;
use super::worker::Worker;
use crate::api::cards::{self, Card};
use crate::shown::NAMES_LEFT_OUT;

/// Largest answer to `/v1/models` that is read, in bytes.
const MODELS_BYTES_MAX: usize = 256 * 1024;
/// Between two times of asking one worker.
const PAUSE: Duration = Duration::from_secs(1);

/// Asks each time that it is notified, at most once in [`PAUSE`]; for models and what pairs need also where a request
/// found it wrong, and for the latter again after growing pauses while it is missing.
pub(super) async fn ask_when_told(
    worker: &Arc<Worker>,
    parts: &ProbeParts,
    told: &Notify,
    turns: &Semaphore,
) {
    let mut retry: Option<Duration> = None;
    loop {
        let pause = retry.unwrap_or(transfer_facts::RETRY_MAX);
        let (is_told, is_doubted) = tokio::select! {
            () = told.notified() => (true, false),
            () = worker.doubted.notified() => (false, true),
            () = sleep(pause), if retry.is_some() => (false, false),
        };
        let is_lacking = {
            let _turn = turns.acquire().await;
            let mut engine = None;
            if is_told || is_doubted {
                engine = ask_engine(worker, parts).await;
                ask_models(worker, parts).await;
            }
            ask_for_pairs(worker, engine, (is_doubted, retry.is_none()), parts).await
        };
        retry = is_lacking.then(|| match retry {
            Some(pause) if !is_doubted => (pause * 2).min(transfer_facts::RETRY_MAX),
            _ => transfer_facts::RETRY_MIN,
        });
        sleep(PAUSE).await;
    }
}

/// Asks what pairs need. One of the replicas that probe the worker does so, and one whose request found it wrong. Returns
/// whether something is missing; `is_first`: nothing was when it was asked before.
async fn ask_for_pairs(
    worker: &Arc<Worker>,
    engine: Option<EngineMetrics>,
    (is_doubted, is_first): (bool, bool),
    parts: &ProbeParts,
) -> bool {
    if !is_doubted && !parts.duty.is_ours(worker, parts.config.look().interval) {
        // A replica that starts has no duty yet, and may be the only one.
        return transfer_facts::is_unknown(worker, parts);
    }
    let asked = transfer_facts::ask(worker, engine, parts).await;
    if let Some(labels) = asked.news {
        learn(worker, Fact::Labels(labels), parts).await;
    }
    if let Some(error) = &asked.lacking {
        if is_first {
            tracing::warn!(
                worker = &*worker.label,
                %error,
                "a prefill worker is in no pair: its bootstrap server does not say the ids of its engines at /query; is \
                 its label kv.bootstrap_port right?"
            );
        } else {
            tracing::debug!(worker = &*worker.label, %error, "its bootstrap server still does not answer");
        }
    }
    asked.lacking.is_some()
}

/// Waits while many are being learned: what is not reported now is reported again only a minute later.
async fn learn(worker: &Arc<Worker>, fact: Fact, parts: &ProbeParts) {
    let worker = Arc::clone(worker);
    // The receiver is gone once the replica ends.
    let _ = parts.learned.send(Learned { worker, fact }).await;
}

/// Learns the size of the worker's cache, and whether it restarted; a worker without such metrics keeps the configured
/// size.
async fn ask_engine(worker: &Arc<Worker>, parts: &ProbeParts) -> Option<EngineMetrics> {
    match read_engine(worker, parts).await {
        Ok(facts) => {
            let known = worker.epoch.load(Ordering::Relaxed);
            let started = facts.started.filter(|started| *started > known);
            note_cache(worker, &facts);
            if let Some(started) = started {
                learn(worker, Fact::Started(started), parts).await;
            }
            let ranks = transfer_facts::ranks_of_publisher(&worker.about.load(), &facts);
            // One that is a rank itself is heard alone.
            if let Some(ranks) = ranks.filter(|_| worker.address.rank().is_none()) {
                learn(worker, Fact::Labels(ranks), parts).await;
            }
            Some(facts)
        }
        Err(error) => {
            tracing::debug!(worker = &*worker.label, %error, "worker did not answer with its metrics");
            None
        }
    }
}

/// Reads its metrics, and notes whether its engine sleeps, and whether it has worked since they were read before.
pub(super) async fn read_engine(
    worker: &Arc<Worker>,
    parts: &ProbeParts,
) -> anyhow::Result<EngineMetrics> {
    let asked = Instant::now();
    let text = read(worker, "/metrics", METRICS_BYTES_MAX, parts).await?;
    let facts = EngineMetrics::parse(&String::from_utf8_lossy(&text), worker.address.rank());
    worker.scraped(asked, facts.activity);
    naps::note(worker, &facts, parts).await;
    Ok(facts)
}

async fn ask_models(worker: &Arc<Worker>, parts: &ProbeParts) {
    let known = worker.models.load_full();
    let listed = listed_by(worker, parts).await;
    note_key(worker, &listed, known.is_empty());
    let are_learned = worker.about.load().models_are_learned;
    match listed {
        Ok(models) if models.is_empty() => {
            note_list(worker, Some("it lists no models at /v1/models".to_owned()));
        }
        Ok(models) if are_learned => {
            let (models, amiss) = usable_of(models, &known);
            note_list(worker, amiss);
            if models.is_empty() {
                return;
            }
            let are_all_in =
                |some: &[String], of: &[String]| some.iter().all(|model| of.contains(model));
            if !are_all_in(&models, &known) || !are_all_in(&known, &models) {
                learn(worker, Fact::Models(models), parts).await;
            }
        }
        Ok(models) => {
            note_list(worker, None);
            let missing: Vec<_> = known.iter().filter(|m| !models.contains(m)).collect();
            if !missing.is_empty() {
                tracing::warn!(
                    worker = &*worker.label,
                    ?missing,
                    "worker no longer lists models that the registry says it serves; update or remove it"
                );
            }
        }
        Err(error) => {
            tracing::debug!(worker = &*worker.label, %error, "worker did not list its models");
        }
    }
}

/// What a registry entry can have of a list, and what is amiss where that is not all of it. Of too many names those that
/// are known stay: a list in another order moves no prompt.
fn usable_of(mut listed: Vec<String>, known: &[String]) -> (Vec<String>, Option<String>) {
    listed.sort_by_key(|model| !known.contains(model));
    let (usable, limit) = usable_models(&listed);
    let left_out: BTreeSet<_> = listed.iter().filter(|m| !usable.contains(m)).collect();
    let left_out = left_out.len();
    let amiss = limit.map(|limit| format!("{left_out} {NAMES_LEFT_OUT}: {limit}"));
    (usable, amiss)
}

/// Notes what is amiss with its list, and says it once: a worker of which no model is known is asked each second.
fn note_list(worker: &Worker, amiss: Option<String>) {
    let amiss = amiss.map(Arc::new);
    let before = worker.list_amiss.swap(amiss.clone());
    if let Some(why) = amiss
        && before.as_ref() != Some(&why)
    {
        tracing::warn!(
            worker = &*worker.label,
            why = &**why,
            "a worker lists models that are left out, or none; it gets no requests for them"
        );
    }
}

/// Notes the size of its cache. An answer without it may be a proxy's page, unless a later process says that it began.
fn note_cache(worker: &Worker, facts: &EngineMetrics) {
    let started = facts.started.unwrap_or_default();
    let is_later = started > worker.cache_tokens_since.load(Ordering::Relaxed);
    let Some(tokens) = facts.cache_tokens.or(is_later.then_some(0)) else {
        return;
    };
    worker.cache_tokens.store(tokens, Ordering::Relaxed);
    // The same process counts as started anew when it was woken.
    let since = started.max(worker.epoch.load(Ordering::Relaxed));
    worker.cache_tokens_since.store(since, Ordering::Relaxed);
}

/// Notes whether it refuses the key that this replica has for it, or that there is none. Where its models are known and no
/// key is configured, clients may bring theirs: requests show whether anything is amiss. What is no answer says nothing.
fn note_key(worker: &Worker, listed: &anyhow::Result<Vec<String>>, knows_none: bool) {
    let status = match listed {
        Ok(_) => None,
        Err(error) => {
            let error = error.downcast_ref::<reqwest::Error>();
            let Some(status) = error.and_then(reqwest::Error::status) else {
                return;
            };
            Some(status)
        }
    };
    let is_refused =
        |status: &StatusCode| matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let Some(status) = status.filter(is_refused) else {
        worker.key_refused.store(0, Ordering::Relaxed);
        return;
    };
    let own = worker.connector.authorization(&worker.address.url);
    if knows_none || own.is_some() {
        worker.refused_key(status);
    }
}

/// The names that it lists, an empty one where there is none; what else it says of them is kept, and compared if it is new.
async fn listed_by(worker: &Arc<Worker>, parts: &ProbeParts) -> anyhow::Result<Vec<String>> {
    let cards = cards_of(worker, parts).await?;
    let name = |card: &Option<Card>| card.as_ref().map_or("", Card::id).to_owned();
    let models = cards.iter().map(name).collect();
    let cards: Vec<Card> = cards.into_iter().flatten().collect();
    if cards::is_news(&worker.cards.load(), &cards) {
        worker.cards.store(Arc::new(cards));
        learn(worker, Fact::Cards, parts).await;
    }
    Ok(models)
}

async fn cards_of(worker: &Worker, parts: &ProbeParts) -> anyhow::Result<Vec<Option<Card>>> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<serde_json::Value>,
    }
    let answer = read(worker, "/v1/models", MODELS_BYTES_MAX, parts).await?;
    let list: List = serde_json::from_slice(&answer)?;
    Ok(list.data.into_iter().map(Card::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::{Alone, worker};
    use crate::config::KvEventsConfig;

    #[test]
    fn of_too_many_models_those_that_are_known_stay() {
        let names = |of: std::ops::Range<usize>| of.map(|n| format!("m{n:02}")).collect::<Vec<_>>();
        let (first, amiss) = usable_of(names(0..70), &[]);
        assert_eq!(first, names(0..64));
        let told = "6 of its models cannot be used: 70 models are more than 64";
        assert_eq!(amiss.as_deref(), Some(told));
        let backwards = || names(0..70).into_iter().rev().collect::<Vec<_>>();
        let (mut again, _) = usable_of(backwards(), &first);
        again.sort();
        assert_eq!(again, first);
        assert!(usable_of(backwards(), &[]).0.contains(&"m69".to_owned()));
        let (none, amiss) = usable_of(vec!["a\nb".into(), String::new()], &[]);
        assert!(
            none.is_empty()
                && amiss.is_some_and(
                    |why| why.contains(r#"2 of its models cannot be used: model name "a\nb""#)
                )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_process_does_not_inherit_the_size_of_a_cache() {
        let alone = Alone::new("r1", [worker(0, "m")], &KvEventsConfig::default(), 1);
        let fleet = alone.cluster.fleet();
        let worker = fleet.workers().next().expect("one");
        let says = |cache_tokens, started| {
            let facts = EngineMetrics {
                cache_tokens,
                started,
                ..EngineMetrics::default()
            };
            note_cache(worker, &facts);
            worker.cache_tokens.load(Ordering::Relaxed)
        };
        assert_eq!(says(Some(4_000), Some(10)), 4_000);
        assert_eq!(says(None, None), 4_000, "a proxy's page");
        assert_eq!(says(None, Some(10)), 4_000);
        // Whoever told of the restart first: the registry may have its start already.
        worker.epoch.store(20, Ordering::Relaxed);
        assert_eq!(says(None, Some(20)), 0);
        assert_eq!(says(Some(9_000), Some(20)), 9_000);
        // It slept and was woken: its cache is as large as before.
        worker.epoch.store(30, Ordering::Relaxed);
        assert_eq!(says(Some(9_000), Some(20)), 9_000);
        assert_eq!(worker.cache_tokens_since.load(Ordering::Relaxed), 30);
    }
}
