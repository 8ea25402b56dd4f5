//! Writing one reply, with the request's fault applied to its bytes.
//!
//! Handlers choose *what* to send ([`Reply::plain`], [`Reply::begin_stream`], [`Reply::event`],
//! [`Reply::end_stream`]); framing and the place of a fault are known in this file alone.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use httpdate::fmt_http_date;
use socket2::SockRef;
use tokio::sync::watch;
use tokio::time::sleep;

use super::body;
use super::connection::Connection;
use super::fault::{BadSse, Fault, How, Point};
use super::ledger::Open;
use super::request::ApiError;
use super::worker::Phase;

/// Content type of most replies.
pub(super) const JSON: &str = "application/json";

/// The reply is over before its end: the client left, or a fault ended it. The connection must
/// not be used again.
#[derive(Debug)]
pub(super) struct Ended;

/// The kind of a piece of a reply, for faults that strike at events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Head,
    Body,
    Event,
    DoneEvent,
    /// Chunk framing after the last event.
    End,
}

pub(super) struct Reply<'a> {
    connection: &'a mut Connection,
    fault: Fault,
    /// Inference requests are logged; probes are not.
    entry: Option<&'a Open>,
    /// Phase of the worker: once it hangs, no further byte is sent. `None`: this reply cannot hang.
    phase: Option<watch::Receiver<Phase>>,
    keep_alive: bool,
    /// Extra headers in every head of this reply.
    extra: Vec<(String, String)>,
    head_sent: u64,
    body_sent: u64,
    events: u32,
}

impl<'a> Reply<'a> {
    pub(super) fn new(
        connection: &'a mut Connection,
        fault: Fault,
        entry: Option<&'a Open>,
        phase: Option<watch::Receiver<Phase>>,
        keep_alive: bool,
    ) -> Self {
        Self {
            connection,
            fault,
            entry,
            phase,
            keep_alive,
            extra: Vec::new(),
            head_sent: 0,
            body_sent: 0,
            events: 0,
        }
    }

    pub(super) fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Adds a header to the head, which is not yet sent.
    pub(super) fn header(&mut self, name: &str, value: &str) {
        self.extra.push((name.to_owned(), value.to_owned()));
    }

    /// Runs `work` unless the client leaves first or the worker is told to hang.
    pub(super) async fn unless_gone<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Ended> {
        tokio::select! {
            biased;
            () = self.connection.gone() => Err(self.client_gone()),
            () = hangs(self.phase.as_mut()) => Err(self.stall().await),
            done = work => Ok(done),
        }
    }

    /// Waits for the fault's delay before anything is sent.
    pub(super) async fn delay(&mut self) -> Result<(), Ended> {
        let delay = Duration::from_millis(self.fault.delay_ms);
        if delay.is_zero() {
            return Ok(());
        }
        self.unless_gone(sleep(delay)).await
    }

    /// A whole reply with a body of known length. `content_type` may be empty: no such header.
    pub(super) async fn plain(
        &mut self,
        status: u16,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), Ended> {
        let length = body.len() as u64 + self.fault.short_by;
        let mut headers = vec![("content-length", length.to_string())];
        if !content_type.is_empty() {
            headers.push(("content-type", content_type.to_owned()));
        }
        self.head(status, headers).await?;
        self.send(Piece::Body, 0, body, body.len()).await?;
        if self.fault.short_by > 0 {
            return Err(self.cut(How::Fin).await);
        }
        self.complete();
        Ok(())
    }

    /// The head of an event stream.
    pub(super) async fn begin_stream(&mut self) -> Result<(), Ended> {
        let kind = "text/event-stream; charset=utf-8".to_owned();
        let chunked = "chunked".to_owned();
        self.head(
            200,
            vec![("content-type", kind), ("transfer-encoding", chunked)],
        )
        .await
    }

    /// One SSE event with this data, as one chunk (unless a fault says otherwise).
    pub(super) async fn event(&mut self, data: &str) -> Result<(), Ended> {
        let event = self.spoil(format!("data: {data}\n\n"));
        self.chunk(Piece::Event, &event).await?;
        self.events += 1;
        Ok(())
    }

    /// One event with a name.
    pub(super) async fn named_event(&mut self, name: &str, data: &str) -> Result<(), Ended> {
        let event = self.spoil(format!("event: {name}\ndata: {data}\n\n"));
        self.chunk(Piece::Event, &event).await?;
        self.events += 1;
        Ok(())
    }

    /// The clean end of a stream whose last event was its end mark.
    pub(super) async fn end_named(&mut self) -> Result<(), Ended> {
        self.send(Piece::End, END.len(), END, 0).await?;
        self.complete();
        Ok(())
    }

    /// A comment line that keeps the connection alive; not an event.
    pub(super) async fn comment(&mut self) -> Result<(), Ended> {
        self.chunk(Piece::Body, b": keep-alive\n\n").await
    }

    /// `[DONE]` and the clean end of the body.
    pub(super) async fn end_stream(&mut self) -> Result<(), Ended> {
        if self.fault.sse != Some(BadSse::NoDone) {
            self.chunk(Piece::DoneEvent, b"data: [DONE]\n\n").await?;
            self.events += 1;
        }
        self.send(Piece::End, END.len(), END, 0).await?;
        self.complete();
        Ok(())
    }

    fn complete(&self) {
        if let Some(entry) = self.entry {
            entry.complete();
        }
    }

    async fn head(&mut self, status: u16, mut headers: Vec<(&str, String)>) -> Result<(), Ended> {
        if let Some(entry) = self.entry {
            entry.update(|entry| entry.status = Some(status));
        }
        let hints = b"HTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n";
        for _ in 0..self.fault.early_hints {
            self.write(hints).await?;
        }
        headers.push(("vary", "Origin".to_owned()));
        let mut head = format!(
            "HTTP/1.1 {status} {}\r\ndate: {}\r\nserver: uvicorn\r\n",
            reason(status),
            fmt_http_date(SystemTime::now())
        );
        let extra = self
            .extra
            .iter()
            .map(|(name, value)| (name.as_str(), value));
        for (name, value) in headers
            .iter()
            .map(|(name, value)| (*name, value))
            .chain(extra)
        {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        // 4 kB for each header: receivers limit single headers and the whole head separately.
        let mut left = self.fault.header_bytes;
        while left > 0 {
            let length = left.min(4_096);
            head.push_str(&format!("x-filler: {}\r\n", "f".repeat(length as usize)));
            left -= length;
        }
        if !self.keep_alive {
            head.push_str("connection: close\r\n");
        }
        head.push_str("\r\n");
        self.send(Piece::Head, 0, head.as_bytes(), head.len())
            .await?;
        self.head_sent = head.len() as u64;
        Ok(())
    }

    async fn chunk(&mut self, piece: Piece, payload: &[u8]) -> Result<(), Ended> {
        let pieces = match self.fault.sse {
            Some(BadSse::SmallChunks(bytes)) => bytes.max(1) as usize,
            _ => payload.len(),
        };
        for payload in payload.chunks(pieces) {
            let framed = framed(payload);
            let framing = framed.len() - payload.len() - 2;
            self.send(piece, framing, &framed, payload.len()).await?;
        }
        Ok(())
    }

    /// Sends a piece, whose payload begins after `framing` bytes, up to the point where the fault strikes, if
    /// that lies in this piece.
    async fn send(
        &mut self,
        piece: Piece,
        framing: usize,
        bytes: &[u8],
        payload: usize,
    ) -> Result<(), Ended> {
        let strike = self
            .fault
            .stop
            .and_then(|stop| Some((self.strike(stop.at, piece, framing, payload)?, stop.how)));
        let (bytes, how) = match strike {
            Some((_, how @ (How::Crash | How::End))) => (&bytes[..0], Some(how)),
            Some((limit, how)) => (&bytes[..limit.min(bytes.len())], Some(how)),
            None => (bytes, None),
        };
        match self.fault.drip.filter(|_| piece != Piece::Head) {
            Some(drip) => {
                for part in bytes.chunks(drip.bytes.get() as usize) {
                    self.unless_gone(sleep(Duration::from_millis(drip.every_ms)))
                        .await?;
                    self.write(part).await?;
                }
            }
            None => {
                let is_last = match piece {
                    Piece::End => true,
                    Piece::Body => self.fault.short_by == 0,
                    _ => false,
                };
                let end = bytes.len().saturating_sub(LAST_WRITE_BYTES);
                if end > 0 {
                    self.write(&bytes[..end]).await?;
                }
                if let Some(entry) = self.entry
                    && is_last
                    && how.is_none()
                {
                    entry.count_out();
                }
                self.write(&bytes[end..]).await?;
            }
        }
        if let Some(how) = how {
            return Err(self.cut(how).await);
        }
        if piece != Piece::Head {
            self.body_sent += payload as u64;
        }
        Ok(())
    }

    /// How many bytes of this piece may still go out before the fault strikes inside it.
    fn strike(&self, at: Point, piece: Piece, framing: usize, payload: usize) -> Option<usize> {
        let in_body = |n: u64| {
            let offset = n.checked_sub(self.body_sent)?;
            match offset {
                0 => Some(0),
                _ if offset < payload as u64 => Some(framing + offset as usize),
                _ => None,
            }
        };
        match (at, piece) {
            (Point::Head(n), Piece::Head) if n < payload as u64 => Some(n as usize),
            (Point::Body(n), Piece::Body | Piece::Event | Piece::DoneEvent | Piece::End) => {
                in_body(n)
            }
            (Point::Event(n), Piece::Event | Piece::DoneEvent | Piece::End) => {
                (n == self.events).then_some(0)
            }
            (Point::Done, Piece::DoneEvent) => Some(0),
            _ => None,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self
            .phase
            .as_ref()
            .is_some_and(|phase| phase.borrow().hangs())
        {
            return Err(self.stall().await);
        }
        if self.connection.write(bytes).await.is_err() {
            return Err(self.client_gone());
        }
        if let Some(entry) = self.entry {
            entry.first_byte();
        }
        Ok(())
    }

    /// A token of a stream was written.
    pub(super) fn token_sent(&self) {
        if let Some(entry) = self.entry {
            entry.update(|entry| entry.streamed += 1);
        }
    }

    fn client_gone(&self) -> Ended {
        if let Some(entry) = self.entry {
            entry.client_gone();
        }
        Ended
    }

    /// Sends nothing more; ends when the client leaves.
    async fn stall(&mut self) -> Ended {
        self.connection.gone().await;
        self.client_gone()
    }

    async fn end_by(&mut self, bytes: Vec<u8>) -> Ended {
        match self.write(&bytes).await {
            Ok(()) => Ended,
            Err(ended) => ended,
        }
    }

    async fn cut(&mut self, how: How) -> Ended {
        match how {
            How::Stall => return self.stall().await,
            // Dropping the socket sends FIN: the whole request was read, so nothing is unread
            // unless the client pipelines.
            How::Fin => {}
            How::Rst => {
                let socket = SockRef::from(self.connection.stream());
                if let Err(e) = socket.set_linger(Some(Duration::ZERO)) {
                    tracing::warn!("cannot reset, closing instead: {e}");
                }
                // The kernel at the other end throws away what was not read.
                if let Some(entry) = self.entry {
                    entry.update(|entry| entry.streamed = 0);
                }
            }
            How::Crash => {
                let error = ApiError::engine_dead();
                let event = format!("data: {}\n\n", body::error_event(&error));
                let last = [framed(event.as_bytes()), framed(b"data: [DONE]\n\n")].concat();
                return self.end_by([last, END.to_vec()].concat()).await;
            }
            How::End => return self.end_by(END.to_vec()).await,
        }
        Ended
    }

    /// The bytes of an event under the fault's SSE variant.
    fn spoil(&self, event: String) -> Vec<u8> {
        let inside = |insert: &[u8]| {
            // Before the closing quote of the first string value after "content" or "text".
            let at = event.find("\"content\":\"").map(|at| at + 11);
            let at = at.or_else(|| event.find("\"text\":\"").map(|at| at + 8));
            let (front, back) = event.split_at(at.unwrap_or("data: ".len()));
            [front.as_bytes(), insert, back.as_bytes()].concat()
        };
        match self.fault.sse {
            Some(BadSse::NoNewline(bytes)) if self.events == 1 => {
                [b"data: ".to_vec(), vec![b'x'; bytes as usize]].concat()
            }
            Some(BadSse::Nul) => inside(b"\0\0"),
            Some(BadSse::BadUtf8) => inside(b"\xff\xfe\xc0"),
            Some(BadSse::DoneInContent) => inside(b"data: [DONE]\\n\\ndata: [DONE]"),
            Some(BadSse::Crlf) => event.replace('\n', "\r\n").into_bytes(),
            Some(BadSse::BrokenJson) => [&event.as_bytes()[..event.len() / 2], b"\n\n"].concat(),
            Some(BadSse::NoSpace) => event.replacen("data: ", "data:", 1).into_bytes(),
            _ => event.into_bytes(),
        }
    }
}

/// What is written at once at the end: so much a socket takes, even where its client does not read.
const LAST_WRITE_BYTES: usize = 4 * 1024;
/// The last chunk of a body.
const END: &[u8] = b"0\r\n\r\n";

/// A chunk.
fn framed(payload: &[u8]) -> Vec<u8> {
    let mut framed = format!("{:x}\r\n", payload.len()).into_bytes();
    framed.extend_from_slice(payload);
    framed.extend_from_slice(b"\r\n");
    framed
}

/// Returns when the worker begins to hang.
async fn hangs(phase: Option<&mut watch::Receiver<Phase>>) {
    if let Some(phase) = phase
        && phase.wait_for(|phase| phase.hangs()).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Body bytes of a canned reply, and whether they are compressed.
pub(super) fn canned_body(body: &str, repeat: u32, gzip: bool) -> Vec<u8> {
    if !gzip {
        return body.repeat(repeat as usize).into_bytes();
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..repeat {
        encoder
            .write_all(body.as_bytes())
            .expect("writing to memory does not fail");
    }
    encoder.finish().expect("writing to memory does not fail")
}

fn reason(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bomb_is_small_on_the_wire() {
        let bomb = canned_body(&"0".repeat(1_000), 10_000, true);
        assert!(bomb.len() < 100_000, "{} bytes for 10 MB", bomb.len());
    }
}
