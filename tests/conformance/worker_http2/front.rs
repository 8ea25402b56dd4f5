//! HTTP/2 in front of a fake worker.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::TryStreamExt;
use grapevine_tests::cluster::Plan;
use grapevine_tests::tls::Pair;
use grapevine_tests::wait::{LIMIT, eventually, so};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::h2_floods::PREFACE;
use crate::house::House;

/// Target and headers of a request.
pub(super) type Asked = (String, Vec<(String, String)>);

/// Requests that a front got in HTTP/2.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) connections: AtomicUsize,
    pub(super) requests: Mutex<Vec<Asked>>,
}

/// HTTP/2 in front of a fake worker; other protocols are passed on unchanged. It serves while it lives.
pub(super) struct Http2Front {
    pub(super) address: SocketAddr,
    pub(super) seen: Arc<Seen>,
    pub(super) _serving: JoinSet<()>,
}

impl Http2Front {
    pub(super) async fn start(to: SocketAddr, tls: Option<&Pair>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let acceptor = tls.map(|pair| {
            let config = pair.server(None, &["h2", "http/1.1"]);
            TlsAcceptor::from(Arc::new(config))
        });
        let seen = Arc::new(Seen::default());
        let (shared, mut serving) = (Arc::clone(&seen), JoinSet::new());
        serving.spawn(async move {
            let client = reqwest_client();
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, client) = (Arc::clone(&shared), client.clone());
                let acceptor = acceptor.clone();
                open.spawn(async move {
                    let Some(acceptor) = acceptor else {
                        let is_http2 = begins_http2(&stream).await;
                        return serve(stream, is_http2, to, &client, &seen).await;
                    };
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        serve(stream, is_http2, to, &client, &seen).await;
                    }
                });
            }
        });
        Self {
            address,
            seen,
            _serving: serving,
        }
    }

    pub(super) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.address.port())
    }

    pub(super) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> Vec<Asked> {
        self.seen.requests.lock().expect("not poisoned").clone()
    }
}

pub(super) fn reqwest_client() -> reqwest::Client {
    // A second installation in this process changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    client.build().expect("a client can be built")
}

pub(super) async fn begins_http2(stream: &TcpStream) -> bool {
    let mut first = [0; 3];
    loop {
        match stream.peek(&mut first).await {
            Ok(3) => return first == PREFACE[..3],
            Ok(1..) => {}
            _ => return false,
        }
    }
}

pub(super) async fn serve<S>(
    mut stream: S,
    is_http2: bool,
    to: SocketAddr,
    client: &reqwest::Client,
    seen: &Arc<Seen>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if !is_http2 {
        let mut outside = TcpStream::connect(to).await.expect("the worker is there");
        // Either side may leave.
        let _ = copy_bidirectional(&mut stream, &mut outside).await;
        return;
    }
    seen.connections.fetch_add(1, Ordering::Relaxed);
    let service = service_fn(|request: Request<Incoming>| {
        let (client, seen) = (client.clone(), Arc::clone(seen));
        async move { Ok::<_, Infallible>(pass_on(request, to, &client, &seen).await) }
    });
    let serving = http2::Builder::new(TokioExecutor::new());
    // The replica ends its connections when it is done with them.
    let _ = serving
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

pub(super) async fn pass_on(
    request: Request<Incoming>,
    to: SocketAddr,
    client: &reqwest::Client,
    seen: &Seen,
) -> Response<impl hyper::body::Body<Data = bytes::Bytes, Error = reqwest::Error> + use<>> {
    let (head, body) = request.into_parts();
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    let request = (head.uri.to_string(), headers.collect());
    seen.requests.lock().expect("not poisoned").push(request);
    let path = head.uri.path_and_query().expect("a path").as_str();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let answer = client.request(head.method, format!("http://{to}{path}"));
    let answer = answer.headers(head.headers).body(body).send().await;
    let answer = answer.expect("the fake worker answers");
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if !["connection", "transfer-encoding"].contains(&name.as_str()) {
            response = response.header(name, value);
        }
    }
    let frames = answer.bytes_stream().map_ok(Frame::data);
    response.body(StreamBody::new(frames)).expect("a response")
}

pub(super) fn asking(http2: &str) -> Plan {
    Plan::default().set("workers.http2", &format!("{http2:?}"))
}

pub(super) async fn until_healthy(house: &House, count: usize) {
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "workers are healthy", async || {
        let known = admin.workers().await;
        let healthy = known.iter().filter(|worker| worker.health == "healthy");
        so(healthy.count() == count, || format!("{known:?}"))
    })
    .await;
}
