//! Messages of a chat, borrowed from the body: roles and texts.
//!
//! What is not known here (pictures, calls, results of tools) counts by its JSON.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{Prose, Text, borrowed_text, owned_text};

/// Most parts of one message's content. Each costs memory of its own, forty times what its shortest JSON does.
pub(super) const PARTS_MAX: usize = 16 * 1024;
/// Most messages and parts of one body together.
pub(super) const ELEMENTS_MAX: usize = 64 * 1024;

/// Content of a message: text, parts, or nothing (an assistant turn that only calls tools).
#[derive(Debug, Default)]
pub enum Content<'a> {
    /// A plain string.
    Text(Text<'a>),
    /// The list of parts. Text parts count by their text, others by their JSON.
    Parts(Vec<ContentPart<'a>>),
    /// `null`, or not there.
    #[default]
    None,
}

/// One part of a message's content.
#[derive(Debug)]
pub struct ContentPart<'a> {
    /// Text of a `text` part.
    pub text: Option<Text<'a>>,
    /// The part as it stands in the body, for every other type.
    pub raw: &'a str,
}

/// One message of a chat.
#[derive(Debug, serde::Deserialize)]
pub struct ChatMessage<'a> {
    /// `system`, `user`, `assistant`, `tool`, ...
    #[serde(borrow)]
    pub role: Text<'a>,
    /// What it says.
    #[serde(borrow, default)]
    pub content: Content<'a>,
    /// Calls that an assistant turn made, as JSON.
    #[serde(borrow, default)]
    pub tool_calls: Option<&'a RawValue>,
}

/// One item of a response's input: a message, if it has a role.
#[derive(Debug, serde::Deserialize)]
pub(super) struct InputItem<'a> {
    #[serde(borrow, default)]
    role: Option<Text<'a>>,
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
}

impl<'a> InputItem<'a> {
    /// The item as far as it is known, and what reading it has cost, in elements.
    pub(super) fn read(json: &'a str) -> (Option<ChatMessage<'a>>, usize) {
        let Ok(item) = serde_json::from_str::<Self>(json) else {
            // How many parts were read until it turned out to be something else is not known, but each has a comma.
            let commas = memchr::memchr_iter(b',', json.as_bytes()).count();
            return (None, 1 + commas.min(PARTS_MAX));
        };
        let Self {
            role,
            content,
            tool_calls,
        } = item;
        let elements = 1 + content.parts();
        let message = role.map(|role| ChatMessage {
            role,
            content,
            tool_calls,
        });
        (message, elements)
    }
}

impl Content<'_> {
    fn parts(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.len(),
            Self::Text(_) | Self::None => 0,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of content parts, or null")
            }
            fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Content::None)
            }
            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Content::None)
            }
            fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<Self::Value, D::Error> {
                // As in `Prose`. A list is one of bytes, or of parts.
                some.deserialize_bytes(self)
            }
            fn visit_borrowed_bytes<E: de::Error>(self, v: &'de [u8]) -> Result<Self::Value, E> {
                borrowed_text(v).map(Content::Text)
            }
            fn visit_bytes<E: de::Error>(self, v: &[u8]) -> Result<Self::Value, E> {
                owned_text(v).map(Content::Text)
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
                let mut parts = Vec::with_capacity(seq.size_hint().unwrap_or(2));
                while let Some(raw) = seq.next_element::<&RawValue>()? {
                    if parts.len() == PARTS_MAX {
                        let message = format!("a message has more than {PARTS_MAX} parts");
                        return Err(de::Error::custom(message));
                    }
                    parts.push(ContentPart::of(raw).map_err(de::Error::custom)?);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_option(ContentVisitor)
    }
}

impl<'a> ContentPart<'a> {
    fn of(raw: &'a RawValue) -> Result<Self, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct TextPart<'a> {
            #[serde(borrow, default)]
            r#type: Option<Text<'a>>,
            #[serde(borrow, default)]
            text: Option<Prose<'a>>,
        }
        let raw_text = raw.get();
        // A bare string among the parts is accepted by some servers; it counts as it stands.
        if !raw_text.starts_with('{') {
            return Ok(Self {
                text: None,
                raw: raw_text,
            });
        }
        let part: TextPart<'a> = serde_json::from_str(raw_text)?;
        // `/v1/responses` has different types for what was read and what was written.
        let is_text = part
            .r#type
            .is_none_or(|kind| matches!(&*kind.0, "text" | "input_text" | "output_text"));
        Ok(Self {
            text: part.text.filter(|_| is_text).map(|prose| prose.0),
            raw: raw_text,
        })
    }
}

/// `messages`, counted.
pub(super) struct Messages<'a>(pub(super) Vec<ChatMessage<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Messages<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessagesVisitor;
        impl<'de> Visitor<'de> for MessagesVisitor {
            type Value = Messages<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
                let mut messages = Vec::new();
                let mut elements = 0;
                while let Some(message) = seq.next_element::<ChatMessage<'de>>()? {
                    elements += 1 + message.content.parts();
                    if elements > ELEMENTS_MAX {
                        return Err(de::Error::custom(format!(
                            "there are more than {ELEMENTS_MAX} messages and parts"
                        )));
                    }
                    messages.push(message);
                }
                Ok(Messages(messages))
            }
        }
        deserializer.deserialize_seq(MessagesVisitor)
    }
}
