//! The body that goes to a worker: the client's bytes, but for the model's name where the client wrote an alias, and for
//! the id of a response that is stored.
//!
//! Only these bytes differ, and nothing is copied: what stands before, between and after them are slices of what came in.

use std::mem::take;
use std::ops::Range;

use bytes::Bytes;

/// Bytes in order, as a body of known length. A clone shares them.
#[derive(Debug, Clone)]
pub struct WorkerBody([Bytes; 5]);

impl WorkerBody {
    /// The client's bytes.
    pub fn unchanged(bytes: Bytes) -> Self {
        Self([
            bytes,
            Bytes::new(),
            Bytes::new(),
            Bytes::new(),
            Bytes::new(),
        ])
    }

    /// The client's bytes with a JSON string in place of those at `at`.
    ///
    /// # Panics
    /// If `at` is not inside `bytes`.
    pub fn with_text(bytes: &Bytes, at: Range<usize>, text: &str) -> Self {
        let text = serde_json::to_string(text).expect("strings always serialise");
        Self::with(bytes, at, text.into())
    }

    /// The client's bytes with others in place of those at `at`.
    ///
    /// # Panics
    /// If `at` is not inside `bytes`.
    pub fn with(bytes: &Bytes, at: Range<usize>, others: Bytes) -> Self {
        let (before, behind) = (bytes.slice(..at.start), bytes.slice(at.end..));
        Self([before, others, behind, Bytes::new(), Bytes::new()])
    }

    /// The same with further bytes at `at`, before all that was put in place of others.
    ///
    /// # Panics
    /// If `at` is behind that.
    pub fn and_at(self, at: usize, more: Bytes) -> Self {
        let [first, second, third, ..] = self.0;
        Self([first.slice(..at), more, first.slice(at..), second, third])
    }

    /// All of it in one piece, copied only if it is not.
    pub fn to_bytes(&self) -> Bytes {
        let [first, rest @ ..] = &self.0;
        if rest.iter().all(Bytes::is_empty) {
            first.clone()
        } else {
            self.0.concat().into()
        }
    }

    /// Length in bytes of what has not been sent yet.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|bytes| bytes.len() as u64).sum()
    }

    /// Takes the next bytes that are to be sent; never none of them.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        let next = self.0.iter_mut().find(|bytes| !bytes.is_empty());
        next.map(take)
    }

    /// Nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_is_replaced_and_nothing_copied() {
        let bytes = Bytes::from_static(b"{\"model\": \"alias\", \"n\":1}");
        let mut body = WorkerBody::with_text(&bytes, 10..17, "org/\"m\"");
        assert_eq!(body.0[0].as_ptr(), bytes.as_ptr());
        assert_eq!(body.0[2].as_ptr(), bytes[17..].as_ptr());
        let expected = b"{\"model\": \"org/\\\"m\\\"\", \"n\":1}";
        assert_eq!(body.len(), expected.len() as u64);
        assert_eq!(body.to_bytes(), expected[..]);
        let sent: Vec<Bytes> = std::iter::from_fn(|| body.next_piece()).collect();
        assert_eq!(sent.concat(), expected[..]);
        assert_eq!((body.is_empty(), body.len()), (true, 0));
    }

    #[test]
    fn bytes_are_added_before_a_value_that_is_replaced() {
        let bytes = Bytes::from_static(b"{\"model\": \"alias\", \"n\":1}");
        let more = || Bytes::from_static(b"\"id\":7,");
        let body = WorkerBody::with_text(&bytes, 10..17, "m").and_at(1, more());
        assert_eq!(body.to_bytes(), b"{\"id\":7,\"model\": \"m\", \"n\":1}"[..]);
        let body = WorkerBody::unchanged(bytes.clone()).and_at(1, more());
        assert_eq!(body.len(), bytes.len() as u64 + 7);
        assert_eq!(
            body.to_bytes(),
            b"{\"id\":7,\"model\": \"alias\", \"n\":1}"[..]
        );
    }

    #[test]
    fn an_unchanged_body_is_one_piece() {
        let mut body = WorkerBody::unchanged(Bytes::from_static(b"all"));
        assert_eq!(body.to_bytes().as_ptr(), body.0[0].as_ptr());
        assert_eq!(body.next_piece().as_deref(), Some(&b"all"[..]));
        assert!(body.is_empty() && body.next_piece().is_none());
        assert!(WorkerBody::unchanged(Bytes::new()).is_empty());
    }
}
