//! One HTTP/1.1 connection at the level of bytes: requests in, raw bytes out.
//!
//! Own code over `TcpStream`, because faults control every byte, and because the close of a client must be
//! noticed while nothing is being read. It behaves as uvicorn does wherever a router can see a difference:
//! `Expect: 100-continue`, chunked uploads, idle close, 400 in plain text for anything but HTTP/1, a
//! half-closed connection counts as a client that left.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Greatest request head; above it the request is refused as invalid.
const HEAD_BYTES_MAX: usize = 1 << 20;
/// Greatest request body; above it the connection is closed. vLLM itself has no limit.
const BODY_BYTES_MAX: usize = 256 << 20;
const HEADERS_MAX: usize = 256;
/// Pipelined bytes kept while a reply is being sent.
const INBOX_BYTES_MAX: usize = 64 << 10;

/// A request with its whole body.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query as received.
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    /// The client wants to use the connection again.
    pub(super) keep_alive: bool,
}

impl Request {
    /// First value of a header, any case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut found = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.as_str())
}

/// Why there is no further request.
#[derive(Debug)]
pub(super) enum NoRequest {
    /// Closed or reset by the client, or idle for too long.
    Closed,
    /// Not HTTP/1, or above a limit.
    Invalid,
}

impl From<io::Error> for NoRequest {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    inbox: BytesMut,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            inbox: BytesMut::new(),
        }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The socket and the bytes already read from it, for another protocol.
    pub(super) fn raw(&mut self) -> (&mut TcpStream, Vec<u8>) {
        (&mut self.stream, self.inbox.split().to_vec())
    }

    /// Waits for the first byte of the next request, at most `idle` when given.
    pub(super) async fn next_request_begins(
        &mut self,
        idle: Option<Duration>,
    ) -> Result<(), NoRequest> {
        if !self.inbox.is_empty() {
            return Ok(());
        }
        match idle {
            None => self.fill().await,
            Some(idle) => timeout(idle, self.fill())
                .await
                .map_err(|_| NoRequest::Closed)?,
        }
    }

    /// Reads the rest of a request, however long that takes (as uvicorn).
    pub(super) async fn request(&mut self) -> Result<Request, NoRequest> {
        let (mut request, framing) = loop {
            if let Some(head) = parse_head(&mut self.inbox)? {
                break head;
            }
            if self.inbox.len() > HEAD_BYTES_MAX {
                return Err(NoRequest::Invalid);
            }
            self.fill().await?;
        };
        let awaits = request
            .header("expect")
            .is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
        if awaits && !matches!(framing, Framing::Length(0)) {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        request.body = match framing {
            Framing::Length(length) if length > BODY_BYTES_MAX => return Err(NoRequest::Invalid),
            Framing::Length(length) => self.take(length).await?,
            Framing::Chunked => self.chunked_body().await?,
        };
        Ok(request)
    }

    async fn take(&mut self, length: usize) -> Result<Bytes, NoRequest> {
        while self.inbox.len() < length {
            self.fill().await?;
        }
        Ok(self.inbox.split_to(length).freeze())
    }

    async fn chunked_body(&mut self) -> Result<Bytes, NoRequest> {
        let mut body = BytesMut::new();
        loop {
            let (skip, size) = loop {
                match httparse::parse_chunk_size(&self.inbox).map_err(|_| NoRequest::Invalid)? {
                    httparse::Status::Complete((skip, size)) => break (skip, size as usize),
                    httparse::Status::Partial => self.fill().await?,
                }
            };
            self.inbox.advance(skip);
            if size > BODY_BYTES_MAX - body.len() {
                return Err(NoRequest::Invalid);
            }
            if size == 0 {
                return self.trailers().await.map(|()| body.freeze());
            }
            body.extend_from_slice(&self.take(size).await?);
            if self.take(2).await?.as_ref() != b"\r\n" {
                return Err(NoRequest::Invalid);
            }
        }
    }

    /// Skips trailer lines up to and including the empty one.
    async fn trailers(&mut self) -> Result<(), NoRequest> {
        loop {
            let Some(end) = memchr::memmem::find(&self.inbox, b"\r\n") else {
                if self.inbox.len() > HEAD_BYTES_MAX {
                    return Err(NoRequest::Invalid);
                }
                self.fill().await?;
                continue;
            };
            self.inbox.advance(end + 2);
            if end == 0 {
                return Ok(());
            }
        }
    }

    async fn fill(&mut self) -> Result<(), NoRequest> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read_buf(&mut self.inbox) {
                Ok(0) => return Err(NoRequest::Closed),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(NoRequest::Closed),
            }
        }
    }

    /// Returns when the client has closed, half-closed or reset the connection. Pipelined bytes
    /// are kept for the next request, so they do not hide the close behind them.
    pub(super) async fn gone(&mut self) {
        while self.inbox.len() < INBOX_BYTES_MAX {
            if self.fill().await.is_err() {
                return;
            }
        }
        // The inbox is full: look at the socket's state without reading.
        while let Ok(ready) = self
            .stream
            .ready(Interest::READABLE | Interest::ERROR)
            .await
        {
            if ready.is_read_closed() || ready.is_error() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Writes everything, or fails as soon as the client is gone.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits for room in the send buffer, watching for a client that leaves instead of reading.
    async fn writable(&mut self) -> io::Result<()> {
        if self.inbox.len() >= INBOX_BYTES_MAX {
            return self.stream.writable().await;
        }
        tokio::select! {
            ready = self.stream.writable() => ready,
            read = self.stream.readable() => {
                read?;
                match self.stream.try_read_buf(&mut self.inbox) {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => Ok(()),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
                    Err(e) => Err(e),
                }
            }
        }
    }
}

enum Framing {
    Length(usize),
    Chunked,
}

/// Takes a complete head off the front of `inbox`; `None` when it is not complete yet.
fn parse_head(inbox: &mut BytesMut) -> Result<Option<(Request, Framing)>, NoRequest> {
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut slots);
    let length = match parsed.parse(inbox) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(NoRequest::Invalid),
    };
    let headers: Vec<(String, String)> = parsed
        .headers
        .iter()
        .map(|h| {
            (
                h.name.to_owned(),
                String::from_utf8_lossy(h.value).into_owned(),
            )
        })
        .collect();
    let framing = framing(&headers)?;
    let connection = header(&headers, "connection").unwrap_or_default();
    let request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        target: parsed.path.unwrap_or_default().to_owned(),
        keep_alive: parsed.version == Some(1) && !connection.eq_ignore_ascii_case("close"),
        headers,
        body: Bytes::new(),
    };
    inbox.advance(length);
    Ok(Some((request, framing)))
}

fn framing(headers: &[(String, String)]) -> Result<Framing, NoRequest> {
    if let Some(coding) = header(headers, "transfer-encoding") {
        return if coding.eq_ignore_ascii_case("chunked") {
            Ok(Framing::Chunked)
        } else {
            Err(NoRequest::Invalid)
        };
    }
    let length = header(headers, "content-length").map_or(Ok(0), |text| text.trim().parse());
    length.map(Framing::Length).map_err(|_| NoRequest::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<(Request, Framing)>, NoRequest> {
        parse_head(&mut BytesMut::from(text))
    }

    #[test]
    fn heads() {
        let (request, framing) = head("POST /v1/x?a=1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
            .expect("valid")
            .expect("complete");
        assert_eq!((request.path(), request.keep_alive), ("/v1/x", true));
        assert!(matches!(framing, Framing::Length(3)));
        assert!(matches!(head("GET / HTTP/1.1\r\nHost:"), Ok(None)));
        for invalid in [
            "NONSENSE\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        ] {
            assert!(head(invalid).is_err(), "{invalid:?}");
        }
        for (text, keep_alive) in [
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", false),
            ("GET / HTTP/1.1\r\n\r\n", true),
        ] {
            let (request, _) = head(text).expect("valid").expect("complete");
            assert_eq!(request.keep_alive, keep_alive, "{text:?}");
        }
    }
}
