//! What a change made of a worker, in words: a description that is written anew replaces all of the former one, and the
//! operator who wrote it may have meant a part.

use std::fmt::{Display, Formatter, Result};

use grapevine_gossip::registry::Worker;
use grapevine_gossip::worker::{Source, WorkerSpec};

/// One part of a worker that is otherwise now; displayed as `role: prefill -> any`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which part, by the name that the admin API has for it.
    pub part: String,
    was: String,
    is: String,
}

impl Display for Change {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let shown = |part: &String| match part.as_str() {
            "" => "none".to_owned(),
            part => part.to_owned(),
        };
        let (was, is) = (shown(&self.was), shown(&self.is));
        write!(f, "{}: {was} -> {is}", self.part)
    }
}

/// What of a worker is otherwise now; empty if nothing is.
pub fn between(before: &Worker, after: &Worker) -> Vec<Change> {
    let mut changes = of_descriptions(&before.spec, &after.spec);
    for (name, is) in after.labels.iter() {
        let was = before.labels.get(name).unwrap_or_default();
        if was != is {
            changes.push(change(name, was, is));
        }
    }
    changes
}

/// Whose description counts, where that is another source now: with it goes who may end the worker.
pub fn of_sources(before: &[Source], after: &[Source]) -> Option<Change> {
    let (was, is) = before.first().zip(after.first())?;
    (was != is).then(|| change("described by", &was.to_string(), &is.to_string()))
}

/// The same of the descriptions alone, without labels.
pub fn of_descriptions(before: &WorkerSpec, after: &WorkerSpec) -> Vec<Change> {
    let pairs = described(before).into_iter().zip(described(after));
    pairs
        .filter(|(was, is)| was != is)
        .map(|((name, was), (_, is))| change(name, &was, &is))
        .collect()
}

/// Whether an administrator's description says something else than the file's: not in the state, nor in models of which
/// the file says nothing, which were learned.
pub fn overrules(known: &WorkerSpec, of_file: &WorkerSpec) -> bool {
    let changes = of_descriptions(of_file, known);
    let mut parts = changes.iter().map(|change| change.part.as_str());
    parts.any(|part| match part {
        "models" => !of_file.models().is_empty(),
        part => part != "state",
    })
}

fn change(part: &str, was: &str, is: &str) -> Change {
    let (part, was, is) = (part.to_owned(), was.to_owned(), is.to_owned());
    Change { part, was, is }
}

/// Each part of a description, as text; what is not set is empty.
fn described(spec: &WorkerSpec) -> [(&'static str, String); 8] {
    let number = |number: Option<u32>| number.map(|n| n.to_string()).unwrap_or_default();
    [
        ("url", spec.url().to_string()),
        ("models", spec.models().join(", ")),
        ("role", spec.role().as_str().to_owned()),
        (
            "weight",
            (f64::from(spec.weight_milli()) / 1000.0).to_string(),
        ),
        ("max_in_flight", number(spec.max_in_flight())),
        ("zone", spec.zone().unwrap_or_default().to_owned()),
        ("dp_size", number(spec.dp_size())),
        ("state", spec.state().as_str().to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use grapevine_gossip::worker::{Labels, RawWorker, Role, State};

    use super::*;

    fn worker(change: impl FnOnce(&mut RawWorker), labels: &[(&str, &str)]) -> Worker {
        let mut raw = RawWorker::at("http://w:8000");
        change(&mut raw);
        Worker {
            id: "w".parse().expect("an id"),
            spec: Arc::new(WorkerSpec::new(raw).expect("valid")),
            warming: None,
            labels: Arc::new(Labels::new(labels.iter().copied()).expect("valid")),
            is_drained: false,
            models_are_learned: false,
        }
    }

    #[test]
    fn every_part_that_is_otherwise_is_named() {
        let before = worker(
            |raw| {
                raw.role = Role::Prefill;
                raw.zone = Some("z1".to_owned());
                raw.models = vec!["a".to_owned()];
            },
            &[("kv.connector", "nixl"), ("kept", "x")],
        );
        let after = worker(
            |raw| raw.weight_milli = 2_500,
            &[("kv.connector", "mooncake"), ("kept", "x"), ("new", "1")],
        );
        let expected = [
            "models: a -> none",
            "role: prefill -> any",
            "weight: 1 -> 2.5",
            "zone: z1 -> none",
            "kv.connector: nixl -> mooncake",
            "new: none -> 1",
        ];
        let found: Vec<_> = between(&before, &after)
            .iter()
            .map(Change::to_string)
            .collect();
        assert_eq!(found, expected);
        assert!(between(&after, &after).is_empty());
    }

    #[test]
    fn an_administrator_overrules_the_file_in_what_the_file_says() {
        let models = |name: &'static str| move |raw: &mut RawWorker| raw.models = vec![name.into()];
        let weight = |milli| move |raw: &mut RawWorker| raw.weight_milli = milli;
        let check = |known: Worker, of_file: Worker, expected| {
            assert_eq!(overrules(&known.spec, &of_file.spec), expected, "{known:?}");
        };
        check(worker(weight(3_000), &[]), worker(|_| (), &[]), true);
        check(
            worker(weight(3_000), &[]),
            worker(weight(3_000), &[]),
            false,
        );
        check(
            worker(|_| (), &[]),
            worker(|raw| raw.zone = Some("c".into()), &[]),
            true,
        );
        check(worker(models("a"), &[]), worker(models("b"), &[]), true);
        check(worker(models("a"), &[]), worker(|_| (), &[]), false);
        check(
            worker(|raw| raw.state = State::Draining, &[]),
            worker(|_| (), &[]),
            false,
        );
    }
}
