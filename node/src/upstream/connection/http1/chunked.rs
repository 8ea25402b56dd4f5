//! Bodies in chunks, RFC 9112, section 7.1.
//!
//! A worker's stream comes as one chunk an event, often several in one read. Those that lie together go on as one
//! frame: small chunks are moved to the end of the first one, over the framing between them, so that what goes on has
//! no gaps and no bytes are copied where one chunk comes alone.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use httparse::Status;
use memchr::{memchr, memchr_iter};

use super::front::front_of;
use crate::upstream::connection::broken::Broken;
use crate::upstream::connection::limits::HEADERS_MAX;

/// Longest line with a chunk's size, in bytes.
const LINE_BYTES_MAX: usize = 4 * 1024;
/// Most bytes of all extensions of a body: nobody reads them.
const EXTENSION_BYTES_MAX: usize = 16 * 1024;
/// Longest trailer section, in bytes.
const TRAILER_BYTES_MAX: usize = 16 * 1024;
/// Longest chunk, or part of one, that is moved to the one before it; a longer one is a frame of its own.
const MOVED_BYTES_MAX: usize = 4 * 1024;
/// Longest size, in hexadecimal digits; it fits 64 bits.
const SIZE_DIGITS_MAX: usize = 15;

const END: &[u8] = b"\r\n";

/// Where in a chunked body a connection is.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    next: Next,
    /// Of all lines so far.
    extension_bytes: usize,
}

/// What comes next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Next {
    #[default]
    Size,
    /// So many bytes of a chunk, at least one.
    Data(u64),
    /// The line end behind a chunk.
    DataEnd,
    Trailers,
    Nothing,
}

/// What lies at the front of some bytes.
enum Part {
    /// So many bytes that are not the body's own.
    Framing(usize),
    /// So many that are.
    Data(usize),
    Trailers(usize, HeaderMap),
    /// More must come before it is known; or nothing does.
    Unfinished,
}

impl Chunked {
    pub(super) fn has_ended(&self) -> bool {
        self.next == Next::Nothing
    }

    /// Takes what has come of the body off the front of `buf`; none where more must come first, or where it has ended.
    /// Errors: what came is no chunk.
    pub(super) fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Broken> {
        // Up to `from` all was looked at; the first `joined` bytes are data.
        let (mut from, mut joined) = (0, 0);
        loop {
            match self.part(&buf[from..]) {
                Ok(Part::Framing(bytes)) => from += bytes,
                Ok(Part::Data(bytes)) if joined == 0 => {
                    self.pass(bytes);
                    buf.advance(from);
                    (from, joined) = (bytes, bytes);
                }
                Ok(Part::Data(bytes)) if bytes <= MOVED_BYTES_MAX => {
                    self.pass(bytes);
                    buf.copy_within(from..from + bytes, joined);
                    (from, joined) = (from + bytes, joined + bytes);
                }
                Ok(Part::Trailers(bytes, trailers)) if joined == 0 => {
                    self.next = Next::Nothing;
                    buf.advance(from + bytes);
                    return Ok(Some(Frame::trailers(trailers)));
                }
                // With data before it, it is looked at again, behind them.
                Ok(Part::Data(_) | Part::Trailers(..) | Part::Unfinished) => break,
                Err(what) if joined == 0 => return Err(Broken::Content(what)),
                Err(_) => break,
            }
        }
        if joined == 0 {
            buf.advance(from);
            return Ok(None);
        }
        Ok(Some(Frame::data(front_of(buf, from, joined))))
    }

    /// What is at the front of `bytes`; only framing is passed.
    fn part(&mut self, bytes: &[u8]) -> Result<Part, &'static str> {
        match self.next {
            Next::Size => self.size(bytes),
            Next::Data(left) => {
                let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                Ok(match bytes {
                    0 => Part::Unfinished,
                    _ => Part::Data(bytes),
                })
            }
            Next::DataEnd if bytes.starts_with(END) => Ok(self.passed(END.len(), Next::Size)),
            Next::DataEnd if END.starts_with(bytes) => Ok(Part::Unfinished),
            Next::DataEnd => Err("a chunk is longer than its size"),
            Next::Trailers if bytes.starts_with(END) => Ok(self.passed(END.len(), Next::Nothing)),
            Next::Trailers if END.starts_with(bytes) => Ok(Part::Unfinished),
            Next::Trailers => trailers(bytes),
            Next::Nothing => Ok(Part::Unfinished),
        }
    }

    fn size(&mut self, bytes: &[u8]) -> Result<Part, &'static str> {
        if bytes.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
            return Err("a chunk has no size");
        }
        let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
        let Some(end) = memchr(b'\n', window) else {
            return match window.len() == LINE_BYTES_MAX {
                true => Err("the line with a chunk's size is too long"),
                false => Ok(Part::Unfinished),
            };
        };
        let line = window[..end].strip_suffix(b"\r");
        let line = line.ok_or("a line with a chunk's size ends with a bare line feed")?;
        let (size, extension) = size_of(line)?;
        if self.extension_bytes + extension > EXTENSION_BYTES_MAX {
            return Err("a body has too many bytes of chunk extensions");
        }
        self.extension_bytes += extension;
        let next = match size {
            0 => Next::Trailers,
            size => Next::Data(size),
        };
        Ok(self.passed(end + 1, next))
    }

    /// So many bytes of framing, behind which comes `next`.
    fn passed(&mut self, bytes: usize, next: Next) -> Part {
        self.next = next;
        Part::Framing(bytes)
    }

    /// So many bytes of the chunk are taken.
    fn pass(&mut self, bytes: usize) {
        let Next::Data(left) = &mut self.next else {
            unreachable!("only a chunk has data");
        };
        *left -= bytes as u64;
        if *left == 0 {
            self.next = Next::DataEnd;
        }
    }
}

/// The size that a line names, and how long the rest of the line is.
fn size_of(line: &[u8]) -> Result<(u64, usize), &'static str> {
    const MALFORMED: &str = "the size of a chunk is malformed";
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit());
    let (digits, extension) = line.split_at(digits.count());
    let behind = extension.trim_ascii_start();
    let is_extension = behind.is_empty() || behind.starts_with(b";");
    let is_plain = !extension
        .iter()
        .any(|byte| *byte < b' ' && *byte != b'\t' || *byte == 0x7f);
    if !(1..=SIZE_DIGITS_MAX).contains(&digits.len()) || !is_extension || !is_plain {
        return Err(MALFORMED);
    }
    let text = std::str::from_utf8(digits).map_err(|_| MALFORMED)?;
    let size = u64::from_str_radix(text, 16).map_err(|_| MALFORMED)?;
    Ok((size, extension.len()))
}

/// Whether each line ends with both of its characters.
fn ends_all_lines(lines: &[u8]) -> bool {
    memchr_iter(b'\n', lines).all(|at| lines[..at].ends_with(b"\r"))
}

/// A whole trailer section at the front of `bytes`.
fn trailers(bytes: &[u8]) -> Result<Part, &'static str> {
    const MALFORMED: &str = "the trailers of a body are malformed";
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let window = &bytes[..bytes.len().min(TRAILER_BYTES_MAX)];
    match httparse::parse_headers(window, &mut lines) {
        // httparse takes a bare line feed for the end of a line.
        Ok(Status::Complete((length, _))) if !ends_all_lines(&window[..length]) => Err(MALFORMED),
        Ok(Status::Complete((length, lines))) => {
            let mut trailers = HeaderMap::with_capacity(lines.len());
            for line in lines {
                let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| MALFORMED)?;
                let value = HeaderValue::from_bytes(line.value).map_err(|_| MALFORMED)?;
                trailers.append(name, value);
            }
            Ok(Part::Trailers(length, trailers))
        }
        Ok(Status::Partial) if window.len() < TRAILER_BYTES_MAX => Ok(Part::Unfinished),
        Ok(Status::Partial) => Err("the trailers of a body are too long"),
        Err(_) => Err(MALFORMED),
    }
}
