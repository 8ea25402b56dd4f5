//! Reads along with hyper on an HTTP/1 connection and refuses what two readers could understand differently.
//!
//! hyper takes more than is safe in a chain of HTTP readers, and hides some of it before a handler could look:
//! of `Content-Length` with `Transfer-Encoding` only the second is left, a bare line feed ends a line, `gzip, chunked` is a coding.
//! So each head is held to RFC 9112 before hyper gets its bytes. This never changes a byte and hyper frames
//! again what goes on to a worker: were this reader wrong, a good request would be refused, not a bad one smuggled.
//!
//! Pure: bytes in, verdict out, whatever the pieces in which they come.

use std::borrow::Cow;

use memchr::memchr;

use crate::api::error::{ApiError, ErrorKind};

/// Longest line of chunked framing: size, extension, or a trailer field, in bytes.
const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;
/// Longest trailer section, in bytes.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

const WRONG_REQUEST_LINE: &str = "the request line is malformed";
const WRONG_VERSION: &str = "HTTP/1.1, HTTP/1.0, and HTTP/2 with prior knowledge are served";
const WRONG_FIELD: &str = "a header line is malformed: NAME: VALUE, no space before the colon, no control characters, no folding";

/// Largest head that is taken.
#[derive(Debug, Clone, Copy)]
pub struct HeadLimits {
    /// Bytes, from the request line to the empty line.
    pub bytes: usize,
    /// Header lines.
    pub lines: usize,
}

/// What is wrong with a head, or with the framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Against RFC 9112, or ambiguous.
    Malformed(&'static str),
    /// The request line alone is above the limit.
    TargetTooLong,
    /// More bytes or lines than the limits.
    HeadTooLarge,
}

impl Fault {
    /// The answer to it.
    pub fn error(self) -> ApiError {
        match self {
            Self::Malformed(what) => ApiError::new(ErrorKind::InvalidRequest, what),
            Self::TargetTooLong => ApiError::new(
                ErrorKind::TargetTooLong,
                "the request line is longer than limits.header_bytes",
            ),
            Self::HeadTooLarge => ApiError::new(
                ErrorKind::HeadTooLarge,
                "the head is larger than limits.header_bytes or has more lines than limits.headers",
            ),
        }
    }
}

/// Where reading has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The head of a request; so many of the bytes just read come before it.
    Head(usize, Fault),
    /// The framing of a body; so many of the bytes just read come before the fault.
    Body(usize, &'static str),
}

/// Where in the stream of requests a connection is.
#[derive(Debug)]
pub struct Framing {
    limits: HeadLimits,
    state: State,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// Heads that have begun.
    heads: u64,
}

#[derive(Debug)]
enum State {
    Head(Head),
    /// So many bytes of a body are to come.
    Fixed(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    /// So many bytes of trailers have come.
    Trailers(usize),
}

/// What the lines of a head have said so far.
#[derive(Debug, Default)]
struct Head {
    bytes: usize,
    /// Header lines; none before the request line is complete.
    lines: Option<usize>,
    has_begun: bool,
    is_http10: bool,
    length: Option<u64>,
    is_chunked: bool,
    hosts: usize,
    /// The line that has begun and not ended.
    unfinished: Unfinished,
}

/// A line of a head while its end is still to come: it is refused at its first wrong byte. hyper would refuse it there
/// as well, with an answer that has no body.
#[derive(Debug, Default)]
struct Unfinished {
    /// So many of its bytes were looked at.
    looked: usize,
    part: Part,
    /// Bytes of this part.
    bytes: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The method, or a header's name.
    #[default]
    Name,
    Target,
    Version,
    Value,
    /// Behind the carriage return.
    End,
}

impl Unfinished {
    /// Looks at what has come of the line since the last look. It is refused here only if the whole line would be.
    fn look(&mut self, line: &[u8], is_request_line: bool) -> Result<(), Fault> {
        for byte in &line[self.looked..] {
            self.next(*byte, is_request_line)?;
        }
        self.looked = line.len();
        Ok(())
    }

    fn next(&mut self, byte: u8, is_request_line: bool) -> Result<(), Fault> {
        const VERSION: &[u8] = b"HTTP/1.";
        let (part, at) = (self.part, self.bytes);
        self.bytes += 1;
        let next = match (part, byte) {
            (Part::Name, b' ') if is_request_line && at > 0 => Part::Target,
            (Part::Name, b':') if !is_request_line && at > 0 => Part::Value,
            // The empty line behind the headers.
            (Part::Name, b'\r') if !is_request_line && at == 0 => Part::End,
            (Part::Name, _) if is_token(byte) => return Ok(()),
            (Part::Target, b' ') if at > 0 => Part::Version,
            (Part::Target, _) if byte.is_ascii_graphic() => return Ok(()),
            (Part::Version, b'\r') if at > VERSION.len() => Part::End,
            (Part::Version, b'0' | b'1') if at == VERSION.len() => return Ok(()),
            (Part::Version, _) if VERSION.get(at) == Some(&byte) => return Ok(()),
            (Part::Version, _) => return Err(Fault::Malformed(WRONG_VERSION)),
            (Part::Value, b'\r') => Part::End,
            (Part::Value, _) if !is_control(byte) => return Ok(()),
            _ if is_request_line => return Err(Fault::Malformed(WRONG_REQUEST_LINE)),
            _ => return Err(Fault::Malformed(WRONG_FIELD)),
        };
        (self.part, self.bytes) = (next, 0);
        Ok(())
    }
}

impl Framing {
    /// Before the first byte of a connection.
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            state: State::Head(Head::default()),
            line: Vec::new(),
            heads: 0,
        }
    }

    /// How many heads have begun.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// The number of the head that has begun and is not complete. Empty lines between requests begin none.
    pub fn open_head(&self) -> Option<u64> {
        match &self.state {
            State::Head(head) if head.has_begun => Some(self.heads),
            _ => None,
        }
    }

    /// Takes the next bytes of the connection. Not to be called again after a refusal.
    ///
    /// # Errors
    /// Where reading has to stop, and why.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let mut rest = bytes;
        // Where in `bytes` the head being read began.
        let mut began = 0;
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let broken = |what| Refused::Body(at, what);
            match &mut self.state {
                State::Head(head) => {
                    let before = rest.len();
                    let line = next_line(&mut self.line, &mut rest);
                    head.bytes += before - rest.len();
                    let is_blank = |text: &[u8]| b"\r\n".starts_with(text);
                    if !head.has_begun && !is_blank(line.as_deref().unwrap_or(&self.line)) {
                        head.has_begun = true;
                        self.heads += 1;
                    }
                    let refused = |fault| Refused::Head(began, fault);
                    if head.bytes > self.limits.bytes {
                        return Err(refused(match head.lines {
                            None => Fault::TargetTooLong,
                            Some(_) => Fault::HeadTooLarge,
                        }));
                    }
                    let lines_max = self.limits.lines;
                    let Some(line) = line else {
                        // One line too many is that, whatever it says.
                        if head.has_begun && head.lines.is_none_or(|lines| lines < lines_max) {
                            let is_request_line = head.lines.is_none();
                            let looked = head.unfinished.look(&self.line, is_request_line);
                            looked.map_err(refused)?;
                        }
                        return Ok(());
                    };
                    if let Some(body) = head.line(&line, lines_max).map_err(refused)? {
                        self.state = body;
                        began = bytes.len() - rest.len();
                    }
                }
                State::Fixed(left) | State::ChunkData(left) => {
                    let taken = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    rest = &rest[taken..];
                    if *left == 0 {
                        self.state = match self.state {
                            State::ChunkData(_) => State::ChunkEnd,
                            _ => State::Head(Head::default()),
                        };
                        began = bytes.len() - rest.len();
                    }
                }
                State::ChunkSize => {
                    let Some(line) = self.chunk_line(&mut rest).map_err(broken)? else {
                        return Ok(());
                    };
                    self.state = match chunk_size(&line).map_err(broken)? {
                        0 => State::Trailers(0),
                        size => State::ChunkData(size),
                    };
                }
                State::ChunkEnd => {
                    let Some(line) = self.chunk_line(&mut rest).map_err(broken)? else {
                        return Ok(());
                    };
                    if !line.is_empty() {
                        return Err(broken("a chunk is longer than its size"));
                    }
                    self.state = State::ChunkSize;
                }
                State::Trailers(seen) => {
                    let seen = *seen;
                    let Some(line) = self.chunk_line(&mut rest).map_err(broken)? else {
                        return Ok(());
                    };
                    if line.is_empty() {
                        self.state = State::Head(Head::default());
                        began = bytes.len() - rest.len();
                        continue;
                    }
                    let seen = seen + line.len();
                    if seen > TRAILER_BYTES_MAX || field(&line).is_none() {
                        return Err(broken("the trailers are malformed or too long"));
                    }
                    self.state = State::Trailers(seen);
                }
            }
        }
        Ok(())
    }

    /// A line of chunked framing without its end.
    fn chunk_line<'a>(
        &mut self,
        rest: &mut &'a [u8],
    ) -> Result<Option<Cow<'a, [u8]>>, &'static str> {
        let Some(line) = next_line(&mut self.line, rest) else {
            if self.line.len() > CHUNK_LINE_BYTES_MAX {
                return Err("a line of chunked framing is too long");
            }
            return Ok(None);
        };
        if line.len() > CHUNK_LINE_BYTES_MAX {
            return Err("a line of chunked framing is too long");
        }
        let Some(length) = line.strip_suffix(b"\r\n").map(<[u8]>::len) else {
            return Err("a line of chunked framing ends with a bare line feed");
        };
        Ok(Some(match line {
            Cow::Borrowed(line) => Cow::Borrowed(&line[..length]),
            Cow::Owned(mut line) => {
                line.truncate(length);
                Cow::Owned(line)
            }
        }))
    }
}

impl Head {
    /// Takes a line with its end; what follows the head once that was its last one.
    fn line(&mut self, line: &[u8], lines_max: usize) -> Result<Option<State>, Fault> {
        self.unfinished = Unfinished::default();
        let is_request_line = self.lines.is_none();
        self.whole_line(line, lines_max)
            .map_err(|fault| match fault {
                // The same word for it as if it had come in pieces.
                Fault::Malformed(_) => {
                    let begun = line.strip_suffix(b"\n").unwrap_or(line);
                    let looked = Unfinished::default().look(begun, is_request_line);
                    looked.err().unwrap_or(fault)
                }
                Fault::TargetTooLong | Fault::HeadTooLarge => fault,
            })
    }

    fn whole_line(&mut self, line: &[u8], lines_max: usize) -> Result<Option<State>, Fault> {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(Fault::Malformed(
                "a line of the head ends with a bare line feed",
            ));
        };
        match self.lines {
            // RFC 9112, section 2.2: empty lines before a request are passed over.
            None if line.is_empty() => {}
            None => {
                self.is_http10 = is_http10(line)?;
                self.lines = Some(0);
            }
            Some(_) if line.is_empty() => return self.body().map(Some),
            Some(count) if count == lines_max => return Err(Fault::HeadTooLarge),
            Some(count) => {
                self.lines = Some(count + 1);
                let (name, value) = field(line).ok_or(Fault::Malformed(WRONG_FIELD))?;
                self.field(name, value)?;
            }
        }
        Ok(None)
    }

    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = self.length.is_none().then(|| decimal(value)).flatten();
            self.length = Some(length.ok_or(Fault::Malformed(
                "a request has one Content-Length at most, which is a decimal number",
            ))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.is_chunked || self.is_http10 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Malformed(
                    "the only transfer coding served is one `chunked`, in HTTP/1.1",
                ));
            }
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"host") {
            self.hosts += 1;
        }
        Ok(())
    }

    fn body(&self) -> Result<State, Fault> {
        if self.hosts > 1 || (self.hosts == 0 && !self.is_http10) {
            return Err(Fault::Malformed("a request needs exactly one Host header"));
        }
        match (self.length, self.is_chunked) {
            (Some(_), true) => Err(Fault::Malformed(
                "Content-Length and Transfer-Encoding exclude each other",
            )),
            (None, true) => Ok(State::ChunkSize),
            (Some(0) | None, false) => Ok(State::Head(Self::default())),
            (Some(length), false) => Ok(State::Fixed(length)),
        }
    }
}

/// Takes a line with its line feed off the front of `rest`; what is no whole line yet is kept in `begun`.
fn next_line<'a>(begun: &mut Vec<u8>, rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let Some(end) = memchr(b'\n', rest) else {
        begun.extend_from_slice(rest);
        *rest = &[];
        return None;
    };
    let (line, after) = rest.split_at(end + 1);
    *rest = after;
    if begun.is_empty() {
        return Some(Cow::Borrowed(line));
    }
    begun.extend_from_slice(line);
    Some(Cow::Owned(std::mem::take(begun)))
}

/// RFC 9112, section 3: method, one space, target, one space, version.
fn is_http10(line: &[u8]) -> Result<bool, Fault> {
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let is_method = |word: &[u8]| !word.is_empty() && word.iter().all(|byte| is_token(*byte));
    let is_target = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
    if words.next().is_some() || !method.is_some_and(is_method) || !target.is_some_and(is_target) {
        return Err(Fault::Malformed(WRONG_REQUEST_LINE));
    }
    match version {
        Some(b"HTTP/1.1") => Ok(false),
        Some(b"HTTP/1.0") => Ok(true),
        _ => Err(Fault::Malformed(WRONG_VERSION)),
    }
}

/// Name and value of a field line; none if it is malformed (RFC 9112, section 5).
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at(memchr(b':', line)?);
    let is_name = !name.is_empty() && name.iter().all(|byte| is_token(*byte));
    let value = &value[1..];
    // No early exit, so that the compiler can look at many bytes at once.
    let is_bad = value
        .iter()
        .fold(false, |bad, byte| bad | is_control(*byte));
    (is_name && !is_bad).then_some((name, value.trim_ascii()))
}

/// What no value has.
fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    // `parse` alone would take a sign.
    let text = std::str::from_utf8(digits).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    const HEX_DIGITS_MAX: usize = 15;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit());
    let digits = digits.count();
    let extension = line[digits..].trim_ascii_start();
    let is_extension = extension.is_empty() && digits == line.len() || extension.starts_with(b";");
    let is_plain = !line.iter().any(|byte| *byte < b' ' && *byte != b'\t');
    if !(1..=HEX_DIGITS_MAX).contains(&digits) || !is_extension || !is_plain {
        return Err("the size of a chunk is malformed");
    }
    let text = std::str::from_utf8(&line[..digits]).expect("hexadecimal digits are text");
    Ok(u64::from_str_radix(text, 16).expect("fifteen hexadecimal digits fit 64 bits"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 512,
        lines: 8,
    };

    fn fed(bytes: &[u8]) -> (Framing, Result<(), Refused>) {
        let mut framing = Framing::new(LIMITS);
        let result = framing.feed(bytes);
        (framing, result)
    }

    fn malformed(bytes: &str) -> bool {
        matches!(
            fed(bytes.as_bytes()).1,
            Err(Refused::Head(_, Fault::Malformed(_)))
        )
    }

    #[test]
    fn good_requests_pass_one_after_the_other() {
        let stream = "GET / HTTP/1.1\r\nhost: a\r\n\r\n\
            \r\n\
            POST /x?y=%20 HTTP/1.1\r\nHost:a\r\nContent-Length: 3 \r\nx-utf8: caf\u{e9}\r\nempty:\r\n\r\nabc\
            POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: Chunked\r\n\r\n\
            3;ext=\"v\"\r\nabc\r\n0a\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n\
            GET / HTTP/1.0\r\n\r\n";
        let (framing, result) = fed(stream.as_bytes());
        assert_eq!(result, Ok(()));
        assert_eq!((framing.heads, framing.open_head()), (4, None));
        let (framing, result) = fed(b"GET / HT");
        assert_eq!((framing.open_head(), result), (Some(1), Ok(())));
        // Only an empty line: no head has begun.
        assert_eq!(fed(b"\r\n").0.open_head(), None);
    }

    #[test]
    fn what_comes_before_a_bad_head_is_told() {
        let good = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab";
        let (_, result) = fed(format!("{good}GET / HTTP/1.1\n\n").as_bytes());
        assert!(matches!(result, Err(Refused::Head(at, _)) if at == good.len()));
        // Begun in an earlier piece: nothing of this one is good.
        let (mut framing, _) = fed(format!("{good}GET /").as_bytes());
        assert!(matches!(framing.feed(b" x\r\n"), Err(Refused::Head(0, _))));
    }

    #[test]
    fn ambiguous_heads_are_malformed() {
        for head in [
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "content-length: 3\r\ncontent-length: 3\r\n",
            "content-length: 18446744073709551616\r\n",
            "content-length:\r\n",
            "host: b\r\n",
            "x-a: 1\n",
            "x-a: 1\r\n folded\r\n",
            "x-a : 1\r\n",
            "x-a: \x7f\r\n",
            "x-a: 1\x0c\r\n",
            "x-a: 1\r\r\n",
            ": 1\r\n",
            "no colon\r\n",
        ] {
            let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n");
            assert!(malformed(&bytes), "{head:?}");
        }
        for line in [
            "GET / HTTP/1.1 \r\n",
            "GET  / HTTP/1.1\r\n",
            "GET /\r\n",
            "GET\t/ HTTP/1.1\r\n",
            "GET /\u{e9} HTTP/1.1\r\n",
            "GET / http/1.1\r\n",
            "GET / HTTP/2.0\r\n",
            " GET / HTTP/1.1\r\n",
            "\nGET / HTTP/1.1\r\n",
        ] {
            assert!(malformed(&format!("{line}host: a\r\n\r\n")), "{line:?}");
        }
        assert!(malformed("GET / HTTP/1.1\r\n\r\n"), "no host");
        assert!(malformed(
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"
        ));
    }

    #[test]
    fn what_is_no_http_is_refused_before_its_line_ends() {
        for noise in [
            "\0",
            "GET\r",
            " ",
            "hello\x01",
            "GET /\x7f",
            "GET  ",
            "GET / HTP",
            "GET / HTTP/2",
            "GET / HTTP/1.12",
            "\r\n\r!",
            "GET / HTTP/1.1\r\n:",
            "GET / HTTP/1.1\r\nx-a ",
            "GET / HTTP/1.1\r\nx-a\r",
            "GET / HTTP/1.1\r\nx-a: 1\0",
            "GET / HTTP/1.1\r\nx-a: 1\r ",
        ] {
            assert!(malformed(noise), "{noise:?}");
        }
        for begun in [
            "G",
            "GET / HTTP/1.1\r",
            "GET / HTTP/1.0\r\nx-a",
            "GET / HTTP/1.1\r\nx-a:\t\u{e9} 1\r",
            "GET / HTTP/1.1\r\nhost: a\r\n\r",
        ] {
            assert_eq!(fed(begun.as_bytes()).1, Ok(()), "{begun:?}");
        }
    }

    #[test]
    fn limits_hold_for_heads_that_never_end() {
        let long = "v".repeat(LIMITS.bytes);
        let fault = |bytes: String| match fed(bytes.as_bytes()).1 {
            Err(Refused::Head(0, fault)) => fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(format!("GET /{long}")), Fault::TargetTooLong);
        let line = "GET / HTTP/1.1\r\n";
        assert_eq!(fault(format!("{line}x: {long}")), Fault::HeadTooLarge);
        let many = "x: 1\r\n".repeat(LIMITS.lines + 1);
        assert_eq!(fault(format!("{line}{many}")), Fault::HeadTooLarge);
        assert_eq!(fault("\r\n".repeat(LIMITS.bytes)), Fault::TargetTooLong);
    }

    #[test]
    fn bad_chunks_are_refused() {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        for body in [
            "\r\n",
            "x\r\n",
            "+3\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "3\r\nabc\n",
            "3 \r\nabc\r\n",
            "3 4\r\nabc\r\n",
            "ffffffffffffffffff\r\n",
            "0\r\nno colon\r\n\r\n",
            "0\r\n\n",
        ] {
            let (_, result) = fed(format!("{head}{body}").as_bytes());
            assert!(
                matches!(result, Err(Refused::Body(..))),
                "{body:?}: {result:?}"
            );
        }
        let endless = format!("{head}1;{}", "e".repeat(2 * CHUNK_LINE_BYTES_MAX));
        assert!(matches!(fed(endless.as_bytes()).1, Err(Refused::Body(..))));
    }

    fn request() -> impl Strategy<Value = String> {
        let fixed = "[a-z]{0,9}".prop_map(|body| {
            format!(
                "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        });
        let chunked = proptest::collection::vec("[\r\na-z]{1,9}", 0..4).prop_map(|parts| {
            let chunks = parts
                .iter()
                .map(|part| format!("{:x}\r\n{part}\r\n", part.len()));
            let chunks: String = chunks.collect();
            format!(
                "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
            )
        });
        let odd = "[ -~\r\n]{0,40}";
        prop_oneof![4 => fixed, 4 => chunked, 1 => odd]
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            requests in proptest::collection::vec(request(), 1..5),
            cuts in proptest::collection::vec(0.0..1.0_f64, 0..6),
        ) {
            let bytes = requests.concat().into_bytes();
            let (whole, expected) = fed(&bytes);
            let mut cuts: Vec<usize> =
                cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut framing = Framing::new(LIMITS);
            let mut found = Ok(());
            for pair in cuts.windows(2) {
                found = framing.feed(&bytes[pair[0]..pair[1]]);
                if found.is_err() {
                    break;
                }
            }
            let fault = |refused| match refused {
                Refused::Head(_, fault) => Ok(fault),
                Refused::Body(_, what) => Err(what),
            };
            prop_assert_eq!(found.map_err(fault), expected.map_err(fault));
            prop_assert_eq!(framing.heads, whole.heads);
        }

        #[test]
        fn any_bytes_have_a_verdict(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = fed(&bytes);
        }
    }
}
