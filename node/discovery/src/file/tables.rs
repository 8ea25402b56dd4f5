//! The form of the configuration's workers: `[[worker]]` tables in TOML. Pure.
//!
//! Without `api_key`: a file of workers is a list for all replicas, and secrets are each replica's own.

use std::collections::BTreeMap;
use std::fmt;

use grapevine_gossip::worker::{Labels, WorkerId};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::description::{Description, KEYS};
use crate::picture::Found;

/// The workers of a file, in its order.
pub(super) type Listed = Vec<(WorkerId, Found)>;

/// The keys of a table: the address, and those of every form.
const FIELDS: [&str; KEYS.len() + 1] = {
    let mut fields = ["url"; KEYS.len() + 1];
    let mut at = 0;
    while at < KEYS.len() {
        fields[at + 1] = KEYS[at];
        at += 1;
    }
    fields
};

/// A whole file. The key has to be there: a file that somebody is about to write has none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    worker: Vec<Table>,
}

impl Document {
    /// The workers that it describes.
    pub(super) fn listed(self) -> Result<Listed, String> {
        let tables = self.worker.into_iter();
        tables.map(|table| table.0.worker()).collect()
    }
}

struct Table(Description);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = Table;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a [[worker]] table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
        let mut description = Description::default();
        let mut has_url = false;
        while let Some(key) = map.next_key::<String>()? {
            let description = &mut description;
            has_url |= key == "url";
            map.next_value_seed(ValueSeed { key, description })?;
        }
        if has_url {
            Ok(Table(description))
        } else {
            Err(A::Error::missing_field("url"))
        }
    }
}

struct ValueSeed<'a> {
    key: String,
    description: &'a mut Description,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let description = self.description;
        let set = match self.key.as_str() {
            "url" => description.set_url(&String::deserialize(value)?),
            "id" => description.set_id(&String::deserialize(value)?),
            "models" => {
                let models = Vec::deserialize(value)?;
                description.with(|raw, _| raw.models = models)
            }
            "weight" => description.set_weight(f64::deserialize(value)?),
            "max_in_flight" => {
                let limit = u32::deserialize(value)?;
                description.with(|raw, _| raw.max_in_flight = Some(limit))
            }
            "zone" => {
                let zone = String::deserialize(value)?;
                description.with(|raw, _| raw.zone = Some(zone))
            }
            "role" => description.set_role(&String::deserialize(value)?),
            "dp_size" => {
                let size = u32::deserialize(value)?;
                description.with(|raw, _| raw.dp_size = Some(size))
            }
            "kv_connector" => {
                let connector = String::deserialize(value)?;
                description.with(|_, declared| declared.kv_connector = Some(connector))
            }
            "bootstrap_port" => {
                let port = u16::deserialize(value)?;
                description.with(|_, declared| declared.bootstrap_port = Some(port))
            }
            "kv_address" => {
                let address = String::deserialize(value)?;
                description.with(|_, declared| declared.kv_address = Some(address))
            }
            "labels" => {
                let labels = Labels::new(BTreeMap::<String, String>::deserialize(value)?);
                let labels = labels.map_err(D::Error::custom)?;
                description.with(|_, declared| declared.labels = labels)
            }
            other => return Err(D::Error::unknown_field(other, &FIELDS)),
        };
        set.map_err(D::Error::custom)
    }
}
