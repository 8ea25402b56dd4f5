//! `multipart/form-data` (RFC 7578): where the model stands in an upload, found while the bytes arrive.
//!
//! Pure, and it keeps nothing of the upload: it is shown all bytes so far, again and again, and goes on where it
//! stopped. Strict, because workers read the same bytes with other code: whatever two readers could take for
//! different fields is refused, and clients of the usual libraries write nothing of the kind.

use std::ops::Range;

use http::{HeaderMap, header};
use memchr::memmem;

use super::error::{ApiError, ErrorKind};
use super::truth::is_true_word;
use crate::media_type::is_of_type;

/// Most parts of an upload; Starlette, in front of vLLM, takes as many fields.
const PARTS_MAX: u32 = 1_000;
/// Longest head of a part.
const PART_HEAD_BYTES_MAX: usize = 8 * 1024;
/// Longest value of a field that is read here.
const FIELD_BYTES_MAX: usize = 1_024;
/// RFC 2046, section 5.1.1.
const BOUNDARY_BYTES_MAX: usize = 70;
/// What may stand around the words of a head; Unicode has more, which not every reader takes for blank.
const BLANKS: [char; 2] = [' ', '\t'];

/// Is the body `multipart/form-data`, by its head?
pub fn is_multipart(headers: &HeaderMap) -> bool {
    is_of_type(headers, "multipart/form-data")
}

/// Looks for the fields of an upload that placement needs.
#[derive(Debug, Clone)]
pub struct Scanner {
    /// What parts two parts: a line end, two hyphens, the boundary.
    delimiter: Vec<u8>,
    /// Up to here everything is read.
    at: usize,
    state: State,
    parts: u32,
    model: Option<Range<usize>>,
    stream: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter, which has no line end in front.
    Start,
    /// Behind a delimiter: another part, or the end.
    Delimited,
    /// In the head of a part.
    Head,
    /// In the content of a part that begins here.
    Content(Field, usize),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model(Charset),
    Stream,
    Other,
}

/// What the text of a field is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charset {
    /// As all fields that say nothing of it (RFC 7578, section 5.1.2).
    Utf8,
    /// ASCII, or one that is the same as far as ASCII goes, which clients for Java write by themselves. Beyond that readers
    /// would differ.
    Ascii,
}

impl Scanner {
    /// For the body of a request with this head.
    /// Errors: 400 for another kind of body, and for a boundary that could be read in two ways.
    pub fn new(headers: &HeaderMap) -> Result<Self, ApiError> {
        let boundary = boundary_of(headers).ok_or_else(|| {
            invalid(
                "the body has to be multipart/form-data, with one plain boundary in Content-Type",
            )
        })?;
        Ok(Self {
            delimiter: [b"\r\n--", boundary].concat(),
            at: 0,
            state: State::Start,
            parts: 0,
            model: None,
            stream: None,
        })
    }

    /// Where the model's name stands, if it has come.
    pub fn model(&self) -> Option<Range<usize>> {
        self.model.clone()
    }

    /// The client asks for a stream.
    pub fn stream(&self) -> bool {
        self.stream == Some(true)
    }

    /// Reads on in `body`: all bytes that have come, those of earlier calls included.
    /// Errors: 400 for what is malformed or could be read in two ways.
    pub fn advance(&mut self, body: &[u8]) -> Result<(), ApiError> {
        while self.step(body)? {}
        Ok(())
    }

    /// Nothing more comes.
    /// Errors: as [`Scanner::advance`], and for an upload without its end.
    pub fn end(&mut self, body: &[u8]) -> Result<(), ApiError> {
        self.advance(body)?;
        let rest = &body[self.at..];
        match self.state {
            // Nobody reads on there, and blank lines look like nothing else.
            State::Ended if rest.iter().all(|byte| b" \t\r\n".contains(byte)) => Ok(()),
            State::Ended => Err(invalid("something follows the end of the multipart body")),
            _ => Err(invalid(
                "the multipart body ends before its closing boundary",
            )),
        }
    }

    /// One step; false when more bytes are needed for the next.
    fn step(&mut self, body: &[u8]) -> Result<bool, ApiError> {
        let rest = &body[self.at..];
        match self.state {
            // Readers skip blank lines here, as of a client that ends each line before it writes the next.
            State::Start if rest.starts_with(b"\r\n") => self.at += 2,
            State::Start => {
                let first = &self.delimiter[2..];
                if rest.len() < first.len() {
                    return Ok(false);
                }
                if !rest.starts_with(first) {
                    return Err(invalid(
                        "the multipart body does not begin with its boundary",
                    ));
                }
                self.at += first.len();
                self.state = State::Delimited;
            }
            State::Delimited => {
                self.state = match rest.get(..2) {
                    None => return Ok(false),
                    Some(b"--") => State::Ended,
                    Some(b"\r\n") if self.parts < PARTS_MAX => State::Head,
                    Some(b"\r\n") => return Err(invalid("the multipart body has too many parts")),
                    Some(_) => {
                        return Err(invalid(
                            "a multipart boundary is followed by something else",
                        ));
                    }
                };
                self.at += 2;
                self.parts += 1;
            }
            State::Head => {
                let near = &rest[..rest.len().min(PART_HEAD_BYTES_MAX)];
                let Some(length) = memmem::find(near, b"\r\n\r\n") else {
                    if rest.len() >= PART_HEAD_BYTES_MAX {
                        return Err(invalid("a part of the multipart body has too long a head"));
                    }
                    return Ok(false);
                };
                let field = field_of(&rest[..length])
                    .ok_or_else(|| invalid("a part of the multipart body has an ambiguous head"))?;
                self.at += length + 4;
                self.state = State::Content(field, self.at);
            }
            State::Content(field, start) => {
                let Some(length) = memmem::find(rest, &self.delimiter) else {
                    // The delimiter may have come in part.
                    let kept = rest.len().min(self.delimiter.len());
                    self.at += rest.len() - kept;
                    if field != Field::Other && self.at - start > FIELD_BYTES_MAX {
                        return Err(invalid("a field of the multipart body is too long"));
                    }
                    return Ok(false);
                };
                self.take(field, start..self.at + length, body)?;
                self.at += length + self.delimiter.len();
                self.state = State::Delimited;
            }
            State::Ended => return Ok(false),
        }
        Ok(true)
    }

    fn take(&mut self, field: Field, at: Range<usize>, body: &[u8]) -> Result<(), ApiError> {
        let value = std::str::from_utf8(&body[at.clone()]).ok();
        let value = value.filter(|value| value.len() <= FIELD_BYTES_MAX);
        let twice = match field {
            Field::Other => false,
            Field::Model(_) => self.model.replace(at).is_some(),
            Field::Stream => {
                let is_on = value.is_some_and(is_true_word);
                self.stream.replace(is_on).is_some()
            }
        };
        match field {
            Field::Model(_) if twice => Err(ApiError::invalid("model", "model is there twice")),
            Field::Stream if twice => Err(ApiError::invalid("stream", "stream is there twice")),
            Field::Model(charset) => match value {
                Some(value) if charset == Charset::Utf8 || value.is_ascii() => Ok(()),
                _ => Err(ApiError::invalid("model", "model is no name")),
            },
            _ => Ok(()),
        }
    }
}

fn invalid(message: &'static str) -> ApiError {
    ApiError::new(ErrorKind::InvalidRequest, message)
}

/// The boundary, if there is one and all readers read the same.
fn boundary_of(headers: &HeaderMap) -> Option<&[u8]> {
    if !is_multipart(headers) || headers.get_all(header::CONTENT_TYPE).iter().count() > 1 {
        return None;
    }
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let mut found = None;
    for (name, value) in parameters(kind.split_once(';')?.1)? {
        if name.eq_ignore_ascii_case("boundary") {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
            let good = (1..=BOUNDARY_BYTES_MAX).contains(&value.len())
                && value.bytes().all(plain)
                && value.trim_matches(BLANKS) == value;
            if !good || found.replace(value.as_bytes()).is_some() {
                return None;
            }
        } else if name.contains('*')
            || name.eq_ignore_ascii_case("charset") && !value.eq_ignore_ascii_case("utf-8")
        {
            // Some readers put a boundary together of such parameters, and some decode the fields by the charset. No other
            // parameter has a meaning here (RFC 7578, section 8).
            return None;
        }
    }
    found
}

/// What a part is, by its head; none when two readers could differ.
fn field_of(head: &[u8]) -> Option<Field> {
    let head = std::str::from_utf8(head).ok()?;
    let (mut disposition, mut coding, mut kind) = (None, None, None);
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':')?;
        let is_name =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        // Some readers take a control character for a blank or a line's end, some cut it out.
        if !is_name || value.contains(|c: char| c.is_control() && c != '\t') {
            return None;
        }
        let slot = match name.to_ascii_lowercase().as_str() {
            "content-disposition" => &mut disposition,
            "content-transfer-encoding" => &mut coding,
            "content-type" => &mut kind,
            _ => continue,
        };
        // Which of two counts differs between readers.
        if slot.replace(value.trim_matches(BLANKS)).is_some() {
            return None;
        }
    }
    let (form, rest) = disposition?.split_once(';')?;
    if !form.trim_matches(BLANKS).eq_ignore_ascii_case("form-data") {
        return None;
    }
    let (mut field, mut is_file) = (None, false);
    for (name, value) in parameters(rest)? {
        if name.eq_ignore_ascii_case("name") {
            if field.replace(value).is_some() {
                return None;
            }
        } else if name.eq_ignore_ascii_case("filename") || name.eq_ignore_ascii_case("filename*") {
            is_file = true;
        } else if name.contains('*') {
            return None;
        }
    }
    let is_plain = matches!(coding, None | Some("7bit" | "8bit" | "binary"));
    let field = match field? {
        "model" => Field::Model(charset_of(kind)?),
        "stream" => {
            charset_of(kind)?;
            Field::Stream
        }
        // Escaped in one way or another, which not all readers undo.
        name if name.contains(['\\', '%', '=']) => return None,
        _ => return Some(Field::Other),
    };
    (is_plain && !is_file).then_some(field)
}

/// How the text of a field is written, by its `Content-Type`; none where two readers could differ.
fn charset_of(kind: Option<&str>) -> Option<Charset> {
    let Some((_, rest)) = kind.and_then(|kind| kind.split_once(';')) else {
        return Some(Charset::Utf8);
    };
    let mut charset = None;
    for (name, value) in parameters(rest)? {
        if name.eq_ignore_ascii_case("charset") {
            let known = match value.to_ascii_lowercase().as_str() {
                "utf-8" | "utf8" => Charset::Utf8,
                "us-ascii" | "ascii" | "iso-8859-1" => Charset::Ascii,
                _ => return None,
            };
            if charset.replace(known).is_some() {
                return None;
            }
        } else if name.contains('*') {
            return None;
        }
    }
    Some(charset.unwrap_or(Charset::Utf8))
}

/// `; name=value; name="value"`, without the first semicolon. None for what is not of this form, or has an escaped
/// quote: some readers end the value there and some do not. Names are tokens, and so are values without quotes:
/// Python's `email`, for one, takes `<model>` for `model`.
fn parameters(mut text: &str) -> Option<Vec<(&str, &str)>> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start_matches(BLANKS);
        if text.is_empty() {
            return Some(found);
        }
        let (name, rest) = text.split_once('=')?;
        let value;
        (value, text) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (value, rest) = quoted.split_once('"')?;
                if value.ends_with('\\') {
                    return None;
                }
                (value, rest)
            }
            None => {
                let end = rest.find(';').unwrap_or(rest.len());
                let value = rest[..end].trim_end_matches(BLANKS);
                if !is_token(value) {
                    return None;
                }
                (value, &rest[end..])
            }
        };
        if !is_token(name) {
            return None;
        }
        found.push((name, value));
        text = text.trim_start_matches(BLANKS);
        if !text.is_empty() {
            text = text.strip_prefix(';')?;
        }
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    let is_of_one = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_one)
}

#[cfg(test)]
#[path = "multipart_tests.rs"]
mod tests;
