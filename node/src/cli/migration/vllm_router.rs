//! The flags of vllm-router 0.1.17: those of its launcher, then those that only its Rust binary has.

use super::row::{Row, accepted, differs, only, refused, renamed, served};

pub(super) const PD: &str = "workers of --prefill and --decode share each request as it is; roles of single workers are in the file, too";
pub(super) const ENCODE: &str =
    "encoders are not used here; prefill workers encode what their prompts hold";
pub(super) const PREFILL_POLICY: &str = "default that of --policy; names are those of --policy";
pub(super) const DECODE_POLICY: &str = "default least_kv; names are those of --policy";
pub(super) const PREFILL: &str = "several, each with its bootstrap port or `none` behind it";
const CONNECTOR: &str = "of workers that do not name their own; default nixl";
const RANKS: &str = "each rank is a worker, http://host:port@rank";
const KV_EVENTS: &str = "leave it out; workers say where they publish, or the label kv.events does";
const EXTERNAL: &str = "memory on other hosts counts as storage; leave it out";
pub(super) const TREE: &str = "what is known of caches is bounded by cluster.prefix_index_entries_max and \
     prefix_index_age_max, see `grapevine serve --print-config`";
pub(super) const WATCH: &str = "pods that are not ready keep their place on the ring; pods that are gone leave it after a while";
pub(super) const SELECTOR: &str = "the server selects; in the file also sets, as `tier in (a,b)`; one of the three selectors is needed";
pub(super) const NAMESPACE: &str =
    "several may be given; default that of the replica's own pod, not all, which is `*`";
pub(super) const REQUEST_ID: &str =
    "1 to 128 letters, digits and `._-:/=+@~`, else a new id is made; either reaches the worker";
pub(super) const ROLE: &str = "gives the role of those pods' workers";
pub(super) const STARTUP: &str = "the router does not wait for workers: each is checked every \
     --health-check-interval-secs and used when it answers";
const WASM: &str = "there are no modules; put a proxy in front for what they do";
const SESSIONS: &str = "leave it out; sessions stay on their worker by the ring";
pub(super) const RATE: &str = "give each client a key with requests_per_minute (--api-keys-file); \
     --max-concurrent-requests limits all together";
pub(super) const LOGS: &str = "logs go to standard error; let the service manager keep them";
pub(super) const MODELS: &str = "one router serves many models as it is";
pub(super) const ATTEMPTS: &str = "attempts in all, the first included, inside a budget";
pub(super) const BREAKER_WINDOW: &str = "takes effect; there it is never read";
pub(super) const INTERVAL: &str = "default 1 s, not 60; two replicas check each worker";
pub(super) const THRESHOLD: &str = "of the policy cache_aware";

pub(super) const WORKER_URLS: &str = "one URL or more; leave it out where there are none";

pub(super) const ROWS: &[Row] = &[
    served(&["host"]),
    served(&["port"]),
    differs(&["worker-urls"], WORKER_URLS),
    refused(&["enable-program-scheduling"], SESSIONS),
    refused(&["program-scheduling-config-json"], SESSIONS),
    differs(&["policy"], "default prefix; names are below"),
    differs(&["prefill-policy"], PREFILL_POLICY),
    differs(&["decode-policy"], DECODE_POLICY),
    only(
        &["router-temperature"],
        &["0"],
        "choices are not random here; leave it out",
    ),
    served(&["kv-penalty-host"]),
    only(&["kv-penalty-external"], &["0.6"], EXTERNAL),
    served(&["kv-penalty-disk"]),
    refused(&["kv-aware-session-affinity-ttl-secs"], SESSIONS),
    refused(&["kv-event-source"], KV_EVENTS),
    refused(&["kv-event-replay-source"], KV_EVENTS),
    only(&["kv-event-block-size"], &["16"], KV_EVENTS),
    refused(&["kv-event-model"], KV_EVENTS),
    refused(&["pd-kv-events"], KV_EVENTS),
    refused(
        &["mini-lb"],
        "use `grapevine balancer` in front of several replicas",
    ),
    accepted(&["vllm-pd-disaggregation"], PD),
    differs(&["prefill"], PREFILL),
    served(&["decode"]),
    accepted(&["worker-startup-timeout-secs"], STARTUP),
    accepted(&["worker-startup-check-interval"], STARTUP),
    differs(&["cache-threshold"], THRESHOLD),
    differs(&["balance-abs-threshold"], THRESHOLD),
    differs(&["balance-rel-threshold"], THRESHOLD),
    only(&["eviction-interval-secs"], &["120"], TREE),
    only(&["max-tree-size"], &["33554432"], TREE),
    differs(
        &["max-payload-size"],
        "default 16 MiB, not 512; units may be written, as in 64MiB",
    ),
    refused(&["wasm-middleware"], WASM),
    refused(&["wasm-middleware-sha256"], WASM),
    refused(&["wasm-middleware-route"], WASM),
    differs(&["intra-node-data-parallel-size"], RANKS),
    accepted(&["enable-igw"], MODELS),
    differs(
        &["api-key"],
        "goes to workers in place of the client's; clients' keys are --api-keys-file",
    ),
    refused(&["log-dir"], LOGS),
    differs(&["log-level"], "`critical` means `error`"),
    differs(&["service-discovery"], WATCH),
    differs(&["selector"], SELECTOR),
    served(&["service-discovery-port"]),
    differs(&["service-discovery-namespace"], NAMESPACE),
    differs(&["prefill-selector"], ROLE),
    differs(&["decode-selector"], ROLE),
    differs(
        &["vllm-discovery-address"],
        "an address, no name; a worker that pings any replica is known to all, and lasts 10 s without a ping, not 5",
    ),
    differs(&["kv-connector"], CONNECTOR),
    differs(&["prometheus-port"], "the admin port has the metrics, too"),
    served(&["prometheus-host"]),
    differs(&["request-id-headers"], REQUEST_ID),
    differs(
        &["request-timeout-secs"],
        "off by default, not 1800 s; what is stuck is found by the timeouts of single steps",
    ),
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
    differs(
        &["max-concurrent-requests"],
        "counted to the end of the answer, with a part kept for each model",
    ),
    served(&["queue-size"]),
    differs(&["queue-timeout-secs"], "then 503, not 408"),
    refused(&["rate-limit-tokens-per-second"], RATE),
    served(&["cors-allowed-origins"]),
    refused(&["epd-config"], ENCODE),
    refused(
        &["api-key-validation-urls"],
        "keys are checked here: list their hashes in --api-keys-file",
    ),
    only(
        &["backend"],
        &["vllm", "openai"],
        "workers are vLLM servers with the OpenAI API; leave it out",
    ),
    only(
        &["runtime"],
        &["vllm", "openai"],
        "workers are vLLM servers with the OpenAI API; leave it out",
    ),
    refused(
        &["enable-trace"],
        "traces are on when --otlp-traces-endpoint is given; leave it out",
    ),
    differs(
        &["otlp-traces-endpoint"],
        "a URL; `host:port`, which is gRPC there, with --otlp-traces-protocol grpc",
    ),
    served(&["otel-sampling-ratio"]),
    only(
        &["otel-excluded-paths"],
        &["/health", "/health_generate", "/liveness", "/readiness"],
        "health checks and lists of models are not traced; leave it out",
    ),
    renamed(
        &["pool-idle-timeout-secs"],
        "upstream-pool-idle-timeout-secs",
        "default 4 s, not 2",
    ),
    only(
        &["history-backend"],
        &["none"],
        "answers are not stored; leave it out",
    ),
    refused(&["profile"], "leave it out"),
];
