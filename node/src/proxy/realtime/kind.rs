//! What kind of message a client sends, read while its bytes pass: the `type` of a JSON object, wherever in it that
//! stands and however its name is written.
//!
//! Pure, and holds no more than one short name. Strings and nesting are followed as in any JSON, Python's `NaN` and
//! the like included, so that whatever a worker can read as JSON is read alike here; what is no JSON is of no kind.

/// Longest name or value that is compared, in bytes as written: `session.update` with each letter escaped.
const WORD_BYTES_MAX: usize = 96;

/// How far the reading of one message is.
#[derive(Debug, Default)]
pub(super) struct KindScan {
    depth: u32,
    position: ObjectPosition,
    /// In a string: what of it is kept, quotes included; `None` once it is too long to be a word of ours.
    word: Option<Vec<u8>>,
    in_string: bool,
    escaped: bool,
    /// The last name at the top is `type`.
    names_type: bool,
    /// Values of `type` that have been read.
    kinds: u32,
    is_update: bool,
}

/// What comes next at the top of the object.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ObjectPosition {
    /// Nothing has come.
    #[default]
    Start,
    Name,
    Value,
    /// It is no object.
    Nowhere,
}

impl KindScan {
    /// Reads on.
    pub(super) fn read(&mut self, text: &[u8]) {
        let mut rest = text;
        while let Some((byte, after)) = rest.split_first() {
            if self.in_string {
                rest = self.read_string(rest);
                continue;
            }
            rest = after;
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.position == ObjectPosition::Nowhere => return,
                b'{' if self.position == ObjectPosition::Start => {
                    self.depth = 1;
                    self.position = ObjectPosition::Name;
                }
                _ if self.position == ObjectPosition::Start => {
                    self.position = ObjectPosition::Nowhere
                }
                b'"' => {
                    self.in_string = true;
                    self.word = (self.depth == 1).then(|| vec![b'"']);
                }
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.position = ObjectPosition::Nowhere;
                    }
                }
                b':' if self.depth == 1 => self.position = ObjectPosition::Value,
                b',' if self.depth == 1 => self.position = ObjectPosition::Name,
                _ => {}
            }
            self.counts_other_value(*byte);
        }
    }

    /// `type` has a value that is known.
    pub(super) fn is_known(&self) -> bool {
        self.kinds > 0
    }

    /// One of its values is `session.update`. Of several, readers take any.
    pub(super) fn is_update(&self) -> bool {
        self.is_update
    }

    /// A value of `type` that is no string is a kind, too.
    fn counts_other_value(&mut self, byte: u8) {
        let begins = !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b':' | b'"');
        if begins && self.names_type && self.position == ObjectPosition::Value {
            self.names_type = false;
            self.kinds += 1;
        }
    }

    /// Reads on in a string; what is left behind it.
    fn read_string<'a>(&mut self, text: &'a [u8]) -> &'a [u8] {
        let mut at = 0;
        while at < text.len() {
            if self.escaped {
                self.escaped = false;
                at += 1;
                continue;
            }
            match memchr::memchr2(b'"', b'\\', &text[at..]) {
                None => at = text.len(),
                Some(next) if text[at + next] == b'\\' => {
                    self.escaped = true;
                    at += next + 1;
                }
                Some(next) => {
                    self.keep(&text[..=at + next]);
                    self.in_string = false;
                    self.string_ended();
                    return &text[at + next + 1..];
                }
            }
        }
        self.keep(text);
        &[]
    }

    fn keep(&mut self, part: &[u8]) {
        if let Some(word) = &mut self.word {
            if word.len() + part.len() > WORD_BYTES_MAX {
                self.word = None;
            } else {
                word.extend_from_slice(part);
            }
        }
    }

    fn string_ended(&mut self) {
        if self.depth != 1 {
            return;
        }
        let word = self.word.take();
        let word = word.and_then(|word| serde_json::from_slice::<String>(&word).ok());
        match self.position {
            ObjectPosition::Name => self.names_type = word.as_deref() == Some("type"),
            ObjectPosition::Value if self.names_type => {
                self.names_type = false;
                self.kinds += 1;
                self.is_update |= word.as_deref() == Some("session.update");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Is it known, and is it an update? The same in pieces of any length.
    fn kind(text: &str) -> (bool, bool) {
        let read = |piece: usize| {
            let mut scan = KindScan::default();
            text.as_bytes()
                .chunks(piece)
                .for_each(|part| scan.read(part));
            (scan.is_known(), scan.is_update())
        };
        let whole = read(text.len().max(1));
        for piece in 1..8 {
            assert_eq!(read(piece), whole, "{text} in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn the_type_is_found_wherever_it_stands() {
        for text in [
            r#"{"type":"session.update","model":"m"}"#,
            r#"{"a":{"type":"x"},"b":["type","}",{"type":1}],"type" : "session.update"}"#,
            r#"  {"\u0074ype":"session\u002eupdate"}"#,
            r#"{"type":"other","type":"session.update"}"#,
            r#"{"type":"session.update","type":"other"}"#,
            r#"{"x":NaN,"y":-Infinity,"type":"session.update"}"#,
            r#"{"x":"a\\","type":"session.update"}"#,
            r#"{"x":"a\"","type":"session.update"}"#,
            r#"{"type":null,"type":"session.update"}"#,
        ] {
            assert_eq!(kind(text), (true, true), "{text}");
        }
        for text in [
            r#"{"type":"input_audio_buffer.append","audio":"session.update"}"#,
            r#"{"type":["session.update"],"x":1}"#,
            r#"{"type":7,"x":"session.update"}"#,
            r#"{"x":{"type":"session.update"},"type":"y"}"#,
        ] {
            assert_eq!(kind(text), (true, false), "{text}");
        }
        for text in [
            "",
            "hello",
            r#""type""#,
            r#"["type","session.update"]"#,
            r#"{"x":{"type":"session.update"}}"#,
            r#"{"x":"type","y":"session.update"}"#,
            r#"{"typ":"session.update","types":"session.update"}"#,
        ] {
            assert_eq!(kind(text), (false, false), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_serde_reads_is_read_alike(
            before in proptest::collection::vec((".{0,6}", ".{0,40}"), 0..4),
            update in any::<bool>(),
        ) {
            let mut fields = serde_json::Map::new();
            for (name, value) in before {
                fields.insert(name, serde_json::json!([value, { "type": "session.update" }]));
            }
            fields.remove("type");
            let word = if update { "session.update" } else { "session.updat" };
            fields.insert("type".into(), word.into());
            let text = serde_json::Value::from(fields).to_string();
            prop_assert_eq!(kind(&text), (true, update));
        }

        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            KindScan::default().read(&bytes);
        }
    }
}
