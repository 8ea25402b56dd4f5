//! One digest for all the ways to write the same JSON.
//!
//! White space, escapes, and the order of the body's own keys do not count; every other difference does: `1` and `1.0` are
//! two values, since a worker may tell them apart, and so are two orders of keys inside of a value, since engines write
//! tools into the prompt, and answer by a schema, in the order that they are given. One pass that keeps nothing but the digests of the objects
//! that are open, so a body costs no memory that its depth does not (serde_json stops at 128 levels).
//!
//! What cannot be read without doubt has no digest: a repeated key (readers differ about which one counts),
//! a number whose digits a 64-bit float does not hold, a surrogate without its half.

use std::fmt;

use ring::digest::{Context, SHA256};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::api::json::Text;

/// SHA-256.
pub(super) type Digest = [u8; 32];

/// From here on a float may stand for an integer that lost digits.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// What was read of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Canonical {
    /// Equal for equal meaning, and for nothing else.
    pub(super) digest: Digest,
    /// It names content that lies elsewhere and may change there: a URL that is no `data:`.
    pub(super) refers_elsewhere: bool,
}

/// Reads a JSON object; its own fields named in `left_out` do not count.
/// Errors: it is no JSON object, or none that can be read without doubt.
pub(super) fn read(json: &[u8], left_out: &[&str]) -> Result<Canonical, serde_json::Error> {
    let mut context = Context::new(&SHA256);
    let mut refers_elsewhere = false;
    let mut reader = serde_json::Deserializer::from_slice(json);
    let top = Feed {
        into: &mut context,
        refers_elsewhere: &mut refers_elsewhere,
        names: Names::Nothing,
        left_out: Some(left_out),
    };
    top.deserialize(&mut reader)?;
    reader.end()?;
    Ok(Canonical {
        digest: finished(context),
        refers_elsewhere,
    })
}

/// Feeds one value into a digest. Every value begins with its tag and tells its own length, so no two
/// sequences of values feed the same bytes.
struct Feed<'a> {
    into: &'a mut Context,
    refers_elsewhere: &'a mut bool,
    names: Names,
    /// Only at the top, where only an object may stand: its fields that do not count.
    left_out: Option<&'a [&'a str]>,
}

/// What a text stands for, by the key that it is the value of.
#[derive(Debug, Clone, Copy)]
enum Names {
    Nothing,
    /// A URL.
    Url,
    /// A picture, a film or a sound: the URL of one, or what it is made of.
    Media,
}

impl Names {
    fn of(key: &str) -> Self {
        match key {
            "image" | "images" | "video" | "videos" | "audio" | "audios" => Self::Media,
            "url" => Self::Url,
            _ if key.ends_with("_url") => Self::Url,
            _ => Self::Nothing,
        }
    }

    /// Whether this text is the place of something that may be another thing the next time.
    fn is_elsewhere(self, text: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Url => !text.starts_with("data:"),
            Self::Media => text.contains("://"),
        }
    }
}

impl Feed<'_> {
    fn tagged(self, tag: u8, bytes: &[u8]) {
        self.into.update(&[tag]);
        self.into.update(bytes);
    }

    fn nested<'b>(&'b mut self, into: &'b mut Context, names: Names) -> Feed<'b> {
        Feed {
            into,
            refers_elsewhere: self.refers_elsewhere,
            names,
            left_out: None,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Feed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.left_out.is_some() {
            deserializer.deserialize_map(self)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Feed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.tagged(b'n', &[]);
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.tagged(b'b', &[value.into()]);
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.tagged(b'u', &value.to_le_bytes());
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.tagged(b'i', &value.to_le_bytes());
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        if value.abs() >= EXACT_MAX {
            return Err(E::custom("a number beyond 64 bits"));
        }
        self.tagged(b'f', &value.to_bits().to_le_bytes());
        Ok(())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        *self.refers_elsewhere |= self.names.is_elsewhere(value);
        self.into.update(b"s");
        text(self.into, value);
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        let into = &mut *self.into;
        into.update(b"[");
        loop {
            let item = Feed {
                into: &mut *into,
                refers_elsewhere: &mut *self.refers_elsewhere,
                names: self.names,
                left_out: None,
            };
            if items.next_element_seed(item)?.is_none() {
                break;
            }
        }
        into.update(b"]");
        Ok(())
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut entries: M) -> Result<(), M::Error> {
        let left_out = self.left_out.unwrap_or_default();
        let mut members: Vec<(Text<'de>, Digest)> = Vec::new();
        while let Some(key) = entries.next_key::<Text<'de>>()? {
            let mut context = Context::new(&SHA256);
            entries.next_value_seed(self.nested(&mut context, Names::of(&key.0)))?;
            if !left_out.contains(&&*key.0) {
                members.push((key, finished(context)));
            }
        }
        let mut sorted: Vec<&(Text<'de>, Digest)> = members.iter().collect();
        sorted.sort_unstable_by(|(a, _), (b, _)| a.0.cmp(&b.0));
        if sorted.windows(2).any(|pair| pair[0].0.0 == pair[1].0.0) {
            return Err(de::Error::custom("a key is there twice"));
        }
        self.into.update(b"{");
        length(self.into, members.len());
        let ordered = match self.left_out {
            Some(_) => sorted,
            None => members.iter().collect(),
        };
        for (key, digest) in ordered {
            text(self.into, &key.0);
            self.into.update(digest);
        }
        Ok(())
    }
}

fn text(into: &mut Context, text: &str) {
    length(into, text.len());
    into.update(text.as_bytes());
}

fn length(into: &mut Context, length: usize) {
    into.update(&(length as u64).to_le_bytes());
}

pub(super) fn finished(context: Context) -> Digest {
    let digest = context.finish();
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Number, Value, json};

    use super::*;

    fn digest(json: &str) -> Digest {
        read(json.as_bytes(), &[]).expect(json).digest
    }

    #[test]
    fn ways_to_write_the_same() {
        for (one, other) in [
            (
                r#"{"a":1,"b":[2,{"c":null,"d":true}]}"#,
                "\n{ \"b\" : [ 2 , {\"c\":null,\t\"d\":true} ],\r\n\"a\":1 } ",
            ),
            (r#"{"a":"A\n"}"#, r#"{"\u0061":"\u0041\u000a"}"#),
            (r#"{"a":"😀/"}"#, r#"{"a":"\ud83d\ude00\/"}"#),
            (r#"{"a":1.50}"#, r#"{"a":1.5}"#),
            (r#"{"a":15e-1}"#, r#"{"a":1.5}"#),
        ] {
            assert_eq!(digest(one), digest(other), "{one} and {other}");
        }
    }

    #[test]
    fn different_meanings() {
        let all = [
            "{}",
            r#"{"a":null}"#,
            r#"{"a":false}"#,
            r#"{"a":0}"#,
            r#"{"a":0.0}"#,
            r#"{"a":-1}"#,
            r#"{"a":18446744073709551615}"#,
            r#"{"a":18446744073709551614}"#,
            r#"{"a":0.1}"#,
            r#"{"a":0.10000000000000002}"#,
            r#"{"a":""}"#,
            r#"{"a":"0"}"#,
            r#"{"a":"x"}"#,
            r#"{"a":"x "}"#,
            r#"{"a":"X"}"#,
            r#"{"A":"x"}"#,
            r#"{"a":"xb"}"#,
            r#"{"ax":"b"}"#,
            r#"{"a":"x","b":"y"}"#,
            r#"{"a":"y","b":"x"}"#,
            r#"{"a":[]}"#,
            r#"{"a":{}}"#,
            r#"{"a":["x"]}"#,
            r#"{"a":["x","y"]}"#,
            r#"{"a":["y","x"]}"#,
            r#"{"a":[["x"],"y"]}"#,
            r#"{"a":["x",["y"]]}"#,
            r#"{"a":[["x","y"]]}"#,
            r#"{"a":[{"x":"y"}]}"#,
            r#"{"a":{"x":["y"]}}"#,
            r#"{"a":{"x":1,"y":2}}"#,
            r#"{"a":{"y":2,"x":1}}"#,
        ];
        let mut digests: Vec<Digest> = all.iter().map(|json| digest(json)).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn what_can_be_read_in_two_ways_has_no_digest() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
        for json in [
            "",
            "[1]",
            "7",
            r#"{"a":1} x"#,
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":[{"a":1,"a":2}]}"#,
            r#"{"seed":18446744073709551616}"#,
            r#"{"seed":1e300}"#,
            r#"{"a":"\ud83d"}"#,
            r#"{"a":NaN}"#,
            &deep,
        ] {
            assert!(read(json.as_bytes(), &[]).is_err(), "{json}");
        }
        assert!(read(b"{\"a\":\"\xff\"}", &[]).is_err());
    }

    #[test]
    fn only_fields_at_the_top_are_left_out() {
        let read = |json: &str| read(json.as_bytes(), &["user"]).expect(json).digest;
        assert_eq!(read(r#"{"user":"u","a":1}"#), read(r#"{"a":1}"#));
        assert_ne!(read(r#"{"a":{"user":"u"}}"#), read(r#"{"a":{}}"#));
    }

    #[test]
    fn content_that_lies_elsewhere_is_noticed() {
        for (json, elsewhere) in [
            (r#"{"image_url":{"url":"https://x/cat.png"}}"#, true),
            (r#"{"m":[{"image_url":"http://x"}]}"#, true),
            (r#"{"video_url":["file:///v"]}"#, true),
            (r#"{"image_url":{"url":"data:image/png;base64,AA"}}"#, false),
            (
                r#"{"input":[{"text":"t","image":"https://x/cam.jpg"}]}"#,
                true,
            ),
            (r#"{"videos":["FILE://x"]}"#, true),
            (r#"{"image":"data:image/png;base64,AA"}"#, false),
            (r#"{"audio":"UklGRg+/=="}"#, false),
            (r#"{"content":"https://x"}"#, false),
            (r#"{"properties":{"url":{"type":"string"}}}"#, false),
        ] {
            let read = read(json.as_bytes(), &[]).expect(json);
            assert_eq!(read.refers_elsewhere, elsewhere, "{json}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9)
                .prop_map(|float: f64| Number::from_f64(float).map_or(Value::Null, Value::from)),
            "\\PC{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::from(Map::from_iter(map))),
            ]
        })
    }

    /// Writes a value with white space, and every character escaped.
    fn written_otherwise(value: &Value, out: &mut String) {
        let text = |text: &str, out: &mut String| {
            out.push('"');
            for unit in text.encode_utf16() {
                out.push_str(&format!("\\u{unit:04X}"));
            }
            out.push('"');
        };
        out.push_str("\n ");
        match value {
            Value::String(string) => text(string, out),
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { " ," } else { "" });
                    written_otherwise(item, out);
                }
                out.push_str("\t]");
            }
            Value::Object(map) => {
                out.push('{');
                for (index, (key, item)) in map.iter().enumerate() {
                    out.push_str(if index > 0 { "\r\n," } else { " " });
                    text(key, out);
                    out.push_str(" :");
                    written_otherwise(item, out);
                }
                out.push('}');
            }
            other => out.push_str(&other.to_string()),
        }
    }

    proptest! {
        #[test]
        fn the_way_of_writing_does_not_count_and_the_meaning_does(one in value(), other in value()) {
            let mut otherwise = String::from("{ \"w\" : 1,\n \"v\":");
            written_otherwise(&one, &mut otherwise);
            otherwise.push('}');
            let [one, other] = [one, other].map(|value| json!({ "v": value, "w": 1 }));
            let first = digest(&one.to_string());
            prop_assert_eq!(first, digest(&otherwise));
            prop_assert_eq!(first == digest(&other.to_string()), one == other);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes, &[]);
        }
    }
}
