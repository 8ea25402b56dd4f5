//! Where a worker publishes. Pure: labels, or the answer to `GET /kv_event_sources`, in; addresses out.
//!
//! Rank r of a worker adds r to the ports of a label; the answer has done so already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use grapevine_gossip::worker::Labels;
use grapevine_kv_events::endpoint::{self, BadEndpoint, EVENTS, Endpoint, REPLAY, TOPIC};
use serde::Deserialize;

/// Engines of one worker that are heard.
const ENGINES_MAX: u32 = 64;
/// Longest topic that is subscribed to, in bytes.
const TOPIC_BYTES_MAX: usize = 256;

/// One engine's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Data-parallel rank.
    pub rank: u32,
    /// Where it publishes.
    pub events: Endpoint,
    /// Where it repeats messages.
    pub replay: Option<Endpoint>,
    /// What is subscribed to.
    pub topic: String,
}

/// Why a worker's events are not heard though it publishes them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadSource {
    #[error(transparent)]
    Address(#[from] BadEndpoint),
    #[error("port {0} of loopback is one of whoever dials it: publish at tcp://*:{0}")]
    Loopback(u16),
    #[error("its topic is longer than {TOPIC_BYTES_MAX} bytes")]
    Topic,
    #[error("no list of publishers")]
    Answer,
}

impl Source {
    /// The same as it can be dialled from another host than the worker's, `host`. At loopback there is whoever else listens
    /// on the host of this replica: another worker, it may be, whose messages would pass for this one's.
    fn reached_at(self, host: &str) -> Result<Self, BadSource> {
        let is_astray =
            |at: &Endpoint| at.host.as_deref().is_some_and(is_loopback) && !is_loopback(host);
        if is_astray(&self.events) {
            return Err(BadSource::Loopback(self.events.port));
        }
        // Without it gaps are not filled; that is no reason not to listen.
        let replay = self.replay.filter(|at| !is_astray(at));
        Ok(Self { replay, ..self })
    }
}

fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// What a worker's labels say; none if they say nothing. `host`: the worker's; `rank`: that of a worker that is one of
/// several at its address; `ranks`: how many engines are behind it, if that is known. Those that labels name are there in
/// any case.
/// Errors: a label is no address, or none of the worker's.
pub(super) fn of_labels(
    labels: &Labels,
    host: &str,
    rank: Option<u32>,
    ranks: Option<u32>,
) -> Result<Option<Vec<Source>>, BadSource> {
    let ranks: BTreeSet<u32> = match rank {
        Some(rank) => [rank].into(),
        None => {
            let named = labels.iter();
            let named = named.filter_map(|(name, _)| endpoint::rank_of(name));
            (0..ranks.unwrap_or(1).clamp(1, ENGINES_MAX))
                .chain(named)
                .collect()
        }
    };
    let label = |name: &str| labels.get(name);
    let mut sources = Vec::new();
    for rank in ranks.into_iter().take(ENGINES_MAX as usize) {
        let Some(events) = endpoint::of_rank(EVENTS, rank, label)? else {
            continue;
        };
        let source = Source {
            rank,
            events,
            replay: endpoint::of_rank(REPLAY, rank, label)?,
            topic: topic(labels.get(TOPIC).unwrap_or_default())?,
        };
        sources.push(source.reached_at(host)?);
    }
    Ok((!sources.is_empty()).then_some(sources))
}

fn topic(text: &str) -> Result<String, BadSource> {
    if text.len() > TOPIC_BYTES_MAX {
        return Err(BadSource::Topic);
    }
    Ok(text.to_owned())
}

/// What a worker at this host answers to `GET /kv_event_sources` (vLLM 0.31 and later); empty if it publishes nothing.
/// Errors: it is no such answer, or an address in it cannot be reached.
pub(super) fn of_answer(
    answer: &[u8],
    host: &str,
    rank: Option<u32>,
) -> Result<Vec<Source>, BadSource> {
    #[derive(Deserialize)]
    struct Publisher {
        #[serde(default)]
        enable_kv_cache_events: bool,
        #[serde(default)]
        publisher: Option<String>,
        endpoint: String,
        #[serde(default)]
        replay_endpoint: Option<String>,
        #[serde(default)]
        topic: String,
    }
    let publishers: BTreeMap<u32, Publisher> =
        serde_json::from_slice(answer).map_err(|_| BadSource::Answer)?;
    let wanted = publishers.into_iter().filter(|(of, publisher)| {
        rank.is_none_or(|rank| rank == *of)
            && publisher.enable_kv_cache_events
            && publisher.publisher.as_deref() == Some("zmq")
    });
    let sources = wanted.take(ENGINES_MAX as usize).map(|(rank, publisher)| {
        let replay = publisher.replay_endpoint.as_deref();
        let source = Source {
            rank,
            events: publisher.endpoint.parse()?,
            replay: replay.and_then(|address| address.parse().ok()),
            topic: topic(&publisher.topic)?,
        };
        source.reached_at(host)
    });
    sources.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "10.0.0.7";

    /// At the worker's own address.
    fn at(port: u16) -> Endpoint {
        format!("tcp://*:{port}").parse().expect("an address")
    }

    #[test]
    fn labels_name_one_address_for_all_ranks_or_one_for_each() {
        let labels = |texts: &[&str]| Labels::from_texts(texts.iter().copied()).expect("labels");
        let one = labels(&["kv.events=tcp://*:5557", "kv.events_topic=kv"]);
        let source = |rank, port, replay: Option<u16>| Source {
            rank,
            events: at(port),
            replay: replay.map(at),
            topic: "kv".into(),
        };
        let of =
            |labels: &Labels, rank, ranks| of_labels(labels, HOST, rank, ranks).expect("valid");
        assert_eq!(of(&one, None, None), Some(vec![source(0, 5557, None)]));
        assert_eq!(
            of(&one, Some(3), Some(4)),
            Some(vec![source(3, 5560, None)])
        );
        let two = labels(&[
            "kv.events=tcp://*:5557",
            "kv.events_replay=tcp://*:6000",
            "kv.events_replay.1=tcp://*:7000",
            "kv.events_topic=kv",
        ]);
        let expected = vec![source(0, 5557, Some(6000)), source(1, 5558, Some(7000))];
        assert_eq!(of(&two, None, Some(2)), Some(expected));
        assert_eq!(of(&labels(&["a=b"]), None, Some(2)), None);
        // Without one for all of them, whatever is known of their number.
        let each = labels(&[
            "kv.events.1=tcp://*:5601",
            "kv.events.3=tcp://*:5603",
            "kv.events_topic=kv",
        ]);
        let expected = vec![source(1, 5601, None), source(3, 5603, None)];
        for ranks in [None, Some(2), Some(4)] {
            assert_eq!(of(&each, None, ranks), Some(expected.clone()), "{ranks:?}");
        }
        assert_eq!(of(&each, Some(3), None), Some(expected[1..].to_vec()));
        let is_wrong = |text, rank, ranks| of_labels(&labels(&[text]), HOST, rank, ranks).is_err();
        assert!(is_wrong("kv.events=ipc://x", None, None));
        assert!(is_wrong("kv.events=tcp://*:65535", Some(1), None));
        assert!(is_wrong("kv.events=tcp://*:65535", None, Some(2)));
    }

    #[test]
    fn what_vllm_answers_is_read() {
        // As 0.32 answers, with a publisher that other hosts reach.
        let answer = br#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",
            "replay_endpoint":"tcp://127.0.0.1:28571","buffer_steps":100,"hwm":100000,"max_queue_size":100000,
            "topic":"kv-events"},
            "1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","topic":""},
            "2":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}"#;
        let first = Source {
            rank: 0,
            events: at(5557),
            replay: Some("tcp://127.0.0.1:28571".parse().expect("an address")),
            topic: "kv-events".into(),
        };
        let second = Source {
            rank: 1,
            events: at(5558),
            replay: None,
            topic: String::new(),
        };
        let of = |host, rank| of_answer(answer, host, rank).expect("an answer");
        for here in ["127.0.0.1", "::1", "localhost"] {
            assert_eq!(of(here, None), [first.clone(), second.clone()], "{here}");
        }
        // Dialled from elsewhere, that is another host's.
        let replay = None;
        assert_eq!(of(HOST, None), [Source { replay, ..first }, second.clone()]);
        assert_eq!(of(HOST, Some(1)), [second]);
        assert_eq!(of_answer(b"{}", HOST, None), Ok(Vec::new()));
        assert_eq!(of_answer(b"[]", HOST, None), Err(BadSource::Answer));
        let file =
            br#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///x"}}"#;
        assert!(matches!(
            of_answer(file, HOST, None),
            Err(BadSource::Address(_))
        ));
    }

    #[test]
    fn events_at_loopback_are_those_of_a_worker_there_alone() {
        let labels = |text: &str| Labels::from_texts([text]).expect("labels");
        for (address, expected) in [
            ("tcp://127.0.0.1:5557", Err(BadSource::Loopback(5557))),
            ("tcp://[::1]:5557", Err(BadSource::Loopback(5557))),
            ("tcp://localhost:5557", Err(BadSource::Loopback(5557))),
            ("tcp://10.0.0.8:5557", Ok(true)),
            ("tcp://*:5557", Ok(true)),
        ] {
            let of = |host| {
                let found = of_labels(&labels(&format!("kv.events={address}")), host, None, None);
                found.map(|found| found.is_some())
            };
            assert_eq!(of("gpu-1"), expected, "{address}");
            assert_eq!(of("127.0.0.1"), Ok(true), "{address}");
        }
    }
}
