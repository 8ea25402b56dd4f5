//! `/v1/models`: the union of what all workers serve, from the cluster's own registry, and the aliases for it.
//!
//! Answered without asking a worker, so that every replica gives the same answer and a slow worker delays nobody.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use grapevine_placement::{Models, Target};
use serde_json::json;

/// What may be asked for now: a name, and for an alias the target of the greatest weight.
#[derive(Debug)]
pub struct Catalog<'a>(BTreeMap<&'a str, Option<&'a str>>);

impl<'a> Catalog<'a> {
    /// From the models that workers serve, and the configured aliases. An alias of which nothing is served is not there.
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
    pub fn list(&self) -> Bytes {
        let cards = self.0.iter().map(|(id, target)| card(id, *target));
        let data: Vec<_> = cards.collect();
        json!({"object": "list", "data": data}).to_string().into()
    }

    /// Body of `GET /v1/models/{id}`; `None`: there is no such model.
    pub fn one(&self, id: &str) -> Option<Bytes> {
        let target = self.0.get(id)?;
        Some(card(id, *target).to_string().into())
    }
}

/// An alias has `root` and `parent` as vLLM gives them to an adapter.
fn card(id: &str, target: Option<&str>) -> serde_json::Value {
    json!({
        "id": id,
        "object": "model",
        // OpenAI's client requires it; the registry does not know when a model was made.
        "created": 0,
        "owned_by": "grapevine",
        "root": target.unwrap_or(id),
        "parent": target,
    })
}

#[cfg(test)]
mod tests {
    use grapevine_placement::{ModelSettings, Weight};
    use serde_json::Value;

    use super::*;

    fn models(aliases: &[(&str, &[(&str, u32)])]) -> Models {
        let settings = |targets: &[(&str, u32)]| ModelSettings {
            policy: None,
            targets: targets
                .iter()
                .map(|&(model, weight)| Target {
                    model: model.to_owned(),
                    weight: Weight::from_thousandths(weight).expect("in range"),
                })
                .collect(),
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
        let list = Catalog::new(["b", "a"].into_iter(), &none).list();
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
            let body = catalog.one(id).expect("there");
            let value: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(value["id"], id);
            assert_eq!(value["root"], root, "{id}");
            assert_eq!(value["parent"].as_str(), parent, "{id}");
        }
        assert_eq!(catalog.one("c"), None);
        assert_eq!(catalog.one("nothing"), None);
    }
}
