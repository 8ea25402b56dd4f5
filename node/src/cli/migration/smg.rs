//! The flags of SMG 1.13.0 (SGLang Model Gateway, formerly sglang-router).

use super::row::{Here, Row, rows};
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

pub(super) const ROWS: &[Row] = rows! {
    "host": Served("default 127.0.0.1, not 0.0.0.0");
    "port": Served("");
    "worker-urls": Served(WORKER_URLS);
    "upstream-http2":
        Refused("say --worker-http2 on, or tls; it is not tried out which worker speaks HTTP/2, and a connection carries one request");
    "upstream-pool-idle-timeout-secs": Served("default 4 s, not 3; not 0");
    "health-check-port":
        Refused("the admin port answers checks, too, as /readyz and /healthz: --admin-host, --admin-port");
    "policy": Served("default prefix; names are below");
    "encode-policy": Refused(ENCODE);
    "prefill-policy": Served(PREFILL_POLICY);
    "decode-policy": Served(DECODE_POLICY);
    "cache-threshold" or "cache-match-threshold": Served(THRESHOLD);
    "prefix-token-count": Only(&["256"], PREFIX);
    "prefix-hash-load-factor": Only(&["1.25"], BOUND);
    "prefix-hash-balance-abs-threshold": Only(&["10"], BOUND);
    "least-load-kv-pressure-weight": Only(&["0.15"], LOADS);
    "least-load-default-throughput": Only(&["2000"], LOADS);
    "least-load-mean-prefill-tokens": Only(&["1024"], LOADS);
    "least-load-max-waiting-requests": Only(&["0"], LOADS);
    "power-of-two-load-metric": Only(&["requests", "least_requests"], LOADS);
    "balance-abs-threshold" or "spill-abs-threshold": Served(THRESHOLD);
    "balance-rel-threshold" or "spill-rel-threshold": Served(THRESHOLD);
    "balance-token-usage-threshold": Only(&["1"], LOADS);
    "overload-token-usage-threshold": Only(&["1"], LOADS);
    "worker-overload-waiting-requests": Only(&["8"], FULL);
    "worker-overload-token-usage": Only(&["0.8"], FULL);
    "worker-overload-protection": Refused(FULL);
    "disable-worker-overload-protection": Accepted("workers are not left out for their queue or cache usage");
    "worker-overload-shed": Refused(FULL);
    "kv-index": Only(&["positional"], SELECTION);
    "worker-stall-secs": Only(&["2"], FROZEN);
    "worker-wedge-secs": Only(&["3"], FROZEN);
    "worker-stale-secs": Only(&["15"], FROZEN);
    "worker-warmup-secs": Only(&["60"], WARM);
    "worker-warmup-share": Only(&["0.25"], WARM);
    "worker-warmup-blocks": Only(&["1024"], WARM);
    "worker-warmup-thin-ratio": Only(&["0.5"], WARM);
    "worker-warmup-divert-every": Only(&["8"], WARM);
    "selection-policy": Only(&["cache-aware-default"], SELECTION);
    "selection-accounting-ttl-ms": Only(&["0"], SELECTION);
    "overlap-decay": Only(&["0"], SELECTION);
    "selection-temperature": Only(&["0"], "choices are not random here; leave it out");
    "bucket-adjust-interval-secs": Only(&["5"], BUCKETS);
    "eviction-interval-secs": Only(&["60"], TREE);
    "max-tree-size": Only(&["67108864"], TREE);
    "block-size": Only(&["16"], "texts are compared without tokens, in pieces of 256 bytes; leave it out");
    "cache-boundaries": Refused(PREFIX);
    "cache-index": Only(&["tree"], TREE);
    "cache-ttl-secs": Only(&["180"], TREE);
    "max-idle-secs" or "sticky-key-idle-secs": Only(&["14400"], STICKY);
    "assignment-mode": Refused(STICKY);
    "max-payload-size": Served("default 16 MiB, not 512; units may be written, as in 64MiB");
    "max-buffered-request-bytes":
        Accepted("every body is held until its answer begins, within limits.body_bytes_total");
    "pd-admission-wait-secs": Only(&["30"], PD_QUEUES);
    "stream-body-stall-timeout-secs": Only(&["300"], "a body below 1 KiB a second is 408 after timeouts.body_progress");
    "sse-keepalive-secs":
        Served("off by default, not 15 s; until the first event alone: within a stream vLLM sends its own comments");
    "dp-aware": Refused(RANKS);
    "routing-key-override" or "sticky-sessions":
        Accepted("a session stays with its worker under the policies prefix, sticky and consistent_hash");
    "routing-key-headers": Served("x-session-id and x-smg-routing-key count first, always");
    "dp-minimum-tokens-scheduler": Refused(RANKS);
    "enable-igw": Accepted(MODELS);
    "enable-rl": Refused(RL);
    "rl-control-timeout-secs": Only(&["600"], RL);
    "rl-fanout-concurrency": Only(&["32"], RL);
    "pd-disaggregation": Means("kv-connector", "sglang", "for vLLM workers give --kv-connector besides");
    "epd-disaggregation": Refused(ENCODE);
    "encode": Refused(ENCODE);
    "prefill": Served(PREFILL);
    "decode": Served("");
    "prefill-max-inflight-requests-per-worker": Only(&["-1"], PD_QUEUES);
    "prefill-queue-size": Refused(PD_QUEUES);
    "prefill-queue-timeout-secs": Refused(PD_QUEUES);
    "worker-startup-timeout-secs": Accepted(STARTUP);
    "worker-startup-delay": Accepted(STARTUP);
    "worker-startup-check-interval": Accepted(STARTUP);
    "job-queue-capacity": Accepted(JOBS);
    "job-queue-concurrency": Accepted(JOBS);
    "load-monitor-interval": Accepted("load is counted over the whole cluster and never polled");
    "disable-load-monitoring": Accepted("load is counted over the whole cluster and never polled");
    "multimodal-tensor-transport": Refused(MEDIA);
    "multimodal-shm-min-bytes": Refused(MEDIA);
    "multimodal-max-inflight-bytes": Refused(MEDIA);
    "mm-per-request-image-limit": Refused(MEDIA);
    "mm-processing": Only(&["worker"], MEDIA);
    "mm-pixel-cache-mb": Refused(MEDIA);
    "mm-pixel-rdma": Refused(MEDIA);
    "mm-allowed-media-domains": Refused(MEDIA);
    "mm-allow-private-media-hosts": Refused(MEDIA);
    "rdma-listen-ip": Refused(MEDIA);
    "rdma-slot-ttl-s": Refused(MEDIA);
    "log-mm-timing": Refused(MEDIA);
    "log-dir": Refused(LOGS);
    "log-level": Served("");
    "log-json": Served("");
    "service-discovery": Served(WATCH);
    "discovery-provider":
        Refused("leave it out: --service-discovery watches pods, --worker-files reads files, and both may be given");
    "discovery-file": Refused("write the workers into files for --worker-files, which are looked at every 2 s");
    "discovery-check-interval-secs":
        Refused("leave it out: pods are watched, and files are looked at after files.every, in the file");
    "selector": Served(SELECTOR);
    "service-discovery-port": Served("");
    "service-discovery-namespace": Served(NAMESPACE);
    "kv-connector-annotation": Only(&["smg.ai/kv-connector"], ANNOTATION);
    "kv-engine-id-annotation": Only(&["smg.ai/kv-engine-id"], ANNOTATION);
    "encode-selector": Refused(ENCODE);
    "prefill-selector": Served(ROLE);
    "decode-selector": Served(ROLE);
    "router-selector": Refused(MESH);
    "model-id-from":
        Refused("leave it out: a worker is asked for its models, unless its pod's annotation or label grapevine/models names them");
    "model-alias": Refused("write [[model]] with name and targets into the file, or give the worker the name");
    "prometheus-port": Served("the admin port has the metrics, too");
    "prometheus-host": Served("default 127.0.0.1, whatever --host is; not 0.0.0.0");
    "prometheus-duration-buckets": Refused("buckets are fixed, so that replicas can be added up; leave it out");
    "jemalloc-prof-dir": Refused(PROFILING);
    "request-id-headers": Served(REQUEST_ID);
    "storage-context-headers": Refused(STORE);
    "request-timeout-secs":
        Served("off by default, not 1800 s; what is stuck is found by the timeouts of single steps");
    "shutdown-grace-period-secs": Renamed("drain-secs", "default 600 s, not 180");
    "header-read-timeout-secs": Served("from the first byte of a head; default 15 s, not 30; not 0");
    "idle-connection-timeout-secs": Served("default 75 s, not 90; not 0");
    "trust-tenant-header": Refused(TRUST);
    "tenant-header-name": Only(&["x-smg-tenant-id"], TRUST);
    "cors-allowed-origins": Served("");
    "max-concurrent-requests": Served("-1 leaves the default, 32,768; not 0; a part is kept for each model");
    "queue-size": Served("");
    "queue-timeout-secs": Served("");
    "rate-limit-tokens-per-second": Refused(RATE);
    "max-background-responses": Accepted("workers hold background responses, within their own limits");
    "priority-scheduler-enabled": Refused(QUEUES);
    "priority-scheduler-default-max-class": Only(&["default"], QUEUES);
    "priority-scheduler-config": Refused(QUEUES);
    "priority-scheduler-tenant-metric-top-n": Accepted("series are made for tenants with keys only");
    "tenant-rate-limit-enabled": Refused(QUEUES);
    "tenant-rate-limit-config": Refused(QUEUES);
    "retry-max-retries": Served(ATTEMPTS);
    "retry-initial-backoff-ms": Served("");
    "retry-max-backoff-ms": Served("");
    "retry-backoff-multiplier": Served("");
    "retry-jitter-factor": Served("");
    "disable-retries": Served("");
    "cb-failure-threshold": Served("default 5, not 10");
    "cb-success-threshold": Served("one trial request at a time");
    "cb-timeout-duration-secs": Served("default 10 s, not 60; grows when it opens again");
    "cb-window-duration-secs": Served(BREAKER_WINDOW);
    "disable-circuit-breaker": Served("");
    "health-failure-threshold": Served("");
    "health-success-threshold": Served("");
    "health-check-timeout-secs": Served("default 2 s, not 5");
    "health-check-interval-secs": Served(INTERVAL);
    "health-check-endpoint": Served("");
    "disable-health-check":
        Refused("a worker that is not checked is never known to be back; raise --health-check-interval-secs");
    "remove-unhealthy-workers" or "worker-auto-recovery":
        Refused("a worker stays registered, is passed over while it is sick, and comes back by itself; leave it out");
    "no-remove-unhealthy-workers" or "no-worker-auto-recovery":
        Accepted("a worker stays registered, is passed over while it is sick, and comes back by itself");
    "model-path" or "model": Refused(PARSING);
    "tokenizer-path": Refused(PARSING);
    "chat-template": Refused(PARSING);
    "disable-tokenizer-autoload": Accepted("no tokenizer is needed here");
    "parser": Only(&["legacy"], PARSING);
    "tokenizer-cache-enable-l0": Refused(PARSING);
    "tokenizer-cache-l0-max-entries": Accepted("no tokenizer is needed here");
    "tokenizer-cache-enable-l1": Refused(PARSING);
    "tokenizer-cache-l0-max-memory": Accepted("no tokenizer is needed here");
    "tokenizer-cache-l1-max-memory": Accepted("no tokenizer is needed here");
    "reasoning-parser": Refused(PARSING);
    "tool-call-parser": Refused(PARSING);
    "mcp-config-path": Refused(MCP);
    "backend": Only(&["vllm", "openai"], ENGINE);
    "zmq-engine-count": Refused(ENGINE);
    "enable-wasm": Refused(WASM);
    "storage-hook-wasm-path": Refused(WASM);
    "history-backend": Only(&["none"], STORE);
    "history-memory-max-responses": Accepted("answers are not stored here");
    "history-memory-max-items": Accepted("answers are not stored here");
    "history-memory-retention-secs": Accepted("answers are not stored here");
    "oracle-wallet-path": Refused(STORE);
    "oracle-tns-alias": Refused(STORE);
    "oracle-connect-descriptor": Refused(STORE);
    "oracle-username": Refused(STORE);
    "oracle-password": Refused(STORE);
    "oracle-external-auth": Refused(STORE);
    "oracle-pool-min": Only(&["1"], STORE);
    "oracle-pool-max": Only(&["16"], STORE);
    "oracle-pool-timeout-secs": Only(&["30"], STORE);
    "postgres-db-url": Refused(STORE);
    "postgres-pool-max": Only(&["16"], STORE);
    "postgres-op-timeout-secs": Only(&["5"], STORE);
    "redis-url": Refused(STORE);
    "redis-pool-max": Only(&["16"], STORE);
    "redis-retention-days": Only(&["30"], STORE);
    "redis-op-timeout-secs": Only(&["5"], STORE);
    "schema-config": Refused(STORE);
    "client-cert-path": Refused("set workers.client_cert in the file");
    "client-key-path": Refused("set workers.client_key in the file");
    "ca-cert-paths": Refused("set workers.ca in the file, to one file with all authorities");
    "tls-cert-path": Renamed("ssl-certfile", "read again when it changes");
    "tls-key-path": Renamed("ssl-keyfile", "read again when it changes");
    "enable-trace": Refused("traces are on when --otlp-traces-endpoint is given; leave it out");
    "otlp-traces-endpoint":
        Served("a URL, unset by default; `host:port`, which is gRPC there, with --otlp-traces-protocol grpc");
    "api-key": Served("goes to workers in place of the client's; clients' keys are --api-keys-file");
    "tenant-api-key":
        Refused("clients' keys are --api-keys-file, each with its tenant; `grapevine keys new` makes one");
    "control-plane-api-keys": Refused(ADMIN);
    "control-plane-audit-enabled": Refused("every change of the workers is a line of the log; leave it out");
    "jwt-issuer": Refused(TOKENS);
    "jwt-audience": Refused(TOKENS);
    "jwt-jwks-uri": Refused(TOKENS);
    "jwt-role-mapping": Refused(TOKENS);
    "enable-mesh": Refused(MESH);
    "mesh-server-name": Refused("--replica-id names a replica, as its certificate does");
    "mesh-host": Refused("--gossip-host is the address of the gossip port");
    "mesh-advertise-host": Refused("--gossip-advertise is host:port as others reach it");
    "mesh-port": Refused("--gossip-port is the gossip port (UDP)");
    "mesh-peer-urls": Refused("--seed names the gossip port of others, as host:port");
    "mesh-tls-ca-cert": Refused(MESH);
    "mesh-tls-cert": Refused(MESH);
    "mesh-tls-key": Refused(MESH);
};
