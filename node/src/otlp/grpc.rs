//! OTLP over gRPC, as far as one unary call needs it: a length before the message, and a status behind the answer.
//!
//! gRPC is HTTP/2, protobuf and these few bytes. Client, roots, limits and messages are those of OTLP over HTTP, so
//! that both ways to a collector fail alike; a gRPC library would bring a second HTTP stack for one call.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE};
use http::{HeaderMap, Request};
use percent_encoding::percent_decode;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Longest message of a collector that is shown in the log, in bytes.
const MESSAGE_BYTES_MAX: usize = 200;

/// What an answer of a collector is that took nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GrpcError {
    /// The answer is not gRPC.
    #[error("the answer is no gRPC; is this the collector's gRPC port?")]
    NotGrpc,
    /// The collector's own refusal: a code of gRPC, and its words.
    #[error("gRPC status {0} {1}")]
    Refused(String, String),
}

/// Makes a call of a message.
pub(super) fn call(request: Request<Bytes>, within: Duration) -> Request<Bytes> {
    let (mut head, message) = request.into_parts();
    let headers = &mut head.headers;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    let millis = HeaderValue::try_from(format!("{}m", within.as_millis()));
    headers.insert(TIMEOUT, millis.expect("digits and a letter"));
    let length = u32::try_from(message.len()).expect("messages are far below 4 GiB");
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(length);
    framed.put(message);
    Request::from_parts(head, framed.freeze())
}

/// The message of an answer, from its body and from the headers that end it (its head, where nothing else follows).
/// Errors: the collector refused, or it was no collector.
pub(super) fn answer(mut body: Bytes, end: &HeaderMap) -> Result<Bytes, GrpcError> {
    let status = end.get(STATUS).ok_or(GrpcError::NotGrpc)?;
    if status != "0" {
        let message = end.get(MESSAGE).map_or(&b""[..], HeaderValue::as_bytes);
        let message = percent_decode(&message[..message.len().min(MESSAGE_BYTES_MAX)]);
        return Err(GrpcError::Refused(
            String::from_utf8_lossy(status.as_bytes()).into_owned(),
            message.decode_utf8_lossy().into_owned(),
        ));
    }
    // What it says is only how much it left out, so one that cannot be read is not worth an error.
    let length = match body.get(..PREFIX_BYTES) {
        Some([0, length @ ..]) => length
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        _ => return Ok(Bytes::new()),
    };
    body = body.split_off(PREFIX_BYTES);
    body.truncate(length);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            let value = value.parse().expect("a value");
            (HeaderName::from_static(name), value)
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_call_is_the_message_behind_its_length() {
        let request = Request::post("https://collector:4317/Service/Export")
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header("x-key", "kept")
            .body(Bytes::from_static(b"spans"))
            .expect("a request");
        let call = call(request, Duration::from_secs(5));
        assert_eq!(call.uri(), "https://collector:4317/Service/Export");
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "5000m"),
            ("x-key", "kept"),
        ] {
            assert_eq!(call.headers()[name], value);
        }
        assert_eq!(&call.body()[..], b"\0\0\0\0\x05spans");
    }

    #[test]
    fn only_status_zero_is_a_yes() {
        let body = Bytes::from_static(b"\0\0\0\0\x02ok");
        let good = end(&[("grpc-status", "0")]);
        assert_eq!(answer(body.clone(), &good), Ok("ok".into()));
        for odd in [&b""[..], b"\0\0\0", b"\x01\0\0\0\x02zz", b"\0\0\0\0\0"] {
            assert_eq!(answer(Bytes::from_static(odd), &good), Ok(Bytes::new()));
        }
        let refused = end(&[("grpc-status", "12"), ("grpc-message", "no%20such%20call")]);
        assert_eq!(
            answer(body.clone(), &refused),
            Err(GrpcError::Refused("12".into(), "no such call".into()))
        );
        assert_eq!(answer(body, &end(&[])), Err(GrpcError::NotGrpc));
    }
}
