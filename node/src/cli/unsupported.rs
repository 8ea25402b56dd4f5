//! vllm-router's flags that Grapevine does not have, each with what to do instead.

const PD: &str = "Grapevine does not split prefill and decode; give whole workers by --worker-urls";
const KV_EVENTS: &str = "the policy `prefix` needs no events from workers; leave it out";
const TREE: &str = "what is known of caches is bounded by cluster.sketch_entries_max and \
     sketch_age_max, see `grapevine serve --print-config`";
const DISCOVERY: &str = "give workers by --worker-urls, in the file, or while running by \
     `grapevine workers add`";
const STARTUP: &str = "the router does not wait for workers: each is checked every \
     --health-check-interval-secs and used when it answers";
const WASM: &str = "there are no modules; put a proxy in front for what they do";
const BACKEND: &str = "workers are vLLM servers with the OpenAI API; leave it out";

/// Flag without dashes, and what replaces it.
pub(super) const UNSUPPORTED: &[(&str, &str)] = &[
    (
        "enable-program-scheduling",
        "leave it out; sessions stay on their worker by the ring",
    ),
    (
        "program-scheduling-config-json",
        "leave it out; sessions stay on their worker by the ring",
    ),
    ("prefill-policy", PD),
    ("decode-policy", PD),
    (
        "router-temperature",
        "choices are not random here; leave it out",
    ),
    ("kv-penalty-host", KV_EVENTS),
    ("kv-penalty-external", KV_EVENTS),
    ("kv-penalty-disk", KV_EVENTS),
    (
        "kv-aware-session-affinity-ttl-secs",
        "sessions stay on their worker by the ring; leave it out",
    ),
    ("kv-event-source", KV_EVENTS),
    ("kv-event-replay-source", KV_EVENTS),
    ("kv-event-block-size", KV_EVENTS),
    ("kv-event-model", KV_EVENTS),
    ("pd-kv-events", KV_EVENTS),
    (
        "mini-lb",
        "use `grapevine balancer` in front of several replicas",
    ),
    ("vllm-pd-disaggregation", PD),
    ("prefill", PD),
    ("decode", PD),
    ("prefill-selector", PD),
    ("decode-selector", PD),
    ("vllm-discovery-address", PD),
    ("kv-connector", PD),
    ("epd-config", PD),
    ("worker-startup-timeout-secs", STARTUP),
    ("worker-startup-check-interval", STARTUP),
    ("eviction-interval-secs", TREE),
    ("max-tree-size", TREE),
    ("wasm-middleware", WASM),
    ("wasm-middleware-sha256", WASM),
    ("wasm-middleware-route", WASM),
    (
        "intra-node-data-parallel-size",
        "write one worker for each rank, as http://host:port@rank",
    ),
    (
        "enable-igw",
        "one router serves many models as it is; leave it out",
    ),
    (
        "log-dir",
        "logs go to standard error; let the service manager keep them",
    ),
    ("service-discovery", DISCOVERY),
    ("selector", DISCOVERY),
    ("service-discovery-port", DISCOVERY),
    ("service-discovery-namespace", DISCOVERY),
    (
        "rate-limit-tokens-per-second",
        "give each client a key with requests_per_minute (--api-keys-file); \
     --max-concurrent-requests limits all together",
    ),
    (
        "cors-allowed-origins",
        "set CORS headers in the balancer in front",
    ),
    (
        "api-key-validation-urls",
        "keys are checked here: list their hashes in --api-keys-file",
    ),
    ("backend", BACKEND),
    ("runtime", BACKEND),
    (
        "enable-trace",
        "traces are on when --otlp-traces-endpoint is given; leave it out",
    ),
    (
        "otel-excluded-paths",
        "health checks and lists of models are not traced; leave it out",
    ),
    ("history-backend", "answers are not stored; leave it out"),
    ("profile", "leave it out"),
];
