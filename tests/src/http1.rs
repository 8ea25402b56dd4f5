//! One HTTP/1.1 connection of a client: it sends exactly the bytes that the test wrote.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longest wait for the next byte.
const BYTE_WITHIN: Duration = Duration::from_secs(30);
const HEADERS_MAX: usize = 128;

/// A connection.
pub struct Connection {
    stream: TcpStream,
    inbox: BytesMut,
    body: Body,
}

/// The part of the response that is still to be read.
#[derive(Debug, Clone, Copy)]
enum Body {
    Length(usize),
    Chunked,
    UntilClose,
    Ended,
}

/// The connection ended before the response did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut;

/// Status and headers of a response.
#[derive(Debug, Clone)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// In order, names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// First value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(n, _)| n == name);
        named.next().map(|(_, value)| value.as_str())
    }
}

/// A whole response.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status and headers.
    pub head: Head,
    /// Body without chunk framing.
    pub body: Bytes,
}

impl Response {
    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: status {}, {}", self.head.status, self.text()))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Bytes of a request with `Host` and, if there is a body, its length and type.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    if !body.is_empty() {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            head.push_str("content-type: application/json\r\n");
        }
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// One exchange on a connection of its own.
pub async fn exchange(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut connection = Connection::open(address).await;
    let bytes = request(method, target, headers, body);
    connection.send(&bytes).await.expect("the request is taken");
    connection.response().await.expect("the response is whole")
}

/// `POST` of JSON on a connection of its own.
pub async fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    exchange(address, "POST", path, &[], body.to_string().as_bytes()).await
}

/// `GET` on a connection of its own.
pub async fn get(address: SocketAddr, path: &str) -> Response {
    exchange(address, "GET", path, &[], b"").await
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Self {
        Self::try_open(address)
            .await
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"))
    }

    /// Connects; fails if nothing listens.
    pub async fn try_open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = timeout(BYTE_WITHIN, TcpStream::connect(address)).await??;
        Self::over(stream)
    }

    /// Connects from another address of this machine than the usual one.
    pub async fn open_from(own: IpAddr, address: SocketAddr) -> Self {
        let open = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((own, 0).into())?;
            Self::over(timeout(BYTE_WITHIN, socket.connect(address)).await??)
        };
        let opened: std::io::Result<Self> = open.await;
        opened.unwrap_or_else(|error| panic!("cannot connect to {address} from {own}: {error}"))
    }

    fn over(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            inbox: BytesMut::new(),
            body: Body::Ended,
        })
    }

    /// Sends exactly these bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        let sent = timeout(BYTE_WITHIN, self.stream.write_all(bytes)).await;
        sent.expect("the other side takes bytes").map_err(|_| Cut)
    }

    /// Closes the sending half.
    pub async fn half_close(&mut self) {
        self.stream.shutdown().await.expect("the socket is open");
    }

    /// Ends the connection by a reset instead of the FIN that dropping it sends.
    pub fn reset(self) {
        self.stream.set_zero_linger().expect("the socket is open");
    }

    /// Reads the head of the next response.
    pub async fn head(&mut self) -> Result<Head, Cut> {
        loop {
            if let Some((head, body)) = parse_head(&mut self.inbox) {
                self.body = body;
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    /// Next bytes of the response's body without framing; `None` at its well-formed end.
    pub async fn data(&mut self) -> Result<Option<Bytes>, Cut> {
        match self.body {
            Body::Ended => Ok(None),
            Body::Length(0) => {
                self.body = Body::Ended;
                Ok(None)
            }
            Body::Length(left) => {
                if self.inbox.is_empty() {
                    self.fill().await?;
                }
                let data = self.inbox.split_to(left.min(self.inbox.len()));
                self.body = Body::Length(left - data.len());
                Ok(Some(data.freeze()))
            }
            Body::UntilClose => {
                if self.inbox.is_empty() && self.fill().await.is_err() {
                    self.body = Body::Ended;
                    return Ok(None);
                }
                Ok(Some(self.inbox.split().freeze()))
            }
            Body::Chunked => self.chunk().await,
        }
    }

    /// The rest of the response's body.
    pub async fn rest(&mut self) -> Result<Bytes, Cut> {
        let mut body = BytesMut::new();
        while let Some(data) = self.data().await? {
            body.extend_from_slice(&data);
        }
        Ok(body.freeze())
    }

    /// Reads a whole response.
    pub async fn response(&mut self) -> Result<Response, Cut> {
        let head = self.head().await?;
        let body = self.rest().await?;
        Ok(Response { head, body })
    }

    /// The same, if it is whole within that time; otherwise the bytes that have arrived are kept.
    pub async fn response_within(&mut self, time: Duration) -> Option<Result<Response, Cut>> {
        while !self.holds_response() {
            match timeout(time, self.stream.read_buf(&mut self.inbox)).await {
                Err(_) => return None,
                Ok(Ok(1..)) => {}
                Ok(_) => return Some(Err(Cut)),
            }
        }
        Some(self.response().await)
    }

    /// Whether a head and a body of its length have arrived.
    fn holds_response(&self) -> bool {
        let mut inbox = self.inbox.clone();
        matches!(parse_head(&mut inbox), Some((_, Body::Length(length))) if inbox.len() >= length)
    }

    /// Reads and forgets everything to the end of the connection.
    pub async fn discard(&mut self) {
        while self.fill().await.is_ok() {
            self.inbox.clear();
        }
    }

    /// True once the other side has closed and everything before that was read.
    pub async fn is_closed(&mut self) -> bool {
        self.inbox.is_empty() && self.fill().await.is_err()
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Cut> {
        let size = loop {
            match httparse::parse_chunk_size(&self.inbox).expect("chunks are well-formed") {
                httparse::Status::Complete((skip, size)) => {
                    self.inbox.advance(skip);
                    break usize::try_from(size).expect("a chunk fits memory");
                }
                httparse::Status::Partial => self.fill().await?,
            }
        };
        while self.inbox.len() < size + 2 {
            self.fill().await?;
        }
        let data = self.inbox.split_to(size).freeze();
        assert_eq!(&self.inbox.split_to(2)[..], b"\r\n", "end of a chunk");
        if size == 0 {
            self.body = Body::Ended;
            return Ok(None);
        }
        Ok(Some(data))
    }

    async fn fill(&mut self) -> Result<(), Cut> {
        let read = timeout(BYTE_WITHIN, self.stream.read_buf(&mut self.inbox)).await;
        match read.unwrap_or_else(|_| panic!("no byte for {BYTE_WITHIN:?}")) {
            Ok(0) | Err(_) => Err(Cut),
            Ok(_) => Ok(()),
        }
    }
}

/// Takes a complete head off the front of `inbox`.
fn parse_head(inbox: &mut BytesMut) -> Option<(Head, Body)> {
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut slots);
    let status = parsed.parse(inbox).expect("the response is HTTP/1");
    let httparse::Status::Complete(length) = status else {
        return None;
    };
    let headers = parsed.headers.iter().map(|header| {
        let value = String::from_utf8_lossy(header.value).into_owned();
        (header.name.to_ascii_lowercase(), value)
    });
    let head = Head {
        status: parsed.code.expect("a complete head has a status"),
        headers: headers.collect(),
    };
    inbox.advance(length);
    let body = match (
        head.header("content-length"),
        head.header("transfer-encoding"),
    ) {
        (Some(length), None) => Body::Length(length.parse().expect("a length is a number")),
        (None, Some("chunked")) => Body::Chunked,
        (None, None) if matches!(head.status, 204 | 304) => Body::Ended,
        (None, None) => Body::UntilClose,
        both => panic!("ambiguous framing: {both:?}"),
    };
    Some((head, body))
}
