//! A name server that answers as it is told, over UDP and TCP on one port.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What it answers to a question.
#[derive(Clone)]
pub(super) enum Reply {
    /// NOERROR with these records, which may be none.
    Records { records: Vec<RData>, ttl: u32 },
    /// The same with TTL 0; over UDP only the flag that the answer is cut.
    OnlyOverTcp { records: Vec<RData> },
    /// An error without records.
    Code(ResponseCode),
    /// Nothing at all.
    Silence,
}

impl Reply {
    pub(super) fn records(records: impl Into<Vec<RData>>) -> Self {
        Self::Records {
            records: records.into(),
            ttl: 0,
        }
    }
}

type Question = (String, RecordType);

#[derive(Default)]
struct Zone {
    replies: Mutex<HashMap<Question, Reply>>,
    asked: Mutex<HashMap<Question, usize>>,
    question: Notify,
}

/// Runs until it is dropped.
pub(super) struct Server {
    zone: Arc<Zone>,
    address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Server {
    pub(super) async fn start() -> Self {
        let (udp, tcp) = one_port().await;
        let address = udp.local_addr().expect("it is bound");
        let zone = Arc::new(Zone::default());
        let tasks = [
            tokio::spawn(serve_udp(udp, Arc::clone(&zone))),
            tokio::spawn(serve_tcp(tcp, Arc::clone(&zone))),
        ];
        Self {
            zone,
            address,
            tasks,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is answered to this question from now on; without it, REFUSED.
    pub(super) fn set(&self, name: &str, kind: RecordType, reply: Reply) {
        let mut replies = self.zone.replies.lock().expect("no panic");
        replies.insert((name.to_owned(), kind), reply);
    }

    /// How often it was asked this.
    pub(super) fn asked(&self, name: &str, kind: RecordType) -> usize {
        let asked = self.zone.asked.lock().expect("no panic");
        asked.get(&(name.to_owned(), kind)).copied().unwrap_or(0)
    }

    /// Waits for a question.
    pub(super) async fn next(&self) {
        self.zone.question.notified().await;
    }
}

/// A free port is free for both protocols only by luck, so it is tried again.
async fn one_port() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = udp.local_addr().expect("it is bound");
        if let Ok(tcp) = TcpListener::bind(address).await {
            return (udp, tcp);
        }
    }
    panic!("no port is free for UDP and TCP");
}

async fn serve_udp(socket: UdpSocket, zone: Arc<Zone>) {
    let mut buffer = vec![0; 4096];
    loop {
        let Ok((bytes, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        if let Some(answer) = zone.answer(&buffer[..bytes], false) {
            let _gone = socket.send_to(&answer, from).await;
        }
    }
}

async fn serve_tcp(listener: TcpListener, zone: Arc<Zone>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve_stream(stream, Arc::clone(&zone)));
    }
}

/// Each message has its length in front. Ends with the stream.
async fn serve_stream(mut stream: TcpStream, zone: Arc<Zone>) {
    while let Ok(bytes) = stream.read_u16().await {
        let mut question = vec![0; usize::from(bytes)];
        if stream.read_exact(&mut question).await.is_err() {
            return;
        }
        if let Some(answer) = zone.answer(&question, true) {
            let length = u16::try_from(answer.len()).expect("an answer fits");
            let framed = [&length.to_be_bytes()[..], &answer].concat();
            if stream.write_all(&framed).await.is_err() {
                return;
            }
        }
    }
}

impl Zone {
    fn answer(&self, question: &[u8], is_tcp: bool) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).expect("a resolver sends messages");
        let query = question.queries.first().expect("a question").clone();
        let key = (query.name().to_lowercase().to_ascii(), query.query_type());
        *self
            .asked
            .lock()
            .expect("no panic")
            .entry(key.clone())
            .or_default() += 1;
        self.question.notify_one();
        let reply = self.replies.lock().expect("no panic").get(&key).cloned();
        let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
        let name = query.name().clone();
        answer.add_query(query);
        let mut add = |records: Vec<RData>, ttl| {
            let records = records.into_iter();
            answer.add_answers(records.map(|data| Record::from_rdata(name.clone(), ttl, data)));
        };
        match reply {
            Some(Reply::Silence) => return None,
            Some(Reply::Records { records, ttl }) => add(records, ttl),
            Some(Reply::OnlyOverTcp { records }) if is_tcp => add(records, 0),
            Some(Reply::OnlyOverTcp { .. }) => answer.metadata.truncation = true,
            Some(Reply::Code(code)) => answer.metadata.response_code = code,
            None => answer.metadata.response_code = ResponseCode::Refused,
        }
        Some(answer.to_vec().expect("an answer can be written"))
    }
}
