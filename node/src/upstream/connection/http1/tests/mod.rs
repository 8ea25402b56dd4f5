//! Tests of HTTP/1.1 to workers: `codec` and `laws` for what bytes mean, `sockets` for connections.

mod codec;
mod laws;
mod sockets;

use bytes::BytesMut;
use http::{Method, Version};

use super::{Head, HeadReader};
use crate::upstream::connection::broken::{Broken, SendError};

/// What was read of the bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    version: Version,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    trailers: Option<Vec<(String, Vec<u8>)>>,
    /// It ended as it should.
    is_whole: bool,
    /// What is no part of the answer.
    behind: Vec<u8>,
}

fn lines(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let lines = headers.iter();
    lines
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// Reads an answer that arrives in these pieces, up to the connection's end.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Seen, SendError> {
    let mut reader = HeadReader::of(&Method::POST);
    let mut buf = BytesMut::new();
    let mut pieces = pieces.into_iter();
    let Head {
        response, mut body, ..
    } = loop {
        if let Some(head) = reader.take(&mut buf)? {
            break head;
        }
        let piece = pieces.next().ok_or(SendError::Malformed(Broken::Cut))?;
        buf.extend_from_slice(piece);
    };
    let mut seen = Seen {
        status: response.status().as_u16(),
        version: response.version(),
        headers: lines(response.headers()),
        body: Vec::new(),
        trailers: None,
        is_whole: true,
        behind: Vec::new(),
    };
    while !body.has_ended() {
        match body.take(&mut buf) {
            Ok(Some(frame)) => match frame.into_data() {
                Ok(data) => seen.body.extend_from_slice(&data),
                Err(frame) => {
                    let trailers = frame.into_trailers().expect("nothing else is left");
                    seen.trailers = Some(lines(&trailers));
                }
            },
            Ok(None) if body.has_ended() => {}
            Ok(None) => match pieces.next() {
                Some(piece) => buf.extend_from_slice(piece),
                None if body.close().is_ok() => {}
                None => {
                    seen.is_whole = false;
                    return Ok(seen);
                }
            },
            Err(_) => {
                seen.is_whole = false;
                return Ok(seen);
            }
        }
    }
    pieces.for_each(|piece| buf.extend_from_slice(piece));
    seen.behind = buf.to_vec();
    Ok(seen)
}
