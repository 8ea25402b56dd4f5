//! Bodies in chunks, RFC 9112, section 7.1.

use std::borrow::Cow;

use super::line::{field, next_line, skip};

/// Longest line of chunked framing: size, extension, or a trailer field, in bytes.
pub(super) const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;
/// Longest trailer section, in bytes.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Most bytes of all extensions of one body: a client that sends a chunk's one byte behind 4 KiB of them is not carried.
const EXTENSION_BYTES_MAX: usize = 16 * 1024;

/// Where in a chunked body a connection is.
#[derive(Debug, Default)]
pub(in crate::listener) struct Chunked {
    next: Next,
    /// Bytes of extensions so far.
    extensions: usize,
}

/// What comes next.
#[derive(Debug, Default)]
enum Next {
    /// The line with a chunk's size.
    #[default]
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    /// The line end behind a chunk.
    End,
    /// Trailers, of which so many bytes have come.
    Trailers(usize),
}

impl Chunked {
    /// Whether the bytes that come next are the body's own.
    pub(in crate::listener) fn is_within_data(&self) -> bool {
        matches!(self.next, Next::Data(_))
    }

    /// Takes a line, or what has come of a chunk, off the front of `rest`; whether that ended the body. `begun` keeps
    /// the beginning of a line whose end has not come.
    /// Errors: what is wrong.
    pub(in crate::listener) fn feed(
        &mut self,
        begun: &mut Vec<u8>,
        rest: &mut &[u8],
    ) -> Result<bool, &'static str> {
        match &mut self.next {
            Next::Data(left) => {
                if skip(left, rest) {
                    self.next = Next::End;
                }
            }
            Next::Size => {
                if let Some(line) = chunk_line(begun, rest)? {
                    let (size, extension) = chunk_size(&line)?;
                    self.extensions += extension;
                    if self.extensions > EXTENSION_BYTES_MAX {
                        return Err("the extensions of chunks are too long");
                    }
                    self.next = match size {
                        0 => Next::Trailers(0),
                        size => Next::Data(size),
                    };
                }
            }
            Next::End => {
                if let Some(line) = chunk_line(begun, rest)? {
                    if !line.is_empty() {
                        return Err("a chunk is longer than its size");
                    }
                    self.next = Next::Size;
                }
            }
            Next::Trailers(seen) => {
                if let Some(line) = chunk_line(begun, rest)? {
                    if line.is_empty() {
                        return Ok(true);
                    }
                    *seen += line.len();
                    if *seen > TRAILER_BYTES_MAX || field(&line).is_none() {
                        return Err("the trailers are malformed or too long");
                    }
                }
            }
        }
        Ok(false)
    }
}

/// A line of chunked framing without its end.
fn chunk_line<'a>(
    begun: &mut Vec<u8>,
    rest: &mut &'a [u8],
) -> Result<Option<Cow<'a, [u8]>>, &'static str> {
    let Some(line) = next_line(begun, rest) else {
        if begun.len() > CHUNK_LINE_BYTES_MAX {
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

/// The size that a line says, and how many of its bytes are extensions.
fn chunk_size(line: &[u8]) -> Result<(u64, usize), &'static str> {
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
    let size = u64::from_str_radix(text, 16).expect("fifteen hexadecimal digits fit 64 bits");
    Ok((size, line.len() - digits))
}
