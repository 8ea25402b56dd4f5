//! JSON that is borrowed from its bytes: a text, and an object of raw members.
//!
//! A body is read by four readers. `request` reads what placement needs, for every request and in one pass; `canonical`
//! of the cache digests all of it in one pass and keeps nothing. Both are on the way of each request, where a list of
//! members in between would cost a second pass. The other two, `continuation` and `warmup`, work on few requests and
//! write a changed body: [`RawObject`] is for them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// A string that borrows from the body when it holds no escapes.
///
/// `Option<Cow<str>>` would always copy: serde borrows only through a visitor of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }
            fn visit_string<E: de::Error>(self, v: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A text that may be long, as prompts are.
///
/// Read as bytes: `serde_json` finds their end by `memchr` then, where it goes through a string for control characters, too,
/// at eight bytes a step, which took an eighth of a request with a prompt of 8 KB. So whoever reads it has to know that the
/// JSON has no control character in a string: that is so of every [`RawValue`], and of what [`check_controls`] admits.
#[derive(Debug)]
pub(super) struct Prose<'a>(pub(super) Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Prose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ProseVisitor;
        impl<'de> Visitor<'de> for ProseVisitor {
            type Value = Prose<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_bytes<E: de::Error>(self, v: &'de [u8]) -> Result<Prose<'de>, E> {
                borrowed_text(v).map(Prose)
            }
            fn visit_bytes<E: de::Error>(self, v: &[u8]) -> Result<Prose<'de>, E> {
                owned_text(v).map(Prose)
            }
        }
        deserializer.deserialize_bytes(ProseVisitor)
    }
}

/// What is said of a string that is no text.
pub(super) const NO_TEXT: &str = "no text: half of a surrogate pair, as \\ud83d without the escape that follows it, or \
                                  bytes that are not UTF-8";

/// The text that a string without escapes has in the JSON itself, for a visitor of [`Prose`]'s kind.
pub(super) fn borrowed_text<E: de::Error>(bytes: &[u8]) -> Result<Text<'_>, E> {
    let text = simdutf8::basic::from_utf8(bytes);
    text.map(|text| Text(Cow::Borrowed(text)))
        .map_err(|_| E::custom(NO_TEXT))
}

/// The same of a string whose escapes were read.
pub(super) fn owned_text<'a, E: de::Error>(bytes: &[u8]) -> Result<Text<'a>, E> {
    borrowed_text(bytes).map(|text: Text<'_>| Text(Cow::Owned(text.0.into_owned())))
}

/// Refuses JSON with a control character in a string (RFC 8259, section 7), which [`Prose`] does not look for.
///
/// Between strings there may be some, in JSON that was written for people: only that is gone through.
///
/// # Errors
/// What is wrong with the JSON, be it that or something else.
pub(super) fn check_controls(json: &[u8]) -> serde_json::Result<()> {
    let least = json.iter().fold(u8::MAX, |least, byte| least.min(*byte));
    match least < b' ' {
        true => serde_json::from_slice::<IgnoredAny>(json).map(drop),
        false => Ok(()),
    }
}

/// An object whose members keep their order and their bytes, so that a change of one leaves the others as they were
/// written. No name twice.
#[derive(Debug)]
pub(crate) struct RawObject<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

impl<'a> RawObject<'a> {
    /// Reads an object; none for anything else, and for a name that is there twice: readers differ about which
    /// one counts.
    pub(crate) fn parse(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The members.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (&**name, value.get().trim()))
    }

    /// A member as it was written; none where it is missing or `null`.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut named = self.members().filter(|(n, _)| *n == name);
        named
            .next()
            .map(|(_, json)| json)
            .filter(|json| *json != "null")
    }

    /// Sets a member, in its place or behind the others.
    pub(crate) fn set(&mut self, name: &'static str, value: &impl Serialize) {
        let value = to_raw_value(value).expect("strings, numbers and objects of them serialise");
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = Cow::Owned(value),
            None => self.0.push((name.into(), Cow::Owned(value))),
        }
    }

    /// Takes a member out.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| *n != name);
    }

    /// The object as JSON.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("members are JSON")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = RawObject<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RawObject<'de>, M::Error> {
                let mut members = Vec::<(Cow<'de, str>, Cow<'de, RawValue>)>::new();
                while let Some((name, value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    members.push((name.0, Cow::Borrowed(value)));
                }
                // Sorted: a client may send a million of them.
                let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
                names.sort_unstable();
                if names.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err(de::Error::custom("a name is there twice"));
                }
                Ok(RawObject(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl Serialize for RawObject<'_> {
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
        let mut object = RawObject::parse(json).expect("an object");
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
            assert!(RawObject::parse(json.as_bytes()).is_none(), "{json}");
        }
        let object = RawObject::parse(br#"{"a":null}"#).expect("an object");
        assert_eq!(object.get("a"), None);
    }
}
