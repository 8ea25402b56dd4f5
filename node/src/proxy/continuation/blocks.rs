//! Whole events out of chunks: a client that may be moved has never seen a part of an event.
//!
//! An event ends at its empty line (WHATWG HTML, section 9.2.6). vLLM writes one event a chunk, which then goes
//! through without a copy.

use bytes::{Bytes, BytesMut};
use memchr::{memchr_iter, memrchr_iter};

/// Holds back what is incomplete.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    held: BytesMut,
}

impl Blocks {
    /// Takes the next chunk and gives all events that are whole with it, empty when none is.
    pub(super) fn push(&mut self, chunk: Bytes) -> Bytes {
        if self.held.is_empty() && ends_empty_line(&chunk, chunk.len().saturating_sub(1)) {
            return chunk;
        }
        let seen = self.held.len();
        self.held.extend_from_slice(&chunk);
        let mut ends = memrchr_iter(b'\n', &self.held[seen..]).map(|at| seen + at);
        match ends.find(|&at| ends_empty_line(&self.held, at)) {
            Some(at) => self.held.split_to(at + 1).freeze(),
            None => Bytes::new(),
        }
    }

    /// Bytes that are held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Gives what is held, whole or not.
    pub(super) fn flush(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }
}

/// Is the byte at `at` the end of an empty line?
fn ends_empty_line(bytes: &[u8], at: usize) -> bool {
    if bytes.get(at) != Some(&b'\n') {
        return false;
    }
    let line = bytes[..at].strip_suffix(b"\r").unwrap_or(&bytes[..at]);
    line.is_empty() || line.ends_with(b"\n")
}

/// The events of some bytes, each with its empty line and its place.
pub(super) fn split(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &bytes[start..];
        if rest.is_empty() {
            return None;
        }
        let end = memchr_iter(b'\n', rest).find(|&at| ends_empty_line(rest, at));
        let block = &rest[..end.map_or(rest.len(), |at| at + 1)];
        let at = start;
        start += block.len();
        Some((at, block))
    })
}

/// Values of the `data` lines of an event; vLLM writes one.
pub(super) fn data_of(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    block
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] = b": hello\n\ndata: {\"a\":1}\n\ndata: b\r\n\r\ndata:c\n\n\ndata: half";

    #[test]
    fn an_event_a_chunk_is_not_copied() {
        let mut blocks = Blocks::default();
        for chunk in [&b"data: x\n\n"[..], b"data: y\r\n\r\n", b"\n"] {
            let chunk = Bytes::from_static(chunk);
            let passed = blocks.push(chunk.clone());
            assert_eq!(
                (passed.as_ptr(), passed.len()),
                (chunk.as_ptr(), chunk.len())
            );
        }
        assert_eq!(blocks.push(Bytes::new()), "");
    }

    #[test]
    fn events_and_their_data() {
        let found: Vec<_> = split(STREAM).collect();
        let texts: Vec<_> = found.iter().map(|(_, block)| *block).collect();
        assert_eq!(texts.concat(), STREAM);
        let data: Vec<_> = found.iter().flat_map(|(_, block)| data_of(block)).collect();
        assert_eq!(data, [&b"{\"a\":1}"[..], b"b", b"c", b"half"]);
        assert_eq!(found[1], (9, &b"data: {\"a\":1}\n\n"[..]));
    }

    proptest! {
        #[test]
        fn however_it_is_cut_only_whole_events_pass_and_nothing_is_lost(
            mut cuts in prop::collection::vec(0..STREAM.len(), 0..10),
        ) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut blocks = Blocks::default();
            let mut passed = Vec::new();
            for pair in cuts.windows(2) {
                passed.extend_from_slice(&blocks.push(Bytes::from_static(&STREAM[pair[0]..pair[1]])));
                prop_assert!(passed.is_empty() || passed.ends_with(b"\n"));
                prop_assert!(split(&passed).all(|(_, block)| block.ends_with(b"\n")));
            }
            prop_assert_eq!(blocks.len(), 10);
            passed.extend_from_slice(&blocks.flush());
            prop_assert_eq!(passed, STREAM);
        }
    }
}
