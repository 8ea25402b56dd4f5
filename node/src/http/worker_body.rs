//! The body that goes to a worker: the client's bytes, but for the model's name where the client wrote an alias.
//!
//! Only the bytes of that one value differ, and nothing is copied: what stands before and after it are slices of
//! what came in.

use std::convert::Infallible;
use std::mem::take;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Bytes in order, as a body of known length. A clone shares them.
#[derive(Debug, Clone)]
pub struct WorkerBody([Bytes; 3]);

impl WorkerBody {
    /// The client's bytes.
    pub fn unchanged(bytes: Bytes) -> Self {
        Self([bytes, Bytes::new(), Bytes::new()])
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
        Self([bytes.slice(..at.start), others, bytes.slice(at.end..)])
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

impl Body for WorkerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next_piece().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn one_value_is_replaced_and_nothing_copied() {
        let bytes = Bytes::from_static(b"{\"model\": \"alias\", \"n\":1}");
        let body = WorkerBody::with_text(&bytes, 10..17, "org/\"m\"");
        assert_eq!(body.0[0].as_ptr(), bytes.as_ptr());
        assert_eq!(body.0[2].as_ptr(), bytes[17..].as_ptr());
        let expected = b"{\"model\": \"org/\\\"m\\\"\", \"n\":1}";
        assert_eq!(body.len(), expected.len() as u64);
        assert_eq!(body.size_hint().exact(), Some(body.len()));
        assert_eq!(body.to_bytes(), expected[..]);
        let sent = body.clone().collect().await.expect("infallible").to_bytes();
        assert_eq!(sent, expected[..]);
    }

    #[tokio::test]
    async fn an_unchanged_body_is_one_frame() {
        let mut body = WorkerBody::unchanged(Bytes::from_static(b"all"));
        assert_eq!(body.to_bytes().as_ptr(), body.0[0].as_ptr());
        let frame = body.frame().await.expect("a frame").expect("infallible");
        assert_eq!(frame.into_data().expect("data"), "all");
        assert!(body.is_end_stream() && body.frame().await.is_none());
        assert!(WorkerBody::unchanged(Bytes::new()).is_end_stream());
    }
}
