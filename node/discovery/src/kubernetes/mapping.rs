//! Pod → workers.
//!
//! Pure. A worker is a port of a pod's name: one that is made anew under its old name, as a StatefulSet does, keeps its
//! place on the ring. That its cache is empty is known by the start of its process; what is said of the old pod, by its
//! uid, no longer concerns it (`board.rs`).

use std::net::IpAddr;

use grapevine_gossip::worker::{
    ID_BYTES_MAX, Labels, RawWorker, Role, WorkerError, WorkerId, WorkerSpec,
};

use super::labels::{Problem, Said, Task};
use super::pod::Facts;
use crate::label::{self, Declared};
use crate::picture::Found;

/// What holds for pods that say nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) port: u16,
    pub(super) https: bool,
}

/// One worker of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodWorker {
    pub(super) id: WorkerId,
    pub(super) found: Found,
}

/// The workers of a pod. `role` is what its selector says, which counts more than its labels.
///
/// None while it has no address, once it has ended, and if it only encodes.
pub(super) fn workers(
    pod: &Facts,
    role: Option<Role>,
    defaults: Defaults,
    problems: &mut Vec<Problem>,
) -> Vec<PodWorker> {
    if !pod.is_alive || pod.ip.is_empty() || pod.uid.is_empty() {
        return Vec::new();
    }
    let mut problem = |what: String| {
        problems.push(Problem {
            pod: format!("{}/{}", pod.namespace, pod.name),
            what,
        });
    };
    let Ok(ip) = pod.ip.parse::<IpAddr>() else {
        problem(format!("its address {:?} is none; it is left out", pod.ip));
        return Vec::new();
    };
    let mut said = Said::read(pod, problems);
    let role = match (role, said.task) {
        (Some(role), _) | (None, Some(Task::Serve(role))) => role,
        (None, None) => Role::Any,
        (None, Some(Task::Encode)) => return Vec::new(),
    };
    if said.ports.is_empty() {
        said.ports.push(defaults.port);
    }
    let mut workers = Vec::with_capacity(said.ports.len());
    for (at, port) in said.ports.iter().copied().enumerate() {
        let mut problem = |what: String| {
            problems.push(Problem {
                pod: format!("{}/{}", pod.namespace, pod.name),
                what,
            });
        };
        let labels = labels(&said, at).unwrap_or_else(|why| {
            problem(format!("port {port} has no labels: {why}"));
            Labels::default()
        });
        match worker(pod, (ip, port), role, &said, defaults, labels) {
            Ok(worker) => workers.push(worker),
            Err(why) => problem(format!("port {port} is left out: {why}")),
        }
    }
    workers
}

fn worker(
    pod: &Facts,
    (ip, port): (IpAddr, u16),
    role: Role,
    said: &Said,
    defaults: Defaults,
    labels: Labels,
) -> Result<PodWorker, WorkerError> {
    let is_tls = said.https.unwrap_or(defaults.https);
    let scheme = if is_tls { "https" } else { "http" };
    let host = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let mut raw = RawWorker::at(format!("{scheme}://{host}:{port}"));
    raw.role = role;
    raw.models.clone_from(&said.models);
    raw.weight_milli = said.weight_milli.unwrap_or(raw.weight_milli);
    raw.zone.clone_from(&said.zone);
    raw.max_in_flight = said.max_in_flight;
    raw.dp_size = said.dp_size;
    let spec = WorkerSpec::new(raw)?;
    Ok(PodWorker {
        id: id(pod, port)?,
        found: Found::new(&spec, pod.is_ready)?.labelled(labels),
    })
}

/// What the pod says of the worker at its port number `at`, counted from 0, beyond a description.
fn labels(said: &Said, at: usize) -> Result<Labels, WorkerError> {
    let engine_id = said.engine_ids.get(at);
    let engine_id = Labels::new(engine_id.map(|id| (label::ENGINE_ID, id.as_str())))?;
    let declared = Declared {
        kv_connector: said.kv_connector.clone(),
        bootstrap_port: said.bootstrap_port,
        kv_address: said.kv_address.clone(),
        labels: said.labels.overlaid_with(&engine_id)?,
    };
    declared.into_labels()
}

/// `namespace/name:port`; of a name that is too long, `uid:port`.
fn id(pod: &Facts, port: u16) -> Result<WorkerId, WorkerError> {
    let Facts {
        namespace,
        name,
        uid,
        ..
    } = pod;
    let long = format!("{namespace}/{name}:{port}");
    if long.len() <= ID_BYTES_MAX {
        long.parse()
    } else {
        format!("{uid}:{port}").parse()
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::{LABELS_MAX, State};
    use serde_json::{Value, json};

    use super::super::pod::Pod;
    use super::*;

    const DEFAULTS: Defaults = Defaults {
        port: 8000,
        https: false,
    };

    fn pod() -> Value {
        json!({
            "metadata": { "namespace": "ml", "name": "vllm-0", "uid": "u1", "resourceVersion": "7" },
            "spec": { "containers": [] },
            "status": { "phase": "Running", "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": "True" }] },
        })
    }

    fn mapped(pod: Value, role: Option<Role>) -> (Vec<PodWorker>, Vec<Problem>) {
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let mut problems = Vec::new();
        let found = workers(&Facts::from(&pod), role, DEFAULTS, &mut problems);
        (found, problems)
    }

    fn with(path: &str, value: Value) -> Value {
        let mut pod = pod();
        let (above, last) = path.rsplit_once('/').expect("a pointer");
        let parent = pod.pointer_mut(above).expect("it is there");
        parent[last.replace("~1", "/")] = value;
        pod
    }

    fn annotated(texts: &[(&str, &str)]) -> Value {
        let texts: serde_json::Map<String, Value> = texts
            .iter()
            .map(|(name, text)| ((*name).to_owned(), json!(text)))
            .collect();
        with("/metadata/annotations", Value::Object(texts))
    }

    #[test]
    fn a_ready_pod_is_one_active_worker() {
        let (found, problems) = mapped(pod(), None);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].id.as_str(), "ml/vllm-0:8000");
        let spec = found[0].found.spec();
        assert_eq!(spec.url().base(), "http://10.0.0.1:8000");
        assert_eq!((spec.role(), spec.state()), (Role::Any, State::Active));
        assert_eq!(problems, []);
    }

    #[test]
    fn what_a_pod_goes_through_decides_whether_it_is_used_known_or_gone() {
        let unready = json!([{ "type": "Ready", "status": "False" }]);
        let other = json!([{ "type": "Initialized", "status": "True" }]);
        let cases = [
            ("ready", pod(), Some(true)),
            (
                "not ready",
                with("/status/conditions", unready),
                Some(false),
            ),
            (
                "no Ready condition",
                with("/status/conditions", other),
                Some(false),
            ),
            (
                "deleted",
                with("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
                Some(false),
            ),
            (
                "pending with an address",
                with("/status/phase", json!("Pending")),
                Some(false),
            ),
            (
                "unknown phase: its node is silent",
                with("/status/phase", json!("Unknown")),
                Some(false),
            ),
            ("failed", with("/status/phase", json!("Failed")), None),
            ("ended", with("/status/phase", json!("Succeeded")), None),
            ("address cleared", with("/status/podIP", json!("")), None),
            ("no address yet", with("/status/podIP", Value::Null), None),
            ("no status yet", with("/status", Value::Null), None),
            (
                "an address that is none",
                with("/status/podIP", json!("x")),
                None,
            ),
        ];
        for (what, pod, expected) in cases {
            let (found, _) = mapped(pod, None);
            let used = found.first().map(|worker| worker.found.is_ready());
            assert_eq!(used, expected, "{what}");
        }
    }

    #[test]
    fn identity_is_name_and_port_and_not_the_address() {
        let id = |pod| mapped(pod, None).0[0].id.clone();
        assert_eq!(id(pod()), id(with("/status/podIP", json!("10.0.0.9"))));
        assert_eq!(id(pod()), id(with("/metadata/uid", json!("u2"))));
        assert_ne!(id(pod()), id(with("/metadata/name", json!("vllm-1"))));
        let long = with("/metadata/name", json!("n".repeat(ID_BYTES_MAX)));
        assert_eq!(id(long).as_str(), "u1:8000");
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets() {
        let (found, _) = mapped(with("/status/podIP", json!("fd00::1")), None);
        assert_eq!(found[0].found.spec().url().base(), "http://[fd00::1]:8000");
    }

    #[test]
    fn each_port_is_a_worker_of_its_own() {
        let (found, _) = mapped(annotated(&[("smg.ai/worker-ports", "8000,8001")]), None);
        let ids: Vec<_> = found.iter().map(|worker| worker.id.as_str()).collect();
        assert_eq!(ids, ["ml/vllm-0:8000", "ml/vllm-0:8001"]);
    }

    #[test]
    fn what_a_pod_says_of_transfers_are_labels_of_each_port() {
        let said = annotated(&[
            ("smg.ai/worker-ports", "8000,8001"),
            ("smg.ai/kv-engine-id", "e0,e1"),
            ("vllm.ai/bootstrap-port", "8998"),
            ("smg.ai/kv-connector", "MooncakeConnector"),
        ]);
        let (found, problems) = mapped(said, None);
        assert_eq!(problems, []);
        for (worker, id) in found.iter().zip(["e0", "e1"]) {
            let expected = [
                ("kv.bootstrap_port", "8998"),
                ("kv.connector", "MooncakeConnector"),
                ("kv.engine_id", id),
            ];
            let labels: Vec<_> = worker.found.labels().iter().collect();
            assert_eq!(labels, expected);
        }
        assert!(mapped(pod(), None).0[0].found.labels().is_empty());
    }

    #[test]
    fn a_selector_says_more_about_the_role_than_labels() {
        let labelled = || annotated(&[("llm-d.ai/role", "decode")]);
        let role = |pod, selector| mapped(pod, selector).0[0].found.spec().role();
        assert_eq!(role(labelled(), None), Role::Decode);
        assert_eq!(role(labelled(), Some(Role::Prefill)), Role::Prefill);
        let encoder = annotated(&[("llm-d.ai/role", "encode")]);
        assert_eq!(mapped(encoder, None).0, []);
    }

    #[test]
    fn a_bad_label_costs_its_pod_only_what_the_label_says() {
        let pod = annotated(&[("grapevine/weight", "heavy"), ("grapevine/models", "m")]);
        let (found, problems) = mapped(pod, None);
        let spec = found[0].found.spec();
        assert_eq!(
            (spec.weight_milli(), spec.models()),
            (1000, &["m".to_owned()][..])
        );
        assert_eq!(problems.len(), 1);
        // Labels that make sense one by one and not together: here, too many.
        let many: Vec<String> = (0..LABELS_MAX).map(|n| format!("x{n}=1")).collect();
        let pod = annotated(&[
            ("grapevine/labels", &many.join(",")),
            ("grapevine/kv-connector", "nixl"),
        ]);
        let (found, problems) = mapped(pod, None);
        assert_eq!((found.len(), problems.len()), (1, 1), "{problems:?}");
        assert!(
            problems[0].what.contains("has no labels"),
            "{}",
            problems[0]
        );
    }
}
