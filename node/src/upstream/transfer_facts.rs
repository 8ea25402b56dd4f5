//! What a worker that takes halves of requests is asked besides: what decides with whom it can pair.
//!
//! Tokens of a block, ranks and release of its engine, and the ids of a Mooncake prefill worker's engines, which are
//! other ones after each start. They become labels of the worker, so that every replica can serve every pair; the
//! replicas that probe the worker ask, and write what is not known. Workers of whole requests are not asked; of one with
//! labels for its KV events it is noted how many engines its metrics show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::worker::{Labels, Role};
use grapevine_kv_events::endpoint;
use grapevine_transfer::{Connector, label};
use serde::Deserialize;

use super::engine_metrics::EngineMetrics;
use super::probe_parts::ProbeParts;
use super::question::{read, read_answer};
use super::worker::{About, Worker};

/// Port of a Mooncake prefill worker's bootstrap server, where its labels name none.
const BOOTSTRAP_PORT: u16 = 8998;
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Most engines of one worker whose ids become labels.
const ENGINES_MAX: usize = 32;
/// First pause before a worker that did not give its ids is asked again; each one is twice the one before.
pub(super) const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest such pause.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(15);

/// What was found out.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Labels that are not known of it, or have another value.
    pub(super) news: Option<Labels>,
    /// Why it is in no pair: something did not answer.
    pub(super) lacking: Option<anyhow::Error>,
}

/// Asks a worker that takes halves of requests; `engine`: what its metrics said just now.
pub(super) async fn ask(
    worker: &Arc<Worker>,
    engine: Option<EngineMetrics>,
    parts: &ProbeParts,
) -> Asked {
    let about = worker.about.load_full();
    if !matches!(about.role, Role::Prefill | Role::Decode) {
        return Asked::default();
    }
    let mut found = engine.map(of_engine).unwrap_or_default();
    match version(worker, parts).await {
        Ok(version) => found.push((label::VERSION.to_owned(), version)),
        Err(error) => unanswered(worker, "/version", &error),
    }
    let mut lacking = None;
    if about.role == Role::Prefill && is_mooncake(&about.labels, parts.connector) {
        match engine_ids(worker, &about.labels, parts).await {
            Ok(ids) => found.extend(ids),
            Err(error) => lacking = Some(error),
        }
    }
    // A text that cannot be a label is no fact.
    let usable = found
        .into_iter()
        .filter(|(name, value)| Labels::new([(name.as_str(), value.as_str())]).is_ok());
    let found = Labels::new(usable).unwrap_or_default();
    let is_news = !about.labels.contain(&found);
    Asked {
        news: is_news.then_some(found),
        lacking,
    }
}

/// News of how many engines are behind a worker of whole requests: where its labels name the address of its KV events,
/// that says at how many ports it publishes. Those of the two halves are asked all that pairs need.
pub(super) fn ranks_of_publisher(about: &About, engine: &EngineMetrics) -> Option<Labels> {
    let publishes = || endpoint::are_named(about.labels.iter().map(|(name, _)| name));
    if about.role != Role::Any || !publishes() {
        return None;
    }
    let ranks = engine.ranks?.to_string();
    let found = Labels::new([(label::DP_SIZE, ranks.as_str())]).ok()?;
    (!about.labels.contain(&found)).then_some(found)
}

/// Whether nobody has learned yet what pairs need to know of a worker.
pub(super) fn is_unknown(worker: &Worker, parts: &ProbeParts) -> bool {
    let about = worker.about.load();
    let has_id = |(name, _): (&str, &str)| name.starts_with(label::ENGINE_ID);
    let lacks_id = || {
        about.role == Role::Prefill
            && is_mooncake(&about.labels, parts.connector)
            && !about.labels.iter().any(has_id)
    };
    let is_half = matches!(about.role, Role::Prefill | Role::Decode);
    is_half && (about.labels.get(label::VERSION).is_none() || lacks_id())
}

fn unanswered(worker: &Worker, path: &str, error: &anyhow::Error) {
    tracing::debug!(worker = &*worker.label, path, %error, "worker did not answer what pairs need");
}

fn of_engine(engine: EngineMetrics) -> Vec<(String, String)> {
    let facts = [
        (label::BLOCK_SIZE, engine.block_size),
        (label::DP_SIZE, engine.ranks),
    ];
    let facts = facts.into_iter();
    facts
        .filter_map(|(name, number)| Some((name.to_owned(), number?.to_string())))
        .collect()
}

async fn version(worker: &Worker, parts: &ProbeParts) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Answer {
        version: String,
    }
    let answer = read(worker, "/version", ANSWER_BYTES_MAX, parts).await?;
    Ok(serde_json::from_slice::<Answer>(&answer)?.version)
}

/// Whether it moves blocks by Mooncake's transfer engine, by its labels or else as the settings say.
fn is_mooncake(labels: &Labels, default: Connector) -> bool {
    match labels.get(label::CONNECTOR) {
        Some(name) => name.parse() == Ok(Connector::Mooncake),
        None => default == Connector::Mooncake,
    }
}

/// The ids of its engines, as its bootstrap server has them.
async fn engine_ids(
    worker: &Worker,
    labels: &Labels,
    parts: &ProbeParts,
) -> anyhow::Result<Vec<(String, String)>> {
    let port = labels.get(label::BOOTSTRAP_PORT);
    let port = port.map_or(Ok(BOOTSTRAP_PORT), str::parse)?;
    let connector = &worker.connector;
    let request = connector.get_at_port(&worker.address, port, "/query")?;
    let answer = read_answer(request, ANSWER_BYTES_MAX, parts).await?;
    ids_of(&answer, worker.address.rank())
}

/// Labels from `{"<rank>": {"engine_id": "..."}}`: of one rank, or of all, up to [`ENGINES_MAX`].
fn ids_of(answer: &[u8], rank: Option<u32>) -> anyhow::Result<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct Engine {
        engine_id: String,
    }
    let engines: BTreeMap<u32, Engine> = serde_json::from_slice(answer)?;
    let is_one = rank.is_none() && engines.len() == 1;
    let wanted = engines
        .into_iter()
        .filter(|(of, _)| rank.is_none_or(|rank| rank == *of));
    let name = |rank: u32| match is_one {
        true => label::ENGINE_ID.to_owned(),
        false => format!("{}.{rank}", label::ENGINE_ID),
    };
    let ids: Vec<_> = wanted
        .take(ENGINES_MAX)
        .map(|(rank, engine)| (name(rank), engine.engine_id))
        .collect();
    anyhow::ensure!(!ids.is_empty(), "it names no engine of this worker");
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_engines_become_labels() {
        let two = br#"{"1": {"engine_id": "b", "worker_addr": {}}, "0": {"engine_id": "a"}}"#;
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let table = [
            (
                &two[..],
                None,
                vec![label("kv.engine_id.0", "a"), label("kv.engine_id.1", "b")],
            ),
            (two, Some(1), vec![label("kv.engine_id.1", "b")]),
            (
                br#"{"0": {"engine_id": "a"}}"#,
                None,
                vec![label("kv.engine_id", "a")],
            ),
        ];
        for (answer, rank, expected) in table {
            assert_eq!(ids_of(answer, rank).expect("read"), expected);
        }
        for (answer, rank) in [(&two[..], Some(2)), (b"{}", None), (b"[]", None)] {
            assert!(ids_of(answer, rank).is_err());
        }
    }

    #[test]
    fn a_worker_of_mooncake_is_known_by_its_label_or_by_the_settings() {
        let labels = |name: Option<&str>| {
            let label = name.map(|name| ("kv.connector", name));
            Labels::new(label).expect("valid")
        };
        for (name, default, expected) in [
            (None, Connector::Mooncake, true),
            (None, Connector::Nixl, false),
            (Some("mooncake"), Connector::Nixl, true),
            (Some("MooncakeConnector"), Connector::Nixl, true),
            (Some("MooncakeStoreConnector"), Connector::Mooncake, false),
            (Some("nixl"), Connector::Mooncake, false),
        ] {
            assert_eq!(is_mooncake(&labels(name), default), expected, "{name:?}");
        }
    }

    #[test]
    fn how_many_engines_a_publisher_of_whole_requests_has_is_news_once() {
        let about = |role, texts: &[&str]| About {
            role,
            labels: Arc::new(Labels::from_texts(texts.iter().copied()).expect("labels")),
            ..About::default()
        };
        let engine = |ranks| EngineMetrics {
            ranks,
            ..EngineMetrics::default()
        };
        let found = |about: &About, ranks| {
            let found = ranks_of_publisher(about, &engine(ranks));
            found.and_then(|labels| labels.get(label::DP_SIZE).map(str::to_owned))
        };
        let events = "kv.events=tcp://*:5557";
        let whole = about(Role::Any, &[events]);
        assert_eq!(found(&whole, Some(4)).as_deref(), Some("4"));
        assert_eq!(found(&whole, None), None);
        assert_eq!(found(&about(Role::Any, &["a=b"]), Some(4)), None);
        assert_eq!(found(&about(Role::Prefill, &[events]), Some(4)), None);
        let known = about(Role::Any, &[events, "kv.dp_size=4"]);
        assert_eq!(found(&known, Some(4)), None);
        assert_eq!(found(&known, Some(2)).as_deref(), Some("2"));
    }
}
