//! What labels and annotations of a pod say about its workers, in our names and in those of other routers.
//!
//! Pure. A text that makes no sense is a [`Problem`] that names it, and leaves the default for that pod alone.

use std::fmt;
use std::str::FromStr;

use grapevine_gossip::worker::{DP_SIZE_MAX, Labels, RawWorker, Role, WorkerSpec, weight_milli};
use grapevine_transfer::ZMQ_FORMS;

use super::names::{
    BOOTSTRAP_PORT, CONNECTOR, DP_SIZE, ENGINE_ID, KV_ADDRESS, LABELS, MAX_IN_FLIGHT, MODELS,
    PORTS, ROLE, SCHEME, WEIGHT, ZONE,
};
use super::pod::Facts;
use crate::label::Declared;

/// Ports of one pod at most, as in the Gateway API's inference extension.
pub(super) const PORTS_MAX: usize = 8;
/// Longest text that is repeated in a problem.
const SHOWN_BYTES_MAX: usize = 64;

/// A label or annotation, or the whole pod, that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) pod: String,
    pub(super) what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "pod {}: {}", self.pod, self.what)
    }
}

/// Which requests a pod's workers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Serve(Role),
    /// Encodes images for others; takes no requests.
    Encode,
}

/// What a pod says; what it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) ports: Vec<u16>,
    pub(super) task: Option<Task>,
    pub(super) models: Vec<String>,
    pub(super) weight_milli: Option<u32>,
    pub(super) zone: Option<String>,
    pub(super) https: Option<bool>,
    pub(super) max_in_flight: Option<u32>,
    pub(super) dp_size: Option<u32>,
    pub(super) bootstrap_port: Option<u16>,
    pub(super) engine_ids: Vec<String>,
    pub(super) kv_connector: Option<String>,
    pub(super) kv_address: Option<String>,
    pub(super) labels: Labels,
}

impl Said {
    /// Reads all that the pod says; what makes no sense goes into `problems`.
    pub(super) fn read(pod: &Facts, problems: &mut Vec<Problem>) -> Self {
        let mut reader = Reader { pod, problems };
        let list = |text: &str| Some(split(text).map(str::to_owned).collect());
        let at_least_one = |number: &u32| *number >= 1;
        Self {
            ports: reader
                .read(PORTS, "1 to 8 different port numbers, as 8000,8001", ports)
                .unwrap_or_default(),
            task: reader.read(ROLE, "any, prefill, decode or encode", task),
            models: reader
                .read(MODELS, "names of models", |text| {
                    list(text).filter(|models| fits(|raw| raw.models.clone_from(models)))
                })
                .unwrap_or_default(),
            weight_milli: reader.read(WEIGHT, "a number from 0.001 to 100", weight),
            zone: reader.read(ZONE, "the name of a zone", |text| {
                let zone = Some(text.to_owned());
                zone.filter(|_| fits(|raw| raw.zone = Some(text.to_owned())))
            }),
            https: reader.read(SCHEME, "http or https", |text| match text {
                "http" => Some(false),
                "https" => Some(true),
                _ => None,
            }),
            max_in_flight: reader.read(MAX_IN_FLIGHT, "a number of 1 or more", |text| {
                number(text).filter(at_least_one)
            }),
            dp_size: reader.read(DP_SIZE, "a number from 1 to 1024", |text| {
                number(text).filter(|size| (1..=DP_SIZE_MAX).contains(size))
            }),
            bootstrap_port: reader.read(BOOTSTRAP_PORT, "a port number", |text| {
                number(text).filter(|port: &u16| *port > 0)
            }),
            engine_ids: reader
                .read(
                    ENGINE_ID,
                    "ids of up to 200 visible ASCII characters",
                    |text| list(text).filter(|ids| ids.iter().all(|id| is_value(id))),
                )
                .unwrap_or_default(),
            kv_connector: reader.read(CONNECTOR, "the name of a connector", |text| {
                declares(|of| of.kv_connector = Some(text.to_owned()))?;
                Some(text.to_owned())
            }),
            kv_address: reader.read(KV_ADDRESS, ZMQ_FORMS, |text| {
                declares(|of| of.kv_address = Some(text.to_owned()))?;
                Some(text.to_owned())
            }),
            labels: reader
                .read(
                    LABELS,
                    "labels that mean something, as name=value,name=value",
                    |text| {
                        let labels = Labels::from_texts(split(text)).ok()?;
                        declares(|of| of.labels = labels)
                    },
                )
                .unwrap_or_default(),
        }
    }
}

struct Reader<'a> {
    pod: &'a Facts,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    /// The first of these names that the pod has with a value, if it is `wanted`.
    fn read<T>(
        &mut self,
        names: &[&str],
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let said = &self.pod.said;
        let (name, text) = names
            .iter()
            .filter_map(|name| Some((name, said.get(*name)?.trim())))
            .find(|(_, text)| !text.is_empty())?;
        let value = read(text);
        if value.is_none() {
            let shown: String = text.chars().take(SHOWN_BYTES_MAX).collect();
            self.problems.push(Problem {
                pod: format!("{}/{}", self.pod.namespace, self.pod.name),
                what: format!("{name} is {shown:?}, not {wanted}; the default is used"),
            });
        }
        value
    }
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|one| !one.is_empty())
}

/// Whether a label may have this value.
fn is_value(text: &str) -> bool {
    Labels::new([("any", text)]).is_ok()
}

/// Whether a worker may be described so.
fn fits(describe: impl FnOnce(&mut RawWorker)) -> bool {
    let mut raw = RawWorker::at("http://localhost:8000");
    describe(&mut raw);
    WorkerSpec::new(raw).is_ok()
}

/// The labels of a worker of which this alone is declared, if it may be.
fn declares(set: impl FnOnce(&mut Declared)) -> Option<Labels> {
    let mut declared = Declared::default();
    set(&mut declared);
    declared.into_labels().ok()
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn ports(text: &str) -> Option<Vec<u16>> {
    let ports: Option<Vec<u16>> = split(text)
        .map(|one| number(one).filter(|port| *port > 0))
        .collect();
    let mut different = ports.clone()?;
    different.sort_unstable();
    different.dedup();
    ports.filter(|ports| (1..=PORTS_MAX).contains(&ports.len()) && different.len() == ports.len())
}

fn task(text: &str) -> Option<Task> {
    match text.to_ascii_lowercase().as_str() {
        // llm-d's words for workers that do several things. Whether one also encodes changes nothing here.
        "any" | "both" | "prefill-decode" | "encode-prefill-decode" => Some(Task::Serve(Role::Any)),
        "prefill" | "encode-prefill" => Some(Task::Serve(Role::Prefill)),
        "decode" => Some(Task::Serve(Role::Decode)),
        "encode" => Some(Task::Encode),
        _ => None,
    }
}

fn weight(text: &str) -> Option<u32> {
    weight_milli(number(text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::super::names::is_known;
    use super::*;

    fn read(said: &[(&str, &str)]) -> (Said, Vec<Problem>) {
        let pod = Facts {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            said: said
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
            ..Facts::default()
        };
        let mut problems = Vec::new();
        (Said::read(&pod, &mut problems), problems)
    }

    #[test]
    fn each_name_is_read_and_ours_comes_before_others() {
        type Check = fn(&Said) -> bool;
        let cases: [(&str, &str, Check); 21] = [
            ("grapevine/ports", "8000, 8001", |s| s.ports == [8000, 8001]),
            ("smg.ai/worker-ports", "9000", |s| s.ports == [9000]),
            ("model.aibrix.ai/port", "7000", |s| s.ports == [7000]),
            ("grapevine/role", "Prefill", |s| {
                s.task == Some(Task::Serve(Role::Prefill))
            }),
            ("llm-d.ai/role", "decode", |s| {
                s.task == Some(Task::Serve(Role::Decode))
            }),
            ("llm-d.ai/role", "both", |s| {
                s.task == Some(Task::Serve(Role::Any))
            }),
            ("llm-d.ai/role", "encode", |s| s.task == Some(Task::Encode)),
            ("llm-d.ai/role", "encode-prefill", |s| {
                s.task == Some(Task::Serve(Role::Prefill))
            }),
            ("llm-d.ai/role", "encode-prefill-decode", |s| {
                s.task == Some(Task::Serve(Role::Any))
            }),
            ("grapevine/models", "a/b,c", |s| s.models == ["a/b", "c"]),
            ("grapevine/weight", "0.5", |s| s.weight_milli == Some(500)),
            ("topology.kubernetes.io/zone", "z", |s| {
                s.zone.as_deref() == Some("z")
            }),
            ("grapevine/scheme", "https", |s| s.https == Some(true)),
            ("grapevine/max-in-flight", "9", |s| {
                s.max_in_flight == Some(9)
            }),
            ("grapevine/dp-size", "4", |s| s.dp_size == Some(4)),
            ("vllm.ai/bootstrap-port", "8998", |s| {
                s.bootstrap_port == Some(8998)
            }),
            ("sglang.ai/bootstrap-port", "8999", |s| {
                s.bootstrap_port == Some(8999)
            }),
            ("smg.ai/kv-connector", "MooncakeConnector", |s| {
                s.kv_connector.as_deref() == Some("MooncakeConnector")
            }),
            ("grapevine/kv-address", "10.0.0.1:5557", |s| {
                s.kv_address.as_deref() == Some("10.0.0.1:5557")
            }),
            ("grapevine/labels", "kv.tp_size=8, x=y", |s| {
                s.labels.get("kv.tp_size") == Some("8") && s.labels.get("x") == Some("y")
            }),
            ("smg.ai/kv-engine-id", "e0,e1", |s| {
                s.engine_ids == ["e0", "e1"]
            }),
        ];
        for (name, text, holds) in cases {
            let (said, problems) = read(&[(name, text)]);
            assert!(
                is_known(name) && holds(&said),
                "{name}={text} gives {said:?}"
            );
            assert_eq!(problems, [], "{name}={text}");
        }
        let both = read(&[("llm-d.ai/role", "decode"), ("grapevine/role", "any")]);
        assert_eq!(both.0.task, Some(Task::Serve(Role::Any)));
    }

    #[test]
    fn a_label_without_a_value_says_nothing() {
        assert_eq!(
            read(&[("topology.kubernetes.io/zone", "")]),
            (Said::default(), vec![])
        );
        let (said, problems) = read(&[("grapevine/role", " "), ("llm-d.ai/role", "decode")]);
        assert_eq!(said.task, Some(Task::Serve(Role::Decode)));
        assert_eq!(problems, []);
    }

    #[test]
    fn what_makes_no_sense_is_named_and_leaves_the_default() {
        let cases = [
            ("grapevine/ports", "0"),
            ("grapevine/ports", "8000,8000"),
            ("grapevine/ports", "http"),
            ("grapevine/ports", "1,2,3,4,5,6,7,8,9"),
            ("grapevine/role", "boss"),
            ("grapevine/weight", "0"),
            ("grapevine/weight", "101"),
            ("grapevine/weight", "nan"),
            ("grapevine/scheme", "ftp"),
            ("grapevine/max-in-flight", "0"),
            ("grapevine/dp-size", "1025"),
            ("vllm.ai/bootstrap-port", "70000"),
            ("grapevine/kv-connector", "a b"),
            ("smg.ai/kv-connector", "carrier_pigeon"),
            ("grapevine/kv-address", "a b"),
            ("grapevine/kv-address", "foo"),
            ("grapevine/zone", "rack 7"),
            ("grapevine/models", "a\u{7}b"),
            ("grapevine/labels", "kv.events=ipc:///tmp/events"),
            ("grapevine/engine-id", "a b"),
            ("grapevine/labels", "a"),
        ];
        for (name, text) in cases {
            let (said, problems) = read(&[(name, text)]);
            assert_eq!(said, Said::default(), "{name}={text}");
            let [problem] = problems.as_slice() else {
                panic!("{name}={text} gives {problems:?}");
            };
            let problem = problem.to_string();
            assert!(
                problem.starts_with("pod n/p: ") && problem.contains(name),
                "{problem}"
            );
        }
    }
}
