//! `/v1/models`: the union of what all workers serve, from the cluster's own registry, and the aliases for it.
//!
//! Answered without asking a worker, so that a slow worker delays no client. The registry says which models there are,
//! the same on every replica; what is reported about each comes from its workers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use grapevine_placement::{Models, Target};
use serde_json::{Value, json};

use super::cards::{DIFFERS, Merged};

/// What may be asked for now: a name, and for an alias the target of the greatest weight.
#[derive(Debug)]
pub struct Catalog<'a>(BTreeMap<&'a str, Option<&'a str>>);

/// What workers say of a model.
pub type Said<'a> = &'a dyn Fn(&str) -> Arc<Merged>;

impl<'a> Catalog<'a> {
    /// From the models that workers serve, and the configured aliases. An alias of which nothing is served is not
    /// there.
    pub fn new(served: impl Iterator<Item = &'a str>, models: &'a Models) -> Self {
        let served: BTreeMap<&str, Option<&str>> = served.map(|model| (model, None)).collect();
        let mut names = served.clone();
        for (alias, targets) in models.aliases() {
            let served: Vec<&Target> = targets
                .iter()
                .filter(|target| served.contains_key(target.model.as_str()))
                .collect();
            let greatest = served.iter().min_by_key(|target| Reverse(target.weight));
            match greatest {
                // The request would be refused, also where workers serve a model of that name.
                None => names.remove(alias),
                // A model of its own, some of whose conversations go elsewhere.
                Some(_) if served.iter().any(|target| target.model == alias) => continue,
                Some(target) => names.insert(alias, Some(&target.model)),
            };
        }
        Self(names)
    }

    /// Leaves out what is not to be seen.
    pub fn retain(&mut self, is_seen: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_seen(name));
    }

    /// Body of `GET /v1/models`.
    pub fn list(&self, said: Said<'_>) -> Bytes {
        let cards = self.0.iter().map(|(id, target)| card(id, *target, said));
        let data: Vec<_> = cards.collect();
        json!({"object": "list", "data": data}).to_string().into()
    }

    /// Body of `GET /v1/models/{id}`; `None`: there is no such model.
    pub fn one(&self, id: &str, said: Said<'_>) -> Option<Bytes> {
        let target = self.0.get(id)?;
        Some(card(id, *target, said).to_string().into())
    }
}

/// The card that the model's workers give it. An alias has that of its target, with `root` and `parent` as vLLM gives
/// them to an adapter.
fn card(id: &str, target: Option<&str>, said: Said<'_>) -> Value {
    let said = said(target.unwrap_or(id));
    let mut fields = said.fields.clone();
    let mut default = |name: &str, value: Value| {
        fields.entry(name).or_insert(value);
    };
    // OpenAI's client requires it; no worker has reported when it was made.
    default("created", 0.into());
    default("owned_by", "grapevine".into());
    default("root", id.into());
    default("parent", Value::Null);
    fields.insert("id".to_owned(), id.into());
    fields.insert("object".to_owned(), "model".into());
    if let Some(target) = target {
        fields.insert("root".to_owned(), target.into());
        fields.insert("parent".to_owned(), target.into());
    }
    if !said.differs.is_empty() {
        fields.insert(DIFFERS.to_owned(), json!(said.differs));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::super::cards::Card;
    use super::*;
    use grapevine_placement::{ModelSettings, Weight};

    fn nothing(_: &str) -> Arc<Merged> {
        Arc::default()
    }

    #[test]
    fn a_model_shows_what_its_workers_say() {
        let models = models(&[("alias", &[("m", 1)])]);
        let catalog = Catalog::new(["m"].into_iter(), &models);
        let said = |model: &str| {
            let of = |length: u32| {
                let value = json!({"id": model, "created": 5, "owned_by": "vllm", "root": "/models/m", "parent": null,
                    "max_model_len": length});
                Card::of(value).expect("it has an id")
            };
            Arc::new(Merged::of([of(8), of(4)].iter()))
        };
        let one = |id: &str| -> Value {
            let body = catalog.one(id, &said).expect("there");
            serde_json::from_slice(&body).expect("JSON")
        };
        let expected = json!({"id": "m", "object": "model", "created": 5, "owned_by": "vllm", "root": "/models/m",
            "parent": null, "max_model_len": 4, "grapevine_differs": {"max_model_len": [4, 8]}});
        assert_eq!(one("m"), expected);
        let alias = one("alias");
        for (field, value) in [
            ("id", json!("alias")),
            ("root", json!("m")),
            ("parent", json!("m")),
            ("max_model_len", json!(4)),
        ] {
            assert_eq!(alias[field], value, "{field}");
        }
    }

    fn models(aliases: &[(&str, &[(&str, u32)])]) -> Models {
        let settings = |targets: &[(&str, u32)]| ModelSettings {
            targets: targets
                .iter()
                .map(|&(model, weight)| Target {
                    model: model.to_owned(),
                    weight: Weight::from_thousandths(weight).expect("in range"),
                })
                .collect(),
            ..ModelSettings::default()
        };
        let aliases = aliases.iter();
        Models::new(
            aliases
                .map(|&(name, targets)| (name.to_owned(), settings(targets)))
                .collect(),
        )
        .expect("well-formed")
    }

    #[test]
    fn list_has_openai_shape() {
        let none = Models::default();
        let list = Catalog::new(["b", "a"].into_iter(), &none).list(&nothing);
        let value: Value = serde_json::from_slice(&list).expect("JSON");
        assert_eq!(value["object"], "list");
        assert_eq!(value["data"][1]["id"], "b");
        assert_eq!(value["data"][1]["object"], "model");
        assert!(value["data"][0]["created"].is_i64() || value["data"][0]["created"].is_u64());
    }

    #[test]
    fn aliases_name_what_they_stand_for() {
        let models = models(&[
            ("alias", &[("a", 1), ("big", 9)]),
            ("b", &[("b", 9), ("a", 1)]),
            ("c", &[("gone", 1)]),
            ("half", &[("a", 1), ("gone", 9)]),
        ]);
        let catalog = Catalog::new(["a", "b", "big", "c"].into_iter(), &models);
        let ids: Vec<&str> = catalog.0.keys().copied().collect();
        assert_eq!(ids, ["a", "alias", "b", "big", "half"]);
        for (id, root, parent) in [
            ("a", "a", None),
            ("alias", "big", Some("big")),
            ("b", "b", None),
            ("half", "a", Some("a")),
        ] {
            let body = catalog.one(id, &nothing).expect("there");
            let value: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(value["id"], id);
            assert_eq!(value["root"], root, "{id}");
            assert_eq!(value["parent"].as_str(), parent, "{id}");
        }
        assert_eq!(catalog.one("c", &nothing), None);
        assert_eq!(catalog.one("nothing", &nothing), None);
    }
}
