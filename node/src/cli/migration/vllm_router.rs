//! The flags of vllm-router 0.1.17: those of its launcher, then those that only its Rust binary has.

use super::row::{Here, Row, rows};

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

pub(super) const ROWS: &[Row] = rows! {
    "host": Served("");
    "port": Served("");
    "worker-urls": Served(WORKER_URLS);
    "enable-program-scheduling": Refused(SESSIONS);
    "program-scheduling-config-json": Refused(SESSIONS);
    "policy": Served("default prefix; names are below");
    "prefill-policy": Served(PREFILL_POLICY);
    "decode-policy": Served(DECODE_POLICY);
    "router-temperature": Only(&["0"], "choices are not random here; leave it out");
    "kv-penalty-host": Served("");
    "kv-penalty-external": Only(&["0.6"], EXTERNAL);
    "kv-penalty-disk": Served("");
    "kv-aware-session-affinity-ttl-secs": Refused(SESSIONS);
    "kv-event-source": Refused(KV_EVENTS);
    "kv-event-replay-source": Refused(KV_EVENTS);
    "kv-event-block-size": Only(&["16"], KV_EVENTS);
    "kv-event-model": Refused(KV_EVENTS);
    "pd-kv-events": Refused(KV_EVENTS);
    "mini-lb": Refused("use `grapevine balancer` in front of several replicas");
    "vllm-pd-disaggregation": Accepted(PD);
    "prefill": Served(PREFILL);
    "decode": Served("");
    "worker-startup-timeout-secs": Accepted(STARTUP);
    "worker-startup-check-interval": Accepted(STARTUP);
    "cache-threshold": Served(THRESHOLD);
    "balance-abs-threshold": Served(THRESHOLD);
    "balance-rel-threshold": Served(THRESHOLD);
    "eviction-interval-secs": Only(&["120"], TREE);
    "max-tree-size": Only(&["33554432"], TREE);
    "max-payload-size": Served("default 16 MiB, not 512; units may be written, as in 64MiB");
    "wasm-middleware": Refused(WASM);
    "wasm-middleware-sha256": Refused(WASM);
    "wasm-middleware-route": Refused(WASM);
    "intra-node-data-parallel-size": Served(RANKS);
    "enable-igw": Accepted(MODELS);
    "api-key": Served("goes to workers in place of the client's; clients' keys are --api-keys-file");
    "log-dir": Refused(LOGS);
    "log-level": Served("`critical` means `error`");
    "service-discovery": Served(WATCH);
    "selector": Served(SELECTOR);
    "service-discovery-port": Served("");
    "service-discovery-namespace": Served(NAMESPACE);
    "prefill-selector": Served(ROLE);
    "decode-selector": Served(ROLE);
    "vllm-discovery-address":
        Served("an address, no name; a worker that pings any replica is known to all, and lasts 10 s without a ping, not 5");
    "kv-connector": Served(CONNECTOR);
    "prometheus-port": Served("the admin port has the metrics, too");
    "prometheus-host": Served("");
    "request-id-headers": Served(REQUEST_ID);
    "request-timeout-secs":
        Served("off by default, not 1800 s; what is stuck is found by the timeouts of single steps");
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
    "max-concurrent-requests": Served("counted to the end of the answer, with a part kept for each model");
    "queue-size": Served("");
    "queue-timeout-secs": Served("then 503, not 408");
    "rate-limit-tokens-per-second": Refused(RATE);
    "cors-allowed-origins": Served("");
    "epd-config": Refused(ENCODE);
    "api-key-validation-urls": Refused("keys are checked here: list their hashes in --api-keys-file");
    "backend": Only(&["vllm", "openai"], "workers are vLLM servers with the OpenAI API; leave it out");
    "runtime": Only(&["vllm", "openai"], "workers are vLLM servers with the OpenAI API; leave it out");
    "enable-trace": Refused("traces are on when --otlp-traces-endpoint is given; leave it out");
    "otlp-traces-endpoint": Served("a URL; `host:port`, which is gRPC there, with --otlp-traces-protocol grpc");
    "otel-sampling-ratio": Served("");
    "otel-excluded-paths":
        Only(&["/health", "/health_generate", "/liveness", "/readiness"], "health checks and lists of models are not traced; leave it out");
    "pool-idle-timeout-secs": Renamed("upstream-pool-idle-timeout-secs", "default 4 s, not 2");
    "history-backend": Only(&["none"], "answers are not stored; leave it out");
    "profile": Refused("leave it out");
};
