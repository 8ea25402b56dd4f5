//! The form of Prometheus' file_sd: groups of targets with labels, in JSON or YAML. Pure.
//!
//! Labels are texts. Those that Grapevine knows may have the prefix `grapevine_`, which is stronger than the plain
//! name: so one file serves Prometheus and Grapevine, though a plain `zone` may mean something to both. Any other label
//! is passed over. `__scheme__` is Prometheus' own label for targets that name no scheme.

use std::collections::BTreeSet;
use std::fmt;

use grapevine_gossip::worker::WorkerId;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::description::{Description, KEYS};
use crate::picture::Found;

const PREFIX: &str = "grapevine_";
const SCHEME: &str = "__scheme__";

/// One group: targets that share their labels.
#[derive(Deserialize)]
#[serde(try_from = "RawGroup")]
pub(super) struct Group {
    targets: Vec<Target>,
    labels: Labels,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    targets: Vec<Target>,
    #[serde(default)]
    labels: Labels,
}

impl TryFrom<RawGroup> for Group {
    type Error = String;

    fn try_from(group: RawGroup) -> Result<Self, String> {
        let RawGroup { targets, labels } = group;
        if let Some(id) = labels.description.id.as_ref().filter(|_| targets.len() > 1) {
            let count = targets.len();
            return Err(format!(
                "the label id {id} stands for one worker, and this group has {count} targets; give each its own group"
            ));
        }
        Ok(Self { targets, labels })
    }
}

impl Group {
    /// How many workers it has.
    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }

    /// Its workers, each with a copy of the labels.
    pub(super) fn listed(&self) -> impl Iterator<Item = Result<(WorkerId, Found), String>> {
        self.targets.iter().map(|target| {
            let mut description = self.labels.description.clone();
            description.set_url(&target.url(self.labels.scheme))?;
            description.worker()
        })
    }
}

/// A worker's address, with or without scheme.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Target(String);

impl Target {
    fn url(&self, scheme: &str) -> String {
        if self.0.contains("://") {
            self.0.clone()
        } else {
            format!("{scheme}://{}", self.0)
        }
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let target = Self(text);
        Description::default().set_url(&target.url("http"))?;
        Ok(target)
    }
}

/// What a group's labels say of its workers.
struct Labels {
    scheme: &'static str,
    description: Description,
}

impl Default for Labels {
    fn default() -> Self {
        Self {
            scheme: "http",
            description: Description::default(),
        }
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LabelsVisitor)
    }
}

struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels, each a name and a text")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        let mut labels = Labels::default();
        // Keys that a label with the prefix has set.
        let mut settled = BTreeSet::new();
        while let Some(label) = map.next_key::<String>()? {
            let Some((key, has_prefix)) = known(&label) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if key == SCHEME {
                labels.scheme = map.next_value_seed(SchemeSeed)?;
                continue;
            }
            // A plain label is checked even where another one is stronger: whether a file is good does not depend on
            // the order of its labels.
            let mut weaker = labels.description.clone();
            let is_weaker = !has_prefix && settled.contains(key);
            let description = if is_weaker {
                &mut weaker
            } else {
                &mut labels.description
            };
            map.next_value_seed(LabelSeed { key, description })?;
            if has_prefix {
                settled.insert(key);
            }
        }
        Ok(labels)
    }
}

/// The key that a label stands for, and whether it has the prefix; none for a label of somebody else.
fn known(label: &str) -> Option<(&'static str, bool)> {
    if label == SCHEME {
        return Some((SCHEME, false));
    }
    let plain = label.strip_prefix(PREFIX);
    let name = match plain.unwrap_or(label) {
        "model" => "models",
        other => other,
    };
    let key = KEYS.into_iter().find(|key| *key == name)?;
    Some((key, plain.is_some()))
}

struct LabelSeed<'a> {
    key: &'static str,
    description: &'a mut Description,
}

impl<'de> DeserializeSeed<'de> for LabelSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let text = String::deserialize(deserializer)?;
        self.description
            .set_text(self.key, &text)
            .map_err(D::Error::custom)
    }
}

struct SchemeSeed;

impl<'de> DeserializeSeed<'de> for SchemeSeed {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "http" => Ok("http"),
            "https" => Ok("https"),
            other => Err(D::Error::custom(format!(
                "{SCHEME} {other:?} is not http or https"
            ))),
        }
    }
}
