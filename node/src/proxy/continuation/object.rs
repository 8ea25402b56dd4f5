//! A JSON object whose members keep their order and their bytes, so that a change of one leaves the others as
//! they were written.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::api::request::Text;

/// Members in order, no name twice.
#[derive(Debug)]
pub(super) struct Object<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

impl<'a> Object<'a> {
    /// Reads an object; none for anything else, and for a name that is there twice: readers differ about which
    /// one counts.
    pub(super) fn parse(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The members.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (&**name, value.get().trim()))
    }

    /// A member as it was written; none where it is missing or `null`.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut named = self.members().filter(|(n, _)| *n == name);
        named
            .next()
            .map(|(_, json)| json)
            .filter(|json| *json != "null")
    }

    /// Sets a member, in its place or behind the others.
    pub(super) fn set(&mut self, name: &'static str, value: &impl Serialize) {
        let value = to_raw_value(value).expect("strings, numbers and objects of them serialise");
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = Cow::Owned(value),
            None => self.0.push((name.into(), Cow::Owned(value))),
        }
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| *n != name);
    }

    /// The object as JSON.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("members are JSON")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Object<'de>, M::Error> {
                let mut members = Vec::<(Cow<'de, str>, Cow<'de, RawValue>)>::new();
                while let Some((name, value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    if members.iter().any(|(known, _)| *known == name.0) {
                        return Err(de::Error::custom("a name is there twice"));
                    }
                    members.push((name.0, Cow::Borrowed(value)));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_members_keep_their_order_and_their_bytes() {
        let json = br#" {"z": 1.50e3 ,"a":{"n":[1, 2]}, "m":"\u0041"} "#;
        let mut object = Object::parse(json).expect("an object");
        assert_eq!(object.get("z"), Some("1.50e3"));
        object.set("a", &"new");
        object.set("b", &7);
        assert_eq!(
            String::from_utf8(object.to_vec()).expect("UTF-8"),
            r#"{"z":1.50e3,"a":"new","m":"\u0041","b":7}"#
        );
        object.remove("z");
        assert_eq!(object.get("z"), None);
    }

    #[test]
    fn what_readers_understand_differently_is_refused() {
        for json in ["[]", "1", r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#, "{"] {
            assert!(Object::parse(json.as_bytes()).is_none(), "{json}");
        }
        let object = Object::parse(br#"{"a":null}"#).expect("an object");
        assert_eq!(object.get("a"), None);
    }
}
