//! Reports which workers of the configuration are not in the cluster, because an operator removed them.
//!
//! An operator who removes a worker is long gone when a replica starts with a file that names it, so the log reports it
//! once, with the command that brings it back.

use std::collections::{BTreeMap, BTreeSet};

use grapevine_gossip::Agent;
use grapevine_gossip::registry::TakenOut;
use grapevine_gossip::worker::{Labels, Role, WorkerId, WorkerSpec};
use serde::Serialize;
use serde_json::{Value, json};

use crate::shown::add_command::add_command;

/// A worker of the configuration that is not in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOutWorker {
    /// Its id.
    pub worker: String,
    /// Who took it out.
    pub by: &'static str,
    /// The command that brings it back.
    pub bring_back: String,
}

/// Remembers what was said.
#[derive(Debug, Default)]
pub struct LeftOut {
    said: BTreeSet<WorkerId>,
}

impl LeftOut {
    /// Looks at the workers of a configuration, after the cluster's registry was taken over, and returns those that are
    /// left out, in the order of the configuration. The log has each once. `labels`: those that it declares.
    pub fn look<'a>(
        &mut self,
        configured: impl Iterator<Item = (&'a WorkerId, &'a WorkerSpec)>,
        labels: &BTreeMap<WorkerId, Labels>,
        agent: &Agent,
    ) -> Vec<LeftOutWorker> {
        let mut left_out = Vec::new();
        let mut said = BTreeSet::new();
        for (id, spec) in configured {
            let Some(by) = agent.taken_out(id) else {
                continue;
            };
            let by = match by {
                TakenOut::ByAdmin => "an administrator removed it",
                TakenOut::ByReload => {
                    "a reload of the configuration, here or elsewhere, took it out"
                }
            };
            let bring_back = command(id, spec, labels.get(id));
            if !self.said.contains(id) {
                tracing::warn!(worker = %id, by, bring_back, "a worker of the configuration is left out");
            }
            said.insert(id.clone());
            left_out.push(LeftOutWorker {
                worker: id.to_string(),
                by,
                bring_back,
            });
        }
        // One that came back and is taken out again is news.
        self.said = said;
        left_out
    }
}

/// What adds the worker as the configuration describes it.
fn command(id: &WorkerId, spec: &WorkerSpec, labels: Option<&Labels>) -> String {
    let weight = f64::from(spec.weight_milli()) / 1000.0;
    let said = [
        ("url", Some(json!(spec.url().to_string()))),
        ("models", Some(json!(spec.models()))),
        ("weight", (weight != 1.0).then(|| weight.into())),
        (
            "role",
            (spec.role() != Role::Any).then(|| spec.role().as_str().into()),
        ),
        ("dp_size", spec.dp_size().map(Value::from)),
        ("max_in_flight", spec.max_in_flight().map(Value::from)),
        ("zone", spec.zone().map(Value::from)),
        ("labels", labels.map(|labels| labels.iter().collect())),
    ];
    let said = said.into_iter();
    let body = said.filter_map(|(member, value)| Some((member.to_owned(), value?)));
    let id = Some(id).filter(|id| **id != spec.default_id());
    add_command(id.map(WorkerId::as_str), &body.collect())
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::RawWorker;

    use super::*;

    #[test]
    fn the_command_says_all_that_the_file_says() {
        let check = |id: Option<&str>, raw: RawWorker, labels: Option<&Labels>, expected: &str| {
            let spec = WorkerSpec::new(raw).expect("valid");
            let id = id.map_or_else(|| spec.default_id(), |id| id.parse().expect("valid"));
            assert_eq!(command(&id, &spec, labels), expected);
        };
        let plain = RawWorker::at("http://w:8000");
        let bare = "grapevine workers add http://w:8000";
        check(None, plain.clone(), None, bare);
        // Without them a prefill worker would be asked by the default connector.
        let labels = [("kv_connector", "mooncake"), ("gpu", "h100")];
        let labels = Labels::new(labels).expect("valid");
        let labelled = format!("{bare} --label gpu=h100 --label kv_connector=mooncake");
        check(None, plain.clone(), Some(&labels), &labelled);
        let full = RawWorker {
            models: vec!["b".into(), "a".into()],
            weight_milli: 2500,
            role: Role::Decode,
            dp_size: Some(4),
            max_in_flight: Some(9),
            zone: Some("z1".into()),
            ..plain
        };
        check(
            Some("w1"),
            full,
            None,
            "grapevine workers add http://w:8000 --id w1 --model a --model b --weight 2.5 \
             --role decode --dp-size 4 --max-in-flight 9 --zone z1",
        );
    }
}
