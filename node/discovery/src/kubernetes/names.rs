//! Names of the labels and annotations of a pod that are read, ours before those of other routers.

/// Ports of the workers in the pod, separated by commas.
pub(super) const PORTS: &[&str] = &[
    "grapevine/ports",
    "smg.ai/worker-ports",
    "model.aibrix.ai/port",
];
pub(super) const ROLE: &[&str] = &["grapevine/role", "llm-d.ai/role"];
/// Names under which the worker serves, separated by commas; else the worker is asked.
pub(super) const MODELS: &[&str] = &["grapevine/models"];
pub(super) const WEIGHT: &[&str] = &["grapevine/weight"];
pub(super) const ZONE: &[&str] = &["grapevine/zone", "topology.kubernetes.io/zone"];
pub(super) const SCHEME: &[&str] = &["grapevine/scheme"];
pub(super) const MAX_IN_FLIGHT: &[&str] = &["grapevine/max-in-flight"];
pub(super) const DP_SIZE: &[&str] = &["grapevine/dp-size"];
/// Port on which a prefill worker hands over what it computed.
pub(super) const BOOTSTRAP_PORT: &[&str] = &[
    "grapevine/bootstrap-port",
    "vllm.ai/bootstrap-port",
    "sglang.ai/bootstrap-port",
];
/// Ids of the engines, one for each port.
pub(super) const ENGINE_ID: &[&str] = &["grapevine/engine-id", "smg.ai/kv-engine-id"];
/// How blocks come to or from the worker.
pub(super) const CONNECTOR: &[&str] = &["grapevine/kv-connector", "smg.ai/kv-connector"];
/// `host:port` of the engine's ZMQ side.
pub(super) const KV_ADDRESS: &[&str] = &["grapevine/kv-address"];
/// Any other labels, as `name=value` separated by commas.
pub(super) const LABELS: &[&str] = &["grapevine/labels"];

const ALL: [&[&str]; 13] = [
    PORTS,
    ROLE,
    MODELS,
    WEIGHT,
    ZONE,
    SCHEME,
    MAX_IN_FLIGHT,
    DP_SIZE,
    BOOTSTRAP_PORT,
    ENGINE_ID,
    CONNECTOR,
    KV_ADDRESS,
    LABELS,
];

/// Is this the name of a label or annotation that is read?
pub(super) fn is_known(name: &str) -> bool {
    ALL.iter().any(|names| names.contains(&name))
}
