//! The flags of SMG 1.13.0 (SGLang Model Gateway, formerly sglang-router).

use super::row::{Row, accepted, differs, means, only, refused, renamed, served};
use super::vllm_router::{
    ATTEMPTS, BREAKER_WINDOW, DECODE_POLICY, ENCODE, INTERVAL, LOGS, MODELS, NAMESPACE, PREFILL,
    PREFILL_POLICY, RATE, REQUEST_ID, ROLE, SELECTOR, STARTUP, THRESHOLD, TREE, WATCH, WORKER_URLS,
};

const BUCKETS: &str = "the policy bucket is not here; leave it out";
const PD_QUEUES: &str = "give prefill workers max_in_flight in their [[worker]] sections; the queue is that of --queue-size";
const ANNOTATION: &str = "annotations are read under their own names; leave it out";
const PREFIX: &str =
    "the policy `prefix` finds by itself how much of a prompt names its home; leave it out";
const BOUND: &str =
    "the bound is cluster.bound and bound_slack, over the whole cluster, in the file";
const LOADS: &str = "load is counted over the whole cluster and never polled; leave it out";
const FULL: &str =
    "give a worker max_in_flight in its [[worker]] section; its own refusals move a request on";
const FROZEN: &str =
    "a worker without tokens is found by timeouts.first_token and inter_token, in the file";
const WARM: &str = "[warmup] and health.slow_start in the file say how a worker begins";
const SELECTION: &str =
    "choices follow from counts and caches, see [cluster] in the file; leave it out";
const STICKY: &str =
    "sessions stay on their worker by the ring, without a table that ends; leave it out";
const RANKS: &str = "write one worker for each rank, as http://host:port@rank, or give their number with \
     --intra-node-data-parallel-size";
const RL: &str = "the data port does not control engines; ask the workers themselves";
const JOBS: &str = "workers are added at once, without jobs; leave it out";
const MEDIA: &str = "images and audio go to the worker as they came; set its own limits";
const PARSING: &str = "workers tokenise, apply templates and parse; give it to vLLM";
const MCP: &str = "tools are run by clients or by the worker, not here";
const STORE: &str = "answers are not stored here; leave it out";
const WASM: &str = "there are no modules; put a proxy in front for what they do";
const QUEUES: &str =
    "classes, tenants and their shares are [admission] in the file and --api-keys-file";
const ADMIN: &str = "the admin port has one token, --admin-token";
const TOKENS: &str = "clients have keys, --api-keys-file; put a proxy in front that checks tokens";
const MESH: &str = "replicas find each other by --seed; `grapevine ca init` and `ca issue` make their certificates";
const ENGINE: &str = "workers are vLLM servers with the OpenAI API over HTTP; leave it out";
const TRUST: &str =
    "set cluster.tenant_header in the file; with --api-keys-file the key names the tenant";
const PROFILING: &str = "there is no profiler; leave it out";

pub(super) const ROWS: &[Row] = &[
    differs(&["host"], "default 127.0.0.1, not 0.0.0.0"),
    served(&["port"]),
    differs(&["worker-urls"], WORKER_URLS),
    refused(
        &["upstream-http2"],
        "say --worker-http2 on, or tls; it is not tried out which worker speaks HTTP/2, and a connection carries one request",
    ),
    differs(
        &["upstream-pool-idle-timeout-secs"],
        "default 4 s, not 3; not 0",
    ),
    refused(
        &["health-check-port"],
        "the admin port answers checks, too, as /readyz and /healthz: --admin-host, --admin-port",
    ),
    differs(&["policy"], "default prefix; names are below"),
    refused(&["encode-policy"], ENCODE),
    differs(&["prefill-policy"], PREFILL_POLICY),
    differs(&["decode-policy"], DECODE_POLICY),
    differs(&["cache-threshold", "cache-match-threshold"], THRESHOLD),
    only(&["prefix-token-count"], &["256"], PREFIX),
    only(&["prefix-hash-load-factor"], &["1.25"], BOUND),
    only(&["prefix-hash-balance-abs-threshold"], &["10"], BOUND),
    only(&["least-load-kv-pressure-weight"], &["0.15"], LOADS),
    only(&["least-load-default-throughput"], &["2000"], LOADS),
    only(&["least-load-mean-prefill-tokens"], &["1024"], LOADS),
    only(&["least-load-max-waiting-requests"], &["0"], LOADS),
    only(
        &["power-of-two-load-metric"],
        &["requests", "least_requests"],
        LOADS,
    ),
    differs(&["balance-abs-threshold", "spill-abs-threshold"], THRESHOLD),
    differs(&["balance-rel-threshold", "spill-rel-threshold"], THRESHOLD),
    only(&["balance-token-usage-threshold"], &["1"], LOADS),
    only(&["overload-token-usage-threshold"], &["1"], LOADS),
    only(&["worker-overload-waiting-requests"], &["8"], FULL),
    only(&["worker-overload-token-usage"], &["0.8"], FULL),
    refused(&["worker-overload-protection"], FULL),
    accepted(
        &["disable-worker-overload-protection"],
        "workers are not left out for their queue or cache usage",
    ),
    refused(&["worker-overload-shed"], FULL),
    only(&["kv-index"], &["positional"], SELECTION),
    only(&["worker-stall-secs"], &["2"], FROZEN),
    only(&["worker-wedge-secs"], &["3"], FROZEN),
    only(&["worker-stale-secs"], &["15"], FROZEN),
    only(&["worker-warmup-secs"], &["60"], WARM),
    only(&["worker-warmup-share"], &["0.25"], WARM),
    only(&["worker-warmup-blocks"], &["1024"], WARM),
    only(&["worker-warmup-thin-ratio"], &["0.5"], WARM),
    only(&["worker-warmup-divert-every"], &["8"], WARM),
    only(&["selection-policy"], &["cache-aware-default"], SELECTION),
    only(&["selection-accounting-ttl-ms"], &["0"], SELECTION),
    only(&["overlap-decay"], &["0"], SELECTION),
    only(
        &["selection-temperature"],
        &["0"],
        "choices are not random here; leave it out",
    ),
    only(&["bucket-adjust-interval-secs"], &["5"], BUCKETS),
    only(&["eviction-interval-secs"], &["60"], TREE),
    only(&["max-tree-size"], &["67108864"], TREE),
    only(
        &["block-size"],
        &["16"],
        "texts are compared without tokens, in pieces of 256 bytes; leave it out",
    ),
    refused(&["cache-boundaries"], PREFIX),
    only(&["cache-index"], &["tree"], TREE),
    only(&["cache-ttl-secs"], &["180"], TREE),
    only(
        &["max-idle-secs", "sticky-key-idle-secs"],
        &["14400"],
        STICKY,
    ),
    refused(&["assignment-mode"], STICKY),
    differs(
        &["max-payload-size"],
        "default 16 MiB, not 512; units may be written, as in 64MiB",
    ),
    accepted(
        &["max-buffered-request-bytes"],
        "every body is held until its answer begins, within limits.body_bytes_total",
    ),
    only(&["pd-admission-wait-secs"], &["30"], PD_QUEUES),
    only(
        &["stream-body-stall-timeout-secs"],
        &["300"],
        "a body below 1 KiB a second is 408 after timeouts.body_progress",
    ),
    only(
        &["sse-keepalive-secs"],
        &["0"],
        "vLLM sends its own comments, and a stream's head waits for its first event; leave it out",
    ),
    refused(&["dp-aware"], RANKS),
    accepted(
        &["routing-key-override", "sticky-sessions"],
        "a session stays with its worker under the policies prefix, sticky and consistent_hash",
    ),
    differs(
        &["routing-key-headers"],
        "x-session-id and x-smg-routing-key count first, always",
    ),
    refused(&["dp-minimum-tokens-scheduler"], RANKS),
    accepted(&["enable-igw"], MODELS),
    refused(&["enable-rl"], RL),
    only(&["rl-control-timeout-secs"], &["600"], RL),
    only(&["rl-fanout-concurrency"], &["32"], RL),
    means(
        &["pd-disaggregation"],
        "kv-connector",
        "sglang",
        "for vLLM workers give --kv-connector besides",
    ),
    refused(&["epd-disaggregation"], ENCODE),
    refused(&["encode"], ENCODE),
    differs(&["prefill"], PREFILL),
    served(&["decode"]),
    only(
        &["prefill-max-inflight-requests-per-worker"],
        &["-1"],
        PD_QUEUES,
    ),
    refused(&["prefill-queue-size"], PD_QUEUES),
    refused(&["prefill-queue-timeout-secs"], PD_QUEUES),
    accepted(&["worker-startup-timeout-secs"], STARTUP),
    accepted(&["worker-startup-delay"], STARTUP),
    accepted(&["worker-startup-check-interval"], STARTUP),
    accepted(&["job-queue-capacity"], JOBS),
    accepted(&["job-queue-concurrency"], JOBS),
    accepted(
        &["load-monitor-interval"],
        "load is counted over the whole cluster and never polled",
    ),
    accepted(
        &["disable-load-monitoring"],
        "load is counted over the whole cluster and never polled",
    ),
    refused(&["multimodal-tensor-transport"], MEDIA),
    refused(&["multimodal-shm-min-bytes"], MEDIA),
    refused(&["multimodal-max-inflight-bytes"], MEDIA),
    refused(&["mm-per-request-image-limit"], MEDIA),
    only(&["mm-processing"], &["worker"], MEDIA),
    refused(&["mm-pixel-cache-mb"], MEDIA),
    refused(&["mm-pixel-rdma"], MEDIA),
    refused(&["mm-allowed-media-domains"], MEDIA),
    refused(&["mm-allow-private-media-hosts"], MEDIA),
    refused(&["rdma-listen-ip"], MEDIA),
    refused(&["rdma-slot-ttl-s"], MEDIA),
    refused(&["log-mm-timing"], MEDIA),
    refused(&["log-dir"], LOGS),
    served(&["log-level"]),
    served(&["log-json"]),
    differs(&["service-discovery"], WATCH),
    refused(
        &["discovery-provider"],
        "leave it out: --service-discovery watches pods, --worker-files reads files, and both may be given",
    ),
    refused(
        &["discovery-file"],
        "write the workers into files for --worker-files, which are looked at every 2 s",
    ),
    refused(
        &["discovery-check-interval-secs"],
        "leave it out: pods are watched, and files are looked at after files.every, in the file",
    ),
    differs(&["selector"], SELECTOR),
    served(&["service-discovery-port"]),
    differs(&["service-discovery-namespace"], NAMESPACE),
    only(
        &["kv-connector-annotation"],
        &["smg.ai/kv-connector"],
        ANNOTATION,
    ),
    only(
        &["kv-engine-id-annotation"],
        &["smg.ai/kv-engine-id"],
        ANNOTATION,
    ),
    refused(&["encode-selector"], ENCODE),
    differs(&["prefill-selector"], ROLE),
    differs(&["decode-selector"], ROLE),
    refused(&["router-selector"], MESH),
    refused(
        &["model-id-from"],
        "leave it out: a worker is asked for its models, unless its pod's annotation or label grapevine/models names them",
    ),
    refused(
        &["model-alias"],
        "write [[model]] with name and targets into the file, or give the worker the name",
    ),
    differs(&["prometheus-port"], "the admin port has the metrics, too"),
    differs(
        &["prometheus-host"],
        "default 127.0.0.1, whatever --host is; not 0.0.0.0",
    ),
    refused(
        &["prometheus-duration-buckets"],
        "buckets are fixed, so that replicas can be added up; leave it out",
    ),
    refused(&["jemalloc-prof-dir"], PROFILING),
    differs(&["request-id-headers"], REQUEST_ID),
    refused(&["storage-context-headers"], STORE),
    differs(
        &["request-timeout-secs"],
        "off by default, not 1800 s; what is stuck is found by the timeouts of single steps",
    ),
    renamed(
        &["shutdown-grace-period-secs"],
        "drain-secs",
        "default 600 s, not 180",
    ),
    differs(
        &["header-read-timeout-secs"],
        "from the first byte of a head; default 15 s, not 30; not 0",
    ),
    differs(
        &["idle-connection-timeout-secs"],
        "default 75 s, not 90; not 0",
    ),
    refused(&["trust-tenant-header"], TRUST),
    only(&["tenant-header-name"], &["x-smg-tenant-id"], TRUST),
    served(&["cors-allowed-origins"]),
    differs(
        &["max-concurrent-requests"],
        "-1 leaves the default, 32,768; not 0; a part is kept for each model",
    ),
    served(&["queue-size"]),
    served(&["queue-timeout-secs"]),
    refused(&["rate-limit-tokens-per-second"], RATE),
    accepted(
        &["max-background-responses"],
        "workers hold background responses, within their own limits",
    ),
    refused(&["priority-scheduler-enabled"], QUEUES),
    only(
        &["priority-scheduler-default-max-class"],
        &["default"],
        QUEUES,
    ),
    refused(&["priority-scheduler-config"], QUEUES),
    accepted(
        &["priority-scheduler-tenant-metric-top-n"],
        "series are made for tenants with keys only",
    ),
    refused(&["tenant-rate-limit-enabled"], QUEUES),
    refused(&["tenant-rate-limit-config"], QUEUES),
    differs(&["retry-max-retries"], ATTEMPTS),
    served(&["retry-initial-backoff-ms"]),
    served(&["retry-max-backoff-ms"]),
    served(&["retry-backoff-multiplier"]),
    served(&["retry-jitter-factor"]),
    served(&["disable-retries"]),
    differs(&["cb-failure-threshold"], "default 5, not 10"),
    differs(&["cb-success-threshold"], "one trial request at a time"),
    differs(
        &["cb-timeout-duration-secs"],
        "default 10 s, not 60; grows when it opens again",
    ),
    differs(&["cb-window-duration-secs"], BREAKER_WINDOW),
    served(&["disable-circuit-breaker"]),
    served(&["health-failure-threshold"]),
    served(&["health-success-threshold"]),
    differs(&["health-check-timeout-secs"], "default 2 s, not 5"),
    differs(&["health-check-interval-secs"], INTERVAL),
    served(&["health-check-endpoint"]),
    refused(
        &["disable-health-check"],
        "a worker that is not checked is never known to be back; raise --health-check-interval-secs",
    ),
    refused(
        &["remove-unhealthy-workers", "worker-auto-recovery"],
        "a worker stays registered, is passed over while it is sick, and comes back by itself; leave it out",
    ),
    accepted(
        &["no-remove-unhealthy-workers", "no-worker-auto-recovery"],
        "a worker stays registered, is passed over while it is sick, and comes back by itself",
    ),
    refused(&["model-path", "model"], PARSING),
    refused(&["tokenizer-path"], PARSING),
    refused(&["chat-template"], PARSING),
    accepted(
        &["disable-tokenizer-autoload"],
        "no tokenizer is needed here",
    ),
    only(&["parser"], &["legacy"], PARSING),
    refused(&["tokenizer-cache-enable-l0"], PARSING),
    accepted(
        &["tokenizer-cache-l0-max-entries"],
        "no tokenizer is needed here",
    ),
    refused(&["tokenizer-cache-enable-l1"], PARSING),
    accepted(
        &["tokenizer-cache-l0-max-memory"],
        "no tokenizer is needed here",
    ),
    accepted(
        &["tokenizer-cache-l1-max-memory"],
        "no tokenizer is needed here",
    ),
    refused(&["reasoning-parser"], PARSING),
    refused(&["tool-call-parser"], PARSING),
    refused(&["mcp-config-path"], MCP),
    only(&["backend"], &["vllm", "openai"], ENGINE),
    refused(&["zmq-engine-count"], ENGINE),
    refused(&["enable-wasm"], WASM),
    refused(&["storage-hook-wasm-path"], WASM),
    only(&["history-backend"], &["none"], STORE),
    accepted(
        &["history-memory-max-responses"],
        "answers are not stored here",
    ),
    accepted(&["history-memory-max-items"], "answers are not stored here"),
    accepted(
        &["history-memory-retention-secs"],
        "answers are not stored here",
    ),
    refused(&["oracle-wallet-path"], STORE),
    refused(&["oracle-tns-alias"], STORE),
    refused(&["oracle-connect-descriptor"], STORE),
    refused(&["oracle-username"], STORE),
    refused(&["oracle-password"], STORE),
    refused(&["oracle-external-auth"], STORE),
    only(&["oracle-pool-min"], &["1"], STORE),
    only(&["oracle-pool-max"], &["16"], STORE),
    only(&["oracle-pool-timeout-secs"], &["30"], STORE),
    refused(&["postgres-db-url"], STORE),
    only(&["postgres-pool-max"], &["16"], STORE),
    only(&["postgres-op-timeout-secs"], &["5"], STORE),
    refused(&["redis-url"], STORE),
    only(&["redis-pool-max"], &["16"], STORE),
    only(&["redis-retention-days"], &["30"], STORE),
    only(&["redis-op-timeout-secs"], &["5"], STORE),
    refused(&["schema-config"], STORE),
    refused(&["client-cert-path"], "set workers.client_cert in the file"),
    refused(&["client-key-path"], "set workers.client_key in the file"),
    refused(
        &["ca-cert-paths"],
        "set workers.ca in the file, to one file with all authorities",
    ),
    renamed(
        &["tls-cert-path"],
        "ssl-certfile",
        "read again when it changes",
    ),
    renamed(
        &["tls-key-path"],
        "ssl-keyfile",
        "read again when it changes",
    ),
    refused(
        &["enable-trace"],
        "traces are on when --otlp-traces-endpoint is given; leave it out",
    ),
    differs(
        &["otlp-traces-endpoint"],
        "a URL, unset by default; `host:port`, which is gRPC there, with --otlp-traces-protocol grpc",
    ),
    differs(
        &["api-key"],
        "goes to workers in place of the client's; clients' keys are --api-keys-file",
    ),
    refused(
        &["tenant-api-key"],
        "clients' keys are --api-keys-file, each with its tenant; `grapevine keys new` makes one",
    ),
    refused(&["control-plane-api-keys"], ADMIN),
    refused(
        &["control-plane-audit-enabled"],
        "every change of the workers is a line of the log; leave it out",
    ),
    refused(&["jwt-issuer"], TOKENS),
    refused(&["jwt-audience"], TOKENS),
    refused(&["jwt-jwks-uri"], TOKENS),
    refused(&["jwt-role-mapping"], TOKENS),
    refused(&["enable-mesh"], MESH),
    refused(
        &["mesh-server-name"],
        "--replica-id names a replica, as its certificate does",
    ),
    refused(
        &["mesh-host"],
        "--gossip-host is the address of the gossip port",
    ),
    refused(
        &["mesh-advertise-host"],
        "--gossip-advertise is host:port as others reach it",
    ),
    refused(&["mesh-port"], "--gossip-port is the gossip port (UDP)"),
    refused(
        &["mesh-peer-urls"],
        "--seed names the gossip port of others, as host:port",
    ),
    refused(&["mesh-tls-ca-cert"], MESH),
    refused(&["mesh-tls-cert"], MESH),
    refused(&["mesh-tls-key"], MESH),
];
