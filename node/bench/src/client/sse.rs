//! Splits a byte stream into the data of its SSE events.
//!
//! Pure. As much of the format as OpenAI streams use: one `data:` line an event; comments and
//! other fields are skipped; LF and CR LF both end a line.

use bytes::{Buf, BytesMut};

/// A line longer than this is dropped; it cannot be an event of ours.
const LINE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Events {
    pending: BytesMut,
    /// The current line is being dropped.
    skipping: bool,
}

impl Events {
    /// Takes the next bytes and calls `event` for each complete `data:` line.
    pub(super) fn feed(&mut self, bytes: &[u8], mut event: impl FnMut(&[u8])) {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = memchr::memchr(b'\n', &self.pending) {
            let line = self.pending.split_to(end);
            self.pending.advance(1);
            if !std::mem::take(&mut self.skipping)
                && let Some(data) = line.strip_prefix(b"data:")
            {
                event(data.trim_ascii());
            }
        }
        if self.pending.len() > LINE_BYTES_MAX {
            self.pending.clear();
            self.skipping = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collect(parts: &[&[u8]]) -> Vec<String> {
        let mut events = Events::default();
        let mut seen = Vec::new();
        for part in parts {
            events.feed(part, |data| {
                seen.push(String::from_utf8_lossy(data).into_owned())
            });
        }
        seen
    }

    #[test]
    fn forms() {
        assert_eq!(
            collect(&[b"data: a\n\n: comment\n\ndata:b\r\n\r\nevent: x\ndata: [DONE]\n\n"]),
            ["a", "b", "[DONE]"]
        );
    }

    #[test]
    fn an_endless_line_is_dropped_and_memory_bounded() {
        let mut events = Events::default();
        for _ in 0..100 {
            events.feed(&[b'x'; 100_000], |_| panic!("not an event"));
            assert!(events.pending.len() <= LINE_BYTES_MAX);
        }
        let mut seen = 0;
        events.feed(b"\ndata: a\n\n", |_| seen += 1);
        assert_eq!(seen, 1);
    }

    proptest! {
        #[test]
        fn splits_do_not_matter(cut in 0..60usize) {
            let text = b"data: {\"a\":1}\n\ndata: {\"b\":2}\r\n\r\n: k\n\ndata: [DONE]\n\n";
            let cut = cut.min(text.len());
            prop_assert_eq!(collect(&[&text[..cut], &text[cut..]]), collect(&[text]));
        }
    }
}
