//! An event that has begun and is not whole yet. It waits for its end, so that an answer which breaks off ends between two
//! events: a client that got the beginning of one cannot be told to forget it.

use bytes::Bytes;
use memchr::memrchr_iter;

/// Longest part of an event that waits, in bytes; of a longer one what has come passes.
const HELD_BACK_MAX: usize = 64 * 1024;

/// What waits of one stream.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    part: Bytes,
    /// The beginning of a long event has passed.
    is_within: bool,
    /// What passed of it last ends with the end of a line: what comes may begin with the blank line that ends the event.
    is_line_over: bool,
}

impl HeldBack {
    /// What may pass once this piece has come. `is_mid_event`: the piece ends within an event.
    pub(super) fn take(&mut self, piece: Bytes, is_mid_event: bool) -> Bytes {
        if !is_mid_event {
            self.is_within = false;
            return self.joined(piece);
        }
        let mut all = self.joined(piece);
        let whole = whole_events(&all, self.is_within && self.is_line_over);
        if whole > 0 || !self.is_within {
            self.is_within = all.len() - whole > HELD_BACK_MAX;
            if !self.is_within {
                // A copy: a few bytes are not to keep the buffer that they were read into.
                self.part = Bytes::copy_from_slice(&all[whole..]);
                all.truncate(whole);
            }
        }
        self.is_line_over = match &all[..] {
            [] | [b'\r'] => self.is_line_over,
            passed => passed.ends_with(b"\n") || passed.ends_with(b"\n\r"),
        };
        all
    }

    /// What waits, since nothing more comes.
    pub(super) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.part)
    }

    /// Whether the client has the beginning of an event whose end has not come.
    pub(super) fn is_within(&self) -> bool {
        self.is_within
    }

    fn joined(&mut self, piece: Bytes) -> Bytes {
        match self.part.is_empty() {
            true => piece,
            false => [self.rest(), piece].concat().into(),
        }
    }
}

/// Bytes up to the end of the last blank line; `is_line_over`: they follow the end of a line.
fn whole_events(bytes: &[u8], is_line_over: bool) -> usize {
    let is_blank = |at: &usize| match &bytes[..*at] {
        [] | [b'\r'] => is_line_over,
        before => before.ends_with(b"\n") || before.ends_with(b"\n\r"),
    };
    memrchr_iter(b'\n', bytes)
        .find(is_blank)
        .map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::sse::Scan;

    /// What passes of a stream that comes in these pieces, piece by piece, and what waits at its end.
    fn passes(pieces: &[&[u8]]) -> (Vec<Bytes>, Bytes) {
        let (mut held, mut scan) = (HeldBack::default(), Scan::default());
        let pass = |piece: &&[u8]| {
            scan.read(piece);
            held.take(Bytes::copy_from_slice(piece), scan.is_mid_event())
        };
        (pieces.iter().map(pass).collect(), held.rest())
    }

    #[test]
    fn an_event_passes_when_it_is_whole() {
        for (pieces, passed, rest) in [
            (
                &["data: 1\n\n", "data: 2\n\n"][..],
                &["data: 1\n\n", "data: 2\n\n"][..],
                "",
            ),
            (
                &["data: 1\n\nda", "ta: 2", "\n\n"],
                &["data: 1\n\n", "", "data: 2\n\n"],
                "",
            ),
            (&["data: 1\n", "\ndata: 2"], &["", "data: 1\n\n"], "data: 2"),
            (
                &["data: 1\r\n\r\nevent: x\r\n", "data: 2\r\n\r\n"],
                &["data: 1\r\n\r\n", "event: x\r\ndata: 2\r\n\r\n"],
                "",
            ),
            (
                &[": ping\n\n", "data: [DONE]"],
                &[": ping\n\n", ""],
                "data: [DONE]",
            ),
        ] {
            let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
            let (found, left) = passes(&bytes);
            let found: Vec<_> = found.iter().map(|piece| &piece[..]).collect();
            let expected: Vec<_> = passed.iter().map(|piece| piece.as_bytes()).collect();
            assert_eq!(
                (found, &left[..]),
                (expected, rest.as_bytes()),
                "{pieces:?}"
            );
        }
    }

    #[test]
    fn what_is_too_long_to_wait_passes_as_it_comes() {
        let mut held = HeldBack::default();
        let part = Bytes::from(vec![b'x'; HELD_BACK_MAX]);
        assert!(held.take(part.clone(), true).is_empty() && !held.is_within());
        assert_eq!(held.take(part.clone(), true).len(), 2 * HELD_BACK_MAX);
        assert!(held.is_within());
        assert_eq!(held.take(part.clone(), true).len(), HELD_BACK_MAX);
        let next = held.take(Bytes::from_static(b"x\n\ndata: 2"), true);
        assert_eq!((&next[..], held.is_within()), (&b"x\n\n"[..], false));
        assert_eq!(held.take(Bytes::from_static(b"\n\n"), false), "data: 2\n\n");
    }

    /// The blank line that ends a long event came in two pieces, the second with the beginning of the next event.
    #[test]
    fn a_long_event_ends_wherever_its_end_is_cut() {
        for (end, rest) in [
            ("x\n", "\n"),
            ("x\r\n", "\r\n"),
            ("x\r\n\r", "\n"),
            ("x", "\n\n"),
        ] {
            let mut held = HeldBack::default();
            let part = Bytes::from(vec![b'x'; 2 * HELD_BACK_MAX]);
            assert_eq!(held.take(part.clone(), true), part);
            assert_eq!(held.take(end.into(), true), end);
            let next = held.take(format!("{rest}data: 2").into(), true);
            assert_eq!(
                (&*next, held.is_within()),
                (rest.as_bytes(), false),
                "{end:?}"
            );
            assert_eq!(held.rest(), "data: 2");
        }
    }

    proptest! {
        /// However a stream is cut into pieces, its bytes pass as they came, and never the beginning of an event alone.
        #[test]
        fn nothing_is_lost_and_nothing_is_half(
            events in prop::collection::vec("(data: [a-z]{0,9}\r?\n\r?\n)|(event: e\ndata: x\n\n)|(: p\n\n)", 0..8),
            cuts in prop::collection::vec(1_usize..12, 0..20),
            broken in 0_usize..30,
        ) {
            let mut stream = events.concat().into_bytes();
            stream.truncate(stream.len().saturating_sub(broken));
            let (mut rest, mut pieces) = (&stream[..], Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            let (passed, left) = passes(&pieces);
            let mut so_far = Scan::default();
            for piece in &passed {
                so_far.read(piece);
                prop_assert!(!so_far.is_mid_event());
            }
            prop_assert_eq!([passed.concat().as_slice(), &left].concat(), stream);
        }
    }
}
