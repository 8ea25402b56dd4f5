//! What workers say of a model in their own `/v1/models`, and what all of them together say of it.
//!
//! Pure. A worker's object is passed on with every field that it has, known here or not. Where workers of one model
//! differ, the least `max_model_len` is shown, which every worker takes; of any other field what the first worker by id
//! says, which is the same on every replica. What differs is shown besides, in [`DIFFERS`]. `created` and `permission`
//! are made anew with each of vLLM's answers and differ always: the least and the first are shown.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The field that shows what the workers of a model do not agree on: the values of each such field.
pub const DIFFERS: &str = "grapevine_differs";
/// Bytes of a worker's object; of a longer one nothing but the id is known.
const CARD_BYTES_MAX: usize = 4 * 1024;
/// Differing values of one field that are shown.
const VALUES_MAX: usize = 8;
/// Said anew each time.
const OF_THE_MOMENT: [&str; 2] = ["created", "permission"];
const LENGTH: &str = "max_model_len";

/// What a worker says of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Card(Map<String, Value>);

/// What the workers of a model say together.
#[derive(Debug, Default, PartialEq)]
pub struct Merged {
    /// The fields that are shown.
    pub fields: Map<String, Value>,
    /// Fields that workers do not agree on, with their values.
    pub differs: BTreeMap<String, Vec<Value>>,
}

impl Card {
    /// From an element of the worker's list; none without an id.
    pub fn of(object: Value) -> Option<Self> {
        let Value::Object(mut fields) = object else {
            return None;
        };
        let id = fields.get("id")?.as_str()?.to_owned();
        if Value::Object(fields.clone()).to_string().len() > CARD_BYTES_MAX {
            fields = Map::new();
            fields.insert("id".to_owned(), id.into());
        }
        Some(Self(fields))
    }

    /// The model's name.
    pub fn id(&self) -> &str {
        self.0.get("id").and_then(Value::as_str).unwrap_or_default()
    }

    /// What it says beyond the moment.
    fn lasting(&self) -> impl Iterator<Item = (&String, &Value)> {
        let fields = self.0.iter();
        fields.filter(|(name, _)| !OF_THE_MOMENT.contains(&name.as_str()))
    }
}

/// Whether a worker that said the first now says something else: what is made anew with each answer does not count.
pub fn is_news(said: &[Card], now: &[Card]) -> bool {
    !said
        .iter()
        .map(Card::lasting)
        .map(Iterator::collect::<Vec<_>>)
        .eq(now.iter().map(|card| card.lasting().collect::<Vec<_>>()))
}

impl Merged {
    /// `cards`: of one model, in the order of their workers' ids.
    pub fn of<'a>(cards: impl Iterator<Item = &'a Card>) -> Self {
        let mut merged = Self::default();
        for card in cards {
            for (name, value) in &card.0 {
                merged.add(name, value);
            }
        }
        for (name, values) in &mut merged.differs {
            values.sort_by_key(ToString::to_string);
            if name == LENGTH {
                values.sort_by_key(|value| value.as_u64());
            }
        }
        merged
    }

    fn add(&mut self, name: &str, value: &Value) {
        let Some(shown) = self.fields.get_mut(name) else {
            self.fields.insert(name.to_owned(), value.clone());
            return;
        };
        if shown == value {
            return;
        }
        if !OF_THE_MOMENT.contains(&name) {
            let first = shown.clone();
            let values = self.differs.entry(name.to_owned());
            let values = values.or_insert_with(|| vec![first]);
            if !values.contains(value) && values.len() < VALUES_MAX {
                values.push(value.clone());
            }
        }
        let is_least = name == LENGTH || name == "created";
        let less = |one: &Value, other: &Value| {
            one.as_u64().zip(other.as_u64()).is_some_and(|(a, b)| a < b)
        };
        if is_least && less(value, shown) {
            *shown = value.clone();
        }
    }

    /// The differences for a person; none if there are none.
    pub fn difference(&self) -> Option<String> {
        let fields = self.differs.iter().map(|(name, values)| {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            format!("{name}: {}", values.join(", "))
        });
        let fields: Vec<String> = fields.collect();
        (!fields.is_empty()).then(|| fields.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn card(value: Value) -> Card {
        Card::of(value).expect("it has an id")
    }

    #[test]
    fn what_workers_say_is_passed_and_what_differs_is_told() {
        let first = card(
            json!({"id": "m", "object": "model", "created": 20, "owned_by": "vllm", "root": "/a",
            "max_model_len": 8192, "permission": [{"id": "1"}], "unknown": {"x": 1}}),
        );
        let second = card(
            json!({"id": "m", "object": "model", "created": 10, "owned_by": "vllm", "root": "/b",
            "max_model_len": 4096, "permission": [{"id": "2"}]}),
        );
        let alone = Merged::of([&first].into_iter());
        assert_eq!(
            Value::Object(alone.fields.clone()),
            Value::Object(first.0.clone())
        );
        assert_eq!(alone.difference(), None);
        let both = Merged::of([&first, &second, &first].into_iter());
        let expected = json!({"id": "m", "object": "model", "created": 10, "owned_by": "vllm", "root": "/a",
            "max_model_len": 4096, "permission": [{"id": "1"}], "unknown": {"x": 1}});
        assert_eq!(Value::Object(both.fields.clone()), expected);
        let difference = both.difference().expect("two fields");
        assert_eq!(
            difference,
            "max_model_len: 4096, 8192; root: \"/a\", \"/b\""
        );
        assert_eq!(Merged::of([].into_iter()), Merged::default());
    }

    #[test]
    fn what_is_made_anew_with_each_answer_is_no_news() {
        let of = |created: u64, permission: &str, length: u64| {
            card(
                json!({"id": "m", "created": created, "permission": [{"id": permission}], "max_model_len": length}),
            )
        };
        let said = [of(1, "a", 8), card(json!({"id": "n"}))];
        assert!(!is_news(&said, &[of(2, "b", 8), card(json!({"id": "n"}))]));
        assert!(is_news(&said, &[of(1, "a", 9), card(json!({"id": "n"}))]));
        assert!(is_news(&said, &said[..1]));
        assert!(is_news(&[], &said) && !is_news(&[], &[]));
    }

    #[test]
    fn a_card_has_an_id_and_an_end() {
        for value in [json!(7), json!({}), json!({"id": 7})] {
            assert_eq!(Card::of(value), None);
        }
        let long = card(json!({"id": "m", "root": "x".repeat(CARD_BYTES_MAX)}));
        assert_eq!(long, card(json!({"id": "m"})));
        let many = (0..20).map(|number| card(json!({"id": "m", "root": number})));
        let many: Vec<Card> = many.collect();
        assert_eq!(Merged::of(many.iter()).differs["root"].len(), VALUES_MAX);
    }
}
