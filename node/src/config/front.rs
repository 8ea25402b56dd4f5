//! Settings of what clients and operators touch: listeners, admin, metrics, time limits, sizes, log.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use tracing::Level;

use super::setting::{HOUR, LOOPBACK, ms, secs};
use super::table::section;
use super::types::{AllowedHost, ByteSize, Coding, Name, Secret};
use crate::api::OpenPath;

/// Most lanes of a process.
pub const LANES_MAX: u32 = 256;

section! {
    /// Identity of this replica. Local: differs on every replica.
    [replica] ReplicaConfig {
        /// Name of this replica, unique in the cluster, equal to the name in its certificate.
        ///
        /// Needed as soon as there are seeds or certificates; alone it is `r1`.
        id: Option<Name> = None, flag "replica-id" Text;
    }
}

section! {
    /// The data port, where clients send their requests.
    [listen] ListenConfig {
        /// Address of the data port. `0.0.0.0` takes requests from everywhere.
        host: IpAddr = LOOPBACK, flag "host" Text;
        /// The data port; 0 takes a free one.
        port: u16 = 30000, flag "port" Text;
        /// Threads that serve clients, each with its own connections to workers. Unset: one for each core that this
        /// process may use, by its affinity and the quota of its cgroup.
        ///
        /// A client's connection stays on one of them, so few busy connections leave some idle. Everything else, such
        /// as gossip, probes and the admin port, has two further threads.
        threads: Option<u32> = None, in Some(1)..=Some(LANES_MAX), flag "threads" Text;
        /// Headers that may carry a client's request id; the first valid one is taken.
        ///
        /// Valid are 1 to 128 letters, digits and `._-:/=+@~`. Without one an id is made. It is sent to the worker,
        /// returned, and logged.
        request_id_headers: Vec<HeaderName> = vec![
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("x-correlation-id"),
            HeaderName::from_static("x-trace-id"),
            HeaderName::from_static("request-id"),
        ], flag "request-id-headers" List, live now;
        /// Networks of proxies whose `X-Forwarded-*`, `Forwarded` and `X-Real-IP` are believed, such as
        /// `"10.0.0.0/8"`.
        ///
        /// From all other addresses they are dropped; workers get `X-Forwarded-For` with the connection's address.
        trusted_proxies: Vec<IpNet> = Vec::new(), flag "trusted-proxies" List;
        /// Paths that workers may be asked for beyond the known ones: a method and a path, or all below one, such
        /// as `"GET /version"` or `"POST /v1/custom/*"`.
        ///
        /// Workers get them with the key of `workers.api_key`. A prefix opens no path that steers an engine
        /// (`/sleep`, `/collective_rpc`, `/metrics`, ...); one that is named in full is opened with a warning.
        open_paths: Vec<OpenPath> = Vec::new(), flag "open-paths" List, live now;
        /// Codings of request bodies that are inflated: gzip, zstd. Empty: a compressed body is 415.
        ///
        /// `limits.body_bytes` holds for what comes out. Workers get the plain body. Each such body takes time of the
        /// thread that serves it, so clients of a fast network gain nothing.
        request_codings: Vec<Coding> = Vec::new(), flag "request-codings" List, live now;
        /// Networks of balancers that pass bytes and begin each connection with a PROXY header (version 1 or 2), such
        /// as "10.0.0.0/8". The client that it names counts as the connection's, also for `trusted_proxies`.
        ///
        /// A connection from there without a PROXY header is closed, so leave out networks that also send other
        /// connections, such as health checks. From everywhere else a header is refused.
        proxy_protocol_from: Vec<IpNet> = Vec::new(), flag "proxy-protocol-from" List;
    }
}

section! {
    /// The admin port: workers, cluster view, explain, readiness, metrics.
    [admin] AdminConfig {
        /// Address of the admin port. Beyond loopback a token of at least 16 characters is required.
        host: IpAddr = LOOPBACK, flag "admin-host" Text;
        /// The admin port; 0 takes a free one.
        port: u16 = 30001, flag "admin-port" Text;
        /// Secret of the admin port: clients send `Authorization: Bearer <token>`.
        ///
        /// Prefer the environment to the command line, where other users can read it.
        token: Option<Secret> = None, flag "admin-token" Text, live now;
        /// Names and networks, besides loopback addresses and `localhost`, under which the admin and metrics ports
        /// are reached: `"ops.example"`, `"*.lab"`, `"10.0.0.0/8"`. Without a token a request under any other
        /// `Host` gets 403 on loopback; pages of these hosts may use the ports.
        allowed_hosts: Vec<AllowedHost> = Vec::new(), flag "admin-allowed-hosts" List, live now;
    }
}

section! {
    /// Prometheus metrics on a port of their own; the admin port has them too.
    [metrics] MetricsConfig {
        /// A port of its own for Prometheus.
        enabled: bool = true, flag "disable-prometheus" Off;
        /// Address of the metrics port. Metrics name workers and models, never prompts.
        host: IpAddr = LOOPBACK, flag "prometheus-host" Text;
        /// The metrics port; 0 takes a free one.
        port: u16 = 29000, flag "prometheus-port" Text;
        /// Workers with series of their own, the first that came; those above it share the label `other`.
        ///
        /// Each costs some 50 lines of every scrape. 0: none has any.
        worker_series: u32 = 1_000, in 0..=100_000;
        /// Models with series of their own, the first that were asked for; those above it share the label `other`.
        ///
        /// Each costs some 150 lines of every scrape, and 40 more for each endpoint that it is asked at.
        model_series: u32 = 100, in 0..=10_000;
    }
}

section! {
    /// How long each step may take. Durations carry a unit: "250ms", "10s", "5min".
    [timeouts] TimeoutConfig {
        /// From accepting a connection to its first byte; over HTTP/2 from there to its first request, too.
        ///
        /// Lower: idle connects cost less memory. Higher: balancers may open connections ahead.
        first_byte: Duration = secs(10), in ms(1)..=HOUR, live now;
        /// From the first byte of a request to the end of its head.
        header: Duration = secs(15), in ms(1)..=HOUR, flag "header-read-timeout-secs" Secs, live now;
        /// How long a body may stay below 1 KiB a second, or below 64 KiB a second while others wait to be read; then 408.
        body_progress: Duration = secs(30), in ms(1)..=HOUR, live now;
        /// How long a client's connection may stay open between two requests.
        ///
        /// Keep it above the idle time of a balancer in front, or it meets closed connections.
        keep_alive: Duration = secs(75), in ms(1)..=HOUR, flag "idle-connection-timeout-secs" Secs, live now;
        /// For a TLS handshake, with a client or with a worker.
        ///
        /// Apart from `connect`, since a busy worker answers it, not its machine.
        tls_handshake: Duration = secs(10), in ms(1)..=secs(600), live now;
        /// To open a connection to a worker.
        connect: Duration = secs(1), in ms(1)..=secs(60), live now;
        /// To the first token of a stream, whatever the prompt's length. For a plain answer, whose first byte is its
        /// last: longest time without any sign of life of its worker, however long the answer takes.
        ///
        /// Covers the worker's queue. Lower: a frozen worker is left sooner. Too low: requests
        /// that only waited are sent twice.
        first_token: Duration = secs(60), in ms(1)..=HOUR, live now;
        /// Added to `first_token` for each 1,000 tokens of the prompt (estimated from its length).
        first_token_per_1k: Duration = secs(2), in Duration::ZERO..=secs(600), live now;
        /// Time without anything for the client of a stream whose answer has not begun, after which it gets the head with
        /// 200 and a comment, and again a comment each such time; 0 is off.
        ///
        /// For boxes before this replica that cut silent connections (many at 60s). The request may still move to another
        /// worker, but one that is refused afterwards gets its error as an event behind a 200.
        stream_comment: Option<Duration> = None, in None..=Some(HOUR), flag "sse-keepalive-secs" Secs, live now;
        /// Longest pause between two events of a stream; comments do not count.
        ///
        /// A frozen engine keeps sending comments, so bytes prove nothing. Of the body of a plain answer: longest time
        /// without a byte and without any sign of life of its worker.
        inter_token: Duration = secs(60), in ms(1)..=HOUR, live now;
        /// Longest silence of an answer whose worker refuses new connections, in place of the two limits above.
        ///
        /// A vLLM that stops closes its port, and its open answers get neither a byte nor an end.
        worker_gone: Duration = secs(5), in ms(1)..=HOUR, live now;
        /// Longest silence of an answer that has begun, once its worker is known to be bad: its checks fail or it is
        /// stalled, and it shows no sign of life. In place of `inter_token`, where that is longer.
        ///
        /// Lower: broken streams end, or go on elsewhere, sooner. Higher: more of them outlive a worker's pause.
        worker_bad: Duration = secs(15), in ms(1)..=HOUR, live now;
        /// Longest time that a client may take nothing of its answer.
        ///
        /// Seen where the replica's kernel has room for more: it takes the next bytes once a good part of the up to
        /// 128 KiB that wait there has gone. So a client that reads less than some 64 KiB in this time is cut, too.
        /// Over HTTP/2 it holds for each stream: one whose client opens no window for 16 KiB of it in this time is reset,
        /// and the others of its connection go on.
        write_stall: Duration = secs(60), in ms(1)..=HOUR, live now;
        /// Longest time of a whole request, all attempts and the stream included; 0 is off. A client that takes nothing
        /// at all is cut by `write_stall`.
        whole_request: Option<Duration> = None, in None..=Some(HOUR * 24 * 365), flag "request-timeout-secs" Secs, live now;
        /// How long an unused connection to a worker is kept.
        ///
        /// Stay below the worker's own keep-alive (5s for vLLM), or requests meet closed
        /// connections.
        upstream_idle: Duration = secs(4), in ms(1)..=HOUR, flag "upstream-pool-idle-timeout-secs" Secs, live now;
        /// How long a worker may take to answer whether it holds a response that another request is about.
        ///
        /// Asked only where this replica does not know. Lower: a worker that hangs delays such a request less.
        response_search: Duration = secs(2), in ms(1)..=secs(60), live now;
        /// After SIGTERM: how long to serve on while balancers see that this replica is not ready.
        settle: Duration = secs(5), in Duration::ZERO..=HOUR, flag "settle-secs" Secs, live now;
        /// After `settle`: how long open requests may take to end; then they are cut.
        drain: Duration = secs(600), in Duration::ZERO..=HOUR * 24, flag "drain-secs" Secs, live now;
    }
}

section! {
    /// What one client, one request, or all together may take. Times reached are in the metrics.
    [limits] LimitConfig {
        /// Connections of clients at once.
        ///
        /// Above it the longest idle one is closed for each that comes. Where all are busy, probes of this replica are
        /// answered, and other requests on further connections get 503.
        connections: u32 = 65_536, in 1..=1_000_000;
        /// Percent of `connections` that one address may hold before its idle ones are the first to be closed.
        ///
        /// Without effect until connections run out. Addresses in `listen.trusted_proxies` stand for many clients and
        /// have no share; with IPv6 a /64 counts as one address.
        address_share_percent: u32 = 25, in 1..=100;
        /// Connections of one address at once; above it its longest idle one is closed, or else the new one.
        ///
        /// Unset: no limit, because behind a NAT or a balancer that is none of `listen.trusted_proxies` all clients
        /// have one address.
        connections_per_address: Option<NonZeroU32> = None;
        /// Requests at once, each counted to the end of its stream; above it they wait (see `[admission]`).
        requests: u32 = 32_768, in 1..=1_000_000, flag "max-concurrent-requests" Text, live now;
        /// Requests at once on one HTTP/2 connection.
        streams_per_connection: u32 = 256, in 1..=65_536, live now;
        /// Bytes of a request's head; above it 431.
        header_bytes: ByteSize = ByteSize::kib(64), in ByteSize::kib(8)..=ByteSize::mib(1), live now;
        /// Header lines of a request; above it 431.
        headers: u32 = 100, in 16..=1_000, live now;
        /// Bytes of a request's body; above it 413.
        ///
        /// A body is held once, until the answer begins, so that it can be sent to another worker.
        body_bytes: ByteSize = ByteSize::mib(16), in ByteSize(1)..=ByteSize::mib(1024),
            flag "max-payload-size" Text, live now;
        /// Bytes of an upload to a path that takes files (`/v1/audio/transcriptions` and its like); above it 413.
        ///
        /// vLLM takes files of 25 MB. An upload is held as a body is: once, and with the same bound for all.
        upload_bytes: ByteSize = ByteSize::mib(32), in ByteSize(1)..=ByteSize::mib(1024), live now;
        /// Bytes of all bodies held at once; above it 503.
        ///
        /// With `body_bytes` the bound on memory: raise it for many long prompts at a time. A body counts once; where its
        /// request is divided between two workers, the bytes of the leg that is sent are held beside it, and those of both
        /// legs while they are sent at once (SGLang, NIXL push): up to three times as much.
        body_bytes_total: ByteSize = ByteSize::mib(1024), in ByteSize(1)..=ByteSize::mib(65_536), live now;
        /// Responses of `/v1/responses` whose worker is remembered; of older ones the workers are asked.
        ///
        /// About 150 bytes each, when they are used.
        response_ids: u32 = 16_384, in 0..=1_000_000;
        /// Memory of this process. From 85 % of it in use, new requests get 503 until it is below 80 %.
        ///
        /// Meanwhile readiness reports it, and idle connections are closed, longest idle first. What the allocator
        /// keeps free does not count below 95 %. Unset: the limit of the process's cgroup, if it has one.
        memory: Option<ByteSize> = None, in Some(ByteSize::mib(1))..=Some(ByteSize::mib(16 << 20));
        /// Bytes of a worker's stream that are held until its first event shows whether it is an answer or a refusal.
        ///
        /// Above it the answer goes on unjudged.
        event_line_bytes: ByteSize = ByteSize::kib(256), in ByteSize::kib(1)..=ByteSize::mib(64), live now;
    }
}

section! {
    /// Logging, to standard error. Prompts, keys and tokens are never logged.
    [log] LogConfig {
        /// Lowest level that is written: trace, debug, info, warn or error. Libraries' lines from warn on, or
        /// from debug on where less was asked for.
        level: Level = Level::INFO, flag "log-level" Text, live now;
        /// One JSON object a line instead of text.
        json: bool = false, flag "log-json" On;
        /// One line for each request, at its end, at level info.
        access: bool = true, flag "disable-access-log" Off, live now;
    }
}
