//! An HTTP/1.1 answer of a worker.

use bytes::BytesMut;
use grapevine::upstream::connection::http1::HeadReader;
use http::{HeaderMap, Method};

/// What was read of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    headers: HeaderMap,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// It ended as it should; what lies behind it.
    end: Option<Vec<u8>>,
}

/// The first byte chooses in which pieces the rest arrives, the bytes of a connection up to its end.
///
/// # Panics
/// What is read of an answer depends on the pieces, or is more than the bytes that came.
pub fn answer(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else {
        return;
    };
    for method in [Method::POST, Method::HEAD] {
        let whole = read(&method, data, data.len().max(1));
        let parts = read(&method, data, usize::from(step) + 1);
        assert_eq!(whole, parts, "{method}");
        if let Some(seen) = whole {
            let behind = seen.end.as_ref().map_or(0, Vec::len);
            assert!(seen.data.len() + behind < data.len(), "bytes were made up");
        }
    }
}

/// None where the head is refused, or never whole.
fn read(method: &Method, data: &[u8], step: usize) -> Option<Seen> {
    let mut reader = HeadReader::of(method);
    let (mut buf, mut pieces) = (BytesMut::new(), data.chunks(step));
    let mut head = loop {
        if let Some(head) = reader.take(&mut buf).ok()? {
            break head;
        }
        buf.extend_from_slice(pieces.next()?);
    };
    let mut seen = Seen {
        status: head.response.status().as_u16(),
        headers: std::mem::take(head.response.headers_mut()),
        data: Vec::new(),
        trailers: None,
        end: None,
    };
    while !head.body.has_ended() {
        match head.body.take(&mut buf) {
            Ok(Some(frame)) => match frame.into_data() {
                Ok(data) => seen.data.extend_from_slice(&data),
                Err(frame) => seen.trailers = frame.into_trailers().ok(),
            },
            Ok(None) if head.body.has_ended() => {}
            Ok(None) => match pieces.next() {
                Some(piece) => buf.extend_from_slice(piece),
                None if head.body.close().is_ok() => {}
                None => return Some(seen),
            },
            Err(_) => return Some(seen),
        }
    }
    pieces.for_each(|piece| buf.extend_from_slice(piece));
    seen.end = Some(buf.to_vec());
    Some(seen)
}
