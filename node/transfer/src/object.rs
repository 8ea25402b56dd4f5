//! A JSON object member by member, each as it was written.
//!
//! Names are compared as they read, not as they are spelled: `\u006e` is `n` to every engine.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A member of an object.
pub(crate) struct Member<'a> {
    /// The name as it reads.
    pub(crate) name: Cow<'a, str>,
    /// The name as it was written, in quotes.
    pub(crate) key: &'a str,
    /// The value as it was written.
    pub(crate) value: &'a str,
}

/// Shows each member of an object, in its order; a name that is there twice comes twice.
pub(crate) fn each<'a>(
    json: &'a [u8],
    show: impl FnMut(Member<'a>),
) -> Result<(), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    Each(show).deserialize(&mut reader)?;
    reader.end()
}

struct Each<F>(F);

impl<'de, F: FnMut(Member<'de>)> DeserializeSeed<'de> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Member<'de>)> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<(), M::Error> {
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            let (key, value) = (key.get(), value.get());
            let name = text(key).ok_or_else(|| serde::de::Error::custom("a name is no text"))?;
            (self.0)(Member { name, key, value });
        }
        Ok(())
    }
}

/// A JSON string as it reads; none for anything else.
pub(crate) fn text(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// The last member of that name, as engines read it; none where it is missing or `null`.
pub(crate) fn get<'a>(json: &'a [u8], name: &str) -> Result<Option<&'a str>, serde_json::Error> {
    let mut found = None;
    each(json, |member| {
        if member.name == name {
            found = Some(member.value);
        }
    })?;
    Ok(found.filter(|value| *value != "null"))
}

/// An object that is being written.
pub(crate) struct ObjectWriter(Vec<u8>);

impl ObjectWriter {
    /// Of up to so many bytes without another allocation.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes + 2);
        out.push(b'{');
        Self(out)
    }

    /// Another object's member, as it was written there.
    pub(crate) fn copy(&mut self, member: &Member<'_>) {
        self.put(member.key, member.value);
    }

    /// A member of our own; `name` needs no escapes, `json` is JSON.
    pub(crate) fn set(&mut self, name: &str, json: &str) {
        self.separate();
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
        self.0.extend_from_slice(json.as_bytes());
    }

    fn put(&mut self, key: &str, json: &str) {
        self.separate();
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b':');
        self.0.extend_from_slice(json.as_bytes());
    }

    fn separate(&mut self) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
    }

    /// The object.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}
