//! The head of a request, RFC 9112, sections 2 to 6: line by line, and within a line byte by byte.

use super::line::{field, is_control, is_token, next_line};
use super::{Fault, HeadLimits};
use crate::http::host;
use crate::http::syntax::decimal;

const WRONG_REQUEST_LINE: &str = "the request line is malformed";
const WRONG_VERSION: &str = "HTTP/1.1, HTTP/1.0, and HTTP/2 with prior knowledge are served";
const WRONG_FIELD: &str = "a header line is malformed: NAME: VALUE, no space before the colon, no control characters, no folding";

/// How long the body is that follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// There is none.
    Nothing,
    /// Bytes.
    Fixed(u64),
    /// Its chunks tell.
    Chunked,
}

/// Takes what a head says, once the rules let it pass.
pub(in crate::listener) trait HeadSink {
    fn request_line(&mut self, method: &[u8], target: &[u8], is_http10: bool) -> Result<(), Fault>;

    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault>;
}

/// The verdict alone.
impl HeadSink for () {
    fn request_line(&mut self, _: &[u8], _: &[u8], _: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn field(&mut self, _: &[u8], _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }
}

/// What the lines of a head have said so far.
#[derive(Debug, Default)]
pub(in crate::listener) struct Head {
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
    part: HeadPart,
    /// Bytes of this part.
    bytes: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum HeadPart {
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
            (HeadPart::Name, b' ') if is_request_line && at > 0 => HeadPart::Target,
            (HeadPart::Name, b':') if !is_request_line && at > 0 => HeadPart::Value,
            // The empty line behind the headers.
            (HeadPart::Name, b'\r') if !is_request_line && at == 0 => HeadPart::End,
            (HeadPart::Name, _) if is_token(byte) => return Ok(()),
            (HeadPart::Target, b' ') if at > 0 => HeadPart::Version,
            (HeadPart::Target, _) if byte.is_ascii_graphic() => return Ok(()),
            (HeadPart::Version, b'\r') if at > VERSION.len() => HeadPart::End,
            (HeadPart::Version, b'0' | b'1') if at == VERSION.len() => return Ok(()),
            (HeadPart::Version, _) if VERSION.get(at) == Some(&byte) => return Ok(()),
            (HeadPart::Version, _) => return Err(Fault::Malformed(WRONG_VERSION)),
            (HeadPart::Value, b'\r') => HeadPart::End,
            (HeadPart::Value, _) if !is_control(byte) => return Ok(()),
            _ if is_request_line => return Err(Fault::Malformed(WRONG_REQUEST_LINE)),
            _ => return Err(Fault::Malformed(WRONG_FIELD)),
        };
        (self.part, self.bytes) = (next, 0);
        Ok(())
    }
}

impl Head {
    /// Whether a byte of it has come. Empty lines between requests do not count.
    pub(in crate::listener) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Takes a line, or what has come of one, off the front of `rest`; once the head is complete, how long its body is.
    /// `begun` keeps the beginning of a line whose end has not come.
    /// Errors: what is wrong with the head.
    pub(in crate::listener) fn feed(
        &mut self,
        begun: &mut Vec<u8>,
        rest: &mut &[u8],
        limits: HeadLimits,
        sink: &mut impl HeadSink,
    ) -> Result<Option<BodyLength>, Fault> {
        let before = rest.len();
        let line = next_line(begun, rest);
        self.bytes += before - rest.len();
        let is_blank = |text: &[u8]| b"\r\n".starts_with(text);
        self.has_begun |= !is_blank(line.as_deref().unwrap_or(begun));
        if self.bytes > limits.bytes {
            return Err(match self.lines {
                None => Fault::TargetTooLong,
                Some(_) => Fault::HeadTooLarge,
            });
        }
        match line {
            Some(line) => self.line(&line, limits.lines, sink),
            None => {
                // One line too many is that, whatever it says.
                if self.has_begun && self.lines.is_none_or(|lines| lines < limits.lines) {
                    self.unfinished.look(begun, self.lines.is_none())?;
                }
                Ok(None)
            }
        }
    }

    /// Takes a line with its end; what follows the head once that was its last one.
    fn line(
        &mut self,
        line: &[u8],
        lines_max: usize,
        sink: &mut impl HeadSink,
    ) -> Result<Option<BodyLength>, Fault> {
        self.unfinished = Unfinished::default();
        let is_request_line = self.lines.is_none();
        self.whole_line(line, lines_max, sink)
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

    fn whole_line(
        &mut self,
        line: &[u8],
        lines_max: usize,
        sink: &mut impl HeadSink,
    ) -> Result<Option<BodyLength>, Fault> {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(Fault::Malformed(
                "a line of the head ends with a bare line feed",
            ));
        };
        match self.lines {
            // RFC 9112, section 2.2: empty lines before a request are passed over.
            None if line.is_empty() => {}
            None => {
                let request = RequestLine::of(line)?;
                self.is_http10 = request.is_http10;
                self.lines = Some(0);
                sink.request_line(request.method, request.target, request.is_http10)?;
            }
            Some(_) if line.is_empty() => return self.body().map(Some),
            Some(count) if count == lines_max => return Err(Fault::HeadTooLarge),
            Some(count) => {
                self.lines = Some(count + 1);
                let (name, value) = field(line).ok_or(Fault::Malformed(WRONG_FIELD))?;
                self.field(name, value)?;
                sink.field(name, value)?;
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
            if !host::is_host(value) {
                return Err(Fault::Malformed(host::NO_HOST));
            }
        }
        Ok(())
    }

    fn body(&self) -> Result<BodyLength, Fault> {
        if self.hosts > 1 || (self.hosts == 0 && !self.is_http10) {
            return Err(Fault::Malformed(host::NOT_ONE));
        }
        match (self.length, self.is_chunked) {
            (Some(_), true) => Err(Fault::Malformed(
                "Content-Length and Transfer-Encoding exclude each other",
            )),
            (None, true) => Ok(BodyLength::Chunked),
            (Some(0) | None, false) => Ok(BodyLength::Nothing),
            (Some(length), false) => Ok(BodyLength::Fixed(length)),
        }
    }
}

/// RFC 9112, section 3: method, one space, target, one space, version.
struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    is_http10: bool,
}

impl<'a> RequestLine<'a> {
    fn of(line: &'a [u8]) -> Result<Self, Fault> {
        let mut words = line.split(|byte| *byte == b' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let is_method = |word: &&[u8]| !word.is_empty() && word.iter().all(|byte| is_token(*byte));
        let is_target = |word: &&[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
        let (None, Some(method), Some(target)) = (
            words.next(),
            method.filter(is_method),
            target.filter(is_target),
        ) else {
            return Err(Fault::Malformed(WRONG_REQUEST_LINE));
        };
        let is_http10 = match version {
            Some(b"HTTP/1.1") => false,
            Some(b"HTTP/1.0") => true,
            _ => return Err(Fault::Malformed(WRONG_VERSION)),
        };
        Ok(Self {
            method,
            target,
            is_http10,
        })
    }
}
