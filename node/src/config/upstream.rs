//! Settings of workers: the set at the start, retries, breaker, health.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use grapevine_gossip::worker::{DP_SIZE_MAX, Labels, Role, WorkerUrl};
use grapevine_placement::named;

use super::setting::{HOUR, ms, secs};
use super::table::section;
use super::types::{AllowedHost, PrefillUrls, Secret};

named! {
    /// In which version of HTTP workers are asked.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum WorkerHttp2 {
        /// HTTP/1.1.
        Off = "off",
        /// HTTP/2 where an https worker chooses it.
        Tls = "tls",
        /// The same, and HTTP/2 to http workers.
        On = "on",
    }
}

const fn count(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("counts here are not zero")
}

section! {
    /// Workers: the vLLM servers. More can be added while running, through any replica.
    [workers] WorkersConfig {
        /// Workers with no settings of their own, as `http://host:port` or `https://host:port`. See also [[worker]].
        urls: Vec<WorkerUrl> = Vec::new(), flag "worker-urls" List;
        /// Workers that prefill only, each as "URL" or "URL PORT" with its bootstrap port (or "none").
        prefill_urls: PrefillUrls = PrefillUrls::default(), flag "prefill" List;
        /// Workers that decode only.
        decode_urls: Vec<WorkerUrl> = Vec::new(), flag "decode" List;
        /// Data-parallel ranks behind each address of these three lists: with more than one, each rank is a worker,
        /// `url@0` and so on. An address that names its rank is one worker.
        data_parallel_size: u32 = 1, in 1..=DP_SIZE_MAX, flag "intra-node-data-parallel-size" Text;
        /// Key sent to workers as `Authorization: Bearer <key>`, in place of the client's.
        ///
        /// Unset: the client's header goes through.
        api_key: Option<Secret> = None, flag "api-key" Text, live now;
        /// File with that key, in place of `api_key`; read again when it changes.
        ///
        /// One that a reload names is read again at reloads only, until the next start.
        api_key_file: Option<PathBuf> = None, live now;
        /// Authorities (PEM) that sign the certificates of https workers.
        ///
        /// Unset: those of the system (package ca-certificates, or the variable SSL_CERT_FILE). A worker's
        /// certificate must name the host of its URL; there is no way to skip that.
        ca: Option<PathBuf> = None;
        /// Certificate chain (PEM) that this replica shows to https workers that ask for one.
        client_cert: Option<PathBuf> = None;
        /// Private key of `client_cert` (PEM).
        client_key: Option<PathBuf> = None;
        /// In which version of HTTP workers are asked: "off" (HTTP/1.1), "tls" (https workers that choose HTTP/2 in
        /// their handshake), or "on" (those, and http workers, which must then speak it).
        ///
        /// A connection carries one request at a time in both versions. Checks go over HTTP/1.1, and so do the sessions
        /// of /v1/realtime, so a worker must speak both. Use it where what is in front of workers wants HTTP/2; vLLM
        /// itself does not speak it.
        http2: WorkerHttp2 = WorkerHttp2::Off, flag "worker-http2" Text;
        /// Where workers may be: networks such as "10.0.0.0/8", hosts, or "*.domain". Empty: anywhere else
        /// than link-local addresses and the metadata services of clouds.
        ///
        /// Otherwise a client that may add workers could make the router ask those for secrets. Checked when a worker
        /// is added, and at each connection after its name was resolved. A host or domain allows what it
        /// resolves to, but link-local and metadata addresses only as networks.
        allow: Vec<AllowedHost> = Vec::new();
    }
}

section! {
    /// One worker with its own settings; repeat the section for each.
    [worker] WorkerConfig {
        /// Address, as `http://host:port` or `https://host:port`. Required.
        url: WorkerUrl = "http://127.0.0.1:8000".parse().expect("a valid address");
        /// Id in the cluster. Unset: the address, normalised.
        id: Option<String> = None;
        /// Models and adapters it serves. Empty: the worker is asked.
        models: Vec<String> = Vec::new();
        /// Share of keys against other workers.
        weight: f64 = 1.0, in 0.001..=100.0;
        /// Requests in flight above which nothing more is sent to it. Unset: no own limit.
        max_in_flight: Option<u32> = None;
        /// Where it stands. For display, and for `transfer.across_zones`.
        zone: Option<String> = None;
        /// Which half of a request it takes: any (the whole), prefill or decode.
        role: Role = Role::Any;
        /// Number of data-parallel ranks of its engine, where the address names one of them (`url@rank`).
        dp_size: Option<u32> = None, in Some(1)..=Some(DP_SIZE_MAX);
        /// How blocks come to or from it: nixl, mooncake, moriio, p2p_nccl, store, sglang, or vLLM's name of the class.
        /// Unset: as [transfer] connector says.
        kv_connector: Option<String> = None;
        /// Port at its host by which a prefill worker is asked for blocks (Mooncake, SGLang).
        bootstrap_port: Option<u16> = None, in Some(1)..=Some(65535);
        /// Address of its engine's ZMQ side: host:port (P2P NCCL), or host:HOST,handshake:PORT,notify:PORT (MoRI-IO).
        kv_address: Option<String> = None;
        /// What else is to be known of it: a table of names and texts. The three above are such labels, too.
        labels: Labels = Labels::default();
        /// Key sent to this worker in place of [workers] api_key. Local: other replicas do not learn it.
        api_key: Option<Secret> = None;
        /// File with that key, in place of `api_key`; read again when it changes.
        ///
        /// One that a reload names is read again at reloads only, until the next start.
        api_key_file: Option<PathBuf> = None, live now;
    }
}

section! {
    /// Retries: only before the first byte reached the client, each time on another worker.
    [retry] RetryConfig {
        /// Retries at all.
        enabled: bool = true, flag "disable-retries" Off, live now;
        /// Attempts in all, the first included. A connection that is refused is none, unless the worker was known to
        /// refuse.
        max_attempts: NonZeroU32 = count(5), in count(1)..=count(32), flag "retry-max-retries" Text, live now;
        /// Workers that may end while they have one request: then it is sent to no other, and its body is refused for
        /// `quarantine`.
        ///
        /// A process that ends takes along all that it has in hand, so the first end says little. Higher: a request
        /// that ends workers ends so many.
        deaths_max: NonZeroU32 = count(2), in count(1)..=count(32), live now;
        /// How long such a body is refused, by all replicas; 0s: not at all.
        quarantine: Duration = secs(600), in Duration::ZERO..=HOUR * 24, live now;
        /// Pause before the first retry; a refused connection is retried without pause.
        initial_backoff: Duration = ms(50), in Duration::ZERO..=secs(60),
            flag "retry-initial-backoff-ms" Millis, live now;
        /// Longest pause before a retry.
        max_backoff: Duration = secs(30), in Duration::ZERO..=secs(600),
            flag "retry-max-backoff-ms" Millis, live now;
        /// Growth of the pause from one retry to the next.
        backoff_multiplier: f64 = 1.5, in 1.0..=10.0, flag "retry-backoff-multiplier" Text, live now;
        /// Random share by which a pause is lengthened or shortened.
        jitter: f64 = 0.2, in 0.0..=1.0, flag "retry-jitter-factor" Text, live now;
        /// Retries, as a share of requests: of those at once, and over time of those that did not help.
        ///
        /// Keeps an overload from multiplying; a refused connection is retried outside of it.
        budget: f64 = 0.2, in 0.0..=1.0, live now;
        /// Retries that are allowed beyond `budget`.
        budget_floor: u32 = 3, in 0..=10_000, live now;
        /// Longest `Retry-After` of a worker (with 429 or 503) during which nothing is sent to it; 0s: none.
        worker_pause_max: Duration = secs(300), in Duration::ZERO..=secs(300), live now;
    }
}

section! {
    /// Circuit breaker of each worker, fed by the ends of requests; what clients did wrong, 429 and 503 never open it.
    /// While no worker of a model is well, open breakers refuse its requests at once; else panic may overrule them (`cluster.panic`).
    [breaker] BreakerConfig {
        /// Breakers that may open.
        enabled: bool = true, flag "disable-circuit-breaker" Off, live now;
        /// Failures within `window`, with no success between them, that open it.
        ///
        /// Fewer than vllm-router's 10, because each cost a client the time of an attempt.
        failure_threshold: NonZeroU32 = count(5), in count(1)..=count(1_000), flag "cb-failure-threshold" Text, live now;
        /// Successes, one trial request at a time, that close it again.
        success_threshold: NonZeroU32 = count(3), flag "cb-success-threshold" Text, live now;
        /// Share of good ends within `rate_window` below which it opens; 0 is off.
        ///
        /// Finds a worker that fails often but not always. Higher: left sooner, also for single mishaps.
        success_rate: f64 = 0.5, in 0.0..=1.0, live now;
        /// Ends within `rate_window` below which their share says nothing.
        rate_outcomes: NonZeroU32 = count(20), in count(1)..=count(1_000_000), live now;
        /// How far back the share of good ends looks.
        rate_window: Duration = secs(10), in ms(100)..=HOUR, live now;
        /// How long it stays open before the first trial request; twice that when it opens again, then three times, and
        /// so on.
        ///
        /// Shorter than vllm-router's 60s, because only one request at a time is risked.
        open_for: Duration = secs(10), in ms(1)..=HOUR, flag "cb-timeout-duration-secs" Secs, live now;
        /// Longest time that it stays open; never less than `open_for`.
        open_max: Duration = secs(300), in ms(1)..=HOUR * 24, live now;
        /// Random share by which that time is lengthened or shortened.
        jitter: f64 = 0.2, in 0.0..=1.0, live now;
        /// Age beyond which a failure no longer counts; of its times open, half are forgotten for each such time that
        /// it stays closed.
        window: Duration = secs(120), in ms(1)..=HOUR, flag "cb-window-duration-secs" Secs, live now;
    }
}

section! {
    /// Health of workers. It decides which of them are passed over, never which are on the ring.
    [health] HealthConfig {
        /// Time between two checks of a worker.
        interval: Duration = secs(1), in ms(10)..=HOUR, flag "health-check-interval-secs" Secs, live now;
        /// How long a check may take.
        timeout: Duration = secs(2), in ms(1)..=secs(600), flag "health-check-timeout-secs" Secs, live now;
        /// Failed checks in a row that make a worker unhealthy.
        failure_threshold: NonZeroU32 = count(3), flag "health-failure-threshold" Text, live now;
        /// Good checks in a row that make it healthy again.
        success_threshold: NonZeroU32 = count(2), flag "health-success-threshold" Text, live now;
        /// Path that is asked; any 2xx is good.
        path: String = "/health".to_owned(), flag "health-check-endpoint" Text, live now;
        /// How long a worker may take to answer with its metrics or its models. Without an answer, what it reported
        /// before stays true, and it counts as no less healthy.
        scrape_timeout: Duration = secs(5), in ms(1)..=secs(600), live now;
        /// Ask a worker that takes requests and delivers no tokens for one token, until it delivers; also one on which
        /// requests wait in silence, where its metrics do not show that it works.
        ///
        /// Such a worker may well pass its checks: only a token proves it. Off: a client's request tries it, one
        /// at a time, at growing intervals.
        token_probe: bool = true, flag "disable-token-probe" Off, live now;
        /// How long that token may take.
        token_timeout: Duration = secs(10), in ms(10)..=secs(600), live now;
        /// Over this time a worker that restarted, or whose breaker closed, gets back to its share of the load: a
        /// quarter of it at half time. 0 is off. Equal on all replicas, or they differ in where they send meanwhile.
        slow_start: Duration = secs(20), in Duration::ZERO..=HOUR, live now;
        /// A failed request counts on as load of its worker, and half as much after this time; 0 is off.
        ///
        /// Else a worker that fails at once looks idle. Longer: workers are avoided for longer after single failures.
        failure_half_life: Duration = secs(2), in Duration::ZERO..=secs(600), live now;
        /// For how long no worker must have answered before a ready replica says that it is not ready.
        ///
        /// Shorter: balancers leave sooner. Too short: the restart of an only worker takes the whole cluster out.
        unready_after: Duration = secs(3), in Duration::ZERO..=HOUR, live now;
        /// Be ready also while no worker can be reached, or none is known: requests then get this replica's 503,
        /// which says why, instead of the error of a balancer that has no replica left.
        ready_without_workers: bool = false, flag "ready-without-workers" On, live now;
    }
}
